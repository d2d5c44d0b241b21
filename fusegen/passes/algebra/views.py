"""Reductions move before reshapes, permutes and joins: they meet what they may share a kernel with, or collapse.

Elementwise functions move before permutes that leave the graph, or that reductions end: data is computed where it lies.
"""

from __future__ import annotations

from collections.abc import Collection

from fusegen import dims
from fusegen.dims import Dims
from fusegen.ir import CatOp, Graph, InputOp, Node, ParamOp, PermuteOp, PointwiseOp, ReduceOp, ReshapeOp
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


def _unpermuted(node: Node, order: tuple[int, ...]) -> Dims | None:
    """The shape of an operand before a permute; None if its data is laid out otherwise there."""
    shape = (*(1,) * (len(order) - node.type.rank), *node.type.shape)
    places = [source for source, size in zip(order, shape, strict=True) if size != 1]
    return tuple(shape[order.index(axis)] for axis in range(len(order))) if places == sorted(places) else None


def _permutes(node: Node, like: Node) -> bool:
    return isinstance(node.op, PermuteOp) and node.op == like.op and node.type.shape == like.type.shape


def _moves_on(graph: Graph, view: Node) -> bool:
    """Whether all work on a permuted value may be done before it is permuted, up to reductions and results.

    A result that eager lays out row by row is written so, by the kernel that computes it.
    """
    assert isinstance(view.op, PermuteOp)
    permuted, order = {view.name}, view.op.order

    def fits(operand: Node) -> bool:
        return operand.name in permuted or _permutes(operand, view) or _unpermuted(operand, order) is not None

    for node in graph.nodes:
        if isinstance(node.op, ReduceOp) or permuted.isdisjoint(node.inputs):
            continue
        elementwise = isinstance(node.op, PointwiseOp) and node.type.shape == view.type.shape
        if not elementwise or not all(fits(graph.node(name)) for name in node.inputs):
            return False
        permuted.add(node.name)
    return permuted.isdisjoint((*graph.by_rows, *(name for _, name in graph.updates)))


def _permuted(m: Match) -> Node | None:
    """The first operand of an elementwise function that is a permuted value of its shape."""
    operands = (m.graph.node(name) for name in m.root.inputs)
    own = (node for node in operands if isinstance(node.op, PermuteOp) and node.type.shape == m.root.type.shape)
    return next(own, None)


def _may_come_first(m: Match) -> str | None:
    view = _permuted(m)
    if view is None or not _moves_on(m.graph, view):
        return ""
    assert isinstance(view.op, PermuteOp)
    operands = [m.graph.node(name) for name in m.root.inputs]
    here = all(_permutes(node, view) or _unpermuted(node, view.op.order) is not None for node in operands)
    return None if here else ""


def _function_first(m: Match) -> Node:
    view = _permuted(m)
    assert view is not None
    assert isinstance(view.op, PermuteOp)
    operands = list[Node]()
    for node in (m.graph.node(name) for name in m.root.inputs):
        if _permutes(node, view):
            operands.append(m.graph.node(node.inputs[0]))
            continue
        shape = _unpermuted(node, view.op.order)
        assert shape is not None
        operands.append(node if node.type.rank == 0 else m.add(ReshapeOp(shape=shape), node))
    assert isinstance(m.root.op, PointwiseOp)
    return m.add(view.op, m.add(m.root.op, *operands))


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
        lambda m: None if m.only_user("view") or _moves_on(m.graph, m["view"]) else "",
    ),
    Rule(
        "f(permute(x)) = permute(f(x)),  f elementwise,  up to results and reductions",
        op(PointwiseOp),
        _function_first,
        Numerics.EXACT,
        _may_come_first,
    ),
    Rule(
        "sum(cat(x, y)) = cat(sum(x), sum(y)) over other axes,  mean likewise,  above a product",
        op(ReduceOp, op(CatOp, name="view"), fn=LINEAR),
        _before_join,
        Numerics.REASSOCIATES,
        _joined,
    ),
)
