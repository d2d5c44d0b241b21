"""Plans of convolutions that reduce over all positions, and of the two kernels that run where they do not."""

from __future__ import annotations

from collections.abc import Callable

from fusegen import convreduce
from fusegen.ir import ConvOp
from fusegen.plan import contraction
from fusegen.plan.conv_apart import apart, composed
from fusegen.plan.region import Region
from fusegen.plan.rowprogram import RowProgram
from fusegen.plan.rows import RowLowering
from fusegen.plan.sizes import Unplanned
from fusegen.plan.types import KernelPlan
from fusegen.rowspace import feature_axis, with_rows


def plan(region: Region, name: str, rows: Callable[[Region, str], KernelPlan]) -> KernelPlan:
    """One kernel where Hopper's tensor cores compute the convolution, two elsewhere. Raises ``Unplanned``.

    ``rows`` plans the reduction of a tensor in memory.
    """
    parts = convreduce.split(region.body)
    own = parts.conv
    assert isinstance(own.op, ConvOp)
    x, w = (region.body.node(operand) for operand in own.inputs)
    axes = contraction.axes_of(region, own.op, own, x, w)
    first, second = apart(region, own, "row_stream")
    conv, reduced = contraction.plan(first, name, portable=True), rows(second, name)
    detail = composed(region, own, axes, conv, reduced)
    space = with_rows(parts.space, (feature_axis(own),))

    def lower(split: bool) -> RowProgram:
        output = region.outputs[0].replace(node=parts.before.outputs[0])
        style = contraction.hopper_style(split)
        return RowLowering(parts.before, space, region.args, region.sizes, style, "v").program((output,))

    hopper = contraction.hopper_conv(region, own, axes, lower, reduced=parts.fn)
    if isinstance(hopper, str):
        raise Unplanned(f"the kernel of {own.name} does not reduce its results: {hopper}")
    return region.plan(f"{name}_conv_reduce", detail, hopper=hopper, workspace=True, tf32="conv", parts=(conv, reduced))
