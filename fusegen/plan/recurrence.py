"""Plans a layer of a recurrent network."""

from __future__ import annotations

from fusegen.costs import recurrence as costs
from fusegen.ir import RecurrenceOp
from fusegen.machines import MACHINES
from fusegen.plan.details import RecurrencePlan
from fusegen.plan.region import Region
from fusegen.plan.types import KernelPlan
from fusegen.tuning import choose


def plan(region: Region, name: str) -> KernelPlan:
    """One launch for all steps, of both directions."""
    op, hidden, rows, steps = costs.traced(region.body)
    nodes = [node for node in region.body.nodes if isinstance(node.op, RecurrenceOp)]
    args = [region.args[operand].name for operand in nodes[0].inputs]
    directions = [op.direction(args, direction) for direction in range(op.directions)]
    x, _, _ = op.direction([region.body.node(operand).type for operand in nodes[0].inputs], 0)
    length, samples = reversed(x.shape[:2]) if op.batch_first else x.shape[:2]
    tiles = costs.tiles(op.cell, hidden, rows, steps, op.directions, MACHINES["sm_90"])
    kinds = {node.name: node.op.result for node in nodes if isinstance(node.op, RecurrenceOp)}
    written = {kinds[output.node]: output.name for output in region.outputs}
    detail = RecurrencePlan(
        cell=op.cell,
        hidden=hidden,
        directions=op.directions,
        batch_first=op.batch_first,
        length=region.sizes.local(length),
        samples=region.sizes.local(samples),
        tile=choose(f"{region.node.name} tile", tiles),
        first=tuple(args[: op.states]),
        sums=tuple(x for x, _, _ in directions),
        weights=tuple(w for _, w, _ in directions),
        biases=tuple(b for _, _, b in directions if b is not None),
        outputs=written.get("outputs"),
        cells=written.get("cells"),
    )
    return region.plan(f"{name}_recurrence", detail, only_hopper=True)
