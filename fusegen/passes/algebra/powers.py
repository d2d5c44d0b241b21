"""Powers of what is never negative: of one power, and by square roots, a tenth of the instructions of ``powf``."""

from __future__ import annotations

from fusegen.ir import ConstOp, Graph, Node, PointwiseOp
from fusegen.passes.algebra import ranges
from fusegen.passes.rewrite import Match, Numerics, Pattern, Rule, anything, op

_NAMED = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
_EXPONENTS = {"square": 2.0, "sqrt": 0.5}
_QUARTERS = {
    0.25: ("fourth",),
    0.75: ("root", "fourth"),
    1.25: ("x", "fourth"),
    1.5: ("x", "root"),
    2.5: ("square", "root"),
}
"""Exponents, and the factors of such a power."""


def _exponent(graph: Graph, node: Node) -> float | None:
    """The number that ``node`` raises its first operand to, if it does."""
    if not isinstance(node.op, PointwiseOp):
        return None
    if node.op.fn != "pow":
        return _EXPONENTS.get(node.op.fn)
    power = graph.node(node.inputs[1]).op
    return power.value if isinstance(power, ConstOp) and isinstance(power.value, float) else None


def _is_of_size(m: Match) -> bool:
    return m["x"].type == m.root.type and ranges.of(m.graph, m["x"])[0] >= 0


def _power(m: Match, exponent: float) -> Node:
    x = m["x"]
    if exponent == 1:
        return x
    if exponent in _NAMED:
        return m.add(PointwiseOp(fn=_NAMED[exponent]), x)
    return m.add(PointwiseOp(fn="pow"), x, m.const(exponent))


def _of_both(m: Match) -> float | None:
    own = [_exponent(m.graph, node) for node in (m["inner"], m.root)]
    return None if own[0] is None or own[1] is None else own[0] * own[1]


def _is_of_power(m: Match) -> str | None:
    exponent = _of_both(m)
    known = exponent is not None and exponent != 0 and abs(exponent) < 1e3
    return None if known and _is_of_size(m) and m.only_user("inner") else ""


def _joined(m: Match) -> Node:
    exponent = _of_both(m)
    assert exponent is not None
    return _power(m, exponent)


def _is_of_roots(m: Match) -> str | None:
    """A power of it comes first."""
    readers = [m.graph.node(name) for name in m.graph.users[m.root.name]]
    joined = m.graph.has_one_reader(m.root.name) and _exponent(m.graph, readers[0]) is not None
    return None if _exponent(m.graph, m.root) in _QUARTERS and _is_of_size(m) and not joined else ""


def _by_roots(m: Match) -> Node:
    exponent, x = _exponent(m.graph, m.root), m["x"]
    assert exponent is not None
    root = m.add(PointwiseOp(fn="sqrt"), x)

    def factor(name: str) -> Node:
        if name == "square":
            return m.add(PointwiseOp(fn="square"), x)
        return {"x": x, "root": root}.get(name) or m.add(PointwiseOp(fn="sqrt"), root)

    first, *rest = map(factor, _QUARTERS[exponent])
    return m.add(PointwiseOp(fn="mul"), first, *rest) if rest else first


def _pow(*inner: Pattern) -> Pattern:
    return op(PointwiseOp, *(inner or (anything("x"),)), op(ConstOp), name=None if inner else "inner", fn="pow")


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
        "pow(x, a) = a product of x and roots of it,  x never negative,  a in quarters",
        op(PointwiseOp, anything("x"), op(ConstOp), fn="pow"),
        _by_roots,
        Numerics.REASSOCIATES,
        _is_of_roots,
    ),
)
