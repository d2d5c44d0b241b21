"""A mean or sum of a convolution along one of its spatial axes: a convolution of one dimension less.

Along the reduced axis every tap meets one window of the input (``windows``). The sums over the distinct
windows become channels, and so do the sums of the taps that share a window. All axes at once are for
``collapse``; where their taps see more windows than its kernel has sums for, one axis goes first.
"""

from __future__ import annotations

import math

from fusegen import dims, inference, ops, windows
from fusegen.ir import AxisTapSumOp, AxisWindowSumOp, ConvOp, DType, Graph, Node, ReduceOp, ReshapeOp
from fusegen.machines import DEFAULT_TARGET, machine
from fusegen.passes.algebra import collapse
from fusegen.passes.algebra.boxes import product_seconds
from fusegen.passes.algebra.collapse import LINEAR, READ_ELSEWHERE, reduction
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op

MAX_WINDOWS = 8
"""Distinct windows of the axis that a thread keeps sums for."""


def _taps(graph: Graph, conv: Node, axis: int) -> windows.AxisTaps:
    assert isinstance(conv.op, ConvOp)
    return windows.axis_taps(conv.op, inference.kernel_size(graph.node(conv.inputs[1]).type), axis)


def _first(graph: Graph, conv: Node, axes: tuple[int, ...]) -> int:
    """The spatial axis that goes, from 0: of those that are reduced the one with fewest windows, the last of equals."""
    return min((axis - 2 for axis in reversed(axes)), key=lambda axis: len(_taps(graph, conv, axis).windows))


def obstacle(graph: Graph, conv: Node, axes: tuple[int, ...]) -> str | None:
    """Why a sum of a convolution over these axes does not go before it along one of them, or None."""
    assert isinstance(conv.op, ConvOp)
    x, w = (graph.node(name) for name in conv.inputs[:2])
    spatial = set(range(2, 2 + conv.op.rank))
    if not set(axes) <= spatial or conv.op.rank == 1:
        return ""
    kernel = inference.kernel_size(w.type)
    if set(axes) == spatial and windows.window_count(conv.op, kernel) <= collapse.MAX_WINDOWS:
        return ""
    if not graph.has_one_reader(conv.name):
        return READ_ELSEWHERE
    if x.type.dtype is not DType.FLOAT32:
        return f"{x.type.dtype.value} sums would lose accuracy"
    axis = _first(graph, conv, axes)
    count = len(_taps(graph, conv, axis).windows)
    if count > MAX_WINDOWS:
        return f"{count} distinct windows along the axis; a kernel keeps at most {MAX_WINDOWS}"
    return _pays(graph, conv, axis, count)


def _pays(graph: Graph, conv: Node, axis: int, count: int) -> str | None:
    """None when the window sums and what is left of the convolution take less time than all of it and its sums.

    Either way there are a convolution and a kernel of sums: a launch each, where the direct one's is expected with it.
    """
    assert isinstance(conv.op, ConvOp)
    rates = machine(DEFAULT_TARGET)
    x, w, y = (graph.shape(name) for name in (*conv.inputs[:2], conv.name))
    flops = ops.flops(graph, conv)
    direct = product_seconds(graph, conv, rates) + 4 * math.prod(y) / rates.bandwidth
    lines = (x if conv.op.transposed else y)[2 + axis]
    left = flops * count / (lines * w[2 + axis]) / rates.flops
    sums = math.prod(x) * count / x[2 + axis]  # written and read again
    collapsed = 4 * (math.prod(x) + 2 * sums) / rates.bandwidth + 2 * rates.launch + left
    return None if collapsed < direct else f"{collapsed * 1e6:.0f} us collapsed, {direct * 1e6:.0f} us direct"


def _tap_sums(m: Match, conv: ConvOp, axis: int) -> Node:
    """The taps that share a window, added up; where each has its own, the axis may be channels as it lies."""
    w, taps = m["w"], _taps(m.graph, m["conv"], axis)
    first, second, length, *rest = w.type.shape
    if not conv.transposed and axis == 0 and len(taps.windows) == len(taps.tap_window):
        return m.add(ReshapeOp(shape=(first, dims.mul(second, length), *rest)), w)
    return m.add(AxisTapSumOp(conv=conv, kernel=inference.kernel_size(w.type), axis=axis), w)


def _without(values: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*values[:axis], *values[axis + 1 :])


def _collapse_axis(m: Match) -> Node:
    reduce, conv, axis = reduction(m), m["conv"].op, _first(m.graph, m["conv"], reduction(m).axes)
    assert isinstance(conv, ConvOp)
    kernel = inference.kernel_size(m["w"].type)
    x = m.add(AxisWindowSumOp(conv=conv, kernel=kernel, axis=axis, mean=reduce.fn == "mean"), m["x"])
    w = _tap_sums(m, conv, axis)
    # Rounded to TF32, a sum of the input would carry an error that the direct form averages out.
    less = conv.replace(
        precise=True,
        summed=False,
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
        lambda m: obstacle(m.graph, m["conv"], reduction(m).axes),
    ),
)
