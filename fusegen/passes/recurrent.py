"""Recurrent networks as layers, each a product of all of its inputs and a recurrence of few sums a step."""

from __future__ import annotations

from fusegen import dims
from fusegen.costs import recurrence as costs
from fusegen.ir import (
    CatOp,
    FillOp,
    GetItemOp,
    Graph,
    MatmulOp,
    Node,
    RecurrenceOp,
    RecurrentOp,
    ReshapeOp,
    RuleApplied,
    RuleRefused,
    SliceOp,
)
from fusegen.machines import machine
from fusegen.passes.rewrite import Match, Outcome

IDENTITY = "recurrent network = its layers, each of products of all inputs and a recurrence"


def is_zero(node: Node) -> bool:
    """True for first states that need not be read."""
    return isinstance(node.op, FillOp) and node.op.value == 0.0


def _states(m: Match, layers: list[Node]) -> Node:
    """[layers D, N, F] of [D, N, F] of each layer."""
    return layers[0] if len(layers) == 1 else m.add(CatOp(axis=0), *layers)


def _last_outputs(m: Match, op: RecurrentOp, outputs: Node, units: int) -> Node:
    """The last state [D, N, F] of a layer: the output at the step where each direction ends."""
    along = 1 if op.batch_first else 0
    length, samples = outputs.type.shape[along], outputs.type.shape[1 - along]
    found = []
    for direction in range(op.directions):
        end = dims.sub(length, 1) if direction == 0 else 0
        step = m.add(SliceOp(axis=along, start=end, length=1), outputs)
        if op.directions > 1:
            step = m.add(SliceOp(axis=2, start=direction * units, length=units), step)
        found.append(m.add(ReshapeOp(shape=(1, samples, units)), step))
    return _states(m, found)


def _expanded(m: Match, op: RecurrentOp) -> list[Node]:
    """The results of the network at the root of ``m``: outputs, last h, and an LSTM's last c."""
    x, *operands = (m.graph.node(name) for name in m.root.inputs)
    firsts, weights = operands[: op.states], operands[op.states :]
    given = not all(map(is_zero, firsts))
    units = int(firsts[0].type.shape[2])
    count, hidden, cells = 4 if op.bias else 2, list[Node](), list[Node]()
    for layer in range(op.layers):
        own: list[Node] = []
        for first in firsts if given else ():
            part = SliceOp(axis=0, start=layer * op.directions, length=op.directions)
            own.append(first if op.layers == 1 else m.add(part, first))
        for direction in range(op.directions):
            w_ih, w_hh, *biases = weights[(layer * op.directions + direction) * count :][:count]
            sums = m.add(MatmulOp(transposed=True), x, w_ih, *biases[:1])
            own += [sums, w_hh, *biases[1:]]
        step = RecurrenceOp(
            cell=op.cell, bidirectional=op.bidirectional, bias=op.bias, given=given, batch_first=op.batch_first
        )
        x = m.add(step, *own)
        hidden.append(_last_outputs(m, op, x, units))
        if op.states > 1:
            cells.append(m.add(step.replace(result="cells"), *own))
    return [x, _states(m, hidden), *([_states(m, cells)] if cells else [])]


def _with_layers(graph: Graph, node: Node, op: RecurrentOp) -> Graph:
    """``graph`` with the layers in place of ``node``; what read a result of it finds it under the same name."""
    m = Match(graph, node, {})
    results = _expanded(m, op)
    names: dict[str, str] = {}
    readers: dict[str, str] = {}
    for user in graph.nodes:
        if isinstance(user.op, GetItemOp) and user.inputs == (node.name,):
            result = results[user.op.index]
            readers[user.name] = names.setdefault(result.name, user.name)
    nodes: list[Node] = []
    for own in graph.nodes:
        if own.name == node.name:
            new = [built.replace(inputs=tuple(names.get(i, i) for i in built.inputs)) for built in m.built]
            nodes += [built.replace(name=names.get(built.name, built.name)) for built in new]
        elif own.name not in readers:
            nodes.append(own.replace(inputs=tuple(readers.get(i, i) for i in own.inputs)))
    return graph.replace(
        nodes=tuple(nodes),
        outputs=tuple(readers.get(name, name) for name in graph.outputs),
        updates=tuple((path, readers.get(name, name)) for path, name in graph.updates),
    ).prune()


def run(graph: Graph, target: str) -> Outcome:
    """%r = lstm(%x, %h, %c, ...)  ->  for every layer %x = recurrence(%h, %c, matmul(%x, %w_ih, %b_ih), %w_hh, ...)."""
    applied: list[RuleApplied] = []
    refused: list[RuleRefused] = []
    for node in graph.nodes:
        if not isinstance(node.op, RecurrentOp):
            continue
        if reason := costs.refusal(graph, node, machine(target)):
            refused.append(RuleRefused(identity=IDENTITY, node=node.name, reason=reason))
        else:
            graph = _with_layers(graph, node, node.op)
            applied.append(RuleApplied(identity=IDENTITY, node=node.name, exact=False))
    return Outcome(graph, tuple(applied), tuple(refused))
