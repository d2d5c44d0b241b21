"""Which nodes share a kernel, while fusion decides it: members, copies, and what a group must write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fusegen import dims
from fusegen.ir import (
    ConstOp,
    ExpandOp,
    Graph,
    InputOp,
    Node,
    ParamOp,
    PermuteOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    SliceOp,
    SoftmaxOp,
)


@dataclass(frozen=True)
class Group:
    """``members`` are computed by one kernel; those that are ``copies`` are computed elsewhere too, where read."""

    members: frozenset[str]
    copies: frozenset[str] = frozenset()

    def plus(self, names: Iterable[str], copied: bool = False) -> Group:
        names = frozenset(names)
        return Group(self.members | names, self.copies | names if copied else self.copies)

    @property
    def owned(self) -> frozenset[str]:
        return self.members - self.copies


@dataclass
class Grouping:
    """A graph and the groups found so far, by the node at whose end each was started."""

    graph: Graph
    groups: dict[str, Group] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_name, self.users = self.graph.by_name, self.graph.users()
        self.results = set(self.graph.results)

    def owner(self, name: str) -> Group | None:
        return next((group for group in self.groups.values() if name in group.owned), None)

    def is_read(self, name: str, inside: Group = Group(frozenset())) -> bool:
        """True when something other than ``inside`` needs the value of ``name``."""
        if name in self.results:
            return True
        for user in set(self.users[name]):
            holders = [group for group in self.groups.values() if user in group.members]
            if any(name not in group.members for group in holders if group is not inside):
                return True
            if user in inside.owned or self.owner(user) is not None:
                continue
            if self.is_read(user, inside if user in inside.copies else Group(frozenset())):
                return True
        return False

    def outputs(self, group: Group) -> tuple[str, ...]:
        """What the group's kernel writes, in execution order."""
        return tuple(n.name for n in self.graph.nodes if n.name in group.owned and self.is_read(n.name, group))

    def body(self, group: Group) -> tuple[Graph, tuple[str, ...]]:
        """The group as a graph of its own, and its operands in order."""
        nodes = [node for node in self.graph.nodes if node.name in group.members]
        external = dict.fromkeys(name for node in nodes for name in node.inputs if name not in group.members)
        constants = [self.by_name[name] for name in external if isinstance(self.by_name[name].op, ConstOp)]
        operands = tuple(name for name in external if not isinstance(self.by_name[name].op, ConstOp))
        inputs = [self.by_name[name].replace(op=InputOp(position=i), inputs=()) for i, name in enumerate(operands)]
        outputs = self.outputs(group) or (nodes[-1].name,)
        body = Graph(name=outputs[-1], nodes=(*inputs, *constants, *nodes), outputs=outputs, sizes=self.graph.sizes)
        return body, operands

    def is_cyclic(self, group: Group) -> bool:
        """True when ``group`` would read, through other kernels, what it writes itself."""
        unit = {name: id(other) for other in self.groups.values() for name in other.owned}
        unit.update(dict.fromkeys(group.owned, id(group)))
        reads: dict[object, set[object]] = {}
        for node in self.graph.nodes:
            holders = [g for g in (*self.groups.values(), group) if node.name in g.members]
            for reader in {unit.get(node.name, node.name), *map(id, holders)}:
                found = reads.setdefault(reader, set())
                found.update(unit.get(name, name) for name in node.inputs)
        for holder in (*self.groups.values(), group):  # what a kernel computes itself it does not read
            reads[id(holder)] = {
                unit.get(name, name)
                for member in holder.members
                for name in self.by_name[member].inputs
                if name not in holder.members
            }
        seen: set[object] = set()
        pending = list(reads[id(group)])
        while pending:
            current = pending.pop()
            if current == id(group):
                return True
            if current not in seen:
                seen.add(current)
                pending.extend(reads.get(current, ()))
        return False

    def can_copy(self, node: Node) -> bool:
        """True when computing ``node`` again wherever it is read moves no more data than reading it.

        Its readers must be able to: else it is written for one of them, and may as well be read.
        """
        if node.name in self.results:
            return False
        if isinstance(node.op, (PermuteOp, ExpandOp)):
            return True
        if not self._fusable_readers(node.name):
            return False
        if isinstance(node.op, (ReshapeOp, SliceOp)):
            return True
        sizes = self.graph.sizes
        operands = [self.by_name[name] for name in dict.fromkeys(node.inputs)]
        data = sum(dims.numel(o.type.shape, sizes) for o in operands if not isinstance(o.op, (ParamOp, ConstOp)))
        return isinstance(node.op, PointwiseOp) and 16 * data <= 17 * dims.numel(node.type.shape, sizes)

    def _fusable_readers(self, name: str) -> bool:
        for user in self.users[name]:
            op = self.by_name[user].op
            if isinstance(op, ReshapeOp):
                if user in self.results or not self._fusable_readers(user):
                    return False
            elif not isinstance(op, (PointwiseOp, ReduceOp, SoftmaxOp)):
                return False
        return True


def in_order(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """``nodes`` so that each comes after its inputs, otherwise as given."""
    pending, done, result = list(nodes), set[str](), []
    while pending:
        left = []
        for node in pending:
            if all(name in done for name in node.inputs):
                done.add(node.name)
                result.append(node)
            else:
                left.append(node)
        if len(left) == len(pending):
            raise AssertionError(f"a cycle through {left[0].name}")
        pending = left
    return tuple(result)
