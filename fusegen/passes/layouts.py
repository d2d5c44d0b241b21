"""Operands as they are stored: a transposed view of one is a property of the op that reads it."""

from __future__ import annotations

from fusegen.ir import Graph, MatmulOp, Node, PermuteOp
from fusegen.passes.rewrite import Match, Numerics, Outcome, Rule, anything, op, rewrite
from fusegen.passes.simplify import swaps_last_axes


def _left_as_stored(m: Match) -> Node:
    assert isinstance(m.root.op, MatmulOp)
    return m.add(m.root.op.replace(left_transposed=not m.root.op.left_transposed), m["x"], m["w"])


RULES = (
    Rule(
        "matmul(transpose(x), w) = matmul(x, w) with x's axes swapped",
        op(MatmulOp, op(PermuteOp, anything("x"), name="a"), anything("w")),
        _left_as_stored,
        Numerics.EXACT,
        lambda m: swaps_last_axes(m["a"]),
    ),
)


def run(graph: Graph) -> Outcome:
    """%t = permute(%x, (1, 0)); %y = matmul(%t, %w)  ->  %y = matmul(%x, %w, left_transposed)."""
    return rewrite(graph, RULES)
