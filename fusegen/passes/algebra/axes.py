"""A mean or sum of a convolution along one of its spatial axes: a convolution of one dimension less.

Along the reduced axis every tap meets one window of the input (``windows``). The sums over the distinct
windows become channels, and so do the sums of the taps that share a window. All axes at once are for
``collapse``; where their taps see more windows than its kernel has sums for, one axis goes first.
"""

from __future__ import annotations

import math

from fusegen import dims, ops, windows
from fusegen.costs.contractions import SPLIT, allows_tf32
from fusegen.ir import AxisTapSumOp, AxisWindowSumOp, ConvOp, DType, Node, ReduceOp, ReshapeOp
from fusegen.machines import DEFAULT_TARGET, machine
from fusegen.passes.algebra import collapse
from fusegen.passes.algebra.collapse import LINEAR, reduction
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op

MAX_WINDOWS = 8
"""Distinct windows of the axis that a thread keeps sums for."""
_LAUNCHES = 4
"""The sums, and the convolution with what it prepares."""


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
        return f"{count} distinct windows along the axis; a kernel keeps at most {MAX_WINDOWS}"
    return _pays(m, count)


def _pays(m: Match, count: int) -> str | None:
    """None when the window sums and what is left of the convolution take less time than the convolution."""
    rates = machine(DEFAULT_TARGET)
    x, w, y = (m.graph.shape(m[name].name) for name in ("x", "w", "conv"))
    flops = ops.flops(m.graph, m["conv"])
    products = 1 if allows_tf32(m.graph, m["conv"]) else SPLIT
    direct = products * flops / rates.tensor_flops + 4 * math.prod(y) / rates.bandwidth
    lines = (x if m["conv"].op.transposed else y)[2 + _axis(m)]  # type: ignore[union-attr]
    left = flops * count / (lines * w[2 + _axis(m)]) / rates.flops
    sums = math.prod(x) * count / x[2 + _axis(m)]  # written and read again
    collapsed = 4 * (math.prod(x) + 2 * sums) / rates.bandwidth + _LAUNCHES * rates.launch + left
    return None if collapsed < direct else f"{collapsed * 1e6:.0f} us collapsed, {direct * 1e6:.0f} us direct"


def _tap_sums(m: Match, conv: ConvOp, axis: int) -> Node:
    """The taps that share a window, added up; where each has its own, the axis may be channels as it lies."""
    w, taps = m["w"], _taps(m, axis)
    first, second, length, *rest = w.type.shape
    if not conv.transposed and axis == 0 and len(taps.windows) == len(taps.tap_window):
        return m.add(ReshapeOp(shape=(first, dims.mul(second, length), *rest)), w)
    return m.add(AxisTapSumOp(conv=conv, kernel=ops.kernel_size(w.type), axis=axis), w)


def _without(values: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*values[:axis], *values[axis + 1 :])


def _collapse_axis(m: Match) -> Node:
    reduce, conv, axis = reduction(m), m["conv"].op, _axis(m)
    assert isinstance(conv, ConvOp)
    kernel = ops.kernel_size(m["w"].type)
    x = m.add(AxisWindowSumOp(conv=conv, kernel=kernel, axis=axis, mean=reduce.fn == "mean"), m["x"])
    w = _tap_sums(m, conv, axis)
    # Rounded to TF32, a sum of the input would carry an error that the direct form averages out.
    less = conv.replace(
        precise=True,
        stride=_without(conv.stride, axis),
        padding=_without(conv.padding, axis),
        dilation=_without(conv.dilation, axis),
        output_padding=_without(conv.output_padding, axis),
    )
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
