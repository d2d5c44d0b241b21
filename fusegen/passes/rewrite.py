"""Rewrite rules: patterns, the matcher, and a fixpoint driver that says what it did and refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from itertools import count, takewhile

from fusegen import ops
from fusegen.dims import Dim
from fusegen.errors import GraphError
from fusegen.ir import (
    HALVES,
    INTEGERS,
    ConstOp,
    DType,
    EagerOp,
    Frozen,
    Graph,
    Node,
    Op,
    RuleApplied,
    RuleRefused,
    TensorType,
)
from fusegen.verify import verify


class Numerics(StrEnum):
    """What a rewrite does to values. Nothing weaker exists."""

    EXACT = "exact"
    """Bit for bit in the graph's dtype, NaN and Inf included."""
    REASSOCIATES = "reassociates"
    """Equal in real arithmetic."""


@dataclass(frozen=True)
class Pattern:
    """Matches a node by op type and field values, and its inputs by sub-patterns (None: any inputs)."""

    op: type[Frozen] | None
    inputs: tuple[Pattern, ...] | None = None
    name: str | None = None
    fields: tuple[tuple[str, tuple[object, ...]], ...] = ()
    commutative: bool = False


def anything(name: str) -> Pattern:
    """Any node, captured as ``name``."""
    return Pattern(None, None, name)


def op(
    kind: type[Frozen], *inputs: Pattern, name: str | None = None, commutative: bool = False, **fields: object
) -> Pattern:
    """A node of one op type; a field given as a tuple matches any of its values."""
    wanted = tuple((key, value if isinstance(value, tuple) else (value,)) for key, value in fields.items())
    return Pattern(kind, inputs or None, name, wanted, commutative)


@dataclass
class Match:
    """A matched sub-graph, and the place where a rule builds its replacement."""

    graph: Graph
    root: Node
    captures: dict[str, Node]
    built: list[Node] = field(default_factory=list)

    def __getitem__(self, name: str) -> Node:
        return self.captures[name]

    def add(self, op: Op, *operands: Node, like: Node | None = None) -> Node:
        """A new node; its type is inferred, of a number from what it is ``like``, the root or another node.

        Raises ``GraphError`` when the operands do not fit.
        """
        like = operands[0] if operands else like or self.root
        return self._built(op, ops.infer(op, tuple(node.type for node in operands), like.type), operands)

    def eager(self, target: str, arguments: str, result: TensorType, *operands: Node) -> Node:
        """A new node of an op of torch's, written as in ``EagerOp``."""
        return self._built(EagerOp(target=target, arguments=arguments, results=(result,)), result, operands)

    def _built(self, op: Op, result: TensorType, operands: tuple[Node, ...]) -> Node:
        numbers = (f"{self.root.name}_r{number}" for number in count(1))
        taken = {node.name for node in self.built}
        node = Node(
            name=next(name for name in numbers if name not in self.graph.by_name and name not in taken),
            op=op,
            inputs=tuple(node.name for node in operands),
            type=result,
            source=self.root.source,
        )
        self.built.append(node)
        return node

    def const(self, value: float | Dim) -> Node:
        """A scalar node of the root's dtype."""
        if self.root.type.dtype in INTEGERS or isinstance(value, str):
            return self.add(ConstOp(value=value))
        return self.add(ConstOp(value=float(value)))

    def only_user(self, name: str) -> bool:
        """True when the captured node feeds nothing outside the match's chain (one use, not a result)."""
        return self.graph.has_one_reader(self.captures[name].name)


def _no_objection(match: Match) -> str | None:
    return None


@dataclass(frozen=True)
class Rule:
    """``identity`` is the equation; ``guard`` returns why the rule must not apply, or None."""

    identity: str
    pattern: Pattern
    build: Callable[[Match], Node]
    numerics: Numerics
    guard: Callable[[Match], str | None] = _no_objection


def _matches(
    pattern: Pattern, node: Node, graph: Mapping[str, Node], captures: dict[str, Node]
) -> Iterator[dict[str, Node]]:
    if pattern.op is not None and not isinstance(node.op, pattern.op):
        return
    if any(getattr(node.op, key) not in wanted for key, wanted in pattern.fields):
        return
    if pattern.name is not None:
        captures = {**captures, pattern.name: node}
    if pattern.inputs is None:
        yield captures
        return
    if len(pattern.inputs) != len(node.inputs):
        return
    orders = [node.inputs, node.inputs[::-1]] if pattern.commutative else [node.inputs]
    for order in orders:
        partial = [captures]
        for sub, name in zip(pattern.inputs, order, strict=True):
            partial = [more for found in partial for more in _matches(sub, graph[name], graph, found)]
        yield from partial


def _substitute(graph: Graph, match: Match, replacement: Node) -> Graph:
    """``graph`` with the match's root computed by ``replacement``; a new node takes the root's name."""
    root = match.root.name
    built = list(match.built)
    if replacement in built:
        built[built.index(replacement)] = replacement.replace(name=root)
        renamed = {replacement.name: root}
    else:
        renamed = {root: replacement.name}

    def rename(name: str) -> str:
        return renamed.get(name, name)

    nodes: list[Node] = []
    for node in graph.nodes:
        if node.name == root:
            nodes.extend(new.replace(inputs=tuple(map(rename, new.inputs))) for new in built)
        elif renamed.keys().isdisjoint(node.inputs):
            nodes.append(node)
        else:
            nodes.append(node.replace(inputs=tuple(map(rename, node.inputs))))
    return graph.replace(
        nodes=tuple(nodes),
        outputs=tuple(map(rename, graph.outputs)),
        updates=tuple((path, rename(name)) for path, name in graph.updates),
    ).prune()


@dataclass(frozen=True)
class Outcome:
    """The graph after a pass, and what happened on the way."""

    graph: Graph
    applied: tuple[RuleApplied, ...] = ()
    refused: tuple[RuleRefused, ...] = ()


def _too_coarse(rule: Rule, node: Node, graph: Graph) -> str | None:
    """Why a rule must not move sums among values that are rounded to 16 bits, or to integers, or None."""
    if rule.numerics is Numerics.EXACT:
        return None
    if node.type.dtype is DType.FLOAT32 and node.name in ops.made_integers(graph):
        return "an integer is made of it, which another rounding may change"
    if node.type.dtype not in HALVES | INTEGERS:
        return None
    if node.type.dtype in INTEGERS:
        return f"equal in real arithmetic, and of {node.type.dtype.value}"
    return f"sums of {node.type.dtype.value} would be rounded in other places"


def _step(
    graph: Graph, start: int, rules: Callable[[type[Op]], tuple[Rule, ...]], refused: dict[tuple[str, str], RuleRefused]
) -> tuple[Graph, int, RuleApplied] | None:
    """The graph after the first match from node ``start`` on, where that was, and what happened; None without one."""
    by_name = graph.by_name
    for node in graph.nodes[start:]:
        for rule in rules(type(node.op)):
            for captures in _matches(rule.pattern, node, by_name, {}):
                match = Match(graph, node, captures)
                reason = rule.guard(match)
                reason = _too_coarse(rule, node, graph) if reason is None else reason
                if reason is None:
                    replacement = rule.build(match)
                    if replacement.type != node.type:
                        raise GraphError(
                            f"rule {rule.identity!r} turned {node.type} into {replacement.type}", node=node.name
                        )
                    after = _substitute(graph, match, replacement)
                    earlier = takewhile(node.name.__ne__, graph.by_name)
                    place = sum(map(after.by_name.__contains__, earlier))
                    exact = rule.numerics is Numerics.EXACT
                    return after, place, RuleApplied(identity=rule.identity, node=node.name, exact=exact)
                if reason:
                    key = (rule.identity, node.name)
                    refused[key] = RuleRefused(identity=rule.identity, node=node.name, reason=reason)
    return None


def rewrite(graph: Graph, rules: Sequence[Rule], limit: int = 1000) -> Outcome:
    """Apply ``rules``, from the first node to the last one and again, until none applies.

    Raises ``GraphError`` past ``limit`` steps.

    A guard that returns an empty string refuses silently: the match is of no interest.
    """
    applied: list[RuleApplied] = []
    refused: dict[tuple[str, str], RuleRefused] = {}

    @cache
    def about(kind: type[Op]) -> tuple[Rule, ...]:
        """The rules that may match a node of this op."""
        return tuple(rule for rule in rules if rule.pattern.op is None or issubclass(kind, rule.pattern.op))

    place = 0
    while (step := _step(graph, place, about, refused)) is not None or place:
        if step is None:  # what has happened since may let earlier nodes match
            place = 0
            continue
        after, place, event = step
        verify(after, checked=graph)
        graph = after
        applied.append(event)
        if len(applied) > limit:
            raise GraphError(f"no fixpoint after {limit} rewrites; the last was {event.identity!r}", node=event.node)
    names = {node.name for node in graph.nodes}
    return Outcome(graph, tuple(applied), tuple(r for r in refused.values() if r.node in names))
