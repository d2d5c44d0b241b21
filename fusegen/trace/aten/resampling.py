"""Importers of interpolations: every element is made of those that lie nearest to its place in the operand."""

from __future__ import annotations

import math
from typing import Literal

import torch

from fusegen import dims
from fusegen.dims import Dim
from fusegen.ir import HALVES, CatOp, DType, ExpandOp, FillOp, InterpolateOp, ResampleOp, SliceOp
from fusegen.trace.aten.call import Call, Value, pointwise, register
from fusegen.trace.aten.shapes import reshaped, spread_apart


def _factors(call: Call) -> list[int] | None:
    """Times that each axis is longer in the result, where those are whole numbers, and what torch is told, if it is."""
    pairs = zip(call.result.shape[2:], call["input"].type.shape[2:], strict=True)
    ratios = [dims.exact_quotient(*pair) for pair in pairs]
    factors = [ratio for ratio in ratios if isinstance(ratio, int)]
    told = call["scale_factors"] or factors
    return factors if len(factors) == len(ratios) and list(told) == factors else None


def _rounds_down(factor: int) -> bool:
    """Whether torch's source index, floor(i * float32(1 / factor)), falls short of i // factor somewhere."""
    return float(torch.tensor(1.0 / factor, dtype=torch.float32)) * factor < 1.0


def _agrees(call: Call, size: Dim, scale: float, times: int) -> bool:
    """Whether an axis that torch is told is ``scale`` times as long is not made exactly ``times`` as long by rounding.

    Where it is, torch's devices differ: some take the elements that belong to ``times``, others those of ``scale``.
    """
    return not times < scale < times + 1 or call.build.at_least(size, math.floor(1 / (scale - times)) + 1)


def _interpolated(call: Call, mode: Literal["linear", "nearest"], align_corners: bool = False) -> Value | None:
    """Along one axis after the other, the last one first, as ATen adds up shares of neighbours."""
    x: Value = call["input"]
    factors = call["scale_factors"] or ()
    scales = dict(enumerate(() if align_corners else factors, 2))
    times = 1 if mode == "linear" else 2
    for size in x.type.shape[2:]:
        call.build.not_empty(size)  # torch says what is wrong
    if not all(_agrees(call, x.type.shape[axis], scale, times) for axis, scale in scales.items()):
        return None
    for axis in reversed(range(2, x.type.rank)):
        length, scale = call.result.shape[axis], scales.get(axis)
        if scale is not None and scale.is_integer() and length == dims.mul(x.type.shape[axis], int(scale)):
            scale = None  # what the sizes say, too
        op = InterpolateOp(axis=axis, length=length, mode=mode, align_corners=align_corners, scale=scale)
        x = call.build.add(op, x)
    return x


@register("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def _nearest(call: Call) -> Value | None:
    """Each element is spread along a new axis after its own, where all are as often."""
    x, factors = call["input"], _factors(call)
    if factors is None or any(map(_rounds_down, factors)):
        return _interpolated(call, "nearest") if x.type.dtype in (DType.FLOAT32, *HALVES) else None
    return _spread(call, factors)


@register("_upsample_nearest_exact1d.vec", "_upsample_nearest_exact2d.vec", "_upsample_nearest_exact3d.vec")
def _nearest_exact(call: Call) -> Value | None:
    """By whole factors; the middle of an element of the result lies far from where torch's rounding would matter."""
    factors = _factors(call)
    return None if factors is None else _spread(call, factors)


def _spread(call: Call, factors: list[int]) -> Value:
    """Each element ``factors`` times along each axis."""
    x: Value = call["input"]
    lead, sizes = x.type.shape[:2], x.type.shape[2:]
    apart = tuple(d for size in sizes for d in (size, 1))
    spread = tuple(d for pair in zip(sizes, factors, strict=True) for d in pair)
    return spread_apart(call, x, (*lead, *apart), (*lead, *spread))


@register("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec")
def _linear(call: Call) -> Value | None:
    """Shares of two neighbours along each axis, the last one's first, as ATen adds them up.

    By powers of two they are the same ones again and again: place i of a result that is f times as long lies at
    (2 i + 1 - f) / 2 f of the operand, or at 0: the first neighbour is that rounded down, and the other one's share
    what this takes away. The last element is its own neighbour.
    """
    x, factors = call["input"], _factors(call)
    if x.type.dtype is not DType.FLOAT32:
        return None
    axes = range(2, x.type.rank)
    cycles = not call["align_corners"] and factors and all(f > 1 and not f & (f - 1) for f in factors)
    if not cycles or not all(call.build.at_least(x.type.shape[axis], 2) for axis in axes):
        return _interpolated(call, "linear", bool(call["align_corners"]))
    assert factors
    values: list[Value] = [x]
    for axis in axes:
        factor, length, size = factors[axis - 2], call.result.shape[axis], x.type.shape[axis]
        place = ResampleOp(axis=axis, start=1 - factor, length=length, step=2, divisor=2 * factor)
        behind = SliceOp(axis=axis, start=1, length=dims.sub(size, 1))
        sides = ((value, call.build.add(behind, value)) for value in values)
        values = [call.build.add(place, side) for pair in sides for side in pair]
    for axis in reversed(axes):
        factor = factors[axis - 2]
        shares = [(2 * i + 1 - factor) % (2 * factor) / (2 * factor) for i in range(factor)]
        own, other = _shares(call, [1 - share for share in shares], 1.0, axis), _shares(call, shares, 0.0, axis)
        pairs = zip(values[::2], values[1::2], strict=True)
        shared = ((pointwise(call, "mul", a, own), pointwise(call, "mul", b, other)) for a, b in pairs)
        values = [pointwise(call, "add", a, b) for a, b in shared]
    return values[0]


def _shares(call: Call, shares: list[float], first: float, axis: int) -> Value:
    """``shares`` again and again along ``axis`` of the result; of places before the operand's first one, ``first``."""
    length, period = call.result.shape[axis], len(shares)
    rest, before = (1,) * (call.result.rank - 1 - axis), period // 2
    parts = [call.build.add(FillOp(value=share, shape=(1, 1)), call["input"]) for share in shares]
    count = dims.exact_quotient(length, period)
    assert count is not None
    spread = call.build.add(ExpandOp(shape=(count, period)), call.build.add(CatOp(axis=1), *parts))
    cycle = reshaped(call, spread, (length, *rest))
    left = call.build.add(SliceOp(axis=0, start=before, length=dims.sub(length, before)), cycle)
    return call.build.add(CatOp(axis=0), call.build.add(FillOp(value=first, shape=(before, *rest)), cycle), left)
