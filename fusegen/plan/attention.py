"""Plans attention: both products, and what is between them, in one kernel."""

from __future__ import annotations

from fusegen.costs import attention as costs
from fusegen.machines import MACHINES
from fusegen.plan.details import AttentionPlan
from fusegen.plan.region import Region
from fusegen.plan.types import KernelPlan
from fusegen.plan.viewproduct import ElementLowering, factor_element
from fusegen.spaces import attention, viewspace
from fusegen.spaces.viewproduct import COLUMN, ROW
from fusegen.tuning import choose


def plan(region: Region, name: str) -> KernelPlan:
    """One launch for two products, the elementwise work and the softmax between them, and what follows."""
    found = attention.check(region.body)
    body = found.body
    result = body.node(body.outputs[0])
    epilogue = ElementLowering.of(region, body, {result.name: found.result}, {found.head.name: "v"})
    shapes = [*(node.type.shape for node in body.inputs), result.type.shape, *viewspace.numbered(body)]
    detail = AttentionPlan(
        matrices=region.sizes.product(found.matrices),
        lines=region.sizes.local(found.rows),
        keys=region.sizes.local(found.keys),
        inputs=found.inputs,
        outputs=found.outputs,
        softmax=found.softmax is not None,
        safe=found.safe,
        masked=attention.is_masked(found),
        tile=costs.portable_tile(body, found, MACHINES["sm_90"]),
        query=factor_element(region, body, found.query, found.query_places, ROW),
        key=factor_element(region, body, found.key, found.key_places, COLUMN),
        value=factor_element(region, body, found.value, found.value_places, COLUMN),
        weighed=factor_element(region, body, found.weighed, found.weighed_places, COLUMN, found.scores.name),
        rows=epilogue.program(region.outputs),
        reach=tuple(dict.fromkeys(region.sizes.product(shape) for shape in shapes)),
    )
    tile = choose(f"{found.head.name} tile", costs.tiles(body, found, MACHINES["sm_90"]))
    wide = detail.replace(wgmma=True, tile=tile)
    return region.plan(f"{name}_attention", detail, hopper=wide)
