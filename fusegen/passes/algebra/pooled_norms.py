"""A mean pooling of a norm of a convolution: the pooling goes into the convolution.

Of the convolution's own results, statistics are left, which its kernel finds without writing what they are of: neither
these results nor the norm's are ever in memory.
"""

from __future__ import annotations

from fusegen import dims
from fusegen.ir import ConvOp, Node, NormalizeOp, PointwiseOp, PoolOp, ReduceOp
from fusegen.machines import DEFAULT_TARGET, machine
from fusegen.passes.algebra import boxes, pools, transposed_pools
from fusegen.passes.algebra.collapse import READ_ELSEWHERE, constant_along, not_worth_window_sums
from fusegen.passes.moments import reduced, scaled, variance
from fusegen.passes.rewrite import Match, Numerics, Rule, op

_WAYS = (
    (pools.fits, pools.merge),
    (transposed_pools.divides, transposed_pools.divide),
    (transposed_pools.is_divided, transposed_pools.multiply),
)
"""To take a pooling into a convolution: when, and how."""
_LAUNCHES = 9
"""Of the averaged weights, of the sums that the mean is made of, and of what follows."""


def _shifted_conv(m: Match) -> Node | None:
    """The convolution that is normalised, itself or with a term for every channel, which the norm cancels."""
    norm = m["norm"]
    assert isinstance(norm.op, NormalizeOp)
    x = m.graph.node(norm.inputs[0])
    if isinstance(x.op, ConvOp):
        return x
    if not isinstance(x.op, PointwiseOp) or x.op.fn != "add":
        return None
    conv, shift = (m.graph.node(name) for name in x.inputs)
    if not isinstance(conv.op, ConvOp) or not m.graph.has_one_reader(conv.name):
        return None
    return conv if constant_along(shift, x, norm.op.axes) else None


def _precise(conv: Node) -> Node:
    """In TF32, a mean and the results around it would differ by more than these do from each other."""
    assert isinstance(conv.op, ConvOp)
    return conv.replace(op=conv.op.replace(precise=True))


def _pooled_axes(m: Match) -> tuple[int, ...]:
    pool, rank = m.root.op, m.root.type.rank
    assert isinstance(pool, PoolOp)
    return tuple(range(rank - pool.rank, rank))


def _pooled_conv(m: Match, conv: Node) -> Match:
    """The match of a pooling of the convolution itself; what it builds belongs to ``m``."""
    x, w = (m.graph.node(name) for name in conv.inputs)
    root = m.root.replace(inputs=(conv.name,))
    return Match(m.graph, root, {"conv": _precise(conv), "x": x, "w": w}, m.built)


def _is_statistic(m: Match, name: str) -> bool:
    node = m.graph.node(name)
    return isinstance(node.op, ReduceOp) and node.op.fn in ("mean", "var") and set(_pooled_axes(m)) <= set(node.op.axes)


def _pools_a_conv(m: Match) -> str | None:
    norm, axes = m["norm"], _pooled_axes(m)
    assert isinstance(norm.op, NormalizeOp)
    affine = [m.graph.node(name) for name in norm.inputs[1:]]
    if not set(axes) <= set(norm.op.axes) or not all(constant_along(operand, norm, axes) for operand in affine):
        return ""
    found = _shifted_conv(m)
    if found is None or not norm.op.center or not m.only_user("norm") or pools.is_composed(m):
        return ""
    others = set(m.graph.users[norm.inputs[0]]) - {norm.name}
    if norm.inputs[0] in m.graph.results or not all(_is_statistic(m, name) for name in others):
        return READ_ELSEWHERE
    pooled = _pooled_conv(m, found)
    reasons = [fits(pooled) for fits, _ in _WAYS]
    if None not in reasons:
        return next(filter(None, reasons), "")
    return not_worth_window_sums(m.graph, found) or _pays(m, found)


def _pays(m: Match, conv: Node) -> str | None:
    """None where one more convolution is expected to take less than reading all results of the first one again."""
    rates = machine(DEFAULT_TARGET)
    own = boxes.built_seconds(m, lambda trial: _merge(trial, conv), rates) + _LAUNCHES * rates.launch
    own += 2 * 4 * dims.numel(m.root.type.shape, m.graph.sizes) / rates.bandwidth
    own += 4 * dims.numel(m.graph.node(conv.inputs[0]).type.shape, m.graph.sizes) / rates.bandwidth
    read = 4 * dims.numel(conv.type.shape, m.graph.sizes) / rates.bandwidth
    reason = f"a convolution of averaged windows takes {own * 1e6:.0f} us, reading all results {read * 1e6:.0f} us"
    return None if own < read else reason


def _merge(m: Match, conv: Node) -> Node:
    pooled = _pooled_conv(m, conv)
    return next(build for fits, build in _WAYS if fits(pooled) is None)(pooled)


def _normalise_pooled(m: Match) -> Node:
    norm, found = m["norm"], _shifted_conv(m)
    assert isinstance(norm.op, NormalizeOp)
    assert found is not None
    x, *affine = (m.graph.node(name) for name in norm.inputs)
    inner = _pooled_axes(m)
    outer = tuple(axis for axis in norm.op.axes if axis not in inner)
    data, weights = (m.graph.node(name) for name in found.inputs)
    precise = m.add(_precise(found).op, data, weights)  # its mean is one of sums of the data
    distance = m.add(PointwiseOp(fn="sub"), _merge(m, found), reduced(m, "mean", precise, norm.op.axes))
    return scaled(m, norm.op, distance, variance(m, x, inner, outer), affine)


RULES = (
    Rule(
        "mean_pool(normalize(conv)) = (mean_pool(conv) - mean(conv)) rsqrt(var(conv) + eps) w + b",
        op(PoolOp, op(NormalizeOp, name="norm"), fn="mean"),
        _normalise_pooled,
        Numerics.REASSOCIATES,
        _pools_a_conv,
    ),
)
