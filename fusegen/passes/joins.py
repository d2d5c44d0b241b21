"""Reductions of joined data: of its parts, where these are functions of the same data, or a part's are known."""

from __future__ import annotations

from fusegen import dims
from fusegen.ir import CatOp, Graph, Node, PointwiseOp, ReduceOp, ReshapeOp
from fusegen.passes.algebra.collapse import largest_operand
from fusegen.passes.rewrite import Match, Numerics, Rule, op

WORTH = 1 << 24
"""Elements of the whole from which on reading it again takes longer than to launch what joins the parts' statistics and
updates with them (a dense block of 10x32x224x224, 3,260 us and 2,520; of 16x64x56x56, 1,002 and 1,079)."""


def _reductions(graph: Graph, part: str, reduce: ReduceOp) -> int:
    """How often ``part`` is reduced so, by itself or joined with others."""
    found = 0
    for reader in map(graph.node, graph.users[part]):
        if reader.op == reduce:
            found += 1
        elif isinstance(reader.op, CatOp) and reader.op.axis not in reduce.axes:
            found += sum(graph.node(name).op == reduce for name in graph.users[reader.name])
    return found


def _again(m: Match) -> str | None:
    """A part of what is joined is reduced alike elsewhere, along other axes than it is joined along."""
    reduce, cat = m.root.op, m["cat"]
    assert isinstance(reduce, ReduceOp)
    assert isinstance(cat.op, CatOp)
    if cat.op.axis in reduce.axes or dims.numel(cat.type.shape, m.graph.sizes) < WORTH:
        return ""
    return None if any(_reductions(m.graph, name, reduce) > 1 for name in cat.inputs) else ""


def _of_parts(m: Match) -> Node:
    reduce = m.root.op
    assert isinstance(reduce, ReduceOp)
    kept = reduce.replace(keepdim=True)
    joined = m.add(m["cat"].op, *(m.add(kept, m.graph.node(name)) for name in m["cat"].inputs))
    return joined if reduce.keepdim else m.add(ReshapeOp(shape=m.root.type.shape), joined)


def _data(graph: Graph, node: Node) -> str:
    """What a function of data is a function of: of its operands that have as many elements, the first one's."""
    while isinstance(node.op, PointwiseOp) and (data := largest_operand(graph, node)).type.shape == node.type.shape:
        node = data
    return node.name


def _of_same_data(m: Match) -> str | None:
    """Nothing else reads what is joined along another axis, and all parts are functions of the same data."""
    reduce, cat = m.root.op, m["cat"]
    assert isinstance(reduce, ReduceOp)
    assert isinstance(cat.op, CatOp)
    if cat.op.axis in reduce.axes or not m.only_user("cat"):
        return ""
    parts = [m.graph.node(name) for name in cat.inputs]
    same = len({_data(m.graph, part) for part in parts}) == 1
    return None if same and all(isinstance(part.op, PointwiseOp) for part in parts) else ""


RULES = (
    Rule(
        "reduce(cat(f(x), g(x))) = cat(reduce(f(x)), reduce(g(x))) over other axes,  f and g elementwise",
        op(ReduceOp, op(CatOp, name="cat")),
        _of_parts,
        Numerics.EXACT,
        _of_same_data,
    ),
    Rule(
        "reduce(cat(x, y)) = cat(reduce(x), reduce(y)) over other axes,  a part of which is reduced elsewhere, too",
        op(ReduceOp, op(CatOp, name="cat"), keepdim=True),
        _of_parts,
        Numerics.EXACT,
        _again,
    ),
)
