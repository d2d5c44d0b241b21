"""Elementwise ops that do nothing, repeat each other or merge. NaN stays NaN in every one of them."""

from __future__ import annotations

import math

from fusegen import inference, interpret
from fusegen.ir import ConstOp, ConvOp, DType, Node, PointwiseOp, ReshapeOp
from fusegen.passes.algebra import ranges
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op


def _operand(m: Match) -> Node:
    return m["x"]


# --- numbers ------------------------------------------------------------------------------------


def _values(m: Match) -> list[float]:
    """Of the operands, as far as they are numbers known now."""
    ops = [m.graph.node(name).op for name in m.root.inputs]
    return [op.value for op in ops if isinstance(op, ConstOp) and isinstance(op.value, float)]


def _all_numbers(m: Match) -> str | None:
    known = len(_values(m)) == len(m.root.inputs) and m.root.type.dtype is DType.FLOAT32
    return None if known else ""


def _function_of_numbers(m: Match) -> Node:
    assert isinstance(m.root.op, PointwiseOp)
    return m.const(interpret.of_numbers(m.root.op, _values(m)))


def _is_size(m: Match) -> str | None:
    size, number = m["n"].op, _number(m["a"])
    assert isinstance(size, ConstOp)
    return None if isinstance(size.value, str) and number is not None and m.root.type.dtype is DType.FLOAT32 else ""


def _times_size(m: Match) -> Node:
    """A kernel has such a constant for nothing; a function of numbers alone would be a kernel without operands."""
    size, number = m["n"].op, _number(m["a"])
    assert isinstance(size, ConstOp)
    assert number is not None
    return m.add(size.replace(times=size.times * number))


def _same_type(m: Match) -> str | None:
    return None if m["x"].type == m.root.type else ""


def _number(node: Node) -> float | None:
    """The value of a scalar known now; None for others and for NaN."""
    value = node.op.value if isinstance(node.op, ConstOp) else None
    return value if isinstance(value, float) and not math.isnan(value) else None


# --- bounds that never bind ---------------------------------------------------------------------


def _never_binds(m: Match) -> str | None:
    """NaN passes through a maximum and a minimum as it passes through nothing."""
    bound = _number(m["c"])
    if bound is None or m["x"].type != m.root.type or isinstance(m["x"].op, ConstOp):
        return ""
    low, high = ranges.of(m.graph, m["x"])
    assert isinstance(m.root.op, PointwiseOp)
    return None if (low >= bound if m.root.op.fn == "maximum" else high <= bound) else ""


def _never_negative(m: Match) -> str | None:
    return None if ranges.of(m.graph, m["x"])[0] >= 0 else ""


def _merge_bounds(m: Match) -> Node:
    a, b = _number(m["a"]), _number(m["b"])
    assert a is not None
    assert b is not None
    assert isinstance(m.root.op, PointwiseOp)
    return m.add(m.root.op, m["x"], m.const(max(a, b) if m.root.op.fn == "maximum" else min(a, b)))


def _two_bounds(m: Match) -> str | None:
    known = _number(m["a"]) is not None and _number(m["b"]) is not None and m["x"].type == m.root.type
    return None if known and m.only_user("inner") else ""


def _raise_relu(m: Match) -> Node:
    return m.add(PointwiseOp(fn="maximum"), m["x"], m["c"])


def _positive_bound(m: Match) -> str | None:
    bound = _number(m["c"])
    return None if bound is not None and bound > 0 and m["x"].type == m.root.type and m.only_user("inner") else ""


# --- repeats ------------------------------------------------------------------------------------


def _slope_keeps_sign(m: Match) -> str | None:
    slope = _number(m["c"])
    return None if slope is not None and 0 < slope < math.inf and m["x"].type == m.root.type else ""


def _relu_of_operand(m: Match) -> Node:
    return m.add(PointwiseOp(fn="relu"), m["x"])


def _drop_sign(m: Match) -> Node:
    return m.add(m.root.op, m["x"])


def _finite_shifts(m: Match) -> str | None:
    values = [_number(m[name]) for name in ("a", "b")]
    known = all(v is not None and abs(v) < 1e30 for v in values) and m["x"].type == m.root.type
    return None if known and m.only_user("inner") else ""


def _merge_shifts(m: Match) -> Node:
    inner, root = m["inner"].op, m.root.op
    a, b = _number(m["a"]), _number(m["b"])
    assert isinstance(inner, PointwiseOp)
    assert isinstance(root, PointwiseOp)
    assert a is not None
    assert b is not None
    total = (a if inner.fn == "add" else -a) + (b if root.fn == "add" else -b)
    return m.add(PointwiseOp(fn="add"), m["x"], m.const(total))


def _reciprocal(m: Match) -> Node:
    divisor = _number(m["c"])
    assert divisor is not None
    return m.add(PointwiseOp(fn="mul"), m["x"], m.const(1.0 / divisor))


def _finite_reciprocal(m: Match) -> str | None:
    divisor = _number(m["c"])
    return None if divisor is not None and 1e-30 < abs(divisor) < 1e30 and m["x"].type == m.root.type else ""


def _is_zero(m: Match) -> str | None:
    zero = _number(m["c"])
    positive = zero == 0 and math.copysign(1.0, zero) > 0
    return None if positive and m["x"].type == m.root.type else ""


def _is_one(m: Match) -> str | None:
    ones = _number(m["a"]) == _number(m["c"]) == 1.0
    return None if ones and m["x"].type == m.root.type and m.only_user("inner") else ""


def _two_sides(m: Match) -> Node:
    below = m.add(PointwiseOp(fn="exp"), m.add(PointwiseOp(fn="minimum"), m["x"], m.const(0.0)))
    return m.add(PointwiseOp(fn="add"), below, m.add(PointwiseOp(fn="relu"), m["x"]))


# --- other spellings ----------------------------------------------------------------------------


def _mish(m: Match) -> Node:
    return m.add(PointwiseOp(fn="mish"), m["x"])


def _is_mish(m: Match) -> str | None:
    """From 20 on a softplus may be its operand: the tangent is one there."""
    beta, threshold = _number(m["beta"]), _number(m["threshold"])
    return None if m["x"] is m["same"] and beta == 1 and threshold is not None and threshold >= 20 else ""


_SHIFT = ("add", "sub")
_EVEN = ("abs", "square", "cos")

# --- products of one factor ---------------------------------------------------------------------


def _one_factor(m: Match) -> str | None:
    """Each result is one element times one weight, in full fp32 by torch as well; strides would leave gaps."""
    conv, x, w = m.root.op, m["x"], m["w"]
    assert isinstance(conv, ConvOp)
    channels = (w.type.shape[0], w.type.shape[1]) == (x.type.shape[1], 1) and conv.groups == x.type.shape[1]
    return None if channels and inference.is_pointwise(conv, inference.kernel_size(w.type)) else ""


def _scaled(m: Match) -> Node:
    channels, *ones = m["w"].type.shape[:1] + m["w"].type.shape[2:]
    return m.add(PointwiseOp(fn="mul"), m["x"], m.add(ReshapeOp(shape=(channels, *ones)), m["w"]))


RULES = (
    Rule(
        "f(a, b) = c,  a and b numbers",
        op(PointwiseOp),
        _function_of_numbers,
        Numerics.REASSOCIATES,
        _all_numbers,
    ),
    Rule(
        "a n = a times n,  a a number,  n a size",
        op(PointwiseOp, op(ConstOp, name="a"), op(ConstOp, name="n"), fn="mul", commutative=True),
        _times_size,
        Numerics.REASSOCIATES,
        _is_size,
    ),
    Rule(
        "max(x, c) = x,  x never below c;  min(x, c) = x,  x never above c",
        op(PointwiseOp, anything("x"), op(ConstOp, name="c"), fn=("maximum", "minimum")),
        _operand,
        Numerics.EXACT,
        _never_binds,
    ),
    Rule(
        "relu(x) = x,  abs(x) = x,  x never negative",
        op(PointwiseOp, anything("x"), fn=("relu", "abs")),
        _operand,
        Numerics.REASSOCIATES,  # -0 keeps its sign
        _never_negative,
    ),
    Rule(
        "leaky_relu(x) = x,  x never negative",
        op(PointwiseOp, anything("x"), op(ConstOp, name="c"), fn="leaky_relu"),
        _operand,
        Numerics.REASSOCIATES,
        lambda m: _never_negative(m) if _same_type(m) is None and _slope_keeps_sign(m) is None else "",
    ),
    Rule(
        "relu(leaky_relu(x)) = relu(x)",
        op(PointwiseOp, op(PointwiseOp, anything("x"), op(ConstOp, name="c"), fn="leaky_relu"), fn="relu"),
        _relu_of_operand,
        Numerics.EXACT,
        _slope_keeps_sign,
    ),
    *(
        Rule(
            f"{name}({name}(x, a), b) = {name}(x, {name}(a, b)),  a and b numbers",
            op(
                PointwiseOp,
                op(PointwiseOp, anything("x"), op(ConstOp, name="a"), name="inner", fn=fn),
                op(ConstOp, name="b"),
                fn=fn,
            ),
            _merge_bounds,
            Numerics.EXACT,
            _two_bounds,
        )
        for fn, name in (("maximum", "max"), ("minimum", "min"))
    ),
    Rule(
        "max(relu(x), c) = max(x, c),  c positive",
        op(PointwiseOp, op(PointwiseOp, anything("x"), name="inner", fn="relu"), op(ConstOp, name="c"), fn="maximum"),
        _raise_relu,
        Numerics.EXACT,
        _positive_bound,
    ),
    Rule(
        "x tanh(softplus(x)) = mish(x)",
        op(
            PointwiseOp,
            anything("x"),
            op(
                PointwiseOp,
                op(
                    PointwiseOp,
                    anything("same"),
                    op(ConstOp, name="beta"),
                    op(ConstOp, name="threshold"),
                    fn="softplus",
                ),
                fn="tanh",
            ),
            fn="mul",
            commutative=True,
        ),
        _mish,
        Numerics.REASSOCIATES,
        _is_mish,
    ),
    Rule(
        "-(-x) = x",
        op(PointwiseOp, op(PointwiseOp, anything("x"), fn="neg"), fn="neg"),
        _operand,
        Numerics.EXACT,
    ),
    Rule(
        "f(-x) = f(x),  f(|x|) = f(x),  f even",
        op(PointwiseOp, op(PointwiseOp, anything("x"), fn=("neg", "abs")), fn=_EVEN),
        _drop_sign,
        Numerics.EXACT,
    ),
    Rule(
        "elu(x, 1) + 1 = exp(min(x, 0)) + relu(x)",
        op(
            PointwiseOp,
            op(PointwiseOp, anything("x"), op(ConstOp, name="a"), name="inner", fn="elu"),
            op(ConstOp, name="c"),
            fn="add",
            commutative=True,
        ),
        _two_sides,
        Numerics.REASSOCIATES,  # of large negative x it keeps more digits
        _is_one,
    ),
    Rule(
        "x - 0 = x",
        op(PointwiseOp, anything("x"), op(ConstOp, name="c"), fn="sub"),
        _operand,
        Numerics.EXACT,
        _is_zero,
    ),
    Rule(
        "(x + a) + b = x + (a + b),  a and b numbers, minus likewise",
        op(
            PointwiseOp,
            op(PointwiseOp, anything("x"), op(ConstOp, name="a"), name="inner", fn=_SHIFT),
            op(ConstOp, name="b"),
            fn=_SHIFT,
        ),
        _merge_shifts,
        Numerics.REASSOCIATES,
        _finite_shifts,
    ),
    Rule(
        "x / c = x (1 / c),  c a number",
        op(PointwiseOp, anything("x"), op(ConstOp, name="c"), fn="div"),
        _reciprocal,
        Numerics.REASSOCIATES,
        _finite_reciprocal,
    ),
    Rule(
        "conv(x, w) of one tap and a channel for each = x w",
        op(ConvOp, anything("x"), anything("w")),
        _scaled,
        Numerics.REASSOCIATES,  # -0 keeps its sign
        _one_factor,
    ),
)
