"""Where does every element of a result come from, that views put there?

A kernel computes its result element by element. Walking from the result to the operands, each view says
at which position of its operand the wanted element lies; a position along an axis is kept as digits of the
element's number, so that axes which a view splits or merges meet again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fusegen import dims
from fusegen.dims import Dim, Dims
from fusegen.ir import (
    CatOp,
    ConstOp,
    Edge,
    ExpandOp,
    FillOp,
    FlipOp,
    GatherElementsOp,
    GatherOp,
    Graph,
    InputOp,
    InterpolateOp,
    Node,
    PadOp,
    PermuteOp,
    PointwiseOp,
    RangeOp,
    ResampleOp,
    ReshapeOp,
    SliceOp,
    TriangleOp,
    UnfoldOp,
)
from fusegen.spaces.rowspace import NotFusable, aligned

NUMBER = "index"
"""What kernels call the number of an element of the result."""


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
    """The place along an axis of ``size`` that element ``place`` of ``index``, an operand or a view of one, names to
    ``op``."""

    place: Place
    index: str
    size: Dim
    op: GatherOp | GatherElementsOp

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
        case GatherOp(axis=axis) as op:
            size, index = first.type.shape[axis], operands[1]
            behind = axis + index.type.rank
            number = tuple(digit for place in places[axis:behind] for digit in place)
            place = (Digit(Named(number, index.name, size, op), 1, size, size),)
            return (Read(first.name, (*places[:axis], place, *places[behind:])),)
        case GatherElementsOp(axis=axis) as op:
            size, index = first.type.shape[axis], operands[1]
            own = (place if n != 1 else () for place, n in zip(places, index.type.shape, strict=True))
            number = tuple(digit for place in own for digit in place)
            return (Read(first.name, at(axis, (Digit(Named(number, index.name, size, op), 1, size, size),))),)
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


def evaluations(body: Graph, name: str, places: Places) -> Counter[str]:
    """How many elements of each value one of ``name`` comes from. Raises ``NotFusable``."""
    seen: set[tuple[str, Places]] = set()
    pending = [(name, places)]
    while pending:
        name, places = pending.pop()
        node = body.node(name)
        if (name, places) in seen or isinstance(node.op, ConstOp):
            continue
        seen.add((name, places))
        if not isinstance(node.op, InputOp):
            pending += [(r.name, r.places) for r in reads(node, [body.node(n) for n in node.inputs], places)]
    return Counter(name for name, _ in seen)


def loads(body: Graph, name: str, places: Places) -> int:
    """How many elements of operands one of ``name`` comes from. Raises ``NotFusable``."""
    times = evaluations(body, name, places)
    return sum(times[node.name] for node in body.inputs)
