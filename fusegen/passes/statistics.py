"""Norms into statistics and what is done with them; equal values computed once."""

from __future__ import annotations

from fusegen.ir import (
    EagerOp,
    GetItemOp,
    Graph,
    InputOp,
    Node,
    NormalizeOp,
    PointwiseOp,
    ReduceOp,
    RuleApplied,
    RuleRefused,
)
from fusegen.passes import moments, positions, simplify
from fusegen.passes.rewrite import Match, Numerics, Outcome, Rule, op, rewrite


def _apply(m: Match) -> Node:
    norm = m.root.op
    assert isinstance(norm, NormalizeOp)
    x, *affine = (m.graph.node(name) for name in m.root.inputs)

    def reduce(fn: str, value: Node) -> Node:
        return m.add(ReduceOp.model_validate({"fn": fn, "axes": norm.axes, "keepdim": True}), value)

    distance = m.add(PointwiseOp(fn="sub"), x, reduce("mean", x)) if norm.center else x
    power = reduce("var", x) if norm.center else reduce("mean", m.add(PointwiseOp(fn="square"), x))
    return moments.scaled(m, norm, distance, power, affine)


RULES = (
    Rule(
        "normalize(x, w, b) = (x - mean(x)) rsqrt(var(x) + eps) w + b",
        op(NormalizeOp),
        _apply,
        Numerics.EXACT,
    ),
)


def merge(graph: Graph) -> Graph:
    """``graph`` with each value computed once: nodes of the same op and operands are one node.

    Eager nodes stay: an op may draw random numbers.
    """
    names: dict[str, str] = {}
    known: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(names.get(name, name) for name in node.inputs)
        node = node.replace(inputs=inputs) if inputs != node.inputs else node
        key = f"{node.op!r} {inputs} {node.type!r}"
        if isinstance(node.op, (InputOp, EagerOp, GetItemOp)) or key not in known:
            known.setdefault(key, node.name)
            nodes.append(node)
        else:
            names[node.name] = known[key]
    return graph.replace(
        nodes=tuple(nodes),
        outputs=tuple(names.get(name, name) for name in graph.outputs),
        updates=tuple((path, names.get(name, name)) for path, name in graph.updates),
    )


def run(graph: Graph) -> Outcome:
    """%y = normalize(%x)  ->  %y = mul(sub(%x, reduce.mean(%x)), rsqrt(add(reduce.var(%x), eps)))."""
    applied: list[RuleApplied] = []
    refused: list[RuleRefused] = []
    # A norm in parts is no longer seen as one; what is left of its axes may have size 1.
    for rules in (moments.CENTRED, moments.RULES, RULES, positions.RULES, simplify.RULES):
        outcome = rewrite(graph, rules)
        graph = outcome.graph
        applied += outcome.applied
        refused += outcome.refused
    return Outcome(merge(graph), tuple(applied), tuple(refused))
