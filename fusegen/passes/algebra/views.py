"""Reductions move before reshapes, permutes and joins: they meet what they may share a kernel with, or collapse."""

from __future__ import annotations

from collections.abc import Collection

from fusegen import dims
from fusegen.dims import Dims
from fusegen.ir import CatOp, InputOp, Node, ParamOp, PermuteOp, ReduceOp, ReshapeOp
from fusegen.passes.algebra.channels import collapses
from fusegen.passes.algebra.collapse import LINEAR, reduction
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op


def axes_before(before: Dims, after: Dims, axes: Collection[int]) -> tuple[int, ...] | None:
    """``axes`` of a reshape's result as those of its operand; None where it mixes them with others."""
    groups = dims.regrouped(before, after)
    found: list[int] = []
    for own, reshaped in groups or []:
        taken = [axis in axes for axis in reshaped if after[axis] != 1]
        if any(taken) and not all(taken):
            return None
        found += own if any(taken) else ()
    return tuple(found) if groups else None


def _whole_axes(m: Match) -> tuple[int, ...] | None:
    return axes_before(m["x"].type.shape, m["view"].type.shape, reduction(m).axes)


def _mixes_none(m: Match) -> str | None:
    computed = not isinstance(m["x"].op, (InputOp, ParamOp))
    return None if computed and m.only_user("view") and _whole_axes(m) else ""


def _before_reshape(m: Match) -> Node:
    axes = _whole_axes(m)
    assert axes
    return m.add(ReshapeOp(shape=m.root.type.shape), m.add(reduction(m).replace(axes=axes, keepdim=False), m["x"]))


def _before_permute(m: Match) -> Node:
    reduce, view = reduction(m), m["view"].op
    assert isinstance(view, PermuteOp)
    left = [source for axis, source in enumerate(view.order) if axis not in reduce.axes]
    axes = tuple(sorted(view.order[axis] for axis in reduce.axes))
    reduced = m.add(reduce.replace(axes=axes, keepdim=False), m["x"])
    order = tuple(sorted(left).index(source) for source in left)
    return m.add(ReshapeOp(shape=m.root.type.shape), m.add(PermuteOp(order=order), reduced))


def _parts(m: Match) -> list[Node]:
    return [m.graph.node(name) for name in m["view"].inputs]


def _joined(m: Match) -> str | None:
    join = m["view"].op
    assert isinstance(join, CatOp)
    if join.axis in reduction(m).axes or not m.only_user("view"):
        return ""
    return None if any(collapses(m.graph, part, reduction(m).axes) for part in _parts(m)) else ""


def _before_join(m: Match) -> Node:
    reduce, join = reduction(m), m["view"].op
    assert isinstance(join, CatOp)
    parts = [m.add(reduce.replace(keepdim=True), part) for part in _parts(m)]
    return m.add(ReshapeOp(shape=m.root.type.shape), m.add(join, *parts))


RULES = (
    Rule(
        "reduce(reshape(x)) = reshape(reduce(x)),  the reshape mixes no axes with others",
        op(ReduceOp, op(ReshapeOp, anything("x"), name="view")),
        _before_reshape,
        Numerics.REASSOCIATES,
        _mixes_none,
    ),
    Rule(
        "reduce(permute(x)) = permute(reduce(x))",
        op(ReduceOp, op(PermuteOp, anything("x"), name="view")),
        _before_permute,
        Numerics.REASSOCIATES,
        lambda m: None if m.only_user("view") else "",
    ),
    Rule(
        "sum(cat(x, y)) = cat(sum(x), sum(y)) over other axes,  mean likewise,  above a product",
        op(ReduceOp, op(CatOp, name="view"), fn=LINEAR),
        _before_join,
        Numerics.REASSOCIATES,
        _joined,
    ),
)
