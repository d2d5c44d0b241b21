"""Plans of convolutions with a reduction along some axes of their positions in their kernel."""

from __future__ import annotations

from fusegen.ir import ConvOp, ReduceOp
from fusegen.plan import contraction
from fusegen.plan.conv_axes import axes_of
from fusegen.plan.details import SweepPlan
from fusegen.plan.region import Region
from fusegen.plan.rowdraft import Style
from fusegen.plan.types import KernelPlan
from fusegen.spaces import convsweep


def plan(region: Region, name: str) -> KernelPlan:
    """The portable kernel, whose blocks take boxes of positions along the reduced axes in turn."""
    parts = convsweep.split(region.body)
    conv, op = parts.conv, parts.reduction.op
    assert isinstance(conv.op, ConvOp)
    assert isinstance(op, ReduceOp)
    assert op.fn == "max" or op.fn == "min" or op.fn == "mean" or op.fn == "sum"
    axes = axes_of(region, conv.op, conv, *map(region.body.node, conv.inputs))
    sweep = SweepPlan(
        fn=op.fn,
        divisor=None,
        swept=parts.swept,
        before=region.lower_part(parts.before, parts.before_space, "v", Style("{}", "{}", moves_rows=True)),
    )
    rows = region.lower_part(parts.after, parts.after_space, "v", Style("{}[j]", "{}"))
    sizes = tuple(dict.fromkeys((*sweep.before.sizes, *rows.sizes)))  # declared once for both chains
    detail = contraction.portable_conv(region, conv, axes, rows.replace(sizes=sizes), parts.whole, swept=True)
    return region.plan(f"{name}_conv_sweep", detail.replace(sweep=sweep), workspace=True, tf32="conv")
