"""Norms and softmaxes that are only reduced, into statistics and what is done with them; equal values once."""

from __future__ import annotations

from fusegen import dims
from fusegen.ir import (
    ConvOp,
    EagerOp,
    GetItemOp,
    Graph,
    InputOp,
    MatmulOp,
    Node,
    NormalizeOp,
    PointwiseOp,
    ReduceOp,
    RuleApplied,
    RuleRefused,
    SoftmaxOp,
    TapSumOp,
    WindowSumOp,
)
from fusegen.passes import columns, joins, losses, moments, parts, positions, rows, simplify
from fusegen.passes.algebra.collapse import largest_operand
from fusegen.passes.rewrite import Match, Numerics, Outcome, Rule, anything, op, rewrite

WORTH = 1 << 22
"""Elements of a softmax that leave the L2 cache before they are read again; writing them takes longer than launches."""


def _apply(m: Match) -> Node:
    norm = m.root.op
    assert isinstance(norm, NormalizeOp)
    x, *affine = (m.graph.node(name) for name in m.root.inputs)

    def reduce(fn: str, value: Node) -> Node:
        return m.add(ReduceOp.model_validate({"fn": fn, "axes": norm.axes, "keepdim": True}), value)

    distance = m.add(PointwiseOp(fn="sub"), x, reduce("mean", x)) if norm.center else x
    power = reduce("var", x) if norm.center else reduce("mean", m.add(PointwiseOp(fn="square"), x))
    return moments.scaled(m, norm, distance, power, affine)


def _in_parts(m: Match) -> Node:
    softmax, x = m.root.op, m["x"]
    assert isinstance(softmax, SoftmaxOp)
    peak = m.add(ReduceOp(fn="max", axes=(softmax.axis,), keepdim=True), x)
    shifted = m.add(PointwiseOp(fn="sub"), x, peak)
    power = m.add(PointwiseOp(fn="exp"), shifted)
    total = m.add(ReduceOp(fn="sum", axes=(softmax.axis,), keepdim=True), power)
    if softmax.log:
        return m.add(PointwiseOp(fn="sub"), shifted, m.add(PointwiseOp(fn="log"), total))
    return m.add(PointwiseOp(fn="div"), power, total)


def _is_reduced_elsewhere(m: Match) -> str | None:
    """What follows is a reduction along other axes: it computes elements again, and none is written.

    Along the channels of a convolution or the features of a product, softmaxes belong to those.
    """
    softmax, source, node = m.root.op, m["x"], m.root
    assert isinstance(softmax, SoftmaxOp)
    if dims.numel(node.type.shape, m.graph.sizes) < WORTH:
        return ""
    while isinstance(source.op, PointwiseOp):
        source = largest_operand(m.graph, source)
    last = softmax.axis == m.root.type.rank - 1
    if (isinstance(source.op, ConvOp) and softmax.axis == 1) or (isinstance(source.op, MatmulOp) and last):
        return ""
    while m.graph.has_one_reader(node.name):
        node = m.graph.node(m.graph.users[node.name][0])
        if isinstance(node.op, ReduceOp):
            return None if softmax.axis not in node.op.axes else ""
        if not isinstance(node.op, PointwiseOp) or node.type.shape != m.root.type.shape:
            return ""
    return ""


RULES = (
    Rule(
        "softmax(x) = exp(x - max(x)) / its sum,  below a reduction along other axes",
        op(SoftmaxOp, anything("x")),
        _in_parts,
        Numerics.REASSOCIATES,
        _is_reduced_elsewhere,
    ),
    Rule(
        "normalize(x, w, b) = (x - mean(x)) rsqrt(var(x) + eps) w + b",
        op(NormalizeOp),
        _apply,
        Numerics.EXACT,
    ),
)

_ORDER = (
    moments.CENTRED,
    moments.RULES,
    losses.RULES,
    RULES,
    joins.RULES,
    parts.RULES,
    positions.RULES,
    rows.RULES,
    columns.RULES,
    simplify.RULES,
)
"""A norm in parts is no longer seen as one; what is left of its axes may have size 1."""

_ONE_EACH = (InputOp, EagerOp, GetItemOp, TapSumOp, WindowSumOp)
_NUMBERED = ("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
"""Of torch's ops those that are the same at every call."""


def merge(graph: Graph) -> Graph:
    """``graph`` with each value computed once: nodes of the same op and operands are one node.

    Other ops of torch stay: one may draw random numbers. Sums of windows and of taps stay, too: a kernel computes both
    and their product, and none of them is written.
    """
    names: dict[str, str] = {}
    known: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(names.get(name, name) for name in node.inputs)
        node = node.replace(inputs=inputs) if inputs != node.inputs else node
        key = f"{node.op!r} {inputs} {node.type!r}"
        own = isinstance(node.op, _ONE_EACH) and not (isinstance(node.op, EagerOp) and node.op.target in _NUMBERED)
        if own or key not in known:
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
    for rules in _ORDER:
        outcome = rewrite(graph, rules)
        graph = outcome.graph
        applied += outcome.applied
        refused += outcome.refused
    return Outcome(merge(graph), tuple(applied), tuple(refused))
