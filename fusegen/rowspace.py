"""Iteration spaces: can a set of nodes run in one kernel, each row of data held on chip?

A row space is [outer, length, inner]: the axes that reductions run along, in the middle, and the
axes before and after them. Every value is mapped to the axes of one base tensor; a value that has
the row axes is an *element* value (one per position of the row), one without is a *row* value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusegen import dims
from fusegen.dims import Dims
from fusegen.ir import (
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
    SoftmaxOp,
    TapSumOp,
    WindowSumOp,
)

AxisMap = tuple[int | None, ...]
"""For each axis of a value: the base axis it is, or None for a size-1 axis."""

MAX_CONTIGUOUS_ROW = 32_768
MAX_STRIDED_ROW = 1_024


class NotFusable(Exception):
    """Why a set of nodes cannot be one kernel."""


@dataclass(frozen=True)
class RowSpace:
    """The base tensor's shape, its row axes (empty: elementwise), and every value's axes.

    ``source`` is the node that supplies one value per element: an input of the body, or the
    contraction of window sums. Nodes absent from ``axes`` are operands, mapped where they are used.
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
    def length(self) -> int:
        """Elements per row."""
        length = dims.product(self.shape[axis] for axis in self.row_axes)
        assert isinstance(length, int)
        return length

    def is_element(self, name: str) -> bool:
        """True for values with one entry per element of a row (always, without row axes)."""
        return all(axis in self.axes[name] for axis in self.row_axes)


def aligned(rank: int, node: Node) -> Iterator[tuple[int, int]]:
    """(axis of the broadcast result, axis of ``node``) pairs."""
    for axis in range(node.type.rank):
        yield axis + rank - node.type.rank, axis


def _pointwise_axes(node: Node, operands: list[Node], known: dict[str, AxisMap]) -> AxisMap:
    rank = node.type.rank
    mapped: list[set[int]] = [set() for _ in range(rank)]
    for operand in operands:
        for target, axis in aligned(rank, operand):
            if operand.name in known and (base := known[operand.name][axis]) is not None:
                mapped[target].add(base)
    for operand in operands:
        for target, axis in aligned(rank, operand):
            if operand.type.shape[axis] != 1 and not mapped[target]:
                raise NotFusable(f"{node.name} broadcasts up to an axis that the data does not have")
    if any(len(bases) > 1 for bases in mapped):
        raise NotFusable(f"{node.name} pairs different axes of the data")
    return tuple(next(iter(bases), None) for bases in mapped)


def _reshaped(node: Node, operand: Node, axes: AxisMap) -> AxisMap:
    """Axes after a reshape that only inserts or removes size-1 axes."""
    kept = [(size, base) for size, base in zip(operand.type.shape, axes, strict=True) if size != 1]
    result: list[int | None] = []
    for size in node.type.shape:
        if size == 1:
            result.append(None)
        elif kept and kept[0][0] == size:
            result.append(kept.pop(0)[1])
        else:
            raise NotFusable(f"{node.name} regroups axes")
    return tuple(result)


def _choose_source(body: Graph, by_name: dict[str, Node]) -> Node:
    for node in body.nodes:
        if isinstance(node.op, (ConvOp, MatmulOp)):
            operands = [by_name[name] for name in node.inputs]
            sums = [operand for operand in operands if isinstance(operand.op, (WindowSumOp, TapSumOp))]
            operands = [o for o in operands if o not in sums] + [by_name[n] for o in sums for n in o.inputs]
            if any(not isinstance(operand.op, InputOp) for operand in operands):
                raise NotFusable(f"an operand of {node.name} is computed before it")
            return node
    inputs = [node for node in body.inputs if node.type.rank]
    if not inputs:
        raise NotFusable("no tensor operand")
    return max(inputs, key=lambda node: dims.numel(node.type.shape, body.sizes))


def analyze(body: Graph, source_name: str | None = None) -> RowSpace:
    """The row space of a candidate kernel, over ``source_name`` if given. Raises ``NotFusable`` with the reason."""
    by_name = body.by_name
    source = by_name[source_name] if source_name else _choose_source(body, by_name)
    whole: AxisMap = tuple(i if s != 1 else None for i, s in enumerate(source.type.shape))
    axes = {source.name: whole}
    if isinstance(source.op, InputOp):  # other inputs of the full shape are rows too
        axes.update({node.name: whole for node in body.inputs if node.type.shape == source.type.shape})
    row_axes: set[int] = set()

    def reduce_over(node: Node, reduced: set[int | None]) -> None:
        run = {axis for axis in reduced if axis is not None}
        if row_axes and run != row_axes:
            raise NotFusable(f"{node.name} reduces other axes than the rest of the kernel")
        row_axes.update(run)

    for node in body.nodes:
        if node.type.dtype not in (DType.FLOAT32, DType.BOOL):
            raise NotFusable(f"{node.name} is {node.type.dtype.value}; kernels compute in float32")
        if node is source or isinstance(node.op, (InputOp, ConstOp, WindowSumOp, TapSumOp)):
            continue
        operands = [by_name[name] for name in node.inputs]
        first = axes.get(operands[0].name)
        if isinstance(node.op, PointwiseOp):
            if not any(operand.name in axes for operand in operands):
                continue  # operands only: computed where the result is read
            axes[node.name] = _pointwise_axes(node, operands, axes)
            continue
        if first is None and isinstance(node.op, ReshapeOp) and _is_view_of_input(node, by_name):
            continue  # another view of an operand, resolved where it is read
        if first is None:
            raise NotFusable(f"{node.name} rearranges an operand")
        match node.op:
            case ReduceOp(axes=reduced, keepdim=keepdim):
                reduce_over(node, {first[axis] for axis in reduced})
                left = [None if i in reduced else base for i, base in enumerate(first) if keepdim or i not in reduced]
                axes[node.name] = tuple(left)
            case SoftmaxOp(axis=axis):
                reduce_over(node, {first[axis]})
                axes[node.name] = first
            case ReshapeOp():
                axes[node.name] = _reshaped(node, operands[0], first)
            case PermuteOp(order=order):
                axes[node.name] = tuple(first[axis] for axis in order)
            case ExpandOp():
                if node.type.shape[node.type.rank - len(first) :] != operands[0].type.shape:
                    raise NotFusable(f"{node.name} broadcasts up to an axis that the data does not have")
                axes[node.name] = first
            case _:
                raise NotFusable(f"{node.name} ({node.op.kind}) is not elementwise or a reduction")
    space = RowSpace(source.type.shape, source.name, tuple(sorted(row_axes)), axes)
    _check(space, body, source)
    return space


def _is_view_of_input(node: Node, by_name: dict[str, Node]) -> bool:
    while isinstance(node.op, ReshapeOp):
        node = by_name[node.inputs[0]]
    return isinstance(node.op, InputOp)


def _check_sizes(body: Graph) -> None:
    """Scalars that are sizes must follow from the sizes of the kernel's own operands."""
    bound = {
        symbol
        for node in body.inputs
        for size in node.type.shape
        if len(found := dims.symbols([size])) == 1 and dims.is_linear(size)
        for symbol in found
    }
    for node in body.nodes:
        size = node.op.value if isinstance(node.op, ConstOp) else 0.0
        if isinstance(size, str) and not set(dims.symbols([size])) <= bound:
            raise NotFusable(f"{node.name} depends on a size that no operand of the kernel has")


def feature_axis(contraction: Node) -> int:
    """The axis of the output channels or features in the result of a contraction."""
    return 1 if isinstance(contraction.op, ConvOp) else contraction.type.rank - 1


def _check(space: RowSpace, body: Graph, source: Node) -> None:
    contraction = isinstance(source.op, (ConvOp, MatmulOp))
    _check_sizes(body)
    if body.outputs[0] not in space.axes:
        raise NotFusable("the result depends on operands only")
    if contraction and not set(space.row_axes) <= {feature_axis(source)}:
        raise NotFusable("a reduction runs over other axes than the contraction's channels")
    rows = space.row_axes
    if rows and rows != tuple(range(rows[0], rows[-1] + 1)):
        raise NotFusable(f"the reduced axes {rows} are not adjacent")
    if any(isinstance(space.shape[axis], str) for axis in rows):
        raise NotFusable("the length of the reduced axis is known only at run time")
    for node in body.nodes:
        mapped = space.axes.get(node.name)
        if mapped is not None and any(a in mapped for a in rows) and not space.is_element(node.name):
            raise NotFusable(f"{node.name} has only part of the reduced axes")
    if rows and not contraction:
        inner = [space.shape[axis] for axis in space.inner_axes if space.shape[axis] != 1]
        limit = MAX_STRIDED_ROW if inner else MAX_CONTIGUOUS_ROW
        if space.length > limit:
            raise NotFusable(f"a row of {space.length} elements is more than the {limit} kept on chip")


def with_rows(space: RowSpace, row_axes: tuple[int, ...]) -> RowSpace:
    """``space`` with rows along ``row_axes``, also when no reduction runs along them."""
    return RowSpace(space.shape, space.source, row_axes, space.axes)
