"""A mean or sum of a convolution along one of its spatial axes: a convolution of one dimension less.

Along the reduced axis every tap meets one window of the input (``windows``). The sums over the distinct
windows become channels, and so do the sums of the taps that share a window. All axes at once are for
``collapse``; where their taps see more windows than its kernel has sums for, one axis goes first.
"""

from __future__ import annotations

import math

from fusegen import dims, ops, windows
from fusegen.contractions import SPLIT, allows_tf32
from fusegen.dims import Dim
from fusegen.ir import CatOp, ConvOp, DType, Node, PermuteOp, PointwiseOp, ReduceOp, ReshapeOp, SliceOp
from fusegen.machines import DEFAULT_TARGET, machine
from fusegen.passes.algebra import collapse
from fusegen.passes.algebra.collapse import LINEAR, reduction
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op

MAX_WINDOWS = 4
"""Distinct windows of the axis: the input is read once for each."""


def _taps(m: Match, axis: int) -> windows.AxisTaps:
    conv = m["conv"].op
    assert isinstance(conv, ConvOp)
    return windows.axis_taps(conv, ops.kernel_size(m["w"].type), axis)


def _axis(m: Match) -> int:
    """The spatial axis that goes, from 0: of those that are reduced the one with fewest windows, the last of equals."""
    return min((axis - 2 for axis in reversed(reduction(m).axes)), key=lambda axis: len(_taps(m, axis).windows))


def _along(m: Match) -> str | None:
    reduce, conv = reduction(m), m["conv"].op
    assert isinstance(conv, ConvOp)
    spatial = set(range(2, 2 + conv.rank))
    if not set(reduce.axes) <= spatial or conv.rank == 1:
        return ""
    kernel = ops.kernel_size(m["w"].type)
    if set(reduce.axes) == spatial and windows.window_count(conv, kernel) <= collapse.MAX_WINDOWS:
        return ""
    if not m.only_user("conv"):
        return "the convolution's output is read elsewhere too, so it must be computed anyway"
    if m["x"].type.dtype is not DType.FLOAT32:
        return f"{m['x'].type.dtype.value} sums would lose accuracy"
    count = len(_taps(m, _axis(m)).windows)
    if count > MAX_WINDOWS:
        return f"{count} distinct windows along the axis, each a pass over the input"
    return _pays(m, count)


def _pays(m: Match, count: int) -> str | None:
    """None when passes over the input and what joins them take less time than the convolution."""
    rates = machine(DEFAULT_TARGET)
    x, w, y = (m.graph.shape(m[name].name) for name in ("x", "w", "conv"))
    flops = ops.flops(m.graph, m["conv"])
    products = 1 if allows_tf32(m.graph, m["conv"]) else SPLIT
    direct = products * flops / rates.tensor_flops + 4 * math.prod(y) / rates.bandwidth
    lines = (x if m["conv"].op.transposed else y)[2 + _axis(m)]  # type: ignore[union-attr]
    left = flops * count / (lines * w[2 + _axis(m)]) / rates.flops
    collapsed = 4 * (count + 1) * math.prod(x) / rates.bandwidth + (6 + 3 * count) * rates.launch + left
    return None if collapsed < direct else f"{collapsed * 1e6:.0f} us collapsed, {direct * 1e6:.0f} us direct"


def _stacked(m: Match, parts: list[Node], axis: int) -> Node:
    """Nodes of one shape side by side along ``axis``, each entry of which becomes as many."""
    if len(parts) == 1:
        return parts[0]
    shape = parts[0].type.shape
    apart = [m.add(ReshapeOp(shape=(*shape[: axis + 1], 1, *shape[axis + 1 :])), part) for part in parts]
    joined = m.add(CatOp(axis=axis + 1), *apart)
    together = dims.mul(shape[axis], len(parts))
    return m.add(ReshapeOp(shape=(*shape[:axis], together, *shape[axis + 1 :])), joined)


def _window_sums(m: Match, conv: ConvOp, axis: int, taps: windows.AxisTaps) -> Node:
    x, size = m["x"], m["x"].type.shape[2 + axis]
    sums = []
    for window in taps.windows:
        stop = dims.substitute(window.stop, {windows.SIZE: size})
        reach = dims.maximum(dims.sub(stop, window.start), 0)
        length = dims.floordiv(dims.add(reach, window.step - 1), window.step)
        start = window.start if length != 0 else 0
        part = x
        if (start, length, window.step) != (0, size, 1):
            part = m.add(SliceOp(axis=2 + axis, start=start, length=length, step=window.step), x)
        sums.append(m.add(ReduceOp(fn="sum", axes=(2 + axis,), keepdim=False), part))
    return _stacked(m, sums, 1)


def _tap_sums(m: Match, conv: ConvOp, axis: int, taps: windows.AxisTaps) -> Node:
    w, channels = m["w"], 0 if conv.transposed else 1
    if len(taps.windows) == len(taps.tap_window):  # one tap for each window: the taps become channels as they are
        rest = [i for i in range(w.type.rank) if i != 2 + axis]
        order = (*rest[: channels + 1], 2 + axis, *rest[channels + 1 :])
        moved = m.add(PermuteOp(order=order), w)
        shape = moved.type.shape
        together = dims.mul(shape[channels], shape[channels + 1])
        return m.add(ReshapeOp(shape=(*shape[:channels], together, *shape[channels + 2 :])), moved)
    sums = []
    for window in range(len(taps.windows)):
        chosen = [tap for tap, its in enumerate(taps.tap_window) if its == window]
        parts = [w]
        if len(chosen) < len(taps.tap_window):
            parts = [m.add(SliceOp(axis=2 + axis, start=tap, length=1), w) for tap in chosen]
        joined = parts[0] if len(parts) == 1 else m.add(CatOp(axis=2 + axis), *parts)
        sums.append(m.add(ReduceOp(fn="sum", axes=(2 + axis,), keepdim=False), joined))
    return _stacked(m, sums, channels)


def _without(values: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*values[:axis], *values[axis + 1 :])


def _collapse_axis(m: Match) -> Node:
    reduce, conv, axis = reduction(m), m["conv"].op, _axis(m)
    assert isinstance(conv, ConvOp)
    taps = _taps(m, axis)
    x, w = _window_sums(m, conv, axis, taps), _tap_sums(m, conv, axis, taps)
    # Rounded to TF32, a sum of the input would carry an error that the direct form averages out.
    less = conv.replace(
        precise=True,
        stride=_without(conv.stride, axis),
        padding=_without(conv.padding, axis),
        dilation=_without(conv.dilation, axis),
        output_padding=_without(conv.output_padding, axis),
    )
    if reduce.fn == "mean":  # divides the weights, which are small
        count: Dim = windows.output_size(conv, ops.kernel_size(m["w"].type), axis, m["x"].type.shape[2 + axis])
        w = m.add(PointwiseOp(fn="div"), w, m.const(count))
    y = m.add(less, x, w)
    if rest := tuple(a - (a > 2 + axis) for a in reduce.axes if a != 2 + axis):
        y = m.add(ReduceOp(fn=reduce.fn, axes=rest, keepdim=True), y)
    return m.add(ReshapeOp(shape=m.root.type.shape), y)


RULES = (
    Rule(
        "mean(conv(x, w)) over one axis = conv(window means of x, tap sums of w) without it,  sum likewise",
        op(ReduceOp, op(ConvOp, anything("x"), anything("w"), name="conv"), fn=LINEAR),
        _collapse_axis,
        Numerics.REASSOCIATES,
        _along,
    ),
)
