"""Sums of products of all pairs, written out with broadcasting, are a matrix product."""

from __future__ import annotations

from dataclasses import dataclass

from fusegen import dims
from fusegen.dims import Dims
from fusegen.ir import DType, MatmulOp, Node, PointwiseOp, ReduceOp, ReshapeOp
from fusegen.passes.algebra.collapse import reduction
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op

_LEAST = 4
"""Rows on either side that share what they read."""
_TERMS = 16
"""Of a sum, below which it is elementwise work."""


@dataclass(frozen=True)
class _Pairs:
    """``left``, whose own axes are before those of ``right``; the shapes of batches, rows and columns."""

    left: Node
    right: Node
    batch: Dims
    rows: Dims
    columns: Dims
    terms: dims.Dim


def _pairs(m: Match) -> _Pairs | None:
    """The product, where each factor lacks neighbouring axes that the other one has, behind those of both."""
    rank, axes = m["inner"].type.rank, reduction(m).axes
    x, y = ((1,) * (rank - m[name].type.rank) + m[name].type.shape for name in "xy")
    if axes != (rank - 1,) or x[-1] != y[-1] or x[-1] == 1:
        return None
    kinds = ["both" if a == b else "x" if b == 1 else "y" for a, b in zip(x[:-1], y[:-1], strict=True)]
    own = [kind for kind in dict.fromkeys(kinds) if kind != "both"]
    if sorted(own) != ["x", "y"] or kinds != sorted(kinds, key=["both", *own].index):
        return None
    left, right = own
    *sizes, terms = m["inner"].type.shape
    batch, rows, columns = (
        tuple(size for size, kind in zip(sizes, kinds, strict=True) if kind == which) for which in ("both", left, right)
    )
    return _Pairs(m[left], m[right], batch, rows, columns, terms)


def _all_pairs(m: Match) -> str | None:
    found = _pairs(m)
    if found is None or not m.only_user("inner") or {m[name].type.dtype for name in "xy"} != {DType.FLOAT32}:
        return ""
    return _pays(m, found)


def _pays(m: Match, found: _Pairs) -> str | None:
    rows, columns, terms = (dims.numel(shape, m.graph.sizes) for shape in (found.rows, found.columns, (found.terms,)))
    return "it has few pairs" if min(rows, columns) < _LEAST or terms < _TERMS else None


def _product(m: Match) -> Node:
    """In full fp32, as the sum is that it stands for."""
    found = _pairs(m)
    assert found is not None
    batch = (dims.product(found.batch),) if found.batch else ()
    factors = ((found.left, found.rows), (found.right, found.columns))
    left, right = (m.add(ReshapeOp(shape=(*batch, dims.product(own), found.terms)), node) for node, own in factors)
    product = m.add(MatmulOp(transposed=True, precise=True), left, right)
    return m.add(ReshapeOp(shape=m.root.type.shape), product)


RULES = (
    Rule(
        "sum(x y) over the last axis = matmul(x, y),  each without axes of the other",
        op(ReduceOp, op(PointwiseOp, anything("x"), anything("y"), name="inner", fn="mul"), fn="sum"),
        _product,
        Numerics.REASSOCIATES,
        _all_pairs,
    ),
)
