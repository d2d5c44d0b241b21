"""Importers of interpolations: every element is made of those that lie nearest to its place in a smaller tensor."""

from __future__ import annotations

import torch

from fusegen import dims
from fusegen.ir import CatOp, DType, ExpandOp, FillOp, ResampleOp, SliceOp
from fusegen.trace.aten.call import Call, Value, pointwise, register
from fusegen.trace.aten.shapes import reshaped, spread_apart


def _factors(call: Call) -> list[int] | None:
    """Times that each axis is longer in the result, where those are whole numbers."""
    pairs = zip(call.result.shape[2:], call["input"].type.shape[2:], strict=True)
    ratios = [dims.exact_quotient(*pair) for pair in pairs]
    factors = [ratio for ratio in ratios if isinstance(ratio, int)]
    return factors if len(factors) == len(ratios) else None


def _rounds_down(factor: int) -> bool:
    """Whether torch's source index, floor(i * float32(1 / factor)), falls short of i // factor somewhere."""
    return float(torch.tensor(1.0 / factor, dtype=torch.float32)) * factor < 1.0


@register("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def _nearest(call: Call) -> Value | None:
    """Each element is spread along a new axis after its own."""
    x, factors = call["input"], _factors(call)
    if factors is None or any(map(_rounds_down, factors)):
        return None
    lead, sizes = x.type.shape[:2], x.type.shape[2:]
    apart = tuple(d for size in sizes for d in (size, 1))
    spread = tuple(d for pair in zip(sizes, factors, strict=True) for d in pair)
    return spread_apart(call, x, (*lead, *apart), (*lead, *spread))


@register("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec")
def _linear(call: Call) -> Value | None:
    """Shares of two neighbours along each axis, the last one's first, as ATen adds them up.

    Place i of a result that is f times as long lies at (2 i + 1 - f) / 2 f of the operand, or at 0: the first neighbour
    is that rounded down, and the other one's share what this takes away. The last element is its own neighbour.
    """
    x, factors = call["input"], _factors(call)
    if call["align_corners"] or factors is None or x.type.dtype is not DType.FLOAT32:
        return None
    # Other places are rounded, across an element sometimes; which neighbour one that stays has, differs by device.
    if any(factor == 1 or factor & (factor - 1) for factor in factors):
        return None
    axes = range(2, x.type.rank)
    if not all(call.build.at_least(x.type.shape[axis], 2) for axis in axes):
        return None
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
