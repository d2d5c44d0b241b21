"""Regions that one kernel can compute: networks repeat their blocks, with other sizes."""

from __future__ import annotations

from fusegen import dims, tuning
from fusegen.dims import Dim
from fusegen.errors import GraphError
from fusegen.ir import ConstOp, Graph, Node, ReduceOp, RegionOp
from fusegen.plan import updates
from fusegen.plan.kernels import plan_region
from fusegen.plan.sizes import Unplanned
from fusegen.plan.types import KernelPlan
from fusegen.proof.generalise import generalise
from fusegen.spaces.rowspace import NotFusable

_ANY_SIZE = ("row_stream", "scan")
"""Templates whose kernels are as fast with sizes of the call as with constants."""
_EXACT = 1 << 24
"""Integers up to this are float32 numbers."""


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


def _counts(body: Graph, general: Graph) -> dict[str, Dim]:
    """How many values the reductions of ``body`` take, and one less: as ``general`` has it, by value."""
    found: dict[str, Dim] = {}
    for node in body.nodes:
        if isinstance(node.op, ReduceOp):
            own, any_size = (
                dims.product(graph.node(node.inputs[0]).type.shape[axis] for axis in node.op.axes)
                for graph in (body, general)
            )
            if dims.evaluate(own, body.sizes) < _EXACT:
                found |= {str(own): any_size, str(dims.sub(own, 1)): dims.sub(any_size, 1)}
    return found


def at_any_size(region: Node) -> Node:
    """``region`` with the sizes of its operands, and counts that follow from them, as those of the call.

    It computes the same: what is taken for a count has its value. Another region that shares the kernel has its own.
    """
    assert isinstance(region.op, RegionOp)
    body = region.op.body
    if region.op.template not in _ANY_SIZE:
        return region
    try:
        general = generalise(body, every=True)
    except GraphError:
        return region
    counts = _counts(body, general)

    def counted(node: Node) -> Node:
        if not isinstance(node.op, ConstOp):
            return node
        value = node.op.value
        text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
        count = counts.get(text, 0)
        return node.replace(op=node.op.replace(value=count)) if isinstance(count, str) else node

    general = general.replace(nodes=tuple(map(counted, general.nodes)))
    result = general.node(general.outputs[0]).type
    return region.replace(op=region.op.replace(body=general), type=result)


def _size_of(own: Node, general: Node, size: Dim) -> Dim:
    """What ``size`` of ``general`` is in the region ``own`` that it was made of."""
    assert isinstance(own.op, RegionOp)
    assert isinstance(general.op, RegionOp)
    for one, other in zip(own.op.body.nodes, general.op.body.nodes, strict=True):
        for value, name in zip(one.type.shape, other.type.shape, strict=True):
            if name == size:
                return value
    return size


class Kernels:
    """The kernels of a program. Two regions share one whose plans are the same but for the names of nodes, as they
    are or with sizes of the call for constants.

    What a tuning file pins for a kernel goes by the names of the region that it was first planned for.
    """

    def __init__(self) -> None:
        self.plans: dict[str, KernelPlan] = {}
        """By the region that a kernel was first planned for."""
        self.again: dict[str, list[str]] = {}
        """The other regions that it computes."""
        self._alike: dict[tuple[object, ...], list[Node]] = {}
        """The first region of every kernel, at any size."""
        self._general: dict[str, Node] = {}
        """Every region at any size."""
        self._own: dict[str, Node] = {}
        self._updates: dict[str, updates.Found] = {}
        self._unnamed: dict[tuple[str, bool], KernelPlan] = {}

    def add(self, graph: Graph, region: Node, found: updates.Found) -> None:
        """Plan ``region`` of ``graph``, whose kernel may make the updates ``found``. Raises ``Unplanned``."""
        self._own[region.name], self._updates[region.name] = region, found
        self._general[region.name] = general = at_any_size(region)
        alike = self._alike.setdefault((*_kind(general), found.updates), [])
        first = next((other for other in alike if self._same(graph, other, general)), None)
        if first is None:
            self.plans[region.name] = plan_region(graph, region, len(self.plans))
            self.again[region.name] = []
            alike.append(general)
            return
        self.again[first.name].append(region.name)
        if not self._same(graph, self._own[first.name], region):
            self.plans[first.name] = plan_region(graph, first, list(self.plans).index(first.name))

    def by_region(self) -> dict[str, KernelPlan]:
        """The plan of every region."""
        found: dict[str, KernelPlan] = {}
        for first, plan in self.plans.items():
            known = self._updates[first]
            shared = updates.updating(plan.replace(again=tuple(self.again[first])), known.updates)
            shared = updates.with_counters(shared, known.counters)
            found |= dict.fromkeys((first, *self.again[first]), shared)
        return found

    def given(self, region: str, plan: KernelPlan) -> tuple[str, ...]:
        """The sizes that the call of ``region`` hands to its kernel: a norm's groups are in no operand's shape."""
        own, general = self._own[region], self._general[region]
        return tuple(str(_size_of(own, general, given.size)) for given in plan.given)

    def updated(self, region: str) -> updates.Found:
        """The updates that the kernel of ``region`` may make."""
        return self._updates[region]

    def _same(self, graph: Graph, one: Node, other: Node) -> bool:
        try:
            return self._without_names(graph, one) == self._without_names(graph, other)
        except (Unplanned, NotFusable):  # at any size
            return False

    def _without_names(self, graph: Graph, region: Node) -> KernelPlan:
        key = (region.name, region is self._own[region.name])
        if key not in self._unnamed:
            with tuning.choices({}):
                plan = plan_region(graph, _unnamed(region), 0)
            places = {name: str(i) for i, name in reversed(list(enumerate(region.inputs)))}

            def placed(plan: KernelPlan) -> KernelPlan:
                args = tuple(arg.replace(node=places.get(arg.node, arg.node)) for arg in plan.args)
                return plan.replace(args=args, parts=tuple(map(placed, plan.parts)))

            self._unnamed[key] = placed(plan)
        return self._unnamed[key]
