"""Products of rows that are put in another order before, and read or put back after: they are of the rows as they lie.

Attention modules that want tokens first permute what has the batch first, for a product, and back.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusegen import dims
from fusegen.dims import Dim, Dims
from fusegen.ir import (
    AttentionOp,
    ConstOp,
    Graph,
    MatmulOp,
    Node,
    PermuteOp,
    PointwiseOp,
    ReshapeOp,
)
from fusegen.passes.rewrite import Match, Numerics, Rule, op
from fusegen.passes.simplify import VIEWS


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
    """Whether attention alone reads a value, torch's or products of tensors, through views and scales."""
    readers = [graph.node(user) for user in graph.users[name]]
    return bool(readers) and name not in graph.results and all(_is_attention(graph, node) for node in readers)


def _is_attention(graph: Graph, node: Node) -> bool:
    if isinstance(node.op, MatmulOp):
        return all(graph.node(name).type.rank > 2 for name in node.inputs)
    data = [name for name in node.inputs if not isinstance(graph.node(name).op, ConstOp)]
    scaled = isinstance(node.op, PointwiseOp) and node.op.fn in ("mul", "div") and len(data) == 1
    passed = scaled or isinstance(node.op, VIEWS)
    return isinstance(node.op, AttentionOp) or (passed and _goes_to_attention(graph, node.name))


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
    """Data of this ``shape`` whose axes are permuted: ``count`` of them are those of rows, all others are features."""

    data: Node
    shape: Dims
    order: tuple[int, ...]
    count: int

    @property
    def rows(self) -> Dims:
        """The axes of rows as eager has them."""
        return tuple(self.shape[axis] for axis in self.order[: self.count])

    @property
    def back(self) -> tuple[int, ...]:
        """The order that eager has of the axes of a result whose rows are as the data lie."""
        own = self.order[: self.count]
        return (*(sorted(own).index(axis) for axis in own), self.count)

    @property
    def undone(self) -> tuple[int, ...]:
        """The order in which eager puts them back as the data lie."""
        own = self.order[: self.count]
        return (*(own.index(axis) for axis in sorted(own)), self.count)


def _split(shape: Dims, order: tuple[int, ...], rows: Dim) -> tuple[Dims, tuple[int, ...], int] | None:
    """``shape`` and ``order`` with the axis split that has both ``rows`` and features, heads say, and the axes of rows.

    (8 b, t, d) in the order (1, 0, 2), of t b rows  ->  (b, 8, t, d) in the order (2, 0, 1, 3), two.
    """
    left = rows
    for count, axis in enumerate(order):
        if left == 1:
            return shape, order, count
        rest = dims.exact_quotient(left, shape[axis])
        if rest is None:
            more = dims.exact_quotient(shape[axis], left)
            if more is None:
                return None
            moved = [own + (own > axis) for own in order]
            apart = (*shape[:axis], left, more, *shape[axis + 1 :])
            return apart, (*moved[: count + 1], axis + 1, *moved[count + 1 :]), count + 1
        left = rest
    return None


def _joined(m: Match) -> _Joined | None:
    reshaped = _left(m)
    if not isinstance(reshaped.op, ReshapeOp) or not _is_of_rows(m):
        return None
    view = _source(m, reshaped)
    if not isinstance(view.op, PermuteOp):
        return None
    data = _source(m, view)
    split = _split(data.type.shape, view.op.order, dims.product(reshaped.type.shape[:-1]))
    if split is None:
        return None
    found = _Joined(data, *split)
    kept = list(found.order[found.count :])
    return found if kept == sorted(kept) and found.back != tuple(range(found.count + 1)) else None


def _is_put_back(m: Match) -> str | None:
    found = _joined(m)
    if found is None:
        return ""
    shape = (*found.rows, m.root.type.shape[-1])
    pending = [m.root]
    while pending:
        node = pending.pop()
        readers = [m.graph.node(user) for user in m.graph.users[node.name]]
        if not readers or node.name in m.graph.results:
            return ""
        for reader in readers:
            if isinstance(reader.op, ReshapeOp) and reader.type.shape == shape:
                pending.append(reader)
            elif node.type.shape != shape or not isinstance(reader.op, PermuteOp) or reader.op.order != found.undone:
                return ""
    return None


def _as_they_lie(m: Match) -> Node:
    found = _joined(m)
    assert found is not None
    own = sorted(found.order[: found.count])
    data = m.add(ReshapeOp(shape=found.shape), found.data)
    rows = m.add(PermuteOp(order=(*own, *found.order[found.count :])), data)
    joined = m.add(ReshapeOp(shape=(*rows.type.shape[: found.count], _left(m).type.shape[-1])), rows)
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
