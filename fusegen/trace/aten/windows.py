"""Importers of sliding windows: what lies in each is read again where it is needed, and of sums over them."""

from __future__ import annotations

import math

from fusegen import dims
from fusegen.dims import Dim
from fusegen.ir import DType, PadOp, PermuteOp, SliceOp, UnfoldOp
from fusegen.trace.aten.call import Call, Value, pointwise, register
from fusegen.trace.aten.shapes import reshaped

_MOST_TERMS = 16
"""Windows that an element of a fold is a sum over, at most: a kernel reads one of each."""


def _windows(call: Call, x: Value, op: UnfoldOp) -> Value | None:
    """``x`` in windows, where there is one."""
    if min(op.size, op.step) < 1 or not call.build.at_least(x.type.shape[op.axis], op.dilation * (op.size - 1) + 1):
        return None
    return call.build.add(op, x)


@register("unfold.default")
def _unfold(call: Call) -> Value | None:
    x, rank = call["self"], call["self"].type.rank
    if rank == 0 or not isinstance(call["size"], int) or not isinstance(call["step"], int):
        return None
    axis = call["dimension"] % rank
    found = _windows(call, x, UnfoldOp(axis=axis, count=call.result.shape[axis], size=call["size"], step=call["step"]))
    return found and call.build.add(PermuteOp(order=(*range(axis + 1), *range(axis + 2, rank + 1), axis + 1)), found)


@register("im2col.default")
def _im2col(call: Call) -> Value | None:
    """Zeros around the image, windows along both axes, counted in the form that torch has, and their elements as
    channels."""
    x: Value = call["self"]
    if x.type.rank == 3:  # one image without a batch axis
        x = reshaped(call, x, (1, *x.type.shape))
    call.build.not_empty(x.type.shape[1])  # torch says what is wrong
    around = (0, 0, *call["padding"])
    padded = call.build.add(PadOp(before=around, after=around), x) if any(around) else x
    found: Value | None = padded
    for axis in (3, 2):
        size, step, dilation = (call[name][axis - 2] for name in ("kernel_size", "stride", "dilation"))
        rest = dims.sub(padded.type.shape[axis], dilation * (size - 1) + 1)
        count = dims.floordiv(dims.add(rest, step), step)
        op = UnfoldOp(axis=axis, count=count, size=size, step=step, dilation=dilation)
        found = found and _windows(call, found, op)
    if found is None:
        return None
    turned = call.build.add(PermuteOp(order=(0, 1, 3, 5, 2, 4)), found)
    return reshaped(call, turned, call.result.shape)


def _groups(size: int, step: int, dilation: int) -> list[tuple[int, int, int]] | None:
    """Of what a window of ``size`` adds to elements: (steps on from its own, first, how many) that lie side by side
    within one step. None where they have gaps.
    """
    if dilation == 1:
        return [(i // step, i, min(step, size - i)) for i in range(0, size, step)]
    return [(i * dilation, i, 1) for i in range(size)] if step == 1 or size == 1 else None


def _padded(call: Call, x: Value, axis: int, before: int, after: int) -> Value:
    """Zeros around one axis."""
    low, high = ((*(0,) * axis, count, *(0,) * (x.type.rank - 1 - axis)) for count in (before, after))
    return call.build.add(PadOp(before=low, after=high), x) if before or after else x


def _folded(
    call: Call, x: Value, axis: int, step: int, groups: list[tuple[int, int, int]], start: int, length: Dim
) -> Value:
    """``length`` sums from ``start`` on, of ``axis``, the elements of windows, and the windows, the next one."""
    size, count, last = x.type.shape[axis], x.type.shape[axis + 1], groups[-1][0]
    covered = call.build.at_least(dims.mul(dims.add(count, last), step), dims.add(length, start))
    behind = 0 if covered else step  # less than a step is behind the last window
    swapped = PermuteOp(order=(*range(axis), axis + 1, axis, *range(axis + 2, x.type.rank)))
    found: Value | None = None
    for place, first, many in groups:
        part = x if many == size else call.build.add(SliceOp(axis=axis, start=first, length=many), x)
        part = call.build.add(swapped, _padded(call, part, axis, 0, step - many))
        shape = part.type.shape
        part = reshaped(call, part, (*shape[:axis], dims.mul(count, step), *shape[axis + 2 :]))
        part = _padded(call, part, axis, place * step, (last - place) * step + behind)
        found = part if found is None else pointwise(call, "add", found, part)
    assert found is not None
    return call.build.add(SliceOp(axis=axis, start=start, length=length), found)


@register("col2im.default")
def _col2im(call: Call) -> Value | None:
    """Along H, and then along W, sums over as many windows as have an element; where that is one, it is moved."""
    x, size = call["self"], call["kernel_size"]
    if x.type.rank == 2:
        x = reshaped(call, x, (1, *x.type.shape))
    settings = list(zip(size, call["stride"], call["dilation"], strict=True))
    found = [_groups(*setting) for setting in settings]
    groups = [group for group in found if group is not None]
    terms = math.prod(map(len, groups))
    if len(groups) < 2 or terms > _MOST_TERMS or (terms > 1 and x.type.dtype is not DType.FLOAT32):
        return None
    lengths, counts = call.result.shape[-2:], list[Dim]()
    for (kernel, step, dilation), around, length in zip(settings, call["padding"], lengths, strict=True):
        counts.append(dims.floordiv(dims.add(length, 2 * around - dilation * (kernel - 1) - 1 + step), step))
    channels = dims.floordiv(x.type.shape[1], math.prod(size))
    call.build.not_empty(channels)  # torch says what is wrong
    columns = reshaped(call, x, (x.type.shape[0], channels, *size, *counts))
    y = call.build.add(PermuteOp(order=(0, 1, 2, 4, 3, 5)), columns)
    for i, group in enumerate(groups):
        y = _folded(call, y, 2 + i, settings[i][1], group, call["padding"][i], lengths[i])
    return reshaped(call, y, call.result.shape)
