"""Plans of matrix products for the tensor cores of sm_90a."""

from __future__ import annotations

from fusegen import dims, gemm
from fusegen.ir import MatmulOp
from fusegen.plan.details import GemmPlan
from fusegen.plan.region import Region
from fusegen.plan.rows import Style
from fusegen.plan.types import KernelPlan
from fusegen.rowspace import feature_axis, with_rows

_CUT_TILES = 512  # counters: fewer tiles than this are ever cut, two for each cluster


def plan(region: Region, name: str) -> KernelPlan:
    """One kernel for a matrix product and what follows it; rows run along its features."""
    node = region.body.node(region.space.source)
    assert isinstance(node.op, MatmulOp)
    x, w = (region.body.node(operand) for operand in node.inputs)
    height = region.sizes.product(x.type.shape[:-1])
    widths = gemm.widths(dims.numel(x.type.shape[:-1], region.body.sizes))
    detail = GemmPlan(
        source=region.args[x.name].name,
        weight=region.args[w.name].name,
        height=height,
        inputs=int(x.type.shape[-1]),
        outputs=int(node.type.shape[-1]),
        widths=widths,
        instructions=tuple(sorted({columns for width in widths for columns in (width, width // 2)})),
        rows=region.lower(with_rows(region.space, (feature_axis(node),)), Style("{}[i]", "{}", parts=True), "v"),
    )
    counters = dims.add(height, _CUT_TILES)
    return region.plan(f"{name}_gemm_sm90", detail, counters=counters, workspace=True, tf32="matmul", only_hopper=True)
