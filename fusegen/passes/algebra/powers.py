"""Powers of what is never negative: ``powf`` takes some 90 instructions."""

from __future__ import annotations

from fusegen.ir import ConstOp, Graph, Node, PointwiseOp
from fusegen.passes.algebra import ranges
from fusegen.passes.rewrite import Match, Numerics, Pattern, Rule, anything, op

_EXPONENTS = {"square": 2.0, "sqrt": 0.5}


def _exponent(graph: Graph, node: Node) -> float | None:
    """The number that ``node`` raises its first operand to, if it does."""
    if not isinstance(node.op, PointwiseOp):
        return None
    if node.op.fn != "pow":
        return _EXPONENTS.get(node.op.fn)
    power = graph.node(node.inputs[1]).op
    return power.value if isinstance(power, ConstOp) and isinstance(power.value, float) else None


def _of_both(m: Match) -> float | None:
    own = [_exponent(m.graph, node) for node in (m["inner"], m.root)]
    return None if own[0] is None or own[1] is None else own[0] * own[1]


def _is_never_negative(m: Match) -> bool:
    return m["x"].type == m.root.type and ranges.of(m.graph, m["x"])[0] >= 0


def _is_of_power(m: Match) -> str | None:
    exponent = _of_both(m)
    known = exponent is not None and exponent != 0 and abs(exponent) < 1e3 and exponent % 2 != 1  # of -0: -0, or inf
    return None if known and _is_never_negative(m) and m.only_user("inner") else ""


def _joined(m: Match) -> Node:
    exponent = _of_both(m)
    assert exponent is not None
    if exponent == 2:
        return m.add(PointwiseOp(fn="square"), m["x"])
    return m.add(PointwiseOp(fn="pow"), m["x"], m.const(exponent))


def _pow(*inner: Pattern) -> Pattern:
    return op(PointwiseOp, *(inner or (anything("x"),)), op(ConstOp), name=None if inner else "inner", fn="pow")


def _has_root(m: Match) -> str | None:
    return None if _is_never_negative(m) and _exponent(m.graph, m.root) in (1.5, 2.5) else ""


def _times_root(m: Match) -> Node:
    x = m["x"]
    whole = x if _exponent(m.graph, m.root) == 1.5 else m.add(PointwiseOp(fn="square"), x)
    return m.add(PointwiseOp(fn="mul"), whole, m.add(PointwiseOp(fn="sqrt"), x))


RULES = (
    *(
        Rule(
            f"{outer} = pow(x, {exponent}),  x never negative,  {'a, b numbers' if 'b' in exponent else 'a a number'}",
            pattern,
            _joined,
            Numerics.REASSOCIATES,  # and what overflows on the way may not
            _is_of_power,
        )
        for outer, exponent, pattern in (
            ("pow(pow(x, a), b)", "a b", _pow(_pow())),
            ("square(pow(x, a))", "2 a", op(PointwiseOp, _pow(), fn="square")),
            ("sqrt(pow(x, a))", "a / 2", op(PointwiseOp, _pow(), fn="sqrt")),
        )
    ),
    Rule(
        "pow(x, n + 1/2) = x^n sqrt(x),  x never negative,  n 1 or 2",
        op(PointwiseOp, anything("x"), op(ConstOp), fn="pow"),
        _times_root,
        Numerics.REASSOCIATES,
        _has_root,
    ),
)
