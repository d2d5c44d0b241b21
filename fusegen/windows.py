"""Which input positions each tap of a convolution meets: the windows behind the mean-of-conv collapse.

For one axis of length ``size``, tap k of a convolution reads ``x[q*s + k*d - p]`` for every output
position q, and of a transposed convolution sends ``x[i]`` to output ``i*s + k*d - p``. Summed over all
output positions, tap k multiplies the sum of x over an arithmetic progression of input positions,
its *window*. Few windows are distinct, and their ends depend on ``size`` only through a trim.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from operator import add, mul, sub
from types import EllipsisType

import torch

from fusegen import dims
from fusegen.dims import Dim
from fusegen.ir import AxisTapSumOp, AxisWindowSumOp, ConvOp, TapSumOp, WindowSumOp

SIZE = "size"


@dataclass(frozen=True)
class Window:
    """Positions ``start, start+step, ...`` below ``stop``, an expression over ``size``."""

    start: int
    step: int
    stop: Dim


@dataclass(frozen=True)
class AxisTaps:
    """The distinct windows of one axis, and for each tap of the kernel the index of its window."""

    windows: tuple[Window, ...]
    tap_window: tuple[int, ...]


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def tap_window(conv: ConvOp, kernel: tuple[int, ...], axis: int, tap: int) -> Window:
    """The window of one tap on one axis, in canonical form: equal windows compare equal."""
    s, p, d = conv.stride[axis], conv.padding[axis], conv.dilation[axis]
    taps = kernel[axis]
    shift = tap * d - p
    if conv.transposed:
        # 0 <= i*s + shift < (size-1)*s - 2p + d*(taps-1) + output_padding + 1
        trim = min(0, (d * (taps - 1 - tap) + conv.output_padding[axis] - p) // s)
        return Window(max(0, _ceil_div(-shift, s)), 1, dims.add(SIZE, trim))
    start = shift if shift >= 0 else shift % s
    span = conv.around(axis) - d * (taps - 1) - 1  # the last output position is (size + span) // s
    if s == 1:
        return Window(start, 1, dims.add(SIZE, min(0, span + shift + 1)))
    if span - (s - 1) + shift + 1 >= 0:  # reaches the end of the input whatever the remainder
        return Window(start, s, SIZE)
    last = dims.mul(dims.floordiv(dims.add(SIZE, span), s), s)
    return Window(start, s, dims.minimum(SIZE, dims.add(last, shift + 1)))


def axis_taps(conv: ConvOp, kernel: tuple[int, ...], axis: int) -> AxisTaps:
    """The distinct windows of an axis in order of first use."""
    per_tap = [tap_window(conv, kernel, axis, tap) for tap in range(kernel[axis])]
    distinct = tuple(dict.fromkeys(per_tap))
    return AxisTaps(distinct, tuple(distinct.index(window) for window in per_tap))


def window_count(conv: ConvOp, kernel: tuple[int, ...]) -> int:
    """R: how many distinct rectangles (boxes) the taps see."""
    count = 1
    for axis in range(conv.rank):
        count *= len(axis_taps(conv, kernel, axis).windows)
    return count


def output_size(conv: ConvOp, kernel: tuple[int, ...], axis: int, size: Dim) -> Dim:
    """The convolution's output length on one axis (torch documentation of Conv2d, ConvTranspose2d)."""
    s, d = conv.stride[axis], conv.dilation[axis]
    reach = d * (kernel[axis] - 1)
    if conv.transposed:
        return dims.add(dims.mul(dims.sub(size, 1), s), reach + conv.output_padding[axis] + 1 - conv.around(axis))
    return dims.add(dims.floordiv(dims.add(size, conv.around(axis) - reach - 1), s), 1)


def eager(conv: ConvOp, kernel: tuple[int, ...]) -> ConvOp:
    """Eager's own, of whose positions ``conv`` computes a part, or for which it stands with a ``kernel`` of its own."""
    if conv.enlarged:
        one, none = (1,) * conv.rank, (0,) * conv.rank
        padding = tuple(k - s - p for k, s, p in zip(kernel, conv.stride, conv.padding, strict=True))
        return conv.replace(transposed=False, stride=one, padding=padding, output_padding=none, enlarged=())
    if not conv.cropped:
        return conv
    before, behind = (tuple(side) for side in zip(*conv.cropped, strict=True))
    if conv.transposed:
        padding = tuple(map(sub, conv.padding, before))
        less = tuple(map(add, map(sub, conv.output_padding, before), behind))
        return conv.replace(padding=padding, output_padding=less, cropped=())
    padding = tuple(map(add, conv.padding, map(mul, before, conv.stride)))
    more = map(mul, map(sub, behind, before), conv.stride)
    zeros = tuple(map(add, conv.behind or (0,) * conv.rank, more))
    return conv.replace(padding=padding, behind=zeros if any(zeros) else (), cropped=())


def least_size(conv: ConvOp, kernel: tuple[int, ...], axis: int) -> int:
    """The shortest length of an axis at which the convolution has an output position."""
    reach = conv.dilation[axis] * (kernel[axis] - 1)
    if conv.transposed:
        return max(1, 1 + _ceil_div(conv.around(axis) - reach - conv.output_padding[axis], conv.stride[axis]))
    return max(1, reach + 1 - conv.around(axis))


def window_sum(x: torch.Tensor, op: WindowSumOp) -> torch.Tensor:
    """Reference meaning of ``WindowSumOp``: x [N, C, *spatial] -> [N, C, R]."""
    conv, kernel, spatial = op.conv, op.kernel, x.shape[2:]
    slices: list[list[slice]] = []
    for axis in range(conv.rank):
        size = {SIZE: spatial[axis]}
        windows = axis_taps(conv, kernel, axis).windows
        slices.append([slice(w.start, max(w.start, dims.evaluate(w.stop, size)), w.step) for w in windows])
    axes = tuple(range(2, x.dim()))
    boxes: list[tuple[slice | EllipsisType, ...]] = [(..., *box) for box in itertools.product(*slices)]
    sums = torch.stack([x[box].sum(axes) for box in boxes], 2)
    if not op.mean:
        return sums
    positions = 1
    for axis in range(conv.rank):
        positions *= dims.evaluate(output_size(conv, kernel, axis, SIZE), {SIZE: spatial[axis]})
    return sums / positions


def tap_sum(w: torch.Tensor, op: TapSumOp) -> torch.Tensor:
    """Reference meaning of ``TapSumOp``: w -> [O, C/groups, R]."""
    conv, kernel = op.conv, op.kernel
    counts = [len(axis_taps(conv, kernel, axis).windows) for axis in range(conv.rank)]
    maps = [axis_taps(conv, kernel, axis).tap_window for axis in range(conv.rank)]
    result = w.new_zeros((*w.shape[:2], *counts))
    for tap in itertools.product(*map(range, kernel)):
        window: tuple[int | EllipsisType, ...] = (..., *(maps[axis][k] for axis, k in enumerate(tap)))
        source: tuple[int | EllipsisType, ...] = (..., *tap)
        result[window] += w[source]
    result = result.flatten(2)
    if not conv.transposed:
        return result
    per_group, out, r = w.shape[0] // conv.groups, w.shape[1], result.shape[2]
    return result.reshape(conv.groups, per_group, out, r).transpose(1, 2).reshape(conv.groups * out, per_group, r)


def axis_window_sum(x: torch.Tensor, op: AxisWindowSumOp) -> torch.Tensor:
    """Reference meaning of ``AxisWindowSumOp``: x [N, C, *spatial] -> [N, C R, *spatial without the axis]."""
    size = {SIZE: x.shape[2 + op.axis]}
    sums = []
    for window in axis_taps(op.conv, op.kernel, op.axis).windows:
        stop = max(window.start, dims.evaluate(window.stop, size))
        part: tuple[slice, ...] = (*[slice(None)] * (2 + op.axis), slice(window.start, stop, window.step))
        sums.append(x[part].sum(2 + op.axis))
    result = torch.stack(sums, 2).flatten(1, 2)
    if not op.mean:
        return result
    return result / dims.evaluate(output_size(op.conv, op.kernel, op.axis, SIZE), size)


def axis_tap_sum(w: torch.Tensor, op: AxisTapSumOp) -> torch.Tensor:
    """Reference meaning of ``AxisTapSumOp``: the windows become input channels."""
    taps = axis_taps(op.conv, op.kernel, op.axis)
    sums = []
    for window in range(len(taps.windows)):
        chosen = [tap for tap, its in enumerate(taps.tap_window) if its == window]
        sums.append(w.index_select(2 + op.axis, torch.tensor(chosen, device=w.device)).sum(2 + op.axis))
    channels = 0 if op.conv.transposed else 1
    return torch.stack(sums, channels + 1).flatten(channels, channels + 1)
