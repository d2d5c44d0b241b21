"""Sums and means of a matrix product: one side is summed first.

The rules meet the product through additions and scalings that vary along the features; a pooling over
features is a mean over a split axis.
"""

from __future__ import annotations

from fusegen import dims, inference
from fusegen.dims import Dim
from fusegen.ir import MatmulOp, Node, NormalizeOp, PointwiseOp, PoolOp, ReduceOp, ReshapeOp
from fusegen.passes.algebra.channels import collapses
from fusegen.passes.algebra.collapse import (
    LINEAR,
    constant_along,
    features_first,
    in_two_steps,
    product_below,
    reduction,
    spatial_first,
)
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op

_MATMUL = op(MatmulOp, anything("x"), anything("w"), name="matmul")
_READ_ELSEWHERE = "the product is read elsewhere too, so it must be computed anyway"
_ROWS_IN_PLACE = op(MatmulOp, anything("x"), anything("w"), name="matmul", left_transposed=False)


# --- sums over the product's own axes -----------------------------------------------------------


def _features_only(m: Match) -> str | None:
    if reduction(m).axes != (m["matmul"].type.rank - 1,):
        return ""
    return None if m.only_user("matmul") else _READ_ELSEWHERE


def _feature_axis(matmul: Node, w: Node) -> int:
    """The axis of the weight that runs along the features."""
    assert isinstance(matmul.op, MatmulOp)
    return w.type.rank - (2 if matmul.op.transposed else 1)


def _sum_weights(m: Match) -> Node:
    axes = (_feature_axis(m["matmul"], m["w"]),)
    weights = m.add(ReduceOp(fn=reduction(m).fn, axes=axes, keepdim=True), m["w"])
    return m.add(ReshapeOp(shape=m.root.type.shape), m.add(m["matmul"].op, m["x"], weights))


def _rows_only(m: Match) -> str | None:
    """The axes are the product's rows; batches are rows only of a weight that has none."""
    rank, axes = m["matmul"].type.rank, reduction(m).axes
    if rank - 1 in axes or (m["w"].type.rank != 2 and axes != (rank - 2,)):
        return ""
    return None if m.only_user("matmul") else _READ_ELSEWHERE


def _sum_rows(m: Match) -> Node:
    """The rounding of one product does not average out as that of many does: it must be smaller."""
    rows = m.add(ReduceOp(fn=reduction(m).fn, axes=reduction(m).axes, keepdim=True), m["x"])
    assert isinstance(m["matmul"].op, MatmulOp)
    product = m.add(m["matmul"].op.replace(precise=True), rows, m["w"])
    return m.add(ReshapeOp(shape=m.root.type.shape), product)


def _features_and_more(m: Match) -> str | None:
    axes = features_first(m.graph, m["x"])
    return None if axes is not None and set(axes) < set(reduction(m).axes) else ""


def _single_column(m: Match) -> str | None:
    return None if m.root.type.shape[-1] == 1 else ""


def _row_products(m: Match) -> Node:
    """``w`` is a vector for all of ``x``, or for each of its matrices."""
    *batch, length = m["x"].type.shape[:-2] + m["x"].type.shape[-1:]
    weights = m.add(ReshapeOp(shape=(*batch, 1, length) if m["w"].type.rank > 2 else (length,)), m["w"])
    product = m.add(PointwiseOp(fn="mul"), m["x"], weights)
    return m.add(ReduceOp(fn="sum", axes=(product.type.rank - 1,), keepdim=True), product)


# --- terms and factors that vary along the summed axis ------------------------------------------


def _varying_term(m: Match) -> str | None:
    """What the term is added to goes with the sum: reading the term by itself costs no more than beside it."""
    inner, axes = m["inner"], reduction(m).axes
    if m["x"].type.shape != inner.type.shape or constant_along(m["c"], inner, axes) or not m.only_user("inner"):
        return ""
    spatial = spatial_first(m.graph, m["x"])
    if spatial is not None and set(spatial) <= set(axes) and constant_along(m["c"], inner, spatial):
        return ""  # it is added to less than that, once the spatial axes are gone
    return None if collapses(m.graph, m["x"], axes) or _averages_a_norm(m) else ""


def _averages_a_norm(m: Match) -> bool:
    """Whether a smaller term stands between a norm and its mean, which is one of moments."""
    x, axes = m["x"], reduction(m).axes
    small = 2 * dims.numel(m["c"].type.shape, m.graph.sizes) <= dims.numel(x.type.shape, m.graph.sizes)
    while isinstance(x.op, ReshapeOp) and m.graph.has_one_reader(x.name):
        x = m.graph.node(x.inputs[0])
    both = isinstance(x.op, NormalizeOp) and (x.type.shape != m["x"].type.shape or not set(axes).isdisjoint(x.op.axes))
    return small and both and m.graph.has_one_reader(x.name)


def _sum_term(m: Match) -> Node:
    """Both sums; the term's runs over the axes that it has, and counts the others."""
    inner, reduce, c = m["inner"], reduction(m), m["c"]
    assert isinstance(inner.op, PointwiseOp)
    offset = inner.type.rank - c.type.rank
    own = tuple(axis - offset for axis in reduce.axes if axis >= offset and c.type.shape[axis - offset] != 1)
    term = m.add(ReduceOp(fn=reduce.fn, axes=own, keepdim=True), c)
    if reduce.fn == "sum":
        others = [inner.type.shape[axis] for axis in reduce.axes if axis - offset not in own]
        if (count := dims.product(others)) != 1:
            term = m.add(PointwiseOp(fn="mul"), term, m.const(count))
    if not reduce.keepdim:
        dropped = tuple(axis - offset for axis in reduce.axes if axis >= offset)
        term = m.add(ReshapeOp(shape=inference.reduced_shape(term.type.shape, dropped, keepdim=False)), term)
    return m.add(inner.op, m.add(reduce, m["x"]), term)


def _feature_factor(m: Match) -> str | None:
    features, c = m["matmul"].type.shape[-1], m["c"]
    per_feature = c.type.rank >= 1 and c.type.shape == (*(1,) * (c.type.rank - 1), features) and features != 1
    last = reduction(m).axes == (m["matmul"].type.rank - 1,)
    if not (per_feature and last and m["w"].type.rank == 2 and m.only_user("inner")):
        return ""
    return None if m.only_user("matmul") else _READ_ELSEWHERE


def _scale_weights(m: Match) -> Node:
    shape: tuple[Dim, ...] = (m["matmul"].type.shape[-1], *(1,) * (1 - _feature_axis(m["matmul"], m["w"])))
    weights = m.add(PointwiseOp(fn="mul"), m["w"], m.add(ReshapeOp(shape=shape), m["c"]))
    return m.add(reduction(m), m.add(m["matmul"].op, m["x"], weights))


# --- means over tiles of features ---------------------------------------------------------------


def _tiles(m: Match) -> str | None:
    pool, size = m.root.op, m["x"].type.shape[-1]
    assert isinstance(pool, PoolOp)
    plain = pool.rank == 1 and pool.kernel == pool.stride and not pool.padding[0] and pool.divisor is None
    if not plain or not product_below(m.graph, m["x"]):
        return ""
    exact = isinstance(size, int) and size % pool.kernel[0] == 0
    return None if exact else f"{size} features are not whole windows of {pool.kernel[0]}"


def _split_tiles(m: Match) -> Node:
    pool = m.root.op
    assert isinstance(pool, PoolOp)
    split = m.add(ReshapeOp(shape=(*m.root.type.shape, pool.kernel[0])), m["x"])
    return m.add(ReduceOp(fn="mean", axes=(split.type.rank - 1,), keepdim=False), split)


def _splits_features(m: Match, whole: Node) -> tuple[Dim, Dim] | None:
    """(groups, length) when the reduction runs over the second part of ``whole``'s last axis."""
    shape = m["split"].type.shape
    if reduction(m).axes != (len(shape) - 1,) or len(shape) < 2 or not m.only_user("split"):
        return None
    return (shape[-2], shape[-1]) if dims.product(shape[-2:]) == whole.type.shape[-1] else None


def _splits_product(m: Match) -> str | None:
    found = m["w"].type.rank == 2 and _splits_features(m, m["matmul"]) and m.only_user("matmul")
    return None if found else ""


def _sum_weight_tiles(m: Match) -> Node:
    parts = _splits_features(m, m["matmul"])
    assert parts is not None
    axis = _feature_axis(m["matmul"], m["w"])
    shape = (*m["w"].type.shape[:axis], *parts, *m["w"].type.shape[axis + 1 :])
    tiles = m.add(ReshapeOp(shape=shape), m["w"])
    weights = m.add(ReduceOp(fn=reduction(m).fn, axes=(axis + 1,), keepdim=False), tiles)
    return m.add(ReshapeOp(shape=m.root.type.shape), m.add(m["matmul"].op, m["x"], weights))


def _splits_term(m: Match) -> str | None:
    """The term is a number, or varies along the last axis alone."""
    inner, c = m["inner"], m["c"]
    if m["x"].type.shape != inner.type.shape or not m.only_user("inner") or not _splits_features(m, inner):
        return ""
    scales = isinstance(inner.op, PointwiseOp) and inner.op.fn in ("mul", "div")
    per_feature = not scales and c.type.shape[-1:] == inner.type.shape[-1:] and set(c.type.shape[:-1]) <= {1}
    return None if (c.type.rank == 0 or per_feature) and product_below(m.graph, m["x"]) else ""


def _split_both(m: Match) -> Node:
    inner, c = m["inner"].op, m["c"]
    assert isinstance(inner, PointwiseOp)
    if c.type.rank:
        c = m.add(ReshapeOp(shape=m["split"].type.shape[-2:]), c)
    return m.add(reduction(m), m.add(inner, m.add(m["split"].op, m["x"]), c))


RULES = (
    Rule(
        "sum over features of matmul(x, w) = matmul(x, sum over features of w),  mean likewise",
        op(ReduceOp, _MATMUL, fn=LINEAR),
        _sum_weights,
        Numerics.REASSOCIATES,
        _features_only,
    ),
    Rule(
        "sum over rows of matmul(x, w) = matmul(sum over rows of x, w),  mean likewise",
        op(ReduceOp, _ROWS_IN_PLACE, fn=LINEAR),
        _sum_rows,
        Numerics.REASSOCIATES,
        _rows_only,
    ),
    Rule(
        "sum over features and other axes = sum over the others of the sum over features,  mean likewise",
        op(ReduceOp, anything("x"), fn=LINEAR),
        lambda m: in_two_steps(m, reduction(m).axes[-1:]),
        Numerics.REASSOCIATES,
        _features_and_more,
    ),
    Rule(
        "matmul(x, w) of one column = sum of x w over the last axis",
        _ROWS_IN_PLACE,
        _row_products,
        Numerics.REASSOCIATES,
        _single_column,
    ),
    *(
        Rule(
            f"sum(x {sign} c) = sum(x) {sign} sum(c),  mean likewise,  x a product or a norm",
            op(
                ReduceOp,
                op(PointwiseOp, anything("x"), anything("c"), name="inner", fn=fn, commutative=fn == "add"),
                fn=LINEAR,
            ),
            _sum_term,
            Numerics.REASSOCIATES,
            _varying_term,
        )
        for fn, sign in (("add", "+"), ("sub", "-"))
    ),
    Rule(
        "sum over features of matmul(x, w) c = sum over features of matmul(x, w c),  mean likewise",
        op(
            ReduceOp,
            op(PointwiseOp, _MATMUL, anything("c"), name="inner", fn="mul", commutative=True),
            fn=LINEAR,
        ),
        _scale_weights,
        Numerics.REASSOCIATES,
        _feature_factor,
    ),
    Rule(
        "mean pooling of features = mean over a split axis,  above a product",
        op(PoolOp, anything("x"), fn="mean", ceil=False),
        _split_tiles,
        Numerics.REASSOCIATES,
        _tiles,
    ),
    Rule(
        "sum over a part of the features of matmul(x, w) = matmul(x, sum over that part of w),  mean likewise",
        op(ReduceOp, op(ReshapeOp, _MATMUL, name="split"), fn=LINEAR),
        _sum_weight_tiles,
        Numerics.REASSOCIATES,
        _splits_product,
    ),
    *(
        Rule(
            f"sum over a part of the features of (x {sign} c): x and c split before,  mean likewise",
            op(
                ReduceOp,
                op(
                    ReshapeOp,
                    op(PointwiseOp, anything("x"), anything("c"), name="inner", fn=fn, commutative=fn in "add mul"),
                    name="split",
                ),
                fn=LINEAR,
            ),
            _split_both,
            Numerics.REASSOCIATES,
            _splits_term,
        )
        for fn, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/"))
    ),
)
