"""Regions that one kernel can compute: networks repeat their blocks."""

from __future__ import annotations

from fusegen import tuning
from fusegen.ir import Graph, Node, RegionOp
from fusegen.plan.kernels import plan_region
from fusegen.plan.types import KernelPlan


def _unnamed(region: Node) -> Node:
    """``region`` with the nodes of its body named by their positions."""
    assert isinstance(region.op, RegionOp)
    body = region.op.body
    names = {node.name: f"n{i}" for i, node in enumerate(body.nodes)}
    nodes = tuple(
        node.replace(name=names[node.name], inputs=tuple(names[operand] for operand in node.inputs))
        for node in body.nodes
    )
    unnamed = body.replace(name="region", nodes=nodes, outputs=tuple(names[name] for name in body.outputs))
    return region.replace(name="region", op=region.op.replace(body=unnamed))


def _kind(region: Node) -> tuple[object, ...]:
    """What is the same where plans are, and cheaper to compare."""
    assert isinstance(region.op, RegionOp)
    return (region.op.template, *((node.op.kind, node.type) for node in region.op.body.nodes))


class Kernels:
    """The kernels of a program. Two regions share one whose plans are the same but for the names of nodes.

    What a tuning file pins for a kernel goes by the names of the region that it was first planned for.
    """

    def __init__(self) -> None:
        self.plans: dict[str, KernelPlan] = {}
        """By the region that a kernel was first planned for."""
        self.again: dict[str, list[str]] = {}
        """The other regions that it computes."""
        self._regions: dict[tuple[object, ...], list[Node]] = {}
        self._unnamed: dict[str, KernelPlan] = {}

    def add(self, graph: Graph, region: Node) -> None:
        """Plan ``region`` of ``graph``. Raises ``Unplanned``."""
        alike = self._regions.setdefault(_kind(region), [])
        first = next((other for other in alike if self._same(graph, other, region)), None)
        if first is not None:
            self.again[first.name].append(region.name)
            return
        self.plans[region.name] = plan_region(graph, region, len(self.plans))
        self.again[region.name] = []
        alike.append(region)

    def by_region(self) -> dict[str, KernelPlan]:
        """The plan of every region."""
        found: dict[str, KernelPlan] = {}
        for first, plan in self.plans.items():
            shared = plan.replace(again=tuple(self.again[first]))
            found |= dict.fromkeys((first, *self.again[first]), shared)
        return found

    def _same(self, graph: Graph, one: Node, other: Node) -> bool:
        return self._without_names(graph, one) == self._without_names(graph, other)

    def _without_names(self, graph: Graph, region: Node) -> KernelPlan:
        if region.name not in self._unnamed:
            with tuning.choices({}):
                plan = plan_region(graph, _unnamed(region), 0)
            places = {name: str(i) for i, name in reversed(list(enumerate(region.inputs)))}

            def placed(plan: KernelPlan) -> KernelPlan:
                args = tuple(arg.replace(node=places.get(arg.node, arg.node)) for arg in plan.args)
                return plan.replace(args=args, parts=tuple(map(placed, plan.parts)))

            self._unnamed[region.name] = placed(plan)
        return self._unnamed[region.name]
