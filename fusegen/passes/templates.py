"""Which kernel template computes a region, by what its body has."""

from __future__ import annotations

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
from fusegen.spaces import attention, channels, convreduce, convsweep, poolrows, scanspace, viewproduct, viewspace

POOLS = (PoolOp, AdaptivePoolOp)
AXIS_SUMS = (AxisWindowSumOp, AxisTapSumOp)


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
    if viewspace.takes(body):
        return "pointwise"
    space = poolrows.rows(body)
    if not space.row_axes:
        return "pointwise"
    many = sum(space.is_element(name) for name in body.outputs) > 1
    indices = any(isinstance(node.op, ArgReduceOp) for node in body.nodes)
    return "row_reduce" if space.on_chip and not many and not indices else "row_stream"
