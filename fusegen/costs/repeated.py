"""Values that several elements of a result come from, computed for each of them: when they are better written once."""

from __future__ import annotations

from collections import Counter

from fusegen import dims
from fusegen.ir import Graph, Node, PointwiseOp
from fusegen.machines import Machine
from fusegen.pointwise import POINTWISE
from fusegen.spaces import placement, viewreduce, viewspace

_WORTH = 2.0
"""How much longer than writing and reading a value its repetition has to take: splines of 5.8 million numbers take 69
us with four of every quotient, 105 with the quotients written."""


def _instructions(node: Node) -> int:
    return POINTWISE[node.op.fn].instructions if isinstance(node.op, PointwiseOp) else 0


def _at_most(body: Graph, names: tuple[str, ...]) -> int:
    """Instructions of an element of ``names`` where no two readers want the same element of a value."""
    times = Counter(names)
    for node in reversed(body.nodes):
        for operand in node.inputs:
            times[operand] += times[node.name]
    return sum(times[node.name] * _instructions(node) for node in body.nodes)


def refusal(body: Graph, machine: Machine) -> str | None:
    """Why a kernel whose elements come from behind views is slower than one that reads what some have in common.

    Raises ``NotFusable``.
    """
    found = None if viewspace.takes(body) else viewreduce.check(body)
    names = tuple(head.inputs[0] for head in found.heads) if found else body.outputs
    sizes = {node.name: dims.numel(node.type.shape, body.sizes) for node in body.nodes}
    elements, rate = sizes[names[0]], machine.flops / 2
    moved = 4 * (sum(sizes[node.name] for node in body.inputs) + sum(sizes[name] for name in body.outputs))
    memory = moved / machine.bandwidth
    if elements * _at_most(body, names) / rate <= memory:
        return None
    if found:
        times = sum((placement.evaluations(body, name, found.places) for name in names), Counter[str]())
    else:
        times = viewspace.evaluations(body)
    if elements * sum(times[node.name] * _instructions(node) for node in body.nodes) / rate <= memory:
        return None  # that it takes no longer than memory
    for node in body.nodes:
        if not isinstance(node.op, PointwiseOp) or times[node.name] < 2:
            continue
        before = (body.node(name) for name in body.needed(node.name))
        work = sum(_instructions(own) for own in before if times[own.name] >= times[node.name])
        again = (times[node.name] * elements - sizes[node.name]) * work / rate
        written = 8 * sizes[node.name] / machine.bandwidth + machine.launch
        if again > _WORTH * written:
            return f"each element would compute {node.name} {times[node.name]} times, {again * 1e6:.1f} us in all"
    return None
