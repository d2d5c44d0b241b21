"""Which kernel template computes a region, by what its body has."""

from __future__ import annotations

from fusegen import dims
from fusegen.costs import boxes, direct
from fusegen.ir import (
    AdaptivePoolOp,
    ArgReduceOp,
    AxisTapSumOp,
    AxisWindowSumOp,
    ConvOp,
    Graph,
    MatmulOp,
    PoolOp,
    RecurrenceOp,
    Template,
    WindowSumOp,
)
from fusegen.spaces import (
    attention,
    channels,
    convreduce,
    convsweep,
    exponentials,
    poolrows,
    scanspace,
    viewproduct,
    viewreduce,
    viewspace,
)
from fusegen.spaces.once import once
from fusegen.spaces.parts import parts_in
from fusegen.spaces.rowspace import RowSpace

MAX_STRIDED_ROW_OF_SEVERAL = 96
"""Elements of a strided row of several tensors, up to which registers hold it."""
MAX_NARROW_ROW = 2048
"""The same, where less than a line of memory lies side by side, so that many threads share the rows that do."""
POOLS = (PoolOp, AdaptivePoolOp)
AXIS_SUMS = (AxisWindowSumOp, AxisTapSumOp)


@once
def template_of(body: Graph) -> Template:
    """The template of a kernel for ``body``, if one can compute it. Raises ``NotFusable``."""
    if any(isinstance(node.op, RecurrenceOp) for node in body.nodes):
        return "recurrence"
    if scanspace.takes(body):
        return "scan"
    if any(isinstance(node.op, WindowSumOp) for node in body.nodes):
        return "window_sum"
    if any(isinstance(node.op, AXIS_SUMS) for node in body.nodes):
        return "axis_sum"
    pools = any(isinstance(node.op, POOLS) for node in body.nodes)
    conv = next((node for node in body.nodes if isinstance(node.op, ConvOp)), None)
    if conv and boxes.is_over_boxes(body, conv):
        return "conv_boxes"
    if pools and conv:
        return "conv_pool"
    if channels.rows(body):
        return "contraction"
    if conv and any(convreduce.is_over_positions(body, node, conv) for node in body.nodes):
        return "conv_reduce"
    if conv and convsweep.reduction(body, conv):
        return "conv_sweep"
    if any(direct.takes(body, node) for node in body.nodes):
        return "conv_direct"
    if attention.takes(body):
        return "attention"
    if viewproduct.takes(body):
        return "gemm_views"
    if any(isinstance(node.op, (ConvOp, MatmulOp)) for node in body.nodes):
        return "contraction"
    if pools and not poolrows.takes(body):
        return "pool"
    if viewreduce.takes(body):
        return "reduce_views"
    if viewspace.takes(body):
        return "pointwise"
    space = poolrows.rows(body)
    if not space.row_axes:
        return "pointwise"
    many = sum(space.is_element(name) for name in body.outputs) > 1
    indices = any(isinstance(node.op, ArgReduceOp) for node in body.nodes)
    return "row_reduce" if _is_held(body, space) and not many and not indices else "row_stream"


_SWEPT_ROW = 16_384
"""Elements from which on a row is read in one sweep sooner than a block holds it (logsumexp of 12,288: 80 us and 67, of
16,384: 78 and 91, of 32,000, with what a number names: 76 and 98)."""


def _is_held(body: Graph, space: RowSpace) -> bool:
    """Whether registers hold a row. They hold one tensor: of several, long strided rows are better read again.

    (Two tensors, held and read again, us on an H100: rows of 64 elements 33 and 39, 128 50 and 35, 512 57 and 36.)
    """
    strided = any(space.shape[axis] != 1 for axis in space.inner_axes)
    size = dims.product(space.shape)
    operands = [*body.inputs, *map(body.node, parts_in(body))]
    several = sum(dims.product(node.type.shape) == size for node in operands) > 1
    if space.on_chip and space.length >= _SWEPT_ROW and exponentials.in_one_sweep(body, space):
        return False
    if space.abreast(body.sizes) and not space.middle_axes:
        return 0 < space.length <= MAX_NARROW_ROW
    return space.on_chip and not (strided and several and space.length > MAX_STRIDED_ROW_OF_SEVERAL)
