"""Reductions by parts: of a few elements, of patches, of what is reduced over fewer axes already.

A sum of a few elements that each follow from less data is arithmetic on these, which any kernel computes as it reads. A
reduction of patches is a pooling. One over more axes than another one of the same data begins with that one's result.
"""

from __future__ import annotations

import math
from functools import reduce as joined

from fusegen import dims
from fusegen.ir import (
    CatOp,
    ConstOp,
    ConvOp,
    Graph,
    MatmulOp,
    Node,
    PointwiseOp,
    PoolOp,
    ReduceOp,
    ReshapeOp,
    SliceOp,
)
from fusegen.passes.algebra.collapse import reduction
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op
from fusegen.spaces.viewspace import VIEWS

_FOLDS = {"sum": "add", "mean": "add", "max": "maximum", "min": "minimum", "prod": "mul"}
_MOST_FOLDED = 16
"""Parts that one element may be read from."""
_SHORT = 4
"""Elements that are reduced one by one."""
_SPREAD = 8
"""How many times more elements there are than data that they follow from, where these are rather computed again."""
_MOST_POOLED = 3
"""Axes of a pooling."""


def _fold(m: Match, parts: list[Node]) -> Node:
    """``parts``, of one element each along the reduced axis, reduced one after the other."""
    fn = reduction(m).fn
    own = (m.add(ReshapeOp(shape=m.root.type.shape), part) for part in parts)
    total = joined(lambda a, b: m.add(PointwiseOp(fn=_FOLDS[fn]), a, b), own)
    return m.add(PointwiseOp(fn="div"), total, m.const(len(parts))) if fn == "mean" else total


def _stacked(m: Match) -> str | None:
    join, reduce = m["join"].op, reduction(m)
    assert isinstance(join, CatOp)
    parts = [m.graph.node(name) for name in m["join"].inputs]
    ones = all(part.type.shape[join.axis] == 1 for part in parts)
    alone = reduce.axes == (join.axis,) and reduce.fn in _FOLDS and m.only_user("join")
    return None if ones and alone and len(parts) <= _MOST_FOLDED else ""


def _follows_from(graph: Graph, node: Node) -> int:
    """Elements of all data that ``node`` follows from element by element, by way of views and functions."""
    found, pending = set[str](), [node.name]
    seen = set(pending)
    while pending:
        own = graph.node(pending.pop())
        if isinstance(own.op, (PointwiseOp, *VIEWS)) and own.inputs:
            pending += [name for name in own.inputs if name not in seen]
            seen.update(own.inputs)
        elif not isinstance(own.op, ConstOp):
            found.add(own.name)
    return sum(dims.numel(graph.shape(name), graph.sizes) for name in found)


def _is_of_few(m: Match) -> bool:
    """Whether the reduction alone reads ``x``, and adds up or compares a few elements along one axis."""
    reduce, shape = reduction(m), m["x"].type.shape
    if len(reduce.axes) != 1 or reduce.fn not in _FOLDS or not m.only_user("x"):
        return False
    size = shape[reduce.axes[0]]
    return isinstance(size, int) and 1 < size <= _SHORT


def _few_of_spread_data(m: Match) -> str | None:
    graph, x = m.graph, m["x"]
    spread = _is_of_few(m) and dims.numel(x.type.shape, graph.sizes) >= _SPREAD * _follows_from(graph, x)
    return None if spread else ""


def _is_reduced_further(graph: Graph, node: Node) -> bool:
    """Whether functions of ``node`` alone are reduced, and read by nothing else."""
    pending, reduces = [node], False
    while pending:
        own = pending.pop()
        if own.name in graph.results:
            return False
        for user in map(graph.node, graph.users[own.name]):
            if isinstance(user.op, PointwiseOp) and user.type.shape == node.type.shape:
                pending.append(user)
            elif isinstance(user.op, ReduceOp):
                reduces = True
            else:
                return False
    return reduces


def _few_of_a_group(m: Match) -> str | None:
    if not _is_of_few(m):
        return ""
    (axis,), x = reduction(m).axes, m["x"]
    before = m.graph.node(x.inputs[0]).type.shape
    runs = dims.regrouped(before, x.type.shape) or []
    splits = axis < x.type.rank - 1 and any(list(after) == [axis - 1, axis] for _, after in runs)
    return None if splits and _is_reduced_further(m.graph, m.root) else ""


def _element_by_element(m: Match) -> Node:
    (axis,), x = reduction(m).axes, m["x"]
    size = x.type.shape[axis]
    assert isinstance(size, int)
    return _fold(m, [m.add(SliceOp(axis=axis, start=i, length=1), x) for i in range(size)])


def _pooled(m: Match) -> tuple[tuple[int, ...], dims.Dims] | None:
    """(Sides of the patches that are reduced, along the last axes of ``x``; how many there are of them)."""
    before, after, axes = m["x"].type.shape, m["view"].type.shape, set(reduction(m).axes)
    kernel: list[int] = []
    size: list[dims.Dim] = []
    for own, reshaped in dims.regrouped(before, after) or []:
        taken = [axis for axis in reshaped if axis in axes]
        if len(own) == len(reshaped) == 1 and not taken:
            side, count = 1, after[reshaped[0]]
        elif len(own) == 1 and len(reshaped) == 2 and taken == [reshaped[1]]:
            count, last = after[reshaped[0]], after[reshaped[1]]
            if not isinstance(last, int):
                return None
            side = last
        else:
            return None
        if kernel or side > 1:
            kernel.append(side)
            size.append(count)
    along = [side for side in kernel if side > 1]  # one axis alone is a row, of neighbours or side by side with others
    if len(along) < 2 or kernel[-1] == 1 or len(kernel) == len(before) or len(kernel) > _MOST_POOLED:
        return None
    return tuple(kernel), tuple(size)


def _of_patches(m: Match) -> str | None:
    return None if reduction(m).fn in ("sum", "mean", "max") and _pooled(m) else ""


def _pool(m: Match) -> Node:
    found, fn = _pooled(m), reduction(m).fn
    assert found
    kernel, size = found
    ones, zeros = (1,) * len(kernel), (0,) * len(kernel)
    kind = PoolOp(
        fn="max" if fn == "max" else "mean", kernel=kernel, stride=kernel, padding=zeros, dilation=ones, size=size
    )
    lead, last = m["x"].type.shape[: -len(kernel)], m["x"].type.shape[-len(kernel) :]
    planes = m["x"] if len(lead) <= 2 else m.add(ReshapeOp(shape=(dims.product(lead), *last)), m["x"])
    pooled = m.add(kind, planes)
    if fn == "sum":
        pooled = m.add(PointwiseOp(fn="mul"), pooled, m.const(math.prod(kernel)))
    return m.add(ReshapeOp(shape=m.root.type.shape), pooled)


def _over_fewer_axes(m: Match) -> Node | None:
    """The reduction of the same data over most of these axes that comes before, and is read anyway, if there is one."""
    own, fitting = reduction(m), list[Node]()
    for node in m.graph.nodes:
        if node.name == m.root.name:
            break
        if isinstance(node.op, ReduceOp) and node.inputs == m.root.inputs and node.op.fn == own.fn:
            fitting += [node] if set(node.op.axes) < set(own.axes) else []
    return min(fitting, key=lambda node: dims.numel(node.type.shape, m.graph.sizes), default=None)


def _is_reduced_already(m: Match) -> str | None:
    if reduction(m).fn not in ("sum", "mean", "max", "min") or isinstance(m["x"].op, (ConvOp, MatmulOp)):
        return ""
    return None if _over_fewer_axes(m) else ""


def _the_rest(m: Match) -> Node:
    first = _over_fewer_axes(m)
    assert first is not None
    assert isinstance(first.op, ReduceOp)
    rank, done = m["x"].type.rank, first.op
    left = [axis for axis in range(rank) if done.keepdim or axis not in done.axes]
    axes = tuple(at for at, axis in enumerate(left) if axis in reduction(m).axes and axis not in done.axes)
    rest = m.add(reduction(m).replace(axes=axes, keepdim=False), first)
    return m.add(ReshapeOp(shape=m.root.type.shape), rest)


RULES = (
    Rule(
        "sum(stack(x, y)) = x + y over that axis,  mean, max, min, prod likewise",
        op(ReduceOp, op(CatOp, name="join")),
        lambda m: _fold(m, [m.graph.node(name) for name in m["join"].inputs]),
        Numerics.REASSOCIATES,
        _stacked,
    ),
    Rule(
        "sum(x) = x[0] + x[1] + ... of a few elements that follow from less data,  mean, max, min, prod likewise",
        op(ReduceOp, op(PointwiseOp, name="x")),
        _element_by_element,
        Numerics.REASSOCIATES,
        _few_of_spread_data,
    ),
    Rule(
        "max(x) = max(x[0], x[1], ...) of groups of a few that are reduced further,  sum, mean, min, prod likewise",
        op(ReduceOp, op(ReshapeOp, name="x")),
        _element_by_element,
        Numerics.REASSOCIATES,
        _few_of_a_group,
    ),
    Rule(
        "reduce(reshape(x)) = pool(x) of patches,  mean, sum and max",
        op(ReduceOp, op(ReshapeOp, anything("x"), name="view")),
        _pool,
        Numerics.REASSOCIATES,
        _of_patches,
    ),
    Rule(
        "reduce(x) = reduce(reduce(x)) where that over fewer axes is read, too,  sum, mean, max and min",
        op(ReduceOp, anything("x")),
        _the_rest,
        Numerics.REASSOCIATES,
        _is_reduced_already,
    ),
)
