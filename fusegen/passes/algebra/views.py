"""Reductions move before reshapes, permutes, joins: they meet what they may share a kernel with, or collapse.

Elementwise functions, norms and softmaxes move before permutes that leave the graph, that others undo or that
reductions end: data is computed where it lies. Views of planes around a pooling leave both.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from fusegen import dims
from fusegen.dims import Dims
from fusegen.ir import (
    AdaptivePoolOp,
    CatOp,
    Graph,
    InputOp,
    Node,
    NormalizeOp,
    Op,
    ParamOp,
    PermuteOp,
    PointwiseOp,
    PoolOp,
    ReduceOp,
    ReshapeOp,
    SoftmaxOp,
)
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


Order: TypeAlias = tuple[int, ...]
_ALONG_AXES = (NormalizeOp, SoftmaxOp)
ELEMENTWISE = (PointwiseOp, *_ALONG_AXES)
"""Of as many results as their data has elements."""


def _order(view: Node) -> Order:
    assert isinstance(view.op, PermuteOp)
    return view.op.order


def _is_permuted(node: Node, order: Order, shape: Dims) -> bool:
    return isinstance(node.op, PermuteOp) and node.op.order == order and node.type.shape == shape


def _unpermuted(node: Node, order: Order) -> Dims | None:
    """The shape of an operand before a permute; None if its data is laid out otherwise there."""
    shape = (*(1,) * (len(order) - node.type.rank), *node.type.shape)
    return tuple(shape[order.index(axis)] for axis in range(len(order))) if dims.keeps_order(order, shape) else None


def _may_be_unpermuted(node: Node, order: Order, shape: Dims) -> bool:
    """Whether an operand of a function, whose result has this shape, can be had as it is before a permute."""
    return _is_permuted(node, order, shape) or _unpermuted(node, order) is not None


def moved_with(
    graph: Graph, name: str, order: Order, shape: Dims, kinds: tuple[type[Op], ...] = ELEMENTWISE
) -> set[str] | None:
    """A permuted value and what ``kinds`` of ops make of it, up to reductions and permutes, where all of that may be
    done before it is permuted; else None. ``order``, ``shape``: of the permute and its result.
    """
    moved = {name}
    for node in graph.nodes:
        if isinstance(node.op, (PermuteOp, ReduceOp)) or moved.isdisjoint(node.inputs):
            continue
        others = (graph.node(name) for name in node.inputs if name not in moved)
        alike = isinstance(node.op, kinds) and node.type.shape == shape
        if not alike or not all(_may_be_unpermuted(other, order, shape) for other in others):
            return None
        moved.add(node.name)
    return moved


def _moves_on(graph: Graph, view: Node) -> bool:
    """Whether all work on a permuted value may be done before it is permuted, up to reductions, permutes and results.

    A result that eager lays out row by row is written so, by the kernel that computes it.
    """
    moved = moved_with(graph, view.name, _order(view), view.type.shape)
    return moved is not None and moved.isdisjoint((*graph.by_rows, *(name for _, name in graph.updates)))


def _operands(m: Match) -> list[Node]:
    return [m.graph.node(name) for name in m.root.inputs]


def _permuted(m: Match) -> Node | None:
    """The first operand of a function, or the data of a norm or softmax, that is a permuted value of its shape."""
    shape, operands = m.root.type.shape, _operands(m)
    data = operands[:1] if isinstance(m.root.op, _ALONG_AXES) else operands
    return next((x for x in data if isinstance(x.op, PermuteOp) and x.type.shape == shape), None)


def _may_come_first(m: Match) -> str | None:
    view = _permuted(m)
    if view is None or not _moves_on(m.graph, view):
        return ""
    fit = (_may_be_unpermuted(node, _order(view), view.type.shape) for node in _operands(m))
    return None if all(fit) else ""


def _function_first(m: Match) -> Node:
    view = _permuted(m)
    assert view is not None

    def before(node: Node) -> Node:
        if _is_permuted(node, _order(view), view.type.shape):
            return m.graph.node(node.inputs[0])
        shape = _unpermuted(node, _order(view))
        assert shape is not None
        return m.add(ReshapeOp(shape=shape), node) if node.type.rank else node

    own = m.root.op
    if isinstance(own, NormalizeOp):
        own = own.replace(axes=tuple(sorted(_order(view)[axis] for axis in own.axes)))
    elif isinstance(own, SoftmaxOp):
        own = own.replace(axis=_order(view)[own.axis])
    return m.add(view.op, m.add(own, *map(before, _operands(m))))


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


def _views_planes(m: Match) -> str | None:
    """The views change the axes before those that are pooled, and change them back."""
    x, pool = m["x"].type, m["pool"]
    assert isinstance(pool.op, (PoolOp, AdaptivePoolOp))
    planes = x.rank - pool.op.rank
    same = m.root.type.shape == (*x.shape[:planes], *pool.op.size)
    kept = planes in (1, 2) and m["view"].type.shape[-pool.op.rank :] == x.shape[planes:]
    return None if same and kept and m.only_user("view") and m.only_user("pool") else ""


RULES = (
    *(
        Rule(
            f"reshape({name}(reshape(x))) = {name}(x),  views of planes",
            op(ReshapeOp, op(kind, op(ReshapeOp, anything("x"), name="view"), name="pool")),
            lambda m: m.add(m["pool"].op, m["x"]),
            Numerics.EXACT,
            _views_planes,
        )
        for name, kind in (("pool", PoolOp), ("adaptive_pool", AdaptivePoolOp))
    ),
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
    *(
        Rule(
            f"{name}(permute(x)) = permute({name}(x)),  up to results and reductions",
            op(kind),
            _function_first,
            Numerics.REASSOCIATES,
            _may_come_first,
        )
        for name, kind in (("normalize", NormalizeOp), ("softmax", SoftmaxOp))
    ),
    Rule(
        "sum(cat(x, y)) = cat(sum(x), sum(y)) over other axes,  mean likewise,  above a product",
        op(ReduceOp, op(CatOp, name="view"), fn=LINEAR),
        _before_join,
        Numerics.REASSOCIATES,
        _joined,
    ),
)
