"""Plans of convolutions with a reduction along some axes of their positions in their kernel."""

from __future__ import annotations

from fusegen.costs import direct
from fusegen.ir import ConvOp
from fusegen.plan import contraction, conv_direct
from fusegen.plan.conv_axes import axes_of
from fusegen.plan.details import DirectReduction, SweepPlan
from fusegen.plan.region import Region
from fusegen.plan.rowdraft import Style
from fusegen.plan.types import KernelPlan
from fusegen.spaces import convsweep
from fusegen.spaces.convsweep import ConvSweep


def plan(region: Region, name: str) -> KernelPlan:
    """The portable kernel, or the one in plain fp32 for groups too narrow for tensor cores."""
    parts = convsweep.split(region.body)
    return (_narrow if direct.is_narrow(region.body, parts.conv) else _portable)(region, parts, name)


def _portable(region: Region, parts: ConvSweep, name: str) -> KernelPlan:
    """Blocks take boxes of positions along the reduced axes in turn."""
    conv = parts.conv
    assert isinstance(conv.op, ConvOp)
    axes = axes_of(region, conv.op, conv, *map(region.body.node, conv.inputs))
    sweep = SweepPlan(
        fn=parts.fn,
        divisor=None,
        swept=parts.swept,
        before=region.lower_part(parts.before, parts.before_space, "v", Style("{}", "{}", moves_rows=True)),
    )
    rows = region.lower_part(parts.after, parts.after_space, "v", Style("{}[j]", "{}"))
    sizes = tuple(dict.fromkeys((*sweep.before.sizes, *rows.sizes)))  # declared once for both chains
    detail = contraction.portable_conv(region, conv, axes, rows.replace(sizes=sizes), parts.whole, swept=parts.swept)
    return region.plan(f"{name}_conv_sweep", detail.replace(sweep=sweep), workspace=True, tf32="conv")


def _narrow(region: Region, parts: ConvSweep, name: str) -> KernelPlan:
    """Threads of a block share all positions of a group of a sample."""
    style = Style("{}", "{}", outer="sample", moves_rows=True)
    rows = region.lower_part(parts.after, parts.after_space, "reduced", style)
    reduction = DirectReduction(fn=parts.fn, joined=direct.JOINED, rows=rows)
    return conv_direct.plan(region, name, conv_direct.detail_of(region, parts.before).replace(reduction=reduction))
