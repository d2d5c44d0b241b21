"""Where two graphs differ: every rewritten value as a graph of its own that computes it both ways.

Nodes that apply the same op to equal values have equal values: they are numbered, and need no evaluation. A rewrite
keeps the name of the value that it computes in another way. Such a value is cut out together with what it is
computed from on either side, back to values that are known to be equal: a *miter*, as in the equivalence checking of
circuits, whose operands may hold anything. Where its two results agree they count as equal for all that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Set
from dataclasses import dataclass, field

from fusegen.interpret import is_random
from fusegen.ir import (
    DEVICE_ONLY,
    ConstOp,
    ConvOp,
    EagerOp,
    ExpandOp,
    GetItemOp,
    Graph,
    InputOp,
    MatmulOp,
    Node,
    Op,
    ParamOp,
    PermuteOp,
    RecurrentOp,
    RegionOp,
    ReshapeOp,
    SliceOp,
)

MOST_NODES = 48
"""Of a miter that goes back further than to what is known to be equal."""
VIEWS = (ReshapeOp, PermuteOp, ExpandOp, SliceOp)


@dataclass(frozen=True)
class Value:
    """``op`` on the values of these numbers; ``known``: made of scalars alone."""

    op: Op
    inputs: tuple[int, ...]
    node: Node
    known: bool

    @property
    def ends(self) -> bool:
        """True where a miter may take any tensor instead."""
        several = isinstance(self.op, RecurrentOp) or (isinstance(self.op, EagerOp) and self.op.tuple_result)
        return not (self.known or several or isinstance(self.op, VIEWS))


@dataclass
class _Numbering:
    """Values by number. Equal numbers are equal values, as far as is proven."""

    values: list[Value] = field(default_factory=list)
    proven: dict[int, int] = field(default_factory=dict)
    """A number -> that of the value which it is proven equal to."""
    _numbers: dict[Hashable, int] = field(default_factory=dict)

    def number(self, node: Node, inputs: tuple[int, ...], draw: int) -> int:
        """The number of ``node``, which has these ``inputs``; ``draw`` counts the draws of random numbers."""
        op = node.op
        if isinstance(op, (ConvOp, MatmulOp)):
            op = op.replace(precise=False)  # how exactly, not what
        key = (op, inputs, node.type, draw)
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            known = all(self.values[i].known for i in inputs) if inputs else isinstance(op, ConstOp)
            self.values.append(Value(op, inputs, node, known or isinstance(op, DEVICE_ONLY)))
        found = self._numbers[key]
        return self.proven.get(found, found)

    def walk(self, graph: Graph, visit: Callable[[str, int], None]) -> dict[str, int]:
        """The numbers of the nodes of ``graph``; each of its values, inside regions too, is shown to ``visit``."""
        numbers: dict[str, int] = {}
        results: dict[str, list[int]] = {}
        draws = 0

        def take(node: Node, scope: dict[str, int]) -> None:
            nonlocal draws
            draws += (random := is_random(node.op))
            found = self.number(node, tuple(scope[name] for name in node.inputs), draws if random else 0)
            visit(node.name, found)
            scope[node.name] = self.proven.get(found, found)

        for node in graph.nodes:
            if isinstance(node.op, RegionOp):
                body = node.op.body
                scope = {value.name: numbers[name] for value, name in zip(body.inputs, node.inputs, strict=True)}
                for member in body.nodes:
                    if member.name not in scope:
                        take(member, scope)
                results[node.name] = [scope[name] for name in body.outputs]
                numbers[node.name] = results[node.name][0]
            elif isinstance(node.op, GetItemOp) and node.inputs[0] in results:
                numbers[node.name] = results[node.inputs[0]][node.op.index]
            else:
                take(node, numbers)
        return numbers

    def support(self, number: int, ends: Set[int]) -> tuple[set[int], set[int]]:
        """What ``number`` is computed by, back to ``ends``, and those of them that it is computed from."""
        inside, read, pending = set[int](), set[int](), [number]
        while pending:
            if (current := pending.pop()) not in inside:
                inside.add(current)
                operands = set(self.values[current].inputs)
                read |= operands & ends
                pending += operands - ends
        return inside, read


def _miters(numbering: _Numbering, sizes: Graph, first: int, second: int, shared: Set[int]) -> Iterator[Graph]:
    """Graphs of what ``first`` and ``second`` are computed by, from the same of the ``shared`` values: from the nearest
    and then, as long as that is little, from what these are computed from. relu(exp(x)) is exp(x), but relu of a value
    that may hold anything is not that value.
    """
    leaves = {n for n in shared if isinstance(numbering.values[n].op, (InputOp, ParamOp))}
    ends = set(shared)
    while True:
        found, read = _miter(numbering, sizes, first, second, ends, leaves)
        yield found
        if read <= leaves or len(found.nodes) > MOST_NODES:
            return
        ends -= read - leaves


def _miter(
    numbering: _Numbering, sizes: Graph, first: int, second: int, ends: set[int], leaves: Set[int]
) -> tuple[Graph, set[int]]:
    """The graph that takes ``ends`` as given, without those that only one side reads, and what it reads of them."""
    while True:
        (here, read_here), (there, read_there) = (numbering.support(n, ends) for n in (first, second))
        if not (alone := (read_here ^ read_there) - leaves):  # one side needs what the other takes as given
            break
        ends.remove(max(alone))
    names = {number: f"v{place}" for place, number in enumerate(sorted(read_here | read_there | here | there))}
    nodes: list[Node] = []
    for number, name in names.items():
        value = numbering.values[number]
        if number in ends:
            op: Op = InputOp(position=len(nodes))
            nodes.append(value.node.replace(name=name, op=op, inputs=(), source=None))
    for number, name in names.items():
        value = numbering.values[number]
        if number not in ends:
            inputs = tuple(names[i] for i in value.inputs)
            nodes.append(value.node.replace(name=name, op=value.op, inputs=inputs, source=None))
    graph = sizes.replace(name="miter", nodes=tuple(nodes), outputs=(names[first], names[second]), updates=())
    return graph, read_here | read_there


def equal(before: Graph, after: Graph, agree: Callable[[Iterable[Graph]], bool]) -> bool:
    """True when the results of ``after`` are those of ``before``; ``agree`` tells whether the two of any miter are."""
    numbering = _Numbering()
    first = set[int]()
    own = numbering.walk(before, lambda name, number: first.add(number))
    shared = {number for number in first if isinstance(numbering.values[number].op, (InputOp, ParamOp))}

    def visit(name: str, number: int) -> None:
        if number not in first and name in own:
            prove(own[name], number)
        if (number := numbering.proven.get(number, number)) in first and numbering.values[number].ends:
            shared.add(number)

    def prove(known: int, number: int) -> bool:
        comparable = known != number and numbering.values[known].node.type == numbering.values[number].node.type
        if comparable and agree(_miters(numbering, before, known, number, shared - {known})):
            numbering.proven[number] = known
        return numbering.proven.get(number, number) == known

    found = numbering.walk(after, visit)
    return all(prove(own[a], found[b]) for a, b in zip(before.results, after.results, strict=True))
