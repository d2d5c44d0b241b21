"""Interpolations of one element, and to as many as there are."""

from __future__ import annotations

from fusegen.ir import ExpandOp, InterpolateOp
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op


def _is_of_one(m: Match) -> str | None:
    assert isinstance(m.root.op, InterpolateOp)
    return None if m["x"].type.shape[m.root.op.axis] == 1 else ""


RULES = (
    Rule(
        "interpolate(x) along a size-1 axis = expand(x)",
        op(InterpolateOp, anything("x")),
        lambda m: m.add(ExpandOp(shape=m.root.type.shape), m["x"]),
        Numerics.REASSOCIATES,
        _is_of_one,
    ),
    Rule(
        "interpolate(x, length of x) = x",
        op(InterpolateOp, anything("x")),
        lambda m: m["x"],
        Numerics.REASSOCIATES,
        lambda m: None if m["x"].type == m.root.type else "",
    ),
)
