"""Loops over time, which a trace writes out step by step: recurrent cells, and what is done alike at every step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusegen import dims
from fusegen.costs import recurrence as costs
from fusegen.ir import (
    GATES,
    CatOp,
    Cell,
    ConstOp,
    DType,
    EagerOp,
    GetItemOp,
    Graph,
    MatmulOp,
    Node,
    Op,
    ParamOp,
    PermuteOp,
    PointwiseOp,
    RecurrenceOp,
    ReshapeOp,
    RuleApplied,
    RuleRefused,
    SliceOp,
)
from fusegen.machines import Machine, machine
from fusegen.passes.groups import in_order
from fusegen.passes.recurrent import is_zero
from fusegen.passes.rewrite import Match, Outcome

RECURRENCE = "h = f(matmul(x_t, w) + matmul(h, v)) for every step t = a recurrence"
STEPS = "cat(f(step t of x) for every t) = f(x)"
LEAST = 4
"""Steps that are a loop."""
_FUNCTIONS: dict[str, Cell] = {"tanh": "rnn_tanh", "relu": "rnn_relu"}
_CELLS: dict[str, Cell] = {f"aten.{name}_cell.default": name for name in GATES}
"""torch's own cells, which a trace leaves whole."""
_TIME_FIRST = PermuteOp(order=(1, 0, 2))


@dataclass(frozen=True)
class _Term:
    """A product with a part of a weight, of ``count`` inputs from ``first`` on: what is joined before a product has one
    each. ``transposed`` as in ``MatmulOp``."""

    data: str
    weight: str
    first: int
    count: int
    transposed: bool = True

    @property
    def of(self) -> tuple[str, int, int, bool]:
        return self.weight, self.first, self.count, self.transposed


@dataclass(frozen=True)
class _Step:
    """``node`` is the state after a step of ``terms``, one of which is of the state before, and of ``added``; ``bias``
    goes with that one. ``cells``: an LSTM's c before."""

    node: Node
    cell: Cell
    terms: tuple[_Term, ...]
    added: tuple[str, ...]
    bias: str | None = None
    cells: str | None = None

    def is_like(self, other: _Step) -> bool:
        """Whether the two differ in their data alone."""
        mine, others = ((s.cell, s.added, s.bias, s.node.type) for s in (self, other))
        return mine == others and [term.of for term in self.terms] == [term.of for term in other.terms]


def _step(graph: Graph, node: Node) -> _Step | None:
    if isinstance(node.op, EagerOp):
        return _whole_cell(graph, node, node.op)
    cell = _FUNCTIONS.get(node.op.fn) if isinstance(node.op, PointwiseOp) else None
    if cell is None or node.type.rank != 2 or node.type.dtype is not DType.FLOAT32:
        return None
    terms, added, pending = list[_Term](), list[str](), [node.inputs[0]]
    while pending:
        addend = graph.node(pending.pop())
        match addend.op:
            case PointwiseOp(fn="add"):
                pending += reversed(addend.inputs)
            case MatmulOp(transposed=transposed, left_transposed=False):
                data, weight = (graph.node(name) for name in addend.inputs[:2])
                if not isinstance(weight.op, ParamOp) or (data.type.rank, weight.type.rank) != (2, 2):
                    return None
                joined = isinstance(data.op, CatOp) and data.op.axis == 1
                first = 0
                for part in data.inputs if joined else (data.name,):
                    count = graph.node(part).type.shape[1]
                    if not isinstance(count, int):
                        return None
                    terms.append(_Term(part, weight.name, first, count, transposed))
                    first += count
                added += addend.inputs[2:]
            case ParamOp() if addend.type.rank == 1:
                added.append(addend.name)
            case _:
                return None
    return _Step(node, cell, tuple(terms), tuple(added)) if len(terms) > 1 else None


def _whole_cell(graph: Graph, node: Node, op: EagerOp) -> _Step | None:
    """A step of one of torch's own cells: of x [N, I], h [N, F], for an LSTM c, w_ih, w_hh and biases, if any."""
    cell = _CELLS.get(op.target)
    states = 2 if cell == "lstm" else 1
    holes = [int(hole) for hole in re.findall(r"\{(\d+)\}", op.arguments)]
    if cell is None or holes != list(range(len(node.inputs))) or len(holes) not in (states + 3, states + 5):
        return None
    x, *given = (graph.node(name) for name in node.inputs)
    weights, biases = given[states : states + 2], [bias.name for bias in given[states + 2 :]]
    if any(operand.type.dtype is not DType.FLOAT32 for operand in (x, *given)) or x.type.rank != 2:
        return None
    terms: list[_Term] = []
    for data, weight in zip((x, given[0]), weights, strict=True):
        count = weight.type.shape[1]
        if not isinstance(count, int):
            return None
        terms.append(_Term(data.name, weight.name, 0, count))
    cells = given[1].name if states > 1 else None
    return _Step(node, cell, tuple(terms), tuple(biases[:1]), biases[1] if biases else None, cells)


def _before(graph: Graph, steps: Mapping[str, _Step], step: _Step, term: _Term) -> _Step | None:
    """The step whose state ``term`` is of."""
    if step.cell != "lstm":
        return steps.get(term.data)
    h, c = graph.node(term.data), graph.node(step.cells or term.data)
    both = [node.op.index for node in (h, c) if isinstance(node.op, GetItemOp)] == [0, 1]
    return steps.get(h.inputs[0]) if both and h.inputs == c.inputs else None


def _loops(graph: Graph) -> list[tuple[list[_Step], int]]:
    """The steps of every loop, the longest first, each the state that the next one has in its term of this place."""
    steps = {node.name: step for node in graph.nodes if (step := _step(graph, node))}
    ends: dict[tuple[str, int], list[_Step]] = {}
    for step in steps.values():
        for place, term in enumerate(step.terms):
            before = _before(graph, steps, step, term)
            if before is not None and before.is_like(step):
                ends[step.node.name, place] = [*ends.get((before.node.name, place), [before]), step]
    goes_on = {(step.node.name, place) for (_, place), found in ends.items() for step in found[:-1]}
    loops = [(found, end[1]) for end, found in ends.items() if len(found) >= LEAST and end not in goes_on]
    return sorted(loops, key=lambda loop: -len(loop[0]))


def _all_steps(m: Match, steps: Sequence[str]) -> Node:
    """[T, N, F] of the values [N, F] of every step: what they are parts of, one after the other, or a copy."""
    nodes = [m.graph.node(name) for name in steps]
    if found := _parts_of(m.graph, nodes):
        whole, axis, start = found
        length = whole.type.shape[axis]
        part = SliceOp(axis=axis, start=start, length=len(nodes))
        series = whole if (start, length) == (0, len(nodes)) else m.add(part, whole)
        return m.add(_TIME_FIRST, series) if axis else series
    return m.add(CatOp(axis=0), *(m.add(ReshapeOp(shape=(1, *node.type.shape)), node) for node in nodes))


def _parts_of(graph: Graph, nodes: Sequence[Node]) -> tuple[Node, int, int] | None:
    """The tensor of rank 3 whose neighbouring parts ``nodes`` are, the axis along which, and where they begin."""
    if not all(isinstance(node.op, ReshapeOp) for node in nodes):
        return None
    parts = [graph.node(node.inputs[0]) for node in nodes]
    first = parts[0].op
    if not isinstance(first, SliceOp) or not isinstance(first.start, int) or first.axis > 1 or parts[0].type.rank != 3:
        return None
    wanted = [first.replace(start=first.start + i, length=1) for i in range(len(parts))]
    whole = graph.node(parts[0].inputs[0])
    kept = tuple(size for axis, size in enumerate(whole.type.shape) if axis != first.axis)
    one = all(part.inputs == (whole.name,) for part in parts) and all(node.type.shape == kept for node in nodes)
    return (whole, first.axis, first.start) if one and [part.op for part in parts] == wanted else None


def _part(m: Match, term: _Term) -> Node:
    """The part of a term's weight."""
    weight, along = m.graph.node(term.weight), 1 if term.transposed else 0
    if term.count == weight.type.shape[along]:
        return weight
    return m.add(SliceOp(axis=along, start=term.first, length=term.count), weight)


def _refusal(graph: Graph, loop: list[_Step], place: int, target: Machine) -> str | None:
    own = {step.node.name for step in loop}
    data = {term.data for step in loop for i, term in enumerate(step.terms) if i != place}
    if graph.needed(*data) & own:
        return "what a step reads beside the state follows from the states before"
    if loop[0].cell == "lstm" and any(len(graph.users[step.cells or ""]) > 1 for step in loop[1:]):
        return "an LSTM's c between its steps is read elsewhere too"
    samples, hidden = loop[0].node.type.shape
    if not isinstance(hidden, int) or loop[0].terms[place].count != hidden:
        return "its state is of another width than what it is made of"
    if not target.wgmma:
        return "its kernel needs the clusters of sm_90"
    if not costs.tiles(loop[0].cell, hidden, max(1, dims.evaluate(samples, graph.sizes)), len(loop), 1, target):
        return f"{hidden} units are more than a cluster has on chip"
    return None


def _rolled(graph: Graph, loop: list[_Step], place: int) -> Graph:
    """%h_t = tanh(%x_t w + %h_(t-1) v) for every t  ->  %h = recurrence(%h_0, matmul(%x, %w), %v); %h_t = slice(%h)."""
    begin, end = loop[0], loop[-1]
    m = Match(graph, end.node, {})
    samples, hidden = begin.node.type.shape
    sums: Node | None = None
    for i, term in enumerate(begin.terms):
        if i != place:
            series = _all_steps(m, [step.terms[i].data for step in loop])
            found = m.add(MatmulOp(transposed=term.transposed), series, _part(m, term))
            sums = found if sums is None else m.add(PointwiseOp(fn="add"), sums, found)
    assert sums is not None
    for name in begin.added:
        sums = m.add(PointwiseOp(fn="add"), sums, graph.node(name))
    firsts = [graph.node(name) for name in (begin.terms[place].data, begin.cells) if name is not None]
    given = not all(map(is_zero, firsts))
    firsts = [m.add(ReshapeOp(shape=(1, samples, hidden)), first) for first in firsts] if given else []
    weight = _part(m, begin.terms[place])
    weight = weight if begin.terms[place].transposed else m.add(PermuteOp(order=(1, 0)), weight)
    weights = [weight, *([graph.node(begin.bias)] if begin.bias else [])]
    op = RecurrenceOp(cell=begin.cell, bias=begin.bias is not None, given=given)
    states = m.add(op, *firsts, sums, *weights)
    names: dict[str, str] = {}
    for t, step in enumerate(loop):
        if read := _result(graph, step, 0):
            part = m.add(SliceOp(axis=0, start=t, length=1), states)
            names[m.add(ReshapeOp(shape=(samples, hidden)), part).name] = read
    if begin.cell == "lstm" and (read := _result(graph, end, 1)):
        cells = m.add(op.replace(result="cells"), *firsts, sums, *weights)
        names[m.add(ReshapeOp(shape=(samples, hidden)), cells).name] = read
    return _replaced(m, names)


def _result(graph: Graph, step: _Step, index: int) -> str | None:
    """The node that reads a state of a step."""
    if step.cell != "lstm":
        return step.node.name
    readers = (graph.node(name) for name in graph.users[step.node.name])
    return next((n.name for n in readers if isinstance(n.op, GetItemOp) and n.op.index == index), None)


def _replaced(m: Match, names: dict[str, str]) -> Graph:
    """The graph with the nodes that ``m`` has built; ``names``: of nodes of it in whose place some of them are."""
    built = [node.replace(name=names.get(node.name, node.name)) for node in m.built]
    replaced = set(names.values())
    kept = [node for node in m.graph.nodes if node.name not in replaced]
    return m.graph.replace(nodes=in_order([*kept, *built])).prune()


@dataclass(frozen=True)
class _Applied:
    """An op that every step applies to its own operand at ``place``, and to ``operands`` at all other places."""

    op: Op
    place: int
    operands: tuple[str, ...]


def _alike(graph: Graph, steps: Sequence[Node]) -> _Applied | None:
    """What all of ``steps`` are the results of, where one operand alone is a step's own."""
    first = steps[0]
    if any((node.op, node.type, len(node.inputs)) != (first.op, first.type, len(first.inputs)) for node in steps):
        return None

    def of(node: Node, i: int) -> object:  # numbers are nodes of their own at every step
        operand = graph.node(node.inputs[i])
        return operand.op if isinstance(operand.op, ConstOp) else operand.name

    own = [i for i in range(len(first.inputs)) if len({of(node, i) for node in steps}) > 1]
    if len(own) != 1 or not isinstance(first.op, (PointwiseOp, MatmulOp)):
        return None
    weight = isinstance(first.op, MatmulOp) and (own[0] > 0 or graph.node(first.inputs[1]).type.rank != 2)
    return None if weight else _Applied(first.op, own[0], first.inputs)


def _joined(graph: Graph, cat: Node) -> Graph | None:
    """%y = cat(f(step 0 of %x), f(step 1 of %x), ...)  ->  %y = f(%x)."""
    if not isinstance(cat.op, CatOp) or cat.op.axis > 1 or cat.type.rank != 3 or len(cat.inputs) < LEAST:
        return None
    lines = [graph.node(name) for name in cat.inputs]
    if not all(isinstance(node.op, ReshapeOp) for node in lines):
        return None
    steps = [graph.node(node.inputs[0]) for node in lines]
    if any(node.type.rank != 2 for node in steps):
        return None
    applied: list[_Applied] = []
    while _parts_of(graph, steps) is None:
        found = _alike(graph, steps)
        if found is None:
            return None
        applied.append(found)
        steps = [graph.node(node.inputs[found.place]) for node in steps]
    m = Match(graph, cat, {})
    value = _all_steps(m, [node.name for node in steps])
    for known in reversed(applied):
        operands = [graph.node(name) for name in known.operands]
        operands[known.place] = value
        value = m.add(known.op, *operands)
    value = m.add(_TIME_FIRST if cat.op.axis else ReshapeOp(shape=cat.type.shape), value)
    return _replaced(m, {value.name: cat.name}) if value.type == cat.type else None


def run(graph: Graph, target: str) -> Outcome:
    """Loops of recurrent cells first: what is done at every step of their states is then done to all of them."""
    applied: list[RuleApplied] = []
    refused: dict[str, RuleRefused] = {}
    while loops := [loop for loop in _loops(graph) if loop[0][-1].node.name not in refused]:
        (loop, place), *_ = loops
        end = loop[-1].node.name
        if reason := _refusal(graph, loop, place, machine(target)):
            refused[end] = RuleRefused(identity=RECURRENCE, node=end, reason=reason)
        else:
            graph = _rolled(graph, loop, place)
            applied.append(RuleApplied(identity=RECURRENCE, node=end, exact=False))
    for node in graph.nodes:
        if (joined := _joined(graph, node)) is not None:
            graph = joined
            applied.append(RuleApplied(identity=STEPS, node=node.name, exact=False))
    return Outcome(graph, tuple(applied), tuple(refused.values()))
