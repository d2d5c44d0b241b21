"""Mean poolings of transposed convolutions, along every axis: what is averaged away is never computed.

An element i of the input reaches the results i s - p + k of a transposed convolution of stride s by its taps k. A
pooling whose stride t divides s leaves a transposed convolution of stride s / t; where s divides t, a convolution of
stride t / s is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from fusegen import dims, inference
from fusegen.dims import Dim
from fusegen.ir import ConvOp, FlipOp, Node, PadOp, PermuteOp, PoolOp, ReshapeOp, SliceOp
from fusegen.machines import DEFAULT_TARGET, machine
from fusegen.passes.algebra import boxes, pools
from fusegen.passes.rewrite import Match, Numerics, Rule, op

_LAUNCHES = 5
"""Of weights that are averaged and turned about, in kernels and by torch, and of zeros behind the input."""


class _Axis(NamedTuple):
    """What is left of a pooled convolution along one axis."""

    stride: int
    taps: int
    before: int
    after: int
    """Zeros around the weights, whose windows are averaged then."""
    first: int
    """The position of result 0, where nothing is cropped; of a convolution: zeros before the input."""
    behind: int
    """More zeros behind the input than before it."""


def _divided(conv: ConvOp, pool: PoolOp, taps: int, axis: int) -> _Axis:
    """Result q is the sum over i of x[i] v[q - i s / t]; v[n] is the mean of w[n t + j + p] over j of the window."""
    s, p, t, k = conv.stride[axis], conv.padding[axis], pool.stride[axis], pool.kernel[axis]
    first, last = -((p + k - 1) // t), (taps - 1 - p) // t
    before, after = -first * t - p, max(0, last * t + p + k - taps)
    return _Axis(s // t, last - first + 1, before, after, -first, 0)


def _multiplied(conv: ConvOp, pool: PoolOp, taps: int, axis: int) -> _Axis:
    """Result q is the sum over u of x[q t / s + u] v[u], where v[u] is the mean of w[p - u s + j] over j of the window.

    The last window may end behind all that the last element reaches: then zeros follow the input.
    """
    s, p, t, k = conv.stride[axis], conv.padding[axis], pool.stride[axis], pool.kernel[axis]
    first, last = -((taps - 1 - p) // s), (p + k - 1) // s
    before, after = last * s - p, max(0, p - first * s + k - taps)
    behind = (taps - 1 - p + conv.output_padding[axis]) // s + first
    return _Axis(t // s, last - first + 1, before, after, -first, behind)


def _axes(m: Match, along: Callable[[ConvOp, PoolOp, int, int], _Axis]) -> list[_Axis]:
    found = pools.pool_and_conv(m)
    assert found is not None
    pool, conv = found
    kernel = inference.kernel_size(m["w"].type)
    return [along(conv, pool, kernel[axis], axis) for axis in range(conv.rank)]


def _refused(m: Match, axes: list[_Axis], phases: tuple[int, ...] = (), results: tuple[int, ...] = ()) -> str | None:
    """Why the weights of what is left cannot be made, or are too many; or None.

    Where both are transposed, taps are compared with taps. A convolution has a product for each of its taps, where a
    transposed one has it for one of its ``phases``, but for all ``results`` of a window.
    """
    if any(axis.taps < 1 or axis.before < 0 for axis in axes):
        return ""
    merged = math.prod((*(axis.taps for axis in axes), *phases))
    direct = math.prod((*inference.kernel_size(m["w"].type), *results))
    return None if pools.cheaper(merged, direct) else f"{merged} products, against {direct} with all results"


def _weights(m: Match, axes: list[_Axis], stride: tuple[int, ...]) -> Node:
    return pools.pooled_weights(m, tuple(axis.before for axis in axes), tuple(axis.after for axis in axes), stride)


def _pool_and_transposed(m: Match) -> tuple[PoolOp, ConvOp] | None:
    found = pools.pool_and_conv(m)
    return found if found is not None and found[1].transposed else None


# --- the pooling's stride divides the convolution's --------------------------------------------------


def divides(m: Match) -> str | None:
    """None where ``divide`` takes a pooling into a transposed convolution, and that pays."""
    found = _pool_and_transposed(m)
    if found is None:
        return ""
    pool, conv = found
    strides = list(zip(conv.stride, pool.stride, pool.kernel, strict=True))
    if any(s % t or k < t for s, t, k in strides):
        return "" if _multiples(pool, conv) else "the pooling's stride does not divide the convolution's"
    axes = _axes(m, _divided)
    if (reason := _refused(m, axes)) is not None:
        return reason
    enough = all(isinstance(spare, int) and spare >= 0 for spare in _spare(m, axes, pool))
    return None if enough else "the pooling reaches past the last tap"


def _spare(m: Match, axes: list[_Axis], pool: PoolOp) -> list[Dim]:
    """What the uncropped convolution has beyond the pooling's last result, along every axis."""
    reach = zip(m["x"].type.shape[2:], axes, pool.size, strict=True)
    return [
        dims.sub(dims.add(dims.mul(dims.sub(size, 1), axis.stride), axis.taps - axis.first), results)
        for size, axis, results in reach
    ]


def divide(m: Match) -> Node:
    """The transposed convolution of stride s / t with the kernel averaged over the pooling's windows."""
    pool, conv, axes = m.root.op, m["conv"].op, _axes(m, _divided)
    assert isinstance(pool, PoolOp)
    assert isinstance(conv, ConvOp)
    weights = _weights(m, axes, pool.stride)
    # The convolution crops the same from both ends: as much as both can spare.
    crop = []
    for axis, spare in zip(axes, _spare(m, axes, pool), strict=True):
        assert isinstance(spare, int)
        crop.append(min(axis.first, spare))
    stride = tuple(axis.stride for axis in axes)
    merged = conv.replace(stride=stride, padding=tuple(crop), output_padding=(0,) * conv.rank, summed=False)
    starts = [axis.first - own for axis, own in zip(axes, crop, strict=True)]
    return _cut(m, m.add(merged, m["x"], weights), starts)


def _cut(m: Match, y: Node, starts: list[int]) -> Node:
    """As many results as the pooling has, from ``starts`` on."""
    pool = m.root.op
    assert isinstance(pool, PoolOp)
    for axis, (start, length) in enumerate(zip(starts, pool.size, strict=True)):
        if y.type.shape[2 + axis] != length:
            y = m.add(SliceOp(axis=2 + axis, start=start, length=length), y)
    return y


# --- the convolution's stride divides the pooling's --------------------------------------------------


def _multiples(pool: PoolOp, conv: ConvOp) -> bool:
    return all(t % s == 0 for s, t in zip(conv.stride, pool.stride, strict=True))


def is_divided(m: Match) -> str | None:
    """None where ``multiply`` takes a pooling into a transposed convolution, and that pays."""
    found = _pool_and_transposed(m)
    if found is None:
        return ""
    pool, conv = found
    if not _multiples(pool, conv):
        return ""
    axes = _axes(m, _multiplied)
    if any(axis.first < 0 for axis in axes):
        return "it crops more than its kernel reaches"
    reason = _refused(m, axes, conv.stride, pool.stride)
    return _pays(m) if reason is None else reason


def _pays(m: Match) -> str | None:
    """None where what is left, with its weights, is expected to take less than the pooling of all results."""
    rates = machine(DEFAULT_TARGET)
    here = boxes.built_seconds(m, multiply, rates) + _LAUNCHES * rates.launch
    other = boxes.all_results_seconds(m.graph, m["conv"], rates)
    reason = f"{here * 1e6:.0f} us with an averaged kernel, {other * 1e6:.0f} us with all results"
    return None if here < other else reason


def multiply(m: Match) -> Node:
    """The convolution of stride t / s with the kernel averaged over the pooling's windows.

    Every window ends inside the result, so that the convolution has all of the pooling's results. In full fp32 whose
    sums keep what rounding takes: eager's means of many results have errors that are as small.
    """
    conv, axes, x = m["conv"].op, _axes(m, _multiplied), m["x"]
    assert isinstance(conv, ConvOp)
    weights = _flipped(m, _weights(m, axes, conv.stride), conv.groups)
    behind = tuple(axis.behind for axis in axes)
    if any(behind):
        x = m.add(PadOp(before=(0,) * x.type.rank, after=(0, 0, *behind)), x)
    merged = conv.replace(
        transposed=False,
        precise=True,
        summed=False,
        stride=tuple(axis.stride for axis in axes),
        padding=tuple(axis.first for axis in axes),
        output_padding=(0,) * conv.rank,
    )
    return _cut(m, m.add(merged, x, weights), [0] * conv.rank)


def _flipped(m: Match, w: Node, groups: int) -> Node:
    """The weights [inputs, outputs of a group, ...] of a transposed convolution as those of a convolution."""
    inputs, outputs, *taps = w.type.shape
    w = m.add(FlipOp(axes=tuple(range(2, w.type.rank))), w)
    if groups == 1:
        return m.add(PermuteOp(order=(1, 0, *range(2, w.type.rank))), w)
    own = dims.exact_quotient(inputs, groups)
    assert own is not None
    apart = m.add(ReshapeOp(shape=(groups, own, outputs, *taps)), w)
    turned = m.add(PermuteOp(order=(0, 2, 1, *range(3, apart.type.rank))), apart)
    return m.add(ReshapeOp(shape=(dims.mul(groups, outputs), own, *taps)), turned)


RULES = (
    Rule(
        "mean_pool(conv_transpose(x, w)) = conv_transpose(x, windows of w averaged) of stride s / t",
        op(PoolOp, pools.CONV, fn="mean"),
        divide,
        Numerics.REASSOCIATES,
        lambda m: pools.alone(m, divides),
    ),
    Rule(
        "mean_pool(conv_transpose(x, w)) = conv(x, windows of w averaged) of stride t / s",
        op(PoolOp, pools.CONV, fn="mean"),
        multiply,
        Numerics.REASSOCIATES,
        lambda m: pools.alone(m, is_divided),
    ),
)
