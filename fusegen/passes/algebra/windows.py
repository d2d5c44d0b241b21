"""Windows that are views of another kind, and products with what lies in them."""

from __future__ import annotations

from fusegen import dims
from fusegen.ir import Node, ReshapeOp, SliceOp, UnfoldOp
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op


def _side_by_side(m: Match) -> str | None:
    windows = m.root.op
    assert isinstance(windows, UnfoldOp)
    dense = windows.dilation == 1 or windows.size == 1
    return None if dense and windows.step == windows.size else ""


def _split(m: Match) -> Node:
    """Without the elements behind the last window."""
    windows, x = m.root.op, m["x"]
    assert isinstance(windows, UnfoldOp)
    length = dims.mul(m.root.type.shape[windows.axis], windows.size)
    if length != x.type.shape[windows.axis]:
        x = m.add(SliceOp(axis=windows.axis, start=0, length=length), x)
    return m.add(ReshapeOp(shape=m.root.type.shape), x)


def _is_whole(m: Match) -> str | None:
    return None if m["x"].type == m.root.type and isinstance(m.root.op, SliceOp) and m.root.op.start == 0 else ""


RULES = (
    Rule(
        "slice(x, all of x) = x",
        op(SliceOp, anything("x"), step=1),
        lambda m: m["x"],
        Numerics.EXACT,
        _is_whole,
    ),
    Rule(
        "unfold(x) = reshape(slice(x)),  windows side by side",
        op(UnfoldOp, anything("x")),
        _split,
        Numerics.EXACT,
        _side_by_side,
    ),
)
