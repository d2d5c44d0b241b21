"""Products of rows that are put in another order before, and read or put back after: they are of the rows as they lie.

Attention modules that want tokens first permute what has the batch first, for a product, and back.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusegen import dims
from fusegen.dims import Dim
from fusegen.ir import (
    AttentionOp,
    ExpandOp,
    Graph,
    MatmulOp,
    Node,
    PermuteOp,
    ReshapeOp,
    SliceOp,
)
from fusegen.passes.rewrite import Match, Numerics, Rule, op

_VIEWS = (ReshapeOp, PermuteOp, SliceOp, ExpandOp)


def _order(view: Node) -> tuple[int, ...]:
    assert isinstance(view.op, PermuteOp)
    return view.op.order


def _left(m: Match) -> Node:
    return m.graph.node(m.root.inputs[0])


def _source(m: Match, node: Node) -> Node:
    return m.graph.node(node.inputs[0])


def _is_of_rows(m: Match) -> bool:
    """Whether a row of the result follows from a row of the data and one weight."""
    assert isinstance(m.root.op, MatmulOp)
    return m.graph.node(m.root.inputs[1]).type.rank == 2 and not m.root.op.left_transposed


def _product(m: Match, rows: Node) -> Node:
    return m.add(m.root.op, rows, *(m.graph.node(name) for name in m.root.inputs[1:]))


def _goes_to_attention(graph: Graph, name: str) -> bool:
    """Whether attention alone reads a value, through views."""
    readers = [graph.node(user) for user in graph.users[name]]
    return (
        bool(readers)
        and name not in graph.results
        and all(
            isinstance(node.op, AttentionOp) or (isinstance(node.op, _VIEWS) and _goes_to_attention(graph, node.name))
            for node in readers
        )
    )


def _moves_rows(m: Match) -> str | None:
    view = _left(m)
    if not isinstance(view.op, PermuteOp) or not _is_of_rows(m):
        return ""
    moved = view.op.order[-1] == len(view.op.order) - 1
    return None if moved and _goes_to_attention(m.graph, m.root.name) else ""


def _permuted_after(m: Match) -> Node:
    return m.add(_left(m).op, _product(m, _source(m, _left(m))))


@dataclass(frozen=True)
class _Joined:
    """Data whose axes are permuted: ``count`` of these are those of rows, and all others are joined to features."""

    view: Node
    count: int
    features: Dim

    @property
    def back(self) -> tuple[int, ...]:
        """The order that eager has of the axes of a result whose rows are as the data lie."""
        rows = _order(self.view)[: self.count]
        return (*(sorted(rows).index(axis) for axis in rows), self.count)


def _joined(m: Match) -> _Joined | None:
    reshaped = _left(m)
    if not isinstance(reshaped.op, ReshapeOp) or not _is_of_rows(m):
        return None
    view = _source(m, reshaped)
    groups = dims.regrouped(view.type.shape, reshaped.type.shape)
    if not isinstance(view.op, PermuteOp) or not groups:
        return None
    own, features = groups[-1]
    kept = list(view.op.order[own.start :])
    found = _Joined(view, own.start, reshaped.type.shape[-1])
    moved = found.back != tuple(range(found.count + 1))
    return found if len(features) == 1 and kept == sorted(kept) and moved else None


def _is_put_back(m: Match) -> str | None:
    found = _joined(m)
    if found is None:
        return ""
    shape = (*found.view.type.shape[: found.count], m.root.type.shape[-1])
    undone = tuple(found.back.index(axis) for axis in range(found.count + 1))
    pending = [m.root]
    while pending:
        node = pending.pop()
        readers = [m.graph.node(user) for user in m.graph.users[node.name]]
        if not readers or node.name in m.graph.results:
            return ""
        for reader in readers:
            if isinstance(reader.op, ReshapeOp) and reader.type.shape == shape:
                pending.append(reader)
            elif node.type.shape != shape or not isinstance(reader.op, PermuteOp) or reader.op.order != undone:
                return ""
    return None


def _as_they_lie(m: Match) -> Node:
    found = _joined(m)
    assert found is not None
    order = _order(found.view)
    kept = PermuteOp(order=(*sorted(order[: found.count]), *order[found.count :]))
    rows = m.add(kept, _source(m, found.view))
    joined = m.add(ReshapeOp(shape=(*rows.type.shape[: found.count], found.features)), rows)
    return m.add(ReshapeOp(shape=m.root.type.shape), m.add(PermuteOp(order=found.back), _product(m, joined)))


RULES = (
    Rule(
        "matmul(permute(x), w) = permute(matmul(x, w)),  rows permuted,  before attention",
        op(MatmulOp),
        _permuted_after,
        Numerics.EXACT,
        _moves_rows,
    ),
    Rule(
        "matmul(reshape(permute(x)), w) = reshape(permute(matmul(reshape(x), w))),  rows that are put back",
        op(MatmulOp),
        _as_they_lie,
        Numerics.EXACT,
        _is_put_back,
    ),
)
