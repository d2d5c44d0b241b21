"""Composite ops into parts, so that each later rule sees one thing at a time."""

from __future__ import annotations

from fusegen.ir import ConvOp, Graph, MatmulOp, Node, PointwiseOp, ReshapeOp
from fusegen.passes import mixing, row_order
from fusegen.passes.rewrite import Match, Numerics, Outcome, Rule, anything, op, rewrite
from fusegen.passes.simplify import transpose


def _split_bias(m: Match) -> Node:
    conv = m.root.op
    assert isinstance(conv, ConvOp)
    channels = m["b"].type.shape[0]
    bias = m.add(ReshapeOp(shape=(channels, *(1,) * conv.rank)), m["b"])
    return m.add(PointwiseOp(fn="add"), m.add(conv, m["x"], m["w"]), bias)


def _split_linear_bias(m: Match) -> Node:
    assert isinstance(m.root.op, MatmulOp)
    return m.add(PointwiseOp(fn="add"), m.add(m.root.op.replace(biased=True), m["x"], m["w"]), m["b"])


def _transpose_left(m: Match) -> Node:
    assert isinstance(m.root.op, MatmulOp)
    return m.add(m.root.op.replace(left_transposed=False), m.add(transpose(m["x"].type.rank), m["x"]), m["w"])


RULES = (
    *mixing.RULES,  # while a bias is part of the product
    *row_order.RULES,
    Rule(
        "conv(x, w, b) = conv(x, w) + b",
        op(ConvOp, anything("x"), anything("w"), anything("b")),
        _split_bias,
        Numerics.EXACT,  # the library adds the bias after the products too
    ),
    Rule(
        "matmul(x, w, b) = matmul(x, w) + b",
        op(MatmulOp, anything("x"), anything("w"), anything("b")),
        _split_linear_bias,
        Numerics.EXACT,
    ),
    Rule(  # the algebra counts on rows being an axis in place; ``layouts`` takes the transpose back
        "matmul(x, w) with x's axes swapped = matmul(transpose(x), w)",
        op(MatmulOp, anything("x"), anything("w"), left_transposed=True),
        _transpose_left,
        Numerics.EXACT,
    ),
)


def run(graph: Graph) -> Outcome:
    """%y = conv(%x, %w, %b)  ->  %y = add(conv(%x, %w), reshape(%b))."""
    return rewrite(graph, RULES)
