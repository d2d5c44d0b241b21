"""Regions to kernel plans: one builder per template. Every choice a kernel embodies is made here."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from fusegen import dims, inference, windows
from fusegen.ir import (
    Graph,
    Node,
    RegionOp,
    WindowSumOp,
)
from fusegen.plan import (
    attention,
    axis_sum,
    contraction,
    conv_boxes,
    conv_direct,
    conv_pool,
    conv_sweep,
    pool,
    recurrence,
    row_reduce,
    scan,
    stream,
    viewproduct,
    viewreduce,
    views,
)
from fusegen.plan.axis_sum import window_axis
from fusegen.plan.details import PointwisePlan, WindowAxis, WindowBounds, WindowSumPlan
from fusegen.plan.region import Region
from fusegen.plan.rowdraft import Style, indexed
from fusegen.plan.rowprogram import Operand
from fusegen.plan.types import KernelPlan
from fusegen.spaces import viewspace
from fusegen.spaces.rowspace import with_rows

_THREADS = 512
"""Of a block that finds window sums."""
_ABSENT_AXIS = WindowAxis(
    kernel=1, step=1, windows=(WindowBounds(start=0, stop=1),), tap_window=(0,), full=True, size=1, least=1
)


def _unroll(sizes: tuple[int, ...]) -> int:
    """Accesses in flight of a thread whose block is alone on its multiprocessor, for planes of these traced sizes.

    The last accesses of a plane take as long as all that a thread can have on their way: they should be no few.
    """
    across = -(-sizes[-1] // 4)
    steps = -(-prod(sizes[:-1]) // max(1, _THREADS // across))
    return min((8, 9, 10), key=lambda count: -(-steps // count))


def _window_sum(region: Region, name: str) -> KernelPlan:
    by_name = region.body.by_name
    product = by_name[region.space.source]
    sums, taps = (by_name[operand] for operand in product.inputs)
    assert isinstance(sums.op, WindowSumOp)
    x, w = by_name[sums.inputs[0]], by_name[taps.inputs[0]]
    conv, kernel = sums.op.conv, sums.op.kernel
    inputs, outputs = inference.conv_channels(conv, x.type, w.type)
    present = [window_axis(conv, kernel, axis, region.sizes.local(x.type.shape[2 + axis])) for axis in range(conv.rank)]
    first, middle, last = [*[_ABSENT_AXIS] * (3 - conv.rank), *present]
    batch = region.sizes.local(x.type.shape[0])
    outer_windows = len(first.windows) * len(middle.windows)
    positions = (windows.output_size(conv, kernel, axis, present[axis].size) for axis in range(conv.rank))
    own = indexed("j", outputs)
    detail = WindowSumPlan(
        transposed=conv.transposed,
        mean=sums.op.mean,
        positions=dims.product(positions),
        rank=conv.rank,
        in_channels=inputs,
        out_channels=outputs,
        groups=conv.groups,
        axes=(first, middle, last),
        source=region.args[x.name].name,
        weight=region.args[w.name].name,
        batch=batch,
        threads=_THREADS,
        min_blocks=2 if outer_windows <= 2 else 1,  # 64 registers a thread hold two outer windows
        unroll=_unroll(region.body.shape(x.name)[2:]) if 2 < outer_windows <= 4 else 4,
        rows=region.lower(with_rows(region.space, (1,)), Style(own, "{}", own), "v"),
    )
    return region.plan(f"{name}_window_sum", detail, counters=batch, workspace=True)


def _pointwise(region: Region, name: str) -> KernelPlan:
    if viewspace.takes(region.body):
        return views.plan(region, name)
    source = region.args[region.space.source]
    if len(region.body.outputs) == 1 and any(arg.type.shape != source.type.shape for arg in region.args.values()):
        return views.plan(region, name)  # which reads operands that are spread by runs
    rows = region.lower(region.space, Style("{}", "{}", outer="index"), f"v_{source.name}")
    data = Operand(
        name=rows.source,
        arg=source.name,
        index="index",
        per_element=True,
        comment=f"%{region.space.source}: {source.type}",
    )
    rows = rows.replace(operands=(data, *rows.operands))
    detail = PointwisePlan(
        elements=region.product(region.space.outer_axes),
        vector_args=tuple(operand.arg for operand in rows.operands if operand.index == "index"),
        rows=rows,
    )
    return region.plan(f"{name}_pointwise", detail)


_BUILDERS: dict[str, Callable[[Region, str], KernelPlan]] = {
    "window_sum": _window_sum,
    "axis_sum": axis_sum.plan,
    "contraction": contraction.plan,
    "conv_boxes": conv_boxes.plan,
    "conv_direct": conv_direct.plan,
    "conv_sweep": conv_sweep.plan,
    "conv_pool": conv_pool.plan,
    "conv_reduce": contraction.plan,
    "gemm_views": viewproduct.plan,
    "reduce_views": viewreduce.plan,
    "attention": attention.plan,
    "recurrence": recurrence.plan,
    "pool": pool.plan,
    "row_reduce": row_reduce.plan,
    "row_stream": lambda region, name: stream.plan(region, name, row_reduce.sums_few(region)),
    "scan": scan.plan,
    "pointwise": _pointwise,
}


def plan_region(graph: Graph, node: Node, number: int) -> KernelPlan:
    """The kernel plan of a region node; ``number`` makes its name unique in the module."""
    assert isinstance(node.op, RegionOp)
    return _BUILDERS[node.op.template](Region(graph, node), f"k{number}")
