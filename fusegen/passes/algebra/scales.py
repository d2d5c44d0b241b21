"""A number or parameter that scales an operand of a product scales its result, where what follows takes it along."""

from __future__ import annotations

import math

from fusegen import dims
from fusegen.ir import (
    CatOp,
    ConstOp,
    ConvOp,
    ExpandOp,
    Graph,
    MatmulOp,
    Node,
    NormalizeOp,
    PadOp,
    ParamOp,
    PermuteOp,
    PointwiseOp,
    PoolOp,
    ReduceOp,
    ReshapeOp,
    ScanOp,
    SliceOp,
    SoftmaxOp,
)
from fusegen.passes.algebra.collapse import conv_below, is_summed, product_below
from fusegen.passes.rewrite import Match, Numerics, Pattern, Rule, anything, op

_TAKES_IT_ALONG = (NormalizeOp, PointwiseOp, PoolOp, ReduceOp, SoftmaxOp)


def _merge(m: Match) -> Node:
    a, b = m["a"].op, m["b"].op
    assert isinstance(a, ConstOp)
    assert isinstance(b, ConstOp)
    assert isinstance(a.value, float)
    assert isinstance(b.value, float)
    return m.add(PointwiseOp(fn="mul"), m["x"], m.const(a.value * b.value))


def _finite_product(m: Match) -> str | None:
    a, b = m["a"].op, m["b"].op
    if not (isinstance(a, ConstOp) and isinstance(b, ConstOp)) or m["x"].type != m.root.type:
        return ""
    if isinstance(a.value, str) or isinstance(b.value, str):
        return ""
    product = a.value * b.value
    tiny, huge = 1e-30, 1e30  # neither factor nor product may leave float32's normal range
    safe = all(v == 0 or tiny < abs(v) < huge for v in (a.value, b.value, product)) and math.isfinite(product)
    return None if safe and m.only_user("inner") else ""


def _scale_result(m: Match) -> Node:
    operands = [m["plain"] if name == m["scaled"].name else m.graph.node(name) for name in m.root.inputs]
    return m.add(PointwiseOp(fn="mul"), m.add(m.root.op, *operands), m["c"])


def _is_computed(graph: Graph, x: Node) -> bool:
    """Whether a kernel stores ``x``, or what it is a view of."""
    while isinstance(x.op, (ExpandOp, PermuteOp, ReshapeOp, SliceOp)):
        x = graph.node(x.inputs[0])
    return isinstance(x.op, (*_TAKES_IT_ALONG, ConvOp, MatmulOp, ScanOp))


def _follows(m: Match) -> str | None:
    """An input may be infinite, and scales each product of a sum to infinity of its own sign."""
    scaled, product, c = m["scaled"], m.root, m["c"]
    one = isinstance(c.op, (ConstOp, ParamOp)) and dims.product(c.type.shape) == 1
    if not one or m["plain"].type != scaled.type:
        return ""
    if not m.only_user("scaled") or _is_computed(m.graph, m["plain"]):
        return "what computes the operand or reads it elsewhere scales it"
    readers = [node.op for node in m.graph.nodes if product.name in node.inputs]
    if any(isinstance(reader, _TAKES_IT_ALONG) for reader in readers):
        return None
    own, result = (dims.numel(node.type.shape, m.graph.sizes) for node in (scaled, product))
    return None if result <= own else f"nothing that follows takes it along, and {result} results are more than {own}"


# --- signs --------------------------------------------------------------------------------------

_VIEWS = (PadOp, PermuteOp, ReshapeOp)


def _sums_a_product(m: Match) -> str | None:
    x = m["x"]
    if x.type != m.root.type or not is_summed(m.graph, m.root, (PoolOp, ReduceOp), (CatOp, *_VIEWS)):
        return ""
    while isinstance(x.op, _VIEWS) and m.graph.has_one_reader(x.name):
        x = m.graph.node(x.inputs[0])
    return None if conv_below(m.graph, x) is not None or product_below(m.graph, x) else ""


def _negated(m: Match) -> Node:
    return m.add(PointwiseOp(fn="mul"), m["x"], m.const(-1.0))


def _plus_negated(m: Match) -> Node:
    return m.add(PointwiseOp(fn="add"), _negated(m), m["c"])


_SCALED = op(PointwiseOp, anything("plain"), anything("c"), name="scaled", fn="mul", commutative=True)


def _moves(name: str, kind: type[ConvOp] | type[MatmulOp], operands: str, *patterns: Pattern) -> Rule:
    return Rule(
        f"{name}({operands}) = c {name}(x, w),  c a number or a parameter of one element",
        op(kind, *patterns),
        _scale_result,
        Numerics.REASSOCIATES,
        _follows,
    )


RULES = (
    Rule(
        "c - x = (-1) x + c,  x a product that is summed",
        op(PointwiseOp, anything("c"), anything("x"), fn="sub"),
        _plus_negated,
        Numerics.EXACT,
        _sums_a_product,
    ),
    Rule(
        "-x = (-1) x,  x a product that is summed",
        op(PointwiseOp, anything("x"), fn="neg"),
        _negated,
        Numerics.EXACT,
        _sums_a_product,
    ),
    Rule(
        "(x a) b = x (a b),  a and b numbers",
        op(
            PointwiseOp,
            op(PointwiseOp, anything("x"), op(ConstOp, name="a"), name="inner", fn="mul", commutative=True),
            op(ConstOp, name="b"),
            fn="mul",
            commutative=True,
        ),
        _merge,
        Numerics.REASSOCIATES,
        _finite_product,
    ),
    *(
        rule
        for name, kind in (("conv", ConvOp), ("matmul", MatmulOp))
        for rule in (
            _moves(name, kind, "c x, w", _SCALED, anything("w")),
            _moves(name, kind, "x, c w", anything("x"), _SCALED),
        )
    ),
)
