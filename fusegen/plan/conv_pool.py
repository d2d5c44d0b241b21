"""Plans of convolutions with a pooling in their epilogue, and of the two kernels that run where it does not."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from fusegen.ir import ConvOp
from fusegen.plan import contraction, pool
from fusegen.plan.conv_apart import apart, composed
from fusegen.plan.conv_axes import axes_of
from fusegen.plan.conv_window import Pooling
from fusegen.plan.details import ContractionAxis, ContractionPlan, HopperConvPlan, SweepPlan
from fusegen.plan.region import Region
from fusegen.plan.rowdraft import Style
from fusegen.plan.sizes import Unplanned
from fusegen.plan.types import KernelPlan
from fusegen.spaces import convpool
from fusegen.spaces.convpool import ConvPool
from fusegen.spaces.poolspace import output_size

_STYLE = Style("{}", "{}", moves_rows=True, quick=True)


def _by_phases(region: Region, parts: ConvPool, axes: tuple[ContractionAxis, ...]) -> ContractionPlan:
    """The portable kernel that pools the phases of a transposed convolution."""
    style = Style("{}", "{}", moves_rows=True)
    pool = SweepPlan(
        fn=parts.op.fn,
        divisor=parts.op.divisor or prod(parts.op.kernel),
        swept=(False, False, False),
        before=region.lower_part(parts.before, parts.before_space, "v", style),
    )
    rows = region.lower_part(parts.after, parts.after_space, "v", replace(style, array="{}[j]", moves_rows=False))
    sizes = tuple(dict.fromkeys((*pool.before.sizes, *rows.sizes)))  # declared once for both chains
    return contraction.portable_conv(region, parts.conv, axes, rows.replace(sizes=sizes)).replace(sweep=pool)


def _hopper(region: Region, parts: ConvPool, axes: tuple[ContractionAxis, ...]) -> HopperConvPlan:
    """The kernel that pools what it computes. Raises ``Unplanned``."""
    divisor = parts.op.divisor or prod(parts.op.kernel)
    before = region.lower_part(parts.before, parts.before_space, "v", _STYLE)
    pooling = Pooling(parts.windows, parts.op.fn, divisor, before)
    after = region.lower_part(parts.after, parts.after_space, "pooled", _STYLE)
    found = contraction.hopper_conv(region, parts.conv, axes, lambda split: after, pooling=pooling)
    if isinstance(found, str):
        raise Unplanned(f"the kernel of {parts.conv.name} does not pool its results: {found}")
    return found


def plan(region: Region, name: str) -> KernelPlan:
    """One kernel where Hopper's tensor cores compute the convolution, two elsewhere. Raises ``Unplanned``."""
    parts = convpool.split(region.body)
    own = parts.conv
    assert isinstance(own.op, ConvOp)
    x, w = (region.body.node(operand) for operand in own.inputs)
    axes = axes_of(region, own.op, own, x, w)
    for axis, placed in enumerate(axes):
        region.sizes.define(parts.op.size[axis], output_size(parts.op, axis, placed.output))
    if parts.by_phases:
        return region.plan(f"{name}_conv_pool", _by_phases(region, parts, axes), workspace=True, tf32="conv")
    first, second = apart(region, own)
    conv, pooled = contraction.plan(first, name, portable=True), pool.plan(second, name)
    detail = composed(region, own, axes, conv, pooled)
    return region.plan(
        f"{name}_conv_pool",
        detail,
        hopper=_hopper(region, parts, axes),
        workspace=True,
        tf32="conv",
        parts=(conv, pooled),
    )
