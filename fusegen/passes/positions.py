"""Reductions of a convolution's results over all positions and more: the positions first, in its own kernel."""

from __future__ import annotations

from fusegen import dims
from fusegen.ir import ConvOp, DType, Node, PointwiseOp, ReduceOp
from fusegen.machines import DEFAULT_TARGET, machine
from fusegen.passes.algebra.collapse import positions_first, reduction
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op
from fusegen.spaces import convreduce

_WORTH = 2
"""Launches in whose time the result is read, from which on a second kernel for what is left is worth it."""


def _convolution(m: Match) -> Node | None:
    """The convolution whose results, element by element, are reduced here alone, if there is one."""
    chain, pending = list[Node](), {m["x"].name}
    for node in reversed(m.graph.nodes):
        if node.name not in pending:
            continue
        pending.remove(node.name)
        chain.append(node)
        if isinstance(node.op, ConvOp):
            break
        if not isinstance(node.op, PointwiseOp):
            return None
        pending.update(name for name in node.inputs if m.graph.node(name).type == node.type)
    names, users = {node.name for node in chain}, m.graph.users
    alone = all(names | {m.root.name} >= set(users[name]) for name in names) and not names & set(m.graph.results)
    return chain[-1] if alone and not pending and isinstance(chain[-1].op, ConvOp) else None


def _positions(node: Node) -> tuple[int, ...]:
    return tuple(range(2, node.type.rank))


def _and_more(m: Match) -> str | None:
    conv = _convolution(m)
    if conv is None or not set(_positions(conv)) < set(reduction(m).axes) or conv.type.dtype is not DType.FLOAT32:
        return ""
    rates = machine(DEFAULT_TARGET)
    if not convreduce.many_positions(m.graph, conv):
        return f"samples of fewer than {convreduce.LEAST_POSITIONS} positions, or groups too narrow for tensor cores"
    read = 4 * dims.numel(conv.type.shape, m.graph.sizes) / rates.bandwidth
    return None if read > _WORTH * rates.launch else "one kernel more would take longer than reading the result"


RULES = (
    Rule(
        "sum over positions and more = sum over the rest of the sum over positions,  mean, max and min likewise",
        op(ReduceOp, anything("x"), fn=("sum", "mean", "max", "min")),
        positions_first,
        Numerics.REASSOCIATES,
        _and_more,
    ),
)
