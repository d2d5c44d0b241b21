"""Plans of poolings: a window per result, what precedes it on every load and what follows it on every store."""

from __future__ import annotations

import math

from fusegen import dims
from fusegen.dims import Dim
from fusegen.ir import AdaptivePoolOp, Graph, PoolOp
from fusegen.plan.details import PoolAxis, PoolPlan
from fusegen.plan.region import Region
from fusegen.plan.rowprogram import OutputArg, RowProgram
from fusegen.plan.rows import RowLowering, Style
from fusegen.plan.types import KernelPlan
from fusegen.poolspace import PlaneSpace, PoolRegion, output_size, split

MAX_LOADS = 32
"""Loads that one thread keeps in flight: enough to hide latency, few enough for registers."""
_ABSENT = PoolAxis(kernel=1, stride=1, padding=0, dilation=1, size=1, output=1, clipped=False)


def _axis(parts: PoolRegion, axis: int, size: Dim, output: Dim) -> PoolAxis:
    op = parts.op
    if isinstance(op, AdaptivePoolOp):
        return PoolAxis(kernel=1, stride=1, padding=0, dilation=1, size=size, output=output, clipped=False)
    return PoolAxis(
        kernel=op.kernel[axis],
        stride=op.stride[axis],
        padding=op.padding[axis],
        dilation=op.dilation[axis],
        size=size,
        output=output,
        clipped=op.padding[axis] > 0 or op.ceil,
    )


def _lower(region: Region, part: Graph, space: PlaneSpace, source: str, output: OutputArg) -> RowProgram:
    style = Style("{}", "{}", outer="plane", moves_rows=True)
    return RowLowering(part, space, region.args, region.sizes, style, source).program(
        (output.replace(node=part.outputs[0]),)
    )


def _loads(axes: tuple[PoolAxis, PoolAxis, PoolAxis], outputs: int) -> int:
    depth, rows, columns = axes
    reach = min((outputs - 1) * rows.stride + (rows.kernel - 1) * rows.dilation + 1, outputs * rows.kernel)
    return depth.kernel * reach * columns.kernel


def _fixed_count(op: PoolOp | AdaptivePoolOp) -> int | None:
    if isinstance(op, AdaptivePoolOp):
        return None
    if op.divisor is not None:
        return op.divisor
    whole = not op.ceil and (op.count_include_pad or not any(op.padding))
    return math.prod(op.kernel) if whole else None


def _vector(axis: PoolAxis, adaptive: bool) -> int:
    """The widest aligned load that windows of these columns are made of."""
    if adaptive or axis.clipped or axis.dilation != 1:
        return 1
    return next(v for v in (4, 2, 1) if axis.kernel % v == axis.stride % v == 0)


def plan(region: Region, name: str) -> KernelPlan:
    """One kernel for a pooling and the elementwise chains around it."""
    parts = split(region.body)
    op, pool = parts.op, parts.pool
    planes = pool.type.rank - op.rank
    before = region.body.node(pool.inputs[0]).type.shape
    lengths = []
    for axis in range(op.rank):
        size = region.sizes.local(before[planes + axis])
        output = output_size(op, axis, size)
        region.sizes.define(op.size[axis], output)
        lengths.append((size, output))
    present = [_axis(parts, axis, *lengths[axis]) for axis in range(op.rank)]
    count = region.sizes.product(before[:planes])
    if op.rank == 1:
        middle = _ABSENT.replace(size=count, output=count)
        axes = (_ABSENT, middle, present[0])
    else:
        first, second, third = [*[_ABSENT] * (3 - op.rank), *present]
        axes = (first, second, third)
    adaptive = isinstance(op, AdaptivePoolOp)
    unrolled = not adaptive and _loads(axes, 1) <= MAX_LOADS
    below = dims.evaluate(pool.type.shape[planes + op.rank - 2], region.body.sizes) if op.rank > 1 else 4
    overlap = axes[1].kernel > axes[1].stride
    fits = [
        n for n in ((1, 2, 4, 8) if overlap else (1, 2, 4)) if n == 1 or (n <= below and _loads(axes, n) <= MAX_LOADS)
    ]
    outputs = fits[-1] if unrolled else 1
    chain = _lower(region, parts.before, parts.before_space, "v", region.outputs[0])
    detail = PoolPlan(
        fn=op.fn,
        adaptive=adaptive,
        axes=axes,
        planes=1 if op.rank == 1 else count,
        rows_are_planes=op.rank == 1,
        count_include_pad=isinstance(op, AdaptivePoolOp) or op.count_include_pad,
        fixed_count=_fixed_count(op),
        vector=_vector(axes[2], adaptive),
        outputs=outputs,
        unrolled=unrolled,
        source=region.args[parts.before_space.source].name,
        before=chain,
        after=_lower(region, parts.after, parts.after_space, "pooled", region.outputs[0]),
        plane_operands=tuple(o.name for o in chain.operands if op.rank > 1 and "inner" not in o.index),
    )
    return region.plan(f"{name}_pool", detail)
