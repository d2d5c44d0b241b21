"""Products with diagonal matrices: one multiplication of each element, and no matrix.

As in products with triangles, what is off the diagonal takes no part: an infinite element meets no zero there.
"""

from __future__ import annotations

from fusegen.ir import ExpandOp, MatmulOp, Node, PermuteOp, PointwiseOp, ReshapeOp, TriangleOp
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op

_TRIANGLE = op(TriangleOp, op(ExpandOp, anything("d")), diagonal=0, name="inner")
_DIAGONAL = op(TriangleOp, _TRIANGLE, diagonal=0, name="outer")
"""Of equal rows, or of equal columns: what both triangles leave."""


def _is_vector(m: Match) -> str | None:
    """The other factor has all axes of the product, and one of the last two axes of what was spread one element."""
    inner, outer, d = m["inner"].op, m["outer"].op, m["d"].type
    assert isinstance(inner, TriangleOp)
    assert isinstance(outer, TriangleOp)
    diagonal = inner.upper != outer.upper and (d.rank == 1 or 1 in d.shape[-2:])
    return None if diagonal and m["x"].type.rank == m.root.type.rank else ""


def _scale(m: Match, last: bool) -> Node:
    """``x`` times the elements of the diagonal, which are laid along its last axis or the one before."""
    matmul, x, d = m.root.op, m["x"], m["d"]
    assert isinstance(matmul, MatmulOp)
    if matmul.left_transposed if last else matmul.transposed:
        rank = x.type.rank
        x = m.add(PermuteOp(order=(*range(rank - 2), rank - 1, rank - 2)), x)
    lead, size = d.type.shape[:-2], d.type.shape[-1] if d.type.rank == 1 or d.type.shape[-2] == 1 else d.type.shape[-2]
    shape = (*lead, 1, size) if last else (*lead, size, 1)
    factor = d if d.type.shape == shape else m.add(ReshapeOp(shape=shape), d)
    return m.add(PointwiseOp(fn="mul"), x, factor)


RULES = (
    Rule(
        "matmul(diagonal(d), x) = d x",
        op(MatmulOp, _DIAGONAL, anything("x")),
        lambda m: _scale(m, last=False),
        Numerics.REASSOCIATES,
        _is_vector,
    ),
    Rule(
        "matmul(x, diagonal(d)) = x d",
        op(MatmulOp, anything("x"), _DIAGONAL),
        lambda m: _scale(m, last=True),
        Numerics.REASSOCIATES,
        _is_vector,
    ),
)
