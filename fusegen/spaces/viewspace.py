"""Elementwise work behind views: where does every element of a result come from?

A kernel computes its result element by element. Walking from the result to the operands, each view says
at which position of its operand the wanted element lies; a position along an axis is kept as digits of the
element's number, so that axes which a view splits or merges meet again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fusegen import dims
from fusegen.dims import Dim, Dims
from fusegen.ir import (
    HALVES,
    WIDE_INTEGERS,
    CatOp,
    ConstOp,
    DType,
    Edge,
    ExpandOp,
    FillOp,
    FlipOp,
    GatherOp,
    Graph,
    InputOp,
    InterpolateOp,
    MatmulOp,
    Node,
    PadOp,
    PermuteOp,
    PointwiseOp,
    RangeOp,
    ReduceOp,
    ResampleOp,
    ReshapeOp,
    SliceOp,
    TriangleOp,
    UnfoldOp,
)
from fusegen.pointwise import POINTWISE
from fusegen.spaces.parts import indices, part_of
from fusegen.spaces.rowspace import NotFusable, aligned, analyze

STRIDED = (ExpandOp, PermuteOp, SliceOp, UnfoldOp)
"""Views whose results torch lays out as their data lies."""
_OTHERS = (CatOp, PadOp, FlipOp, ResampleOp, InterpolateOp, UnfoldOp, ExpandOp, TriangleOp, FillOp, RangeOp)
VIEWS = (ReshapeOp, PermuteOp, SliceOp, *_OTHERS)
FETCHES = (*VIEWS, GatherOp)
"""What kernels read through: views, and elements that others name."""
ELSEWHERE = (*_OTHERS, GatherOp)
"""Those that no row space has."""
NUMBER = "index"
"""What kernels call the number of an element of the result."""
MOST_READS = 32
"""Operands that one element of a result may come from."""


@dataclass(frozen=True)
class Digit:
    """``of / stride % size``, where ``of`` is below ``total``: a number that the kernel has by this name, or a position
    that follows from others."""

    of: Moved | Between | Named | str
    stride: Dim
    size: Dim
    total: Dim


Place: TypeAlias = tuple[Digit, ...]
"""A position along an axis: digits, the most significant first; none on an axis of size 1."""
Places: TypeAlias = tuple[Place, ...]
Terms: TypeAlias = tuple[tuple[Place, int], ...]
"""Places, and how far each step along one goes."""
Joined: TypeAlias = "list[tuple[Digit, Dim]]"
"""Digits of a place, and what each is multiplied by."""


@dataclass(frozen=True)
class Moved:
    """``(start + the sum of terms) // divisor``; where that is outside of an axis of ``size``, as ``edge`` has it."""

    terms: Terms
    start: Dim
    divisor: int = 1
    edge: Edge | None = None
    size: Dim = 0

    @property
    def linear(self) -> bool:
        return self.divisor == 1 and not self.edge


@dataclass(frozen=True)
class Between:
    """The element of an axis of ``size`` that ``op``, whose result is wanted at ``place``, finds at or before its own
    place, or the one ``behind`` that."""

    place: Place
    op: InterpolateOp
    size: Dim
    behind: bool = False

    @property
    def terms(self) -> Terms:
        return ((self.place, 1),)

    @property
    def may_stay(self) -> bool:
        """Whether the axis may be as long as the result's, where every element stays."""
        sizes = self.op.length, self.size
        ratios = dims.exact_quotient(*sizes), dims.exact_quotient(*sizes[::-1])
        return not isinstance(dims.sub(*sizes), int) and all(ratio is None or ratio == 1 for ratio in ratios)


@dataclass(frozen=True)
class Named:
    """The place along an axis of ``size`` that element ``place`` of ``index`` names, an operand or a reshape of one."""

    place: Place
    index: str
    size: Dim
    wraps: bool

    @property
    def terms(self) -> Terms:
        return ((self.place, 1),)


@dataclass(frozen=True)
class Span:
    """True where ``place``, less another one, is at ``start`` or behind it, and before ``stop``; None: no bound."""

    place: Place
    start: Dim | None
    stop: Dim | None
    less: Place = ()


@dataclass(frozen=True)
class Read:
    """Operand ``name`` of a node, wanted at ``places`` where all of ``spans`` hold."""

    name: str
    places: Places
    spans: tuple[Span, ...] = ()


def sum_of(digit: Digit) -> Moved | None:
    """The sum of others that ``digit`` is all of, if it is one."""
    whole = digit.stride == 1 and digit.size == digit.total
    return digit.of if whole and isinstance(digit.of, Moved) and digit.of.linear else None


def position(of: Moved | Between | Named | str, size: Dim) -> Place:
    """All of a number below ``size`` as a position along an axis."""
    return (Digit(of, 1, size, size),) if size != 1 else ()


def whole(shape: Dims, number: str = NUMBER) -> Places:
    """The position of element ``number`` of a row-major tensor, along each axis."""
    total, found = dims.product(shape), list[Place]()
    stride: Dim = 1
    for size in reversed(shape):
        found.insert(0, (Digit(number, stride, size, total),) if size != 1 else ())
        stride = dims.mul(stride, size)
    return tuple(found)


def row_major(shape: Dims) -> list[Dim]:
    """How far apart neighbours along each axis of a row-major tensor are."""
    strides: list[Dim] = []
    stride: Dim = 1
    for size in reversed(shape):
        strides.insert(0, stride)
        stride = dims.mul(stride, size)
    return strides


def joined(places: Iterable[tuple[Place, Dim]], sizes: Mapping[str, int]) -> Joined:
    """Digits and their strides, the least first; those that lie side by side become one again."""
    parts: Joined = []
    for place, stride in places:
        for digit in reversed(place):
            parts.append((digit, stride))
            stride = dims.mul(stride, digit.size)
    parts.sort(key=lambda part: abs(dims.numel((part[1],), sizes)))
    found: Joined = []
    for digit, stride in parts:
        last, step = found[-1] if found else (digit, stride)
        beside = last.of == digit.of and digit.stride == dims.mul(last.stride, last.size)
        if found and beside and stride == dims.mul(step, last.size):
            found[-1] = Digit(last.of, last.stride, dims.mul(last.size, digit.size), last.total), step
        else:
            found.append((digit, stride))
    return found


def _moved(place: Place, length: Dim, size: Dim, start: Dim, step: int = 1) -> Place:
    """``start + step * place`` along an axis of ``size`` elements, where ``place`` is below ``length``."""
    if (length, start, step) == (size, 0, 1):
        return place
    return position(Moved(((place, step),), start), size)


def regrouped(places: Places, shape: Dims) -> Places:
    """Positions in the operand, of ``shape``, of a reshape whose result is wanted at ``places``."""
    left = [digit for place in places for digit in place]
    number = tuple(left)
    found: list[Place] = []
    for wanted in shape:
        taken: list[Digit] = []
        size: Dim = 1
        while size != wanted:
            part = dims.exact_quotient(wanted, size)
            if not left or part is None:
                return _divided(number, shape)
            digit = left.pop(0)
            if dims.exact_quotient(part, digit.size) is None:  # it goes further than this axis
                rest = dims.exact_quotient(digit.size, part)
                if rest is None:
                    return _divided(number, shape)
                left.insert(0, Digit(digit.of, digit.stride, rest, digit.total))
                digit = Digit(digit.of, dims.mul(digit.stride, rest), part, digit.total)
            size = dims.mul(size, digit.size)
            taken.append(digit)
        found.append(tuple(taken))
    return tuple(found)


def _divided(number: Place, shape: Dims) -> Places:
    """Positions in a row-major tensor of its element ``number``, whose digits are no positions of it."""
    return tuple(
        tuple(Digit(Moved(((number, 1),), 0), digit.stride, digit.size, digit.total) for digit in place)
        for place in whole(shape)
    )


def reads(node: Node, operands: list[Node], places: Places) -> tuple[Read, ...]:
    """What ``node`` reads for its element at ``places``. Raises ``NotFusable``."""

    def broadcast(operand: Node) -> Read:
        pairs = sorted((axis, target) for target, axis in aligned(node.type.rank, operand))
        return Read(operand.name, tuple(places[t] if operand.type.shape[a] != 1 else () for a, t in pairs))

    def at(axis: int, place: Place) -> Places:
        return (*places[:axis], place, *places[axis + 1 :])

    first = operands[0]
    match node.op:
        case PointwiseOp() | ExpandOp():
            return tuple(map(broadcast, operands))
        case ReshapeOp():
            return (Read(first.name, regrouped(places, first.type.shape)),)
        case PermuteOp(order=order):
            return (Read(first.name, tuple(places[order.index(axis)] for axis in range(len(order)))),)
        case SliceOp(axis=axis, start=start, step=step):
            place = _moved(places[axis], node.type.shape[axis], first.type.shape[axis], start, step)
            return (Read(first.name, at(axis, place)),)
        case FlipOp(axes=axes):
            for axis in axes:
                size = first.type.shape[axis]
                places = at(axis, _moved(places[axis], size, size, dims.sub(size, 1), -1))
            return (Read(first.name, places),)
        case ResampleOp(axis=axis, start=start, step=step, divisor=divisor, edge=edge):
            size = first.type.shape[axis]
            moved = Moved(((places[axis], step),), start, divisor, edge, size)
            return (Read(first.name, at(axis, position(moved, size))),)
        case UnfoldOp(axis=axis, step=step, dilation=dilation):
            windows = Moved(((places[axis], step), (places[axis + 1], dilation)), 0)
            place = position(windows, first.type.shape[axis])
            return (Read(first.name, (*places[:axis], place, *places[axis + 2 :])),)
        case GatherOp(axis=axis, wraps=wraps):
            size, index = first.type.shape[axis], operands[1]
            behind = axis + index.type.rank
            number = tuple(digit for place in places[axis:behind] for digit in place)
            place = (Digit(Named(number, index.name, size, wraps), 1, size, size),)
            return (Read(first.name, (*places[:axis], place, *places[behind:])),)
        case InterpolateOp(axis=axis, mode=mode) as op:
            size = first.type.shape[axis]
            if size == op.length:
                return (Read(first.name, places),)
            sides = [Between(places[axis], op, size, behind) for behind in (False, True)[: 1 + (mode == "linear")]]
            return tuple(Read(first.name, at(axis, position(side, size))) for side in sides)
        case PadOp(before=before, after=after):
            spans, inside = list[Span](), list[Place]()
            for axis, (place, size, low, high) in enumerate(zip(places, first.type.shape, before, after, strict=True)):
                if low or high:
                    spans.append(Span(place, low or None, dims.add(size, low) if high else None))
                inside.append(_moved(place, node.type.shape[axis], size, -low))
            return (Read(first.name, tuple(inside), tuple(spans)),)
        case TriangleOp(upper=upper, diagonal=diagonal):
            span = Span(places[-1], diagonal if upper else None, None if upper else diagonal + 1, places[-2])
            return (Read(first.name, places, (span,)),)
        case FillOp() | RangeOp():
            return ()
        case CatOp(axis=axis):
            found, start = list[Read](), 0
            for i, operand in enumerate(operands):
                size = operand.type.shape[axis]
                stop = dims.add(start, size)
                span = Span(places[axis], start if i else None, stop if i + 1 < len(operands) else None)
                place = _moved(places[axis], node.type.shape[axis], size, dims.sub(0, start))
                found.append(Read(operand.name, at(axis, place), (span,)))
                start = stop
            return tuple(found)
    raise NotFusable(f"{node.name} ({node.op.kind}) is not elementwise or a view")


def takes(body: Graph) -> bool:
    """True for elementwise nodes and views alone, of which no row space has every element where it is needed.

    Raises ``NotFusable`` where other nodes are among such views.
    """
    work = [node.op for node in body.nodes if not isinstance(node.op, (InputOp, ConstOp))]
    if any(isinstance(op, (MatmulOp, ReduceOp)) for op in work):
        return False  # see viewproduct and viewreduce
    elementwise = all(isinstance(op, (PointwiseOp, *FETCHES)) for op in work)
    elsewhere = [op for op in work if isinstance(op, ELSEWHERE)]
    if not elementwise and not all(isinstance(op, GatherOp) for op in elsewhere):  # kernels of rows fetch, too
        raise NotFusable("what is joined, padded or spread is read as it lies")
    if elsewhere or not elementwise:
        return elementwise
    try:
        space = analyze(body)
    except NotFusable:
        return True
    return any(space.base_axes(name) != space.base_axes(space.source) for name in body.outputs)


def copies(node: Node, body: Graph) -> bool:
    """True where torch would write the result of a view, or of elementwise work."""
    if isinstance(node.op, ReshapeOp):
        source = body.node(node.inputs[0])
        return isinstance(source.op, (PermuteOp, UnfoldOp)) or _joins_copies(source, node, body)
    written = (PointwiseOp, CatOp, PadOp, FlipOp, ResampleOp, InterpolateOp, GatherOp, TriangleOp)
    return isinstance(node.op, written) or is_copied(node, body)


def _joins_copies(spread: Node, reshaped: Node, body: Graph) -> bool:
    """Whether a reshape makes one axis of copies that lie nowhere and of what does: no view has such strides."""
    if not isinstance(spread.op, ExpandOp):
        return False
    own, shape = body.shape(spread.inputs[0]), body.shape(spread.name)
    own = (1,) * (len(shape) - len(own)) + own
    axes = [(size, before != size) for before, size in zip(own, shape, strict=True) if size != 1]
    after = tuple(size for size in body.shape(reshaped.name) if size != 1)
    runs = dims.regrouped(tuple(size for size, _ in axes), after) if 0 not in after else None
    return any(len({axes[i][1] for i in joined}) > 1 for joined, _ in runs or ())


def lies_in_one_piece(part: Node) -> bool:
    """Whether a slice of what lies row by row does so, too."""
    assert isinstance(part.op, SliceOp)
    return part.op.step == 1 and all(size == 1 for size in part.type.shape[: part.op.axis])


def is_copied(node: Node, graph: Graph) -> bool:
    """Whether a view is a result that eager lays out row by row, and its data lies otherwise."""
    if not isinstance(node.op, STRIDED) or node.name not in graph.by_rows:
        return False
    if isinstance(node.op, SliceOp):
        return not lies_in_one_piece(node)
    return not isinstance(node.op, PermuteOp) or not dims.keeps_order(node.op.order, node.type.shape)


def _writer(body: Graph) -> Node:
    """What writes the result of ``body``, which may be reshaped then; or, where it is fetched, in another order."""
    node = body.node(body.outputs[0])
    if isinstance(node.op, PermuteOp) and isinstance(body.node(node.inputs[0]).op, GatherOp):
        return body.node(node.inputs[0])
    while isinstance(node.op, ReshapeOp) and not copies(node, body):
        node = body.node(node.inputs[0])
    return node


def pays(body: Graph) -> bool:
    """False where torch itself writes the result of one view at once, whole rows of it; padding it writes twice.

    Windows it reads element by element, as they lie in memory, where caches have most of them already.
    """
    writer = _writer(body)
    source = body.node(writer.inputs[0]) if isinstance(writer.op, ReshapeOp) else writer
    source = body.node(body.outputs[0]) if isinstance(writer.op, GatherOp) else source
    turned = isinstance(source.op, PermuteOp) and source.op.order[-1] != source.type.rank - 1
    spread = {name for node in body.nodes if isinstance(node.op, CatOp) for name in node.inputs}  # joined by elements
    written = sum(
        copies(node, body) or isinstance(node.op, FillOp) or (isinstance(node.op, ExpandOp) and node.name in spread)
        for node in body.nodes
    )
    windows = any(isinstance(node.op, UnfoldOp) for node in body.nodes)
    return turned or windows or isinstance(writer.op, (PointwiseOp, PadOp, ResampleOp, InterpolateOp)) or written > 1


def numbered(body: Graph) -> list[Dims]:
    """The shapes of ranges: a kernel's positions go as far, however few of their numbers it reads."""
    return [node.type.shape for node in body.nodes if isinstance(node.op, RangeOp)]


def check_elements(body: Graph, floats: tuple[DType, ...]) -> None:
    """Raises ``NotFusable`` where a value is none of ``floats`` and no integer that kernels compute with, or the
    function of one that they do not compute; and where elements are fetched of what is no operand, or by what is none.
    """
    places, by_name = indices(body), body.by_name
    for node in body.nodes:
        if node.name in places:
            continue
        fetched = isinstance(node.op, GatherOp)
        if fetched and part_of(node, by_name) is None:
            raise NotFusable(f"{node.name} fetches what is computed, or from where it is computed")
        if node.type.dtype not in (*floats, *WIDE_INTEGERS):
            raise NotFusable(f"{node.name} is {node.type.dtype.value}; kernels compute in float32")
        dtypes = {node.type.dtype, *(by_name[name].type.dtype for name in node.inputs[: 1 if fetched else None])}
        integers = not isinstance(node.op, (FillOp, RangeOp)) and bool(dtypes & WIDE_INTEGERS)
        views = isinstance(node.op, (InputOp, ConstOp, *FETCHES)) and not isinstance(node.op, InterpolateOp)
        computed = isinstance(node.op, PointwiseOp) and POINTWISE[node.op.fn].integer
        if integers and not views and not computed:
            raise NotFusable(f"{node.name} ({node.op.kind}) is of integers; kernels compute it in float32")
        if dtypes & WIDE_INTEGERS and dtypes & HALVES:
            raise NotFusable(f"{node.name} is of integers and of 16-bit floats")


def refusal(body: Graph, few: bool) -> str | None:
    """Why no kernel computes ``body``, elementwise work and views, or None. Raises ``NotFusable`` too.

    ``few``: the results are few, so that several functions of the same shape may be.
    """
    sink, *others = map(body.node, body.outputs)
    functions = all(isinstance(node.op, PointwiseOp) and node.type.shape == sink.type.shape for node in (sink, *others))
    if others and not (few and functions):
        return "it is read outside the kernel too"
    if isinstance(sink.op, FillOp):
        return "one number throughout"
    if not copies(_writer(body), body):
        return "its result is laid out in another way than the data: a view is free"
    if isinstance(sink.op, RangeOp):
        return "numbers that torch writes"
    check_elements(body, (DType.FLOAT32, DType.BOOL, *HALVES))
    found = sum(loads(body, name, whole(sink.type.shape)) for name in body.outputs)
    return f"an element of its result may come from {found} places" if found > MOST_READS else None


def loads(body: Graph, name: str, places: Places) -> int:
    """Operands that an element of ``name`` may come from, each where it is read. Raises ``NotFusable``."""
    seen: set[tuple[str, Places]] = set()
    pending = [(name, places)]
    found = 0
    while pending:
        name, places = pending.pop()
        node = body.node(name)
        if (name, places) in seen or isinstance(node.op, ConstOp):
            continue
        seen.add((name, places))
        if isinstance(node.op, InputOp):
            found += 1
            continue
        pending += [(r.name, r.places) for r in reads(node, [body.node(n) for n in node.inputs], places)]
    return found
