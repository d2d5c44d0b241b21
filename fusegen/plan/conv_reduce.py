"""Plans of convolutions that reduce over all positions, and of the two kernels that run where they do not."""

from __future__ import annotations

from collections.abc import Callable

from fusegen import contractions, convreduce, ops
from fusegen.ir import ConvOp, Graph, Node
from fusegen.plan import contraction, conv_sm90
from fusegen.plan.conv_pool import apart, composed
from fusegen.plan.region import Region
from fusegen.plan.rowprogram import RowProgram
from fusegen.plan.rows import RowLowering, Style
from fusegen.plan.sizes import Unplanned
from fusegen.plan.types import KernelPlan
from fusegen.rowspace import feature_axis, with_rows


def plan(graph: Graph, node: Node, name: str, rows: Callable[[Region, str], KernelPlan]) -> KernelPlan:
    """One kernel where Hopper's tensor cores compute the convolution, two elsewhere. Raises ``Unplanned``.

    ``rows`` plans the reduction of a tensor in memory.
    """
    region = Region(graph, node)
    parts = convreduce.split(region.body)
    own = parts.conv
    assert isinstance(own.op, ConvOp)
    x, w = (region.body.node(operand) for operand in own.inputs)
    axes = contraction.axes_of(region, own.op, own, x, w)
    first, second = apart(graph, node, own, "row_stream")
    conv, reduced = contraction.plan(first, name, portable=True), rows(second, name)
    detail = composed(region, own, axes, conv, reduced)
    space = with_rows(parts.space, (feature_axis(own),))
    style = Style("{}[i][j]", "{}[i]", moves_rows=True, quick=True)

    def lower(_: bool) -> RowProgram:
        output = region.outputs[0].replace(node=parts.before.outputs[0])
        return RowLowering(parts.before, space, region.args, region.sizes, style, "v").program((output,))

    traced = tuple(zip(region.body.shape(x.name)[2:], region.body.shape(own.name)[2:], strict=True))
    hopper = conv_sm90.plan(
        own.op,
        axes,
        traced,
        ops.conv_channels(own.op, x.type, w.type),
        False,
        lower,
        conv_sm90.Operands(own.name, detail.conv.source, detail.conv.weight, detail.conv.batch),
        not contractions.allows_tf32(region.body, own),
        reduced=parts.fn,
    )
    if isinstance(hopper, str):
        raise Unplanned(f"the kernel of {own.name} does not reduce its results: {hopper}")
    return region.plan(f"{name}_conv_reduce", detail, hopper=hopper, workspace=True, tf32="conv", parts=(conv, reduced))
