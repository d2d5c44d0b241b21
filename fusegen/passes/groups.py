"""Which nodes share a kernel, while fusion decides it: members, copies, and what a group must write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from fusegen import dims
from fusegen.ir import (
    ArgReduceOp,
    CatOp,
    ConstOp,
    ExpandOp,
    GatherOp,
    Graph,
    InputOp,
    MatmulOp,
    Node,
    ParamOp,
    PermuteOp,
    PointwiseOp,
    RangeOp,
    ReduceOp,
    ReshapeOp,
    ScanOp,
    SliceOp,
    SoftmaxOp,
    UnfoldOp,
)
from fusegen.machines import SECTOR
from fusegen.pointwise import POINTWISE


@dataclass(frozen=True)
class Group:
    """``members`` are computed by one kernel; those that are ``copies`` are computed elsewhere too, where read."""

    members: frozenset[str]
    copies: frozenset[str] = frozenset()

    def plus(self, names: Iterable[str], copied: bool = False) -> Group:
        names = frozenset(names)
        return Group(self.members | names, self.copies | names if copied else self.copies)

    @cached_property
    def owned(self) -> frozenset[str]:
        return self.members - self.copies


_NOTHING = Group(frozenset())
_DEAR = 112
"""Operations of a function that take as long as its result does on its way to memory and back: general powers do."""
_FEW = 8
"""How many times more values pairs are than what they are pairs of: reading that is nothing beside reading them."""


class Grouping:
    """A graph and the groups found so far, by the node at whose end each was started."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.by_name, self.users = graph.by_name, graph.users
        self.results = set(graph.results)
        self.by_rows = set(graph.by_rows)
        """What is written row by row, though it is a view: results, and what kernels read."""
        self.groups: dict[str, Group] = {}
        self._owner: dict[str, Group] = {}
        self._holders: defaultdict[str, list[Group]] = defaultdict(list)
        self._bodies: dict[Group, tuple[Graph, tuple[str, ...]]] = {}
        """Of groups that were asked for since the last one was taken, by which what others read changes."""

    def add(self, name: str, group: Group) -> None:
        """Take ``group``, which was started at the node ``name``."""
        self._bodies.clear()
        self.groups[name] = group
        self._owner.update(dict.fromkeys(group.owned, group))
        for member in group.members:
            self._holders[member].append(group)

    def merge(self, first: str, second: str, both: Group) -> None:
        """Take ``both`` in place of the groups that were started at ``first`` and ``second``, as the first."""
        for group in (self.groups.pop(first), self.groups.pop(second)):
            for member in group.members:
                self._holders[member].remove(group)
        self.add(first, both)

    def lay_by_rows(self, names: Iterable[str]) -> None:
        """Write ``names`` row by row, though they are views."""
        self._bodies.clear()
        self.by_rows.update(names)

    def in_order(self, names: Iterable[str]) -> list[Node]:
        """The nodes ``names`` in execution order."""
        return [self.by_name[name] for name in sorted(names, key=self.graph.place.__getitem__)]

    def is_read(self, name: str, inside: Group = _NOTHING) -> bool:
        """True when something other than ``inside`` needs the value of ``name``."""
        if name in self.results:
            return True
        for user in set(self.users[name]):
            if any(name not in group.members for group in self._holders[user] if group is not inside):
                return True
            if user in inside.owned or user in self._owner:
                continue
            if self.is_read(user, inside if user in inside.copies else _NOTHING):
                return True
        return False

    def outputs(self, group: Group) -> tuple[str, ...]:
        """What the group's kernel writes, in execution order."""
        return tuple(node.name for node in self.in_order(group.owned) if self.is_read(node.name, group))

    def product(self, group: Group) -> Node | None:
        """The matrix product of the group, if it has one and no other."""
        found = [self.by_name[name] for name in group.members if isinstance(self.by_name[name].op, MatmulOp)]
        return found[0] if len(found) == 1 else None

    def body(self, group: Group) -> tuple[Graph, tuple[str, ...]]:
        """The group as a graph of its own, and its operands in order."""
        if group not in self._bodies:
            self._bodies[group] = self._body(group)
        return self._bodies[group]

    def _body(self, group: Group) -> tuple[Graph, tuple[str, ...]]:
        nodes = self.in_order(group.members)
        external = dict.fromkeys(name for node in nodes for name in node.inputs if name not in group.members)
        constants = [self.by_name[name] for name in external if isinstance(self.by_name[name].op, ConstOp)]
        operands = tuple(name for name in external if not isinstance(self.by_name[name].op, ConstOp))
        inputs = [self.by_name[name].replace(op=InputOp(position=i), inputs=()) for i, name in enumerate(operands)]
        outputs = self.outputs(group) or (nodes[-1].name,)
        body = Graph(
            name=outputs[-1],
            nodes=(*inputs, *constants, *nodes),
            outputs=outputs,
            strided=tuple(i for i, name in enumerate(outputs) if name not in self.by_rows),
            sizes=self.graph.sizes,
        )
        return body, operands

    def is_cyclic(self, group: Group) -> bool:
        """True when ``group`` would read, through other kernels, what it writes itself."""

        def reads(kernel: Group) -> list[str]:  # what a kernel computes itself it does not read
            return [n for member in kernel.members for n in self.by_name[member].inputs if n not in kernel.members]

        place = self.graph.place
        first = min(map(place.__getitem__, group.owned), default=0)
        pending, seen = reads(group), set[str | Group]()
        while pending:
            name = pending.pop()
            if name in group.owned:
                return True
            kernel = self._owner.get(name)
            if (unit := kernel or name) in seen:
                continue
            seen.add(unit)
            if kernel is None and place[name] > first:  # else all that it follows from comes before the group
                pending.extend(self.by_name[name].inputs)
            elif kernel is not None and max(map(place.__getitem__, kernel.members)) > first:
                pending.extend(reads(kernel))
        return False

    def is_spread(self, name: str) -> bool:
        """True for a row's value that meets data of its rows: who reads that data anyway needs no result of both."""
        node = self.by_name[name]
        if not isinstance(node.op, ReduceOp):
            return False
        data, chain, pending = self.by_name[node.inputs[0]].type.shape, {name}, [name]
        while pending:
            for user in map(self.by_name.__getitem__, self.users[pending.pop()]):
                if user.type.shape == data:
                    return True
                if isinstance(user.op, (PointwiseOp, ReshapeOp)) and user.name not in chain:
                    chain.add(user.name)
                    pending.append(user.name)
        return False

    def can_copy(self, node: Node) -> bool:
        """True when computing ``node`` again wherever it is read moves no more data than reading it.

        Its readers must be able to: else it is written for one of them, and may as well be read.
        """
        if node.name in self.results:
            return False
        if isinstance(node.op, (PermuteOp, ExpandOp, RangeOp, UnfoldOp)):
            return True
        if isinstance(node.op, ReshapeOp) and isinstance(self.by_name[node.inputs[0]].op, (InputOp, ParamOp)):
            return True  # no view is needed
        if not self.fusable_readers(node.name, joins=isinstance(node.op, GatherOp)):
            return False
        if isinstance(node.op, (ReshapeOp, SliceOp)):
            return True
        sizes = self.graph.sizes
        if isinstance(node.op, GatherOp):  # whole sectors of what it names
            named = self.by_name[node.inputs[0]].type.shape[node.op.axis + 1 :]
            return dims.numel(named, sizes) >= SECTOR
        operands = [self.by_name[name] for name in dict.fromkeys(node.inputs)]
        data = sum(dims.numel(o.type.shape, sizes) for o in operands if not isinstance(o.op, (ParamOp, ConstOp)))
        cheap = isinstance(node.op, PointwiseOp) and POINTWISE[node.op.fn].work < _DEAR
        return cheap and 16 * data <= 17 * dims.numel(node.type.shape, sizes)

    def of_few(self, node: Node) -> frozenset[str]:
        """``node`` and the values of its shape that it comes from, where all of it is a function of far fewer numbers,
        as distances of pairs are, and several kernels compute it in less time than memory hands it over; else nothing.
        """
        if node.name in self.results or not isinstance(node.op, PointwiseOp) or not self.fusable_readers(node.name):
            return frozenset()
        sizes, shape = self.graph.sizes, node.type.shape
        found, few, pending = {node.name}, dict[str, int](), [node]
        while pending:
            for name in pending.pop().inputs:
                operand = self.by_name[name]
                if operand.type.shape != shape:
                    few[name] = dims.numel(operand.type.shape, sizes)
                elif not isinstance(operand.op, PointwiseOp) or name in self.results:
                    return frozenset()
                elif name not in found:
                    found.add(name)
                    pending.append(operand)
        work = sum(POINTWISE[op.fn].work for op in (self.by_name[n].op for n in found) if isinstance(op, PointwiseOp))
        cheap = 2 * work <= _DEAR and _FEW * sum(few.values()) <= dims.numel(shape, sizes)
        return frozenset(found) if cheap else frozenset()

    def fusable_readers(self, name: str, joins: bool = False) -> bool:
        """Whether all that reads a value, or a view of it, may be in a kernel; ``joins``: those of other data, too."""
        readers = (PointwiseOp, ReduceOp, ArgReduceOp, ScanOp, SoftmaxOp, *((CatOp,) if joins else ()))
        for user in self.users[name]:
            op = self.by_name[user].op
            if isinstance(op, (ReshapeOp, PermuteOp)):
                if user in self.results or not self.fusable_readers(user, joins):
                    return False
            elif not isinstance(op, readers):
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
