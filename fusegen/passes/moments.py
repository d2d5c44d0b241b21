"""A mean of a norm, from the moments of the norm's input: the normalised tensor is never made.

Along the axes that the norm, its affine and the mean share, the norm is an affine map of one mean and one
variance; statistics over more axes are those of the smaller ones (law of total variance, whose terms
are all positive: nothing cancels).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusegen import dims
from fusegen.ir import Node, NormalizeOp, PointwiseOp, ReduceOp, ReshapeOp
from fusegen.passes.algebra.collapse import LINEAR, constant_along, reduction
from fusegen.passes.algebra.views import axes_before
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op

WORTH = 32
"""Elements of the shared axes from which on their moments are small beside the tensor."""


def scaled(m: Match, norm: NormalizeOp, distance: Node, power: Node, affine: Sequence[Node]) -> Node:
    """``distance rsqrt(power + eps) w + b``, with as much of ``w, b`` as there is in ``affine``."""
    root = m.add(PointwiseOp(fn="rsqrt"), m.add(PointwiseOp(fn="add"), power, m.const(norm.eps)))
    y = m.add(PointwiseOp(fn="mul"), distance, root)
    for fn, operand in zip(("mul", "add"), affine, strict=False):
        y = m.add(PointwiseOp(fn=fn), y, operand)
    return y


def reduced(m: Match, fn: str, value: Node, axes: tuple[int, ...]) -> Node:
    """``value`` reduced over ``axes``, which stay as axes of size 1; itself without axes."""
    return m.add(ReduceOp.model_validate({"fn": fn, "axes": axes, "keepdim": True}), value) if axes else value


def _like_root(m: Match, value: Node) -> Node:
    return value if value.type == m.root.type else m.add(ReshapeOp(shape=m.root.type.shape), value)


def variance(m: Match, x: Node, inner: tuple[int, ...], outer: tuple[int, ...]) -> Node:
    """The variance of ``x`` over ``inner`` and ``outer``, from the means and variances over ``inner``."""
    within = reduced(m, "var", x, inner)
    if not outer:
        return within
    between = reduced(m, "var", reduced(m, "mean", x, inner), outer)
    return m.add(PointwiseOp(fn="add"), reduced(m, "mean", within, outer), between)


def _distance(m: Match, x: Node, mean: Node, inner: tuple[int, ...], outer: tuple[int, ...]) -> Node:
    """How far the ``mean`` of ``x`` over ``inner`` is from the one over ``inner`` and ``outer``.

    Means that lie close together differ by little more than they are rounded by, and a norm makes that large: so
    what rounding took from them is added to their difference, whose own mean then leaves nothing common in it.
    """
    if not outer:
        return m.add(PointwiseOp(fn="sub"), mean, mean)
    lost = reduced(m, "mean", m.add(PointwiseOp(fn="sub"), x, mean), inner)
    apart = m.add(PointwiseOp(fn="sub"), mean, reduced(m, "mean", mean, outer))
    apart = m.add(PointwiseOp(fn="add"), apart, lost)
    return m.add(PointwiseOp(fn="sub"), apart, reduced(m, "mean", apart, outer))


# --- mean(normalize(x)) ---------------------------------------------------------------------------


def _shared(m: Match) -> tuple[int, ...]:
    """Axes that the norm and the mean both run along, and its scale and shift do not vary along."""
    norm = m["norm"]
    assert isinstance(norm.op, NormalizeOp)
    affine = [m.graph.node(name) for name in norm.inputs[1:]]
    both = [axis for axis in norm.op.axes if axis in reduction(m).axes]
    return tuple(axis for axis in both if all(constant_along(operand, norm, (axis,)) for operand in affine))


def _many_shared(m: Match) -> str | None:
    sizes = m.graph.shape(m["norm"].name)
    return None if math.prod(sizes[axis] for axis in _shared(m)) >= WORTH else ""


def _from_moments(m: Match) -> Node:
    norm, reduce, shared = m["norm"].op, reduction(m), _shared(m)
    assert isinstance(norm, NormalizeOp)
    x, *affine = (m.graph.node(name) for name in m["norm"].inputs)
    others = tuple(axis for axis in norm.axes if axis not in shared)
    distance = mean = reduced(m, "mean", x, shared)
    if norm.center:
        distance = _distance(m, x, mean, shared, others)
        power = variance(m, x, shared, others)
    else:
        power = reduced(m, "mean", reduced(m, "mean", m.add(PointwiseOp(fn="square"), x), shared), others)
    y = scaled(m, norm, distance, power, affine)
    if reduce.fn == "sum":
        y = m.add(PointwiseOp(fn="mul"), y, m.const(dims.product(x.type.shape[axis] for axis in shared)))
    return _like_root(m, reduced(m, reduce.fn, y, tuple(axis for axis in reduce.axes if axis not in shared)))


# --- mean(reshape(normalize(x))) ------------------------------------------------------------------


def _axes_before(m: Match) -> tuple[int, ...] | None:
    return axes_before(m["norm"].type.shape, m["view"].type.shape, reduction(m).axes)


def _before_reshape(m: Match) -> Node:
    axes = _axes_before(m)
    assert axes is not None
    return _like_root(m, reduced(m, reduction(m).fn, m["norm"], axes))


# --- normalize(x) - mean(normalize(x)) ---------------------------------------------------------------


def _not_centred(m: Match) -> str | None:
    norm, mean = m["norm"], m["mean"]
    assert isinstance(norm.op, NormalizeOp)
    assert isinstance(mean.op, ReduceOp)
    affine = [m.graph.node(name) for name in norm.inputs[1:]]
    if mean.inputs != (norm.name,) or not mean.op.keepdim or not set(mean.op.axes) <= set(norm.op.axes):
        return ""
    if any(not constant_along(operand, norm, mean.op.axes) for operand in affine):
        return "the norm's scale or shift varies along the axes of the mean"
    users = m.graph.users
    readers = {*users[norm.name], *users[mean.name]} - {mean.name}
    if readers != {m.root.name} or {norm.name, mean.name} & set(m.graph.results):
        return "the norm is read elsewhere too"
    return None


def _centred(m: Match) -> Node:
    norm, mean = m["norm"].op, m["mean"].op
    assert isinstance(norm, NormalizeOp)
    assert isinstance(mean, ReduceOp)
    x, *affine = (m.graph.node(name) for name in m["norm"].inputs)
    distance = m.add(PointwiseOp(fn="sub"), x, reduced(m, "mean", x, mean.axes))
    power = (
        reduced(m, "var", x, norm.axes)
        if norm.center
        else reduced(m, "mean", m.add(PointwiseOp(fn="square"), x), norm.axes)
    )
    y = scaled(m, norm, distance, power, affine[:1])
    for shift in affine[1:]:  # zero, but for one that is infinite or NaN
        y = m.add(PointwiseOp(fn="add"), y, m.add(PointwiseOp(fn="sub"), shift, shift))
    return y


# --- a norm, and the variance, of a norm over the same axes -------------------------------------------


def _inner(m: Match) -> Node:
    return m.graph.node(m.root.inputs[0])


def _same_axes(m: Match) -> str | None:
    """None where the root is the variance, or a norm by it, of a norm whose own variance it follows from."""
    root, inner = m.root.op, _inner(m)
    assert isinstance(root, NormalizeOp | ReduceOp)
    if not isinstance(inner.op, NormalizeOp):
        return ""
    if inner.op.axes != root.axes or not inner.op.center or (isinstance(root, NormalizeOp) and not root.center):
        return "its statistics are others"
    affine = [m.graph.node(name) for name in inner.inputs[1:]]
    if any(not constant_along(operand, inner, root.axes) for operand in affine):
        return "the inner norm's scale or shift varies along the axes"
    return None


def _variance_of_norm(m: Match) -> Node:
    """Factor by factor, so that no square of a scale overflows by itself."""
    norm = _inner(m)
    assert isinstance(norm.op, NormalizeOp)
    x, *affine = (m.graph.node(name) for name in norm.inputs)
    power = own = reduced(m, "var", x, norm.op.axes)
    root = m.add(PointwiseOp(fn="rsqrt"), m.add(PointwiseOp(fn="add"), own, m.const(norm.op.eps)))
    for factor in (root, *affine[:1]):
        for _ in range(2):
            power = m.add(PointwiseOp(fn="mul"), power, factor)
    for shift in affine[1:]:  # zero, but for one that is infinite or NaN
        power = m.add(PointwiseOp(fn="add"), power, m.add(PointwiseOp(fn="sub"), shift, shift))
    return power


def _norm_of_norm(m: Match) -> Node:
    outer, inner = m.root.op, _inner(m)
    assert isinstance(outer, NormalizeOp)
    assert isinstance(inner.op, NormalizeOp)
    x, *affine = (m.graph.node(name) for name in inner.inputs)
    distance = m.add(PointwiseOp(fn="sub"), x, reduced(m, "mean", x, outer.axes))
    y = scaled(m, inner.op, distance, reduced(m, "var", x, outer.axes), affine[:1])
    return scaled(m, outer, y, _variance_of_norm(m), [m.graph.node(name) for name in m.root.inputs[1:]])


# --- statistics over more axes than others -------------------------------------------------------------


def _finer(m: Match) -> tuple[int, ...]:
    """Axes of a variance of the same ``x`` that is computed anyway, fewer than this reduction's; else none."""
    axes = set(reduction(m).axes)
    for name in m.graph.users[m["x"].name]:
        node = m.graph.node(name)
        if isinstance(node.op, ReduceOp) and node.op.fn == "var" and set(node.op.axes) < axes:
            return node.op.axes
    return ()


def _in_two_steps(m: Match) -> Node:
    inner = _finer(m)
    outer = tuple(axis for axis in reduction(m).axes if axis not in inner)
    if reduction(m).fn == "var":
        return _like_root(m, variance(m, m["x"], inner, outer))
    return _like_root(m, reduced(m, "mean", reduced(m, "mean", m["x"], inner), outer))


CENTRED = (
    Rule(
        "normalize(x) - mean(normalize(x)) = (x - mean(x)) rsqrt(var of all + eps) w",
        op(PointwiseOp, op(NormalizeOp, name="norm"), op(ReduceOp, name="mean", fn="mean"), fn="sub"),
        _centred,
        Numerics.REASSOCIATES,
        _not_centred,
    ),
)
"""Before ``RULES``, which take the mean by itself."""

RULES = (
    Rule(
        "normalize(y) = (x - mean(x)) rsqrt(var(x) + eps) w rsqrt(var(y) + eps) w' + b',  y = normalize(x, w, b)",
        op(NormalizeOp),
        _norm_of_norm,
        Numerics.REASSOCIATES,
        _same_axes,
    ),
    Rule(
        "var(normalize(x)) = var(x) w^2 / (var(x) + eps)",
        op(ReduceOp, fn="var"),
        lambda m: _like_root(m, _variance_of_norm(m)),
        Numerics.REASSOCIATES,
        _same_axes,
    ),
    Rule(
        "mean(normalize(x)) = (mean(x) - mean of all) rsqrt(var of all + eps) w + b",
        op(ReduceOp, op(NormalizeOp, name="norm"), fn=LINEAR),
        _from_moments,
        Numerics.REASSOCIATES,
        _many_shared,
    ),
    Rule(
        "mean(reshape(normalize(x))) = reshape(mean(normalize(x))),  the reshape mixes no axes with others",
        op(ReduceOp, op(ReshapeOp, op(NormalizeOp, name="norm"), name="view"), fn=LINEAR),
        _before_reshape,
        Numerics.REASSOCIATES,
        lambda m: None if _axes_before(m) else "",
    ),
    Rule(
        "var(x) = mean(var(x) inside) + var(mean(x) inside),  mean(x) likewise",
        op(ReduceOp, anything("x"), fn=("mean", "var")),
        _in_two_steps,
        Numerics.REASSOCIATES,
        lambda m: None if _finer(m) else "",
    ),
)
