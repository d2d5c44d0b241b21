"""Statistics of joined data, where a part's are known: a dense block's norms each see all features before them."""

from __future__ import annotations

from fusegen import dims
from fusegen.ir import CatOp, Graph, Node, ReduceOp
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
    return m.add(m["cat"].op, *(m.add(m.root.op, m.graph.node(name)) for name in m["cat"].inputs))


RULES = (
    Rule(
        "reduce(cat(x, y)) = cat(reduce(x), reduce(y)) over other axes,  a part of which is reduced elsewhere, too",
        op(ReduceOp, op(CatOp, name="cat"), keepdim=True),
        _of_parts,
        Numerics.EXACT,
        _again,
    ),
)
