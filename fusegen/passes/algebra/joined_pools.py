"""Poolings of what is joined along another axis: of its parts, where the whole is in nobody else's way.

No kernel that pools reads several tensors as one, so that the whole would be written and read again.
"""

from __future__ import annotations

from fusegen import dims
from fusegen.ir import AdaptivePoolOp, CatOp, Graph, Node, PointwiseOp, PoolOp, SliceOp
from fusegen.passes.rewrite import Match, Numerics, Rule, op

_OF_A_LAUNCH = 1 << 21
"""Elements that are written and read again while one more kernel begins."""
_MOST_SLICED = 16
"""The part of a whole's elements that an operand has which is taken apart with it: one over this, at most."""


def _pays(graph: Graph, join: Node, pool: Node) -> bool:
    """Whether so much less is left that every part may have a pooling of its own."""
    less = dims.numel(join.type.shape, graph.sizes) - dims.numel(pool.type.shape, graph.sizes)
    return less > _OF_A_LAUNCH * (len(join.inputs) - 1)


def _by_parts(graph: Graph, join: Node, pool: Node) -> str | None:
    """``pool`` is over other axes than ``join``, and smaller."""
    assert isinstance(join.op, CatOp)
    assert isinstance(pool.op, (PoolOp, AdaptivePoolOp))
    return None if join.op.axis < join.type.rank - pool.op.rank and _pays(graph, join, pool) else ""


def _pooled(m: Match) -> str | None:
    return _by_parts(m.graph, m["join"], m.root) if m.only_user("join") else ""


def _of_parts(m: Match) -> Node:
    parts = (m.graph.node(name) for name in m["join"].inputs)
    return m.add(m["join"].op, *(m.add(m.root.op, part) for part in parts))


def _joined_operand(m: Match) -> Node | None:
    """The one operand of a function that is joined and nobody else's, if the others are numbers or small beside it."""
    operands = [m.graph.node(name) for name in dict.fromkeys(m.root.inputs)]
    whole = [node for node in operands if isinstance(node.op, CatOp) and node.type.shape == m.root.type.shape]
    if len(whole) != 1 or m.root.inputs.count(whole[0].name) != 1 or not m.graph.has_one_reader(whole[0].name):
        return None
    most = dims.numel(m.root.type.shape, m.graph.sizes) // _MOST_SLICED
    others = (node for node in operands if node is not whole[0])
    return whole[0] if all(dims.numel(node.type.shape, m.graph.sizes) <= most for node in others) else None


def _pooled_later(m: Match) -> str | None:
    """Functions of the result alone lead to a pooling of the joined elements."""
    join, node = _joined_operand(m), m.root
    while join is not None and m.graph.has_one_reader(node.name):
        (reader,) = (m.graph.node(name) for name in m.graph.users[node.name])
        if isinstance(reader.op, (PoolOp, AdaptivePoolOp)):
            return _by_parts(m.graph, join, reader)
        if not isinstance(reader.op, PointwiseOp) or reader.type.shape != node.type.shape:
            break
        node = reader
    return ""


def _function_of_parts(m: Match) -> Node:
    join = _joined_operand(m)
    assert join is not None
    assert isinstance(join.op, CatOp)
    parts = list[Node]()
    start: dims.Dim = 0
    for part in map(m.graph.node, join.inputs):
        length = part.type.shape[join.op.axis]
        operands = list[Node]()
        for node in map(m.graph.node, m.root.inputs):
            axis = join.op.axis - join.type.rank + node.type.rank
            if node is join:
                operands.append(part)
            elif axis < 0 or node.type.shape[axis] == 1:
                operands.append(node)
            else:
                operands.append(m.add(SliceOp(axis=axis, start=start, length=length), node))
        parts.append(m.add(m.root.op, *operands))
        start = dims.add(start, length)
    return m.add(join.op, *parts)


RULES = (
    *(
        Rule(
            f"{name}(cat(x, y)) = cat({name}(x), {name}(y)) over other axes",
            op(kind, op(CatOp, name="join")),
            _of_parts,
            Numerics.EXACT,
            _pooled,
        )
        for name, kind in (("pool", PoolOp), ("adaptive_pool", AdaptivePoolOp))
    ),
    Rule(
        "f(cat(x, y)) = cat(f(x), f(y)) before a pooling over other axes,  f elementwise",
        op(PointwiseOp),
        _function_of_parts,
        Numerics.EXACT,
        _pooled_later,
    ),
)
