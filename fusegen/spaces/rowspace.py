"""Iteration spaces: can a set of nodes run in one kernel, row by row of data?

A row space is [outer, row, inner]: the axes that reductions run along, in the middle, and the axes
before and after them; a row may leave axes out (the channels of batch statistics), which then are
[outer, row, middle, row, inner]. Every value is mapped to the axes of one base tensor, whose axes are
split as finely as some reshape asks for; a value that has the row axes is an *element* value (one per
position of the row), one without is a *row* value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd

from fusegen import dims
from fusegen.dims import Dim, Dims
from fusegen.ir import (
    HALVES,
    ArgReduceOp,
    CatOp,
    ConstOp,
    ConvOp,
    DType,
    ExpandOp,
    Graph,
    InputOp,
    MatmulOp,
    Node,
    PermuteOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    ScanOp,
    SliceOp,
    SoftmaxOp,
    TapSumOp,
    TriangleOp,
    WindowSumOp,
)
from fusegen.machines import LINE
from fusegen.spaces.once import once
from fusegen.spaces.parts import CUT, NAMED, Part, cut_up, indices, named, parts_in, root_of

AxisMap = tuple[tuple[int, ...], ...]
"""For each axis of a value: the base axes that it is made of, outermost first; none for a size-1 axis."""

MAX_CONTIGUOUS_ROW = 32_768
MAX_STRIDED_ROW = 1_024


class NotFusable(Exception):
    """Why a set of nodes cannot be one kernel."""


class _Split(Exception):
    """A reshape splits base axis ``axis`` into these sizes."""

    def __init__(self, axis: int, sizes: Dims):
        super().__init__()
        self.axis, self.sizes = axis, sizes


@dataclass(frozen=True)
class RowSpace:
    """The base shape, its row axes (empty: elementwise), and every value's axes.

    ``source`` is the node that supplies one value per element: an input of the body, what pairs elements of
    smaller ones, or the contraction of window sums. Nodes absent from ``axes`` are operands, mapped where they are
    used.
    """

    shape: Dims
    source: str
    row_axes: tuple[int, ...]
    axes: dict[str, AxisMap]

    @property
    def outer_axes(self) -> tuple[int, ...]:
        first = self.row_axes[0] if self.row_axes else len(self.shape)
        return tuple(range(first))

    @property
    def inner_axes(self) -> tuple[int, ...]:
        return tuple(range(self.row_axes[-1] + 1, len(self.shape))) if self.row_axes else ()

    @property
    def middle_axes(self) -> tuple[int, ...]:
        """Axes between those of the row that are not part of it."""
        first, last = (self.row_axes[0], self.row_axes[-1]) if self.row_axes else (0, 0)
        return tuple(axis for axis in range(first, last) if axis not in self.row_axes)

    @property
    def row_size(self) -> Dim:
        """Elements per row."""
        return dims.product(self.shape[axis] for axis in self.row_axes)

    @property
    def length(self) -> int:
        """Elements per row, 0 when known only at run time."""
        size = self.row_size
        return size if isinstance(size, int) else 0

    def traced(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """(rows, elements per row) at ``sizes``."""
        length = dims.numel(tuple(self.shape[axis] for axis in self.row_axes), sizes)
        return dims.numel(self.shape, sizes) // max(1, length), length

    def abreast(self, sizes: Mapping[str, int]) -> int:
        """How many rows lie side by side, at ``sizes``, if these are several, but less than a line of memory, else 0:
        the largest power of two that divides their number.
        """
        inner = dims.numel(tuple(self.shape[axis] for axis in self.inner_axes), sizes)
        return gcd(inner, LINE) if 1 < inner < LINE else 0

    def base_axes(self, name: str) -> tuple[int, ...]:
        """The base axes of a value, in its own order."""
        return tuple(axis for axes in self.axes[name] for axis in axes)

    def is_element(self, name: str) -> bool:
        """True for values with one entry per element of a row (always, without row axes)."""
        return set(self.row_axes) <= set(self.base_axes(name))

    def is_scattered(self, name: str) -> bool:
        """True for elements of which those that are neighbours in the data are none."""
        own, data = (self.base_axes(value) for value in (name, self.source))
        return self.is_element(name) and bool(data) and own[-1:] != data[-1:]

    @property
    def on_chip(self) -> bool:
        """True for rows of one run of axes, of a length that a few threads' registers hold."""
        if self.middle_axes or not isinstance(self.row_size, int):
            return False
        inner = [self.shape[axis] for axis in self.inner_axes if self.shape[axis] != 1]
        return self.row_size <= (MAX_STRIDED_ROW if inner else MAX_CONTIGUOUS_ROW)


def aligned(rank: int, node: Node) -> Iterator[tuple[int, int]]:
    """(axis of the broadcast result, axis of ``node``) pairs."""
    for axis in range(node.type.rank):
        yield axis + rank - node.type.rank, axis


def _pointwise_axes(node: Node, operands: list[Node], known: dict[str, AxisMap]) -> AxisMap:
    rank = node.type.rank
    mapped: list[set[tuple[int, ...]]] = [set() for _ in range(rank)]
    for operand in operands:
        for target, axis in aligned(rank, operand):
            if operand.name in known and (base := known[operand.name][axis]):
                mapped[target].add(base)
    for operand in operands:
        for target, axis in aligned(rank, operand):
            if operand.type.shape[axis] != 1 and not mapped[target]:
                raise NotFusable(f"{node.name} broadcasts up to an axis that the data does not have")
    if any(len(bases) > 1 for bases in mapped):
        raise NotFusable(f"{node.name} pairs different axes of the data")
    used = [base for bases in mapped for run in bases for base in run]
    if len(used) != len(set(used)):
        raise NotFusable(f"{node.name} has every pair of elements of an axis")
    return tuple(next(iter(bases), ()) for bases in mapped)


def _reshaped(node: Node, axes: AxisMap, shape: Dims) -> AxisMap:
    """Axes after a reshape, which merges and splits base axes of the sizes ``shape``."""
    left = [axis for bases in axes for axis in bases]
    result: list[tuple[int, ...]] = []
    for wanted in node.type.shape:
        taken: list[int] = []
        size: Dim = 1
        while size != wanted:
            if not left:
                raise NotFusable(f"{node.name} regroups axes")
            base, part = shape[left[0]], dims.exact_quotient(wanted, size)
            if part is None:
                raise NotFusable(f"{node.name} regroups axes")
            if dims.exact_quotient(part, base) is None:  # the axis goes further than this one
                rest = dims.exact_quotient(base, part)
                if rest is None:
                    raise NotFusable(f"{node.name} regroups axes")
                raise _Split(left[0], (part, rest))
            size = dims.mul(size, base)
            taken.append(left.pop(0))
        result.append(tuple(taken))
    if left:
        raise NotFusable(f"{node.name} regroups axes")
    return tuple(result)


def _choose_source(body: Graph, by_name: Mapping[str, Node], found: Mapping[str, Part]) -> Node:
    for node in body.nodes:
        if isinstance(node.op, (ConvOp, MatmulOp)):
            operands = [by_name[name] for name in node.inputs]
            sums = [operand for operand in operands if isinstance(operand.op, (WindowSumOp, TapSumOp))]
            operands = [o for o in operands if o not in sums] + [by_name[n] for o in sums for n in o.inputs]
            if any(not isinstance(operand.op, InputOp) for operand in operands):
                raise NotFusable(f"an operand of {node.name} is computed before it")
            return node
    apart = cut_up(body, found)
    inputs = [node for node in body.inputs if node.type.rank and node.name not in apart]
    inputs += [by_name[name] for name in found if name not in apart]
    if not inputs:
        raise NotFusable("no tensor operand")
    return max(inputs, key=lambda node: (dims.numel(node.type.shape, body.sizes), node.type.dtype is not DType.BOOL))


def analyze(body: Graph, source_name: str | None = None, found: Mapping[str, Part] | None = None) -> RowSpace:
    """The row space of a candidate kernel, over ``source_name`` if given. Raises ``NotFusable`` with the reason.

    ``found``: parts of operands that the kernel reads where they lie.
    """
    return _over(body, source_name, found) if source_name or found else _over_largest(body)


@once
def _over_largest(body: Graph) -> RowSpace:
    return _over(body, None, None)


def _over(body: Graph, source_name: str | None, found: Mapping[str, Part] | None) -> RowSpace:
    found = found or {}
    source = body.node(source_name) if source_name else _choose_source(body, body.by_name, found)
    parts: list[list[Dim]] = [[size] for size in source.type.shape]
    while True:
        try:
            return _analyze(body, source, parts, found)
        except _Split as split:
            if not isinstance(source.op, (InputOp, MatmulOp, PointwiseOp, *CUT)):
                raise NotFusable("a reshape splits the axes of the contraction's result") from None
            places = [(axis, i) for axis, sizes in enumerate(parts) for i in range(len(sizes))]
            axis, i = places[split.axis]
            parts[axis][i : i + 1] = split.sizes


def _paired(body: Graph) -> Node | None:
    """The first of the largest values, where every operand is smaller: what pairs the elements of several."""
    most = max((dims.numel(node.type.shape, body.sizes) for node in body.inputs), default=0)
    found = (node for node in body.nodes if isinstance(node.op, PointwiseOp))
    node = max(found, key=lambda node: dims.numel(node.type.shape, body.sizes), default=None)
    return node if node and dims.numel(node.type.shape, body.sizes) > most else None


def analyze_rows(body: Graph) -> RowSpace:
    """The same for a kernel of rows, which reads parts of operands, too, and pairs elements of several."""
    try:
        return analyze(body)
    except NotFusable:
        found, paired = parts_in(body), _paired(body)
        if not found and not paired:
            raise
    if found:
        try:
            return analyze(body, found=found)
        except NotFusable:
            if not paired:
                raise
    assert paired
    return analyze(body, paired.name, found)


def _analyze(body: Graph, source: Node, parts: list[list[Dim]], found: Mapping[str, Part]) -> RowSpace:
    """The row space whose base axes are those of ``source``, each in ``parts``. Raises ``_Split`` too."""
    by_name = body.by_name
    shape = tuple(size for sizes in parts for size in sizes)
    numbers = iter(range(len(shape)))
    whole: AxisMap = tuple(
        tuple(axis for axis in [next(numbers) for _ in sizes] if shape[axis] != 1) for sizes in parts
    )
    axes = {source.name: whole}
    row_axes: set[int] = set()
    cut, fetched = cut_up(body, found), indices(body)
    if isinstance(source.op, (InputOp, *CUT)):  # other inputs of the full shape are rows too
        operands = [*(node for node in body.inputs if node.name not in fetched), *map(by_name.__getitem__, found)]
        axes.update({node.name: whole for node in operands if node.type.shape == source.type.shape})

    def reduce_over(node: Node, reduced: list[tuple[int, ...]]) -> None:
        run = {axis for bases in reduced for axis in bases}
        if row_axes and run != row_axes:
            raise NotFusable(f"{node.name} reduces other axes than the rest of the kernel")
        row_axes.update(run)

    for node in body.nodes:
        index = isinstance(node.op, ArgReduceOp)
        if node.name in fetched:
            continue
        if node.type.dtype not in (DType.FLOAT32, DType.BOOL, *HALVES) and not index:
            raise NotFusable(f"{node.name} is {node.type.dtype.value}; kernels compute in float32")
        if node.type.dtype in HALVES and isinstance(node.op, (ReduceOp, SoftmaxOp, WindowSumOp, ConvOp)):
            raise NotFusable(f"{node.name} is {node.type.dtype.value}; kernels reduce in float32")
        if node is source or isinstance(node.op, (InputOp, ConstOp, WindowSumOp, TapSumOp)):
            continue
        operands = [by_name[name] for name in node.inputs]
        first = axes.get(operands[0].name)
        apart = first is None or isinstance(node.op, NAMED)
        if apart and isinstance(node.op, CUT) and (node.name in found or node.name in cut):
            continue  # read where it lies
        if isinstance(node.op, PointwiseOp):
            if not any(operand.name in axes for operand in operands):
                if node.type.shape == source.type.shape:  # pairs of elements
                    axes[node.name] = whole
                continue  # else operands only: computed where the result is read
            axes[node.name] = _pointwise_axes(node, operands, axes)
            continue
        viewed = _is_view_of_input(node, by_name) or named(node, by_name).name in found
        if first is None and isinstance(node.op, ReshapeOp) and viewed:
            continue  # another view of an operand, resolved where it is read
        if first is None:
            raise NotFusable(f"{node.name} rearranges an operand")
        if len(first) != operands[0].type.rank:
            raise NotFusable(f"{operands[0].name} is spread along axes that the data does not have")
        match node.op:
            case ReduceOp(axes=reduced, keepdim=keepdim):
                reduce_over(node, [first[axis] for axis in reduced])
                left = [() if i in reduced else base for i, base in enumerate(first) if keepdim or i not in reduced]
                axes[node.name] = tuple(left)
            case ArgReduceOp(axis=axis, keepdim=keepdim):
                if first[axis] != tuple(sorted(first[axis])):
                    raise NotFusable(f"{node.name} counts in another order than the data lies in")
                reduce_over(node, [first[axis]])
                axes[node.name] = tuple(
                    () if i == axis else base for i, base in enumerate(first) if keepdim or i != axis
                )
            case SoftmaxOp(axis=axis) | ScanOp(axis=axis):
                reduce_over(node, [first[axis]])
                axes[node.name] = first
            case SliceOp():
                _check_part(body, node, first, source)
                axes[node.name] = first
            case TriangleOp():
                if not isinstance(source.op, MatmulOp):
                    raise NotFusable(f"{node.name} is read where it lies, or in a kernel of elements")
                axes[node.name] = first
            case CatOp(axis=axis):
                if body.users[node.name] or any(operand.name not in axes for operand in operands):
                    raise NotFusable(f"{node.name} is read by others, or joins what the kernel does not have")
                axes[node.name] = (*first[:axis], (), *first[axis + 1 :])
            case ReshapeOp():
                axes[node.name] = _reshaped(node, first, shape)
            case PermuteOp(order=order):
                axes[node.name] = tuple(first[axis] for axis in order)
            case ExpandOp():
                if node.type.shape[node.type.rank - len(first) :] != operands[0].type.shape:
                    raise NotFusable(f"{node.name} broadcasts up to an axis that the data does not have")
                axes[node.name] = first
            case _:
                raise NotFusable(f"{node.name} ({node.op.kind}) is not elementwise or a reduction")
    space = RowSpace(shape, source.name, tuple(sorted(row_axes)), axes)
    _check(space, body, source)
    return space


def _check_part(body: Graph, node: Node, axes: AxisMap, source: Node) -> None:
    """A slice is that part of the row which sums count. Raises ``NotFusable`` when it is anything else."""
    assert isinstance(node.op, SliceOp)
    readers = [body.node(name).op for name in body.users[node.name]]
    sums = all(isinstance(op, ReduceOp) and op.fn == "sum" and node.op.axis in op.axes for op in readers)
    if not sums or not readers or node.name in body.outputs or len(axes[node.op.axis]) != 1:
        raise NotFusable(f"{node.name} is part of the data, for more than sums along its axis")
    whole = dims.numel(body.node(node.inputs[0]).type.shape, body.sizes)
    if not isinstance(source.op, InputOp) or 2 * dims.numel(node.type.shape, body.sizes) < whole:
        raise NotFusable(f"{node.name} is a small part of the data")


def _is_view_of_input(node: Node, by_name: Mapping[str, Node]) -> bool:
    return isinstance(root_of(node, by_name).op, InputOp)


def feature_axis(contraction: Node) -> int:
    """The axis of the output channels or features in the result of a contraction."""
    return 1 if isinstance(contraction.op, ConvOp) else contraction.type.rank - 1


def feature_axes(space: RowSpace, contraction: Node) -> tuple[int, ...]:
    """The base axes of a contraction's channels or features: several where a reshape splits them."""
    axis = feature_axis(contraction)
    return (axis,) if len(space.shape) == contraction.type.rank else space.axes[contraction.name][axis]


def _check(space: RowSpace, body: Graph, source: Node) -> None:
    contraction = isinstance(source.op, (ConvOp, MatmulOp))
    if any(name not in space.axes for name in body.outputs):
        raise NotFusable("the result depends on operands only")
    if contraction and not set(space.row_axes) <= set(feature_axes(space, source)):
        raise NotFusable("a reduction runs over other axes than the contraction's channels")
    rows = space.row_axes
    if sum(axis + 1 not in rows for axis in rows) > 2:
        raise NotFusable(f"the reduced axes {rows} are in more than two runs")
    for node in body.nodes:
        if isinstance(node.op, CatOp) and any(space.is_element(name) for name in node.inputs):
            raise NotFusable(f"{node.name} joins elements, not what rows come to")
    for name in space.axes:
        if set(rows) & set(space.base_axes(name)) and not space.is_element(name):
            raise NotFusable(f"{name} has only part of the reduced axes")


def with_rows(space: RowSpace, row_axes: tuple[int, ...]) -> RowSpace:
    """``space`` with rows along ``row_axes``, also when no reduction runs along them."""
    return RowSpace(space.shape, space.source, row_axes, space.axes)
