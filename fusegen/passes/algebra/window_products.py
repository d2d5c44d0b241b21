"""Products with what lies in windows: convolutions that are written as the columns of windows, and a matrix.

Which elements a row of the left factor is made of follows from the views that it comes from. Along an axis on which
both a term of the sum and the row move, a convolution goes; along one on which the term moves alone lie its channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fusegen import dims, inference, windows
from fusegen.costs import gemm
from fusegen.dims import Dim, Dims
from fusegen.ir import ConvOp, DType, Graph, InputOp, MatmulOp, Node, PadOp, PermuteOp, ReshapeOp, SliceOp, UnfoldOp
from fusegen.machines import DEFAULT_TARGET, machine
from fusegen.passes.algebra import boxes
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op
from fusegen.spaces import placement
from fusegen.spaces.placement import Digit, Joined, Place, Places

_ROW, _TERM = "row", "term"
_MOST_AXES = 3
"""Along which a convolution may go."""


@dataclass(frozen=True)
class _Axis:
    """An axis of the windows' operand: what of a row's number, and of a term's, moves along it, and how far."""

    size: Dim
    row: tuple[Digit, Dim] | None
    term: tuple[Digit, Dim] | None

    @property
    def is_outer(self) -> bool:
        return self.term is None and (self.row is None or self.is_all_of(self.row))

    @property
    def is_channel(self) -> bool:
        return self.row is None and self.term is not None and self.is_all_of(self.term)

    def is_all_of(self, moved: tuple[Digit, Dim]) -> bool:
        return moved[1] == 1 and moved[0].size == self.size


@dataclass(frozen=True)
class _Convolution:
    """``op`` of ``x``, with the axes in groups: ``outer`` ones are samples; ``rows`` and ``terms`` are the axes that
    numbers of rows and of terms have digits of, the most significant first."""

    x: Node
    op: ConvOp
    outer: list[int]
    channels: list[int]
    spatial: list[int]
    rows: list[int]
    terms: list[int]
    kernel: tuple[int, ...]
    counts: Dims

    @property
    def order(self) -> tuple[int, ...]:
        return (*self.outer, *self.channels, *self.spatial)

    def size(self, axes: Sequence[int]) -> Dim:
        return dims.product(self.x.type.shape[axis] for axis in axes)

    @property
    def shape(self) -> Dims:
        """Samples, channels, and the axes that windows go along."""
        return (self.size(self.outer), self.size(self.channels), *(self.x.type.shape[axis] for axis in self.spatial))


def _steps(place: Place, graph: Graph) -> Joined | None:
    """Digits of numbers that a place moves with, and how far; None where it moves in another way."""
    found: Joined = []
    for digit, step in placement.joined([(place, 1)], graph.sizes):
        if isinstance(digit.of, str):
            found.append((digit, step))
            continue
        sums = placement.sum_of(digit)
        if sums is None or sums.start != 0:
            return None
        for inner, own in sums.terms:
            if (moved := _steps(inner, graph)) is None:
                return None
            found += [(d, dims.mul(dims.mul(step, own), more)) for d, more in moved]
    return found


def _axis(place: Place, size: Dim, graph: Graph) -> _Axis | None:
    moved = _steps(place, graph)
    rows, terms = ([part for part in moved or () if part[0].of == name] for name in (_ROW, _TERM))
    if moved is None or len(rows) > 1 or len(terms) > 1:
        return None
    return _Axis(size, *(parts[0] if parts else None for parts in (rows, terms)))


def _in_order(digits: dict[int, Digit], total: Dim, graph: Graph) -> list[int] | None:
    """The axes whose ``digits`` make up a number below ``total``, the most significant first."""
    order = sorted(digits, key=lambda axis: -dims.numel((digits[axis].stride,), graph.sizes))
    strides = [digits[axis].stride for axis in order]
    reach = [dims.mul(digits[axis].stride, digits[axis].size) for axis in order]
    expected: list[Dim] = [total, *strides[:-1]]
    return order if order and reach == expected and strides[-1] == 1 else None


def _source(m: Match) -> tuple[Node, Places]:
    """What the left factor is a view of, and where in it the term of a row lies."""
    product, node, graph = m.root, m["x"], m.graph
    assert isinstance(product.op, MatmulOp)
    rows, term = placement.whole(product.type.shape[:-1], _ROW), placement.position(_TERM, _terms(m))
    places: Places = (*rows[:-1], term, rows[-1]) if product.op.left_transposed else (*rows, term)
    while isinstance(node.op, (ReshapeOp, PermuteOp, UnfoldOp)) or (
        isinstance(node.op, SliceOp) and (node.op.start, node.op.step) == (0, 1)
    ):
        operand = graph.node(node.inputs[0])
        (read,) = placement.reads(node, [operand], places)
        node, places = operand, read.places
    return node, places


def _terms(m: Match) -> Dim:
    assert isinstance(m.root.op, MatmulOp)
    return m["x"].type.shape[-2 if m.root.op.left_transposed else -1]


def _found(m: Match) -> _Convolution | None:
    """The convolution that the product is, if it is one."""
    (x, places), graph = _source(m), m.graph
    axes = [_axis(place, size, graph) for place, size in zip(places, x.type.shape, strict=True)]
    known = {i: axis for i, axis in enumerate(axes) if axis is not None}
    outer = [i for i, axis in known.items() if axis.is_outer]
    channels = [i for i, axis in known.items() if axis.is_channel]
    spatial = [i for i, axis in known.items() if i not in {*outer, *channels} and axis.row is not None]
    rows = _in_order({i: a.row[0] for i, a in known.items() if a.row}, dims.product(m.root.type.shape[:-1]), graph)
    terms = _in_order({i: a.term[0] for i, a in known.items() if a.term}, _terms(m), graph)
    slid = [known[i] for i in spatial]
    if rows is None or terms is None or len(outer) + len(channels) + len(spatial) != len(axes):
        return None
    if not any(axis.term for axis in slid) or len(slid) > _MOST_AXES:
        return None
    strides = [axis.row[1] for axis in slid if axis.row]
    steps = [axis.term[1] if axis.term else 1 for axis in slid]
    kernel = [axis.term[0].size if axis.term else 1 for axis in slid]
    numbers = [n for n in (*strides, *steps, *kernel) if isinstance(n, int)]
    if len(numbers) < 3 * len(slid) or not isinstance(dims.product(x.type.shape[i] for i in channels), int):
        return None
    around, inner = _padding(x, spatial, graph)
    conv = ConvOp(
        transposed=False,
        stride=tuple(numbers[: len(slid)]),
        padding=around,
        dilation=tuple(numbers[len(slid) : 2 * len(slid)]),
        output_padding=(0,) * len(slid),
        precise=True,
    )
    taps, counts = tuple(numbers[2 * len(slid) :]), tuple(axis.row[0].size for axis in slid if axis.row)
    lengths = [windows.output_size(conv, taps, i, inner.type.shape[axis]) for i, axis in enumerate(spatial)]
    if lengths != list(counts) or _lies_in_rows(places, x, graph):
        return None
    return _Convolution(inner, conv, outer, channels, spatial, rows, terms, taps, counts)


def _padding(x: Node, spatial: list[int], graph: Graph) -> tuple[tuple[int, ...], Node]:
    """Zeros around ``x`` that a convolution adds itself, and what they are around."""
    pad = x.op
    if not isinstance(pad, PadOp) or pad.value != 0 or pad.before != pad.after:
        return (0,) * len(spatial), x
    if any(around for axis, around in enumerate(pad.before) if axis not in spatial):
        return (0,) * len(spatial), x
    return tuple(pad.before[axis] for axis in spatial), graph.node(x.inputs[0])


def _lies_in_rows(places: Places, x: Node, graph: Graph) -> bool:
    """Whether the terms of a row lie side by side: a product reads them there."""
    moved: Joined = []
    for place, stride in zip(places, placement.row_major(x.type.shape), strict=True):
        moved += [(digit, dims.mul(step, stride)) for digit, step in _steps(place, graph) or () if digit.of == _TERM]
    together = placement.joined([((digit,), step) for digit, step in moved], graph.sizes)
    return [step for _, step in together] == [1]


def _refusal(m: Match) -> str | None:
    product, w, graph = m.root, m["w"], m.graph
    assert isinstance(product.op, MatmulOp)
    numbers = all(isinstance(size, int) for size in w.type.shape)
    if w.type.rank != 2 or not numbers or product.op.amplified or product.type.dtype is not DType.FLOAT32:
        return ""
    found = _found(m) if graph.has_one_reader(m["x"].name) else None
    return "" if found is None else _pays(m, found)


def _pays(m: Match, found: _Convolution) -> str | None:
    """None where the convolution takes less time than to write the windows and multiply them."""
    product, graph = m.root, m.graph
    extents = [d * (k - 1) + 1 for d, k in zip(found.op.dilation, found.kernel, strict=True)]
    if all(step >= extent for step, extent in zip(found.op.stride, extents, strict=True)):
        return "windows that share nothing are written in one pass over the data"
    x, weight = (
        Node(name=name, op=InputOp(position=i), type=product.type.replace(shape=shape))
        for i, (name, shape) in enumerate((("x", found.shape), ("w", _weight_shape(m, found))))
    )
    types = (x.type, weight.type)
    conv = Node(name="y", op=found.op, inputs=("x", "w"), type=inference.infer_conv(found.op, types, x.type))
    body = Graph(nodes=(x, weight, conv), outputs=("y",), sizes=graph.sizes)
    rates = machine(DEFAULT_TARGET)

    def moved(*shapes: Dims) -> float:
        return sum(4 * dims.numel(shape, graph.sizes) for shape in shapes) / rates.bandwidth + rates.launch

    convolution = boxes.product_seconds(body, conv, rates)
    convolution += moved(conv.type.shape, conv.type.shape)  # its features come before its positions
    if any(a > b for a, b in pairwise(found.order)):
        convolution += moved(x.type.shape, x.type.shape)
    columns = moved(x.type.shape, m["x"].type.shape) + gemm.product_seconds(graph, product, rates, 0.0)
    return None if convolution <= columns else "the columns and their product are expected to take less time"


def _weight_shape(m: Match, found: _Convolution) -> Dims:
    return (m.root.type.shape[-1], found.size(found.channels), *found.kernel)


def _convolution(m: Match) -> Node:
    product, w = m.root, m["w"]
    found = _found(m)
    assert isinstance(product.op, MatmulOp)
    assert found is not None
    x = found.x if found.order == tuple(range(found.x.type.rank)) else m.add(PermuteOp(order=found.order), found.x)
    x = x if x.type.shape == found.shape else m.add(ReshapeOp(shape=found.shape), x)
    w = w if product.op.transposed else m.add(PermuteOp(order=(1, 0)), w)
    outputs = w.type.shape[0]
    taps = dict(zip(found.spatial, found.kernel, strict=True))
    sizes = [taps[axis] if axis in taps else found.x.type.shape[axis] for axis in found.terms]
    w = m.add(ReshapeOp(shape=(outputs, *sizes)), w)
    order = [found.terms.index(axis) for axis in (*found.channels, *found.spatial) if axis in found.terms]
    w = m.add(PermuteOp(order=(0, *(1 + place for place in order))), w)
    w = m.add(ReshapeOp(shape=_weight_shape(m, found)), w)
    y = m.add(found.op, x, w)
    apart = m.add(ReshapeOp(shape=(*(found.x.type.shape[i] for i in found.outer), outputs, *found.counts)), y)
    place = {axis: i for i, axis in enumerate((*found.outer, -1, *found.spatial))}
    others = [axis for axis in found.outer if axis not in found.rows]  # of one element
    back = m.add(PermuteOp(order=tuple(place[axis] for axis in (*others, *found.rows, -1))), apart)
    return m.add(ReshapeOp(shape=product.type.shape), back)


RULES = (
    Rule(
        "matmul(x, w) = conv(y, w),  a row of x is a window of y",
        op(MatmulOp, anything("x"), anything("w")),
        _convolution,
        Numerics.REASSOCIATES,
        _refusal,
    ),
)
