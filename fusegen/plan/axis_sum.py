"""Plans of sums over one axis of a convolution: of its input over tap windows, of its weights over taps."""

from __future__ import annotations

from math import prod

from fusegen import dims, windows
from fusegen.dims import Dim
from fusegen.ir import AxisTapSumOp, AxisWindowSumOp, ConvOp, Node
from fusegen.plan.details import AxisSumPlan, AxisTapSums, AxisWindowSums, WindowAxis, WindowBounds
from fusegen.plan.region import Region
from fusegen.plan.types import KernelPlan


def window_axis(conv: ConvOp, kernel: tuple[int, ...], axis: int, size: Dim) -> WindowAxis:
    """The windows of one axis of a convolution; ``size`` is its length over binding names."""
    taps = windows.axis_taps(conv, kernel, axis)
    return WindowAxis(
        kernel=kernel[axis],
        step=taps.windows[0].step,
        windows=tuple(
            WindowBounds(start=w.start, stop=dims.substitute(w.stop, {windows.SIZE: size})) for w in taps.windows
        ),
        tap_window=taps.tap_window,
        full=taps.windows == (windows.Window(0, 1, windows.SIZE),),
        size=size,
        least=windows.least_size(conv, kernel, axis),
    )


def _window_sums(region: Region, node: Node, op: AxisWindowSumOp, result: str) -> AxisWindowSums:
    x = region.args[node.inputs[0]]
    shape = tuple(map(region.sizes.local, x.type.shape))
    size = shape[2 + op.axis]
    return AxisWindowSums(
        source=x.name,
        result=result,
        outer=dims.product(shape[:2]),
        before=dims.product(shape[2 : 2 + op.axis]),
        inner=dims.product(shape[3 + op.axis :]),
        axis=window_axis(op.conv, op.kernel, op.axis, size),
        divisor=windows.output_size(op.conv, op.kernel, op.axis, size) if op.mean else 1,
    )


def _tap_sums(region: Region, node: Node, op: AxisTapSumOp, result: str) -> AxisTapSums:
    w = region.args[node.inputs[0]]
    first, second, *kernel = map(int, w.type.shape)
    return AxisTapSums(
        weight=w.name,
        result=result,
        transposed=op.conv.transposed,
        first=first,
        second=second,
        before=prod(kernel[: op.axis]),
        inner=prod(kernel[op.axis + 1 :]),
        tap_window=windows.axis_taps(op.conv, op.kernel, op.axis).tap_window,
    )


def plan(region: Region, name: str) -> KernelPlan:
    """One kernel for the window sums of a convolution's input, the tap sums of its weights, or both."""
    sums: AxisWindowSums | None = None
    taps: AxisTapSums | None = None
    count = 0
    for output in region.outputs:
        node = region.body.node(output.node)
        assert isinstance(node.op, (AxisWindowSumOp, AxisTapSumOp))
        count = len(windows.axis_taps(node.op.conv, node.op.kernel, node.op.axis).windows)
        if isinstance(node.op, AxisWindowSumOp):
            sums = _window_sums(region, node, node.op, output.name)
        else:
            taps = _tap_sums(region, node, node.op, output.name)
    return region.plan(f"{name}_axis_sum", AxisSumPlan(windows=count, sums=sums, taps=taps))
