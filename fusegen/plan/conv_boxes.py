"""Plans of mean poolings of convolutions that are computed from box means."""

from __future__ import annotations

from fusegen import dims, inference, windows
from fusegen.costs import boxes, precision
from fusegen.ir import ReduceOp
from fusegen.plan.details import ContractionAxis, ConvBoxesPlan, EagerAxis
from fusegen.plan.region import Region
from fusegen.plan.rowdraft import Style
from fusegen.plan.rowprogram import RowProgram
from fusegen.plan.sizes import Unplanned
from fusegen.plan.types import KernelPlan


def _axes(region: Region, parts: boxes.BoxConv, kernel: tuple[int, ...]) -> tuple[ContractionAxis, ...]:
    axes = []
    for axis, padding in enumerate(parts.padding):
        size = region.sizes.local(parts.x.type.shape[2 + axis])
        means = dims.add(size, 2 * padding + 1 - parts.window[axis])
        output = windows.output_size(parts.op, kernel, axis, means)
        region.sizes.define(parts.conv.type.shape[2 + axis], output)  # a rounded size, after a pooling, has no symbol
        axes.append(
            ContractionAxis(
                kernel=kernel[axis],
                stride=1,
                padding=padding,
                dilation=parts.op.dilation[axis],
                output_padding=0,
                eager=EagerAxis(padding=padding, around=2 * padding, dilation=parts.op.dilation[axis]),
                size=size,
                output=output,
            )
        )
    return tuple(axes)


def _lower(region: Region, parts: boxes.BoxConv, quick: bool) -> RowProgram:
    style = Style("{}", "{}", outer="sample", moves_rows=True, quick=quick)
    return region.lower_part(parts.after, parts.after_space, "sum", style)


def plan(region: Region, name: str) -> KernelPlan:
    """One kernel for box means, their convolution, the chain after it and its total."""
    parts = boxes.split(region.body)
    weight = region.body.node(parts.conv.inputs[1])
    kernel = inference.kernel_size(weight.type)
    axes = _axes(region, parts, kernel)
    inputs, outputs = inference.group_channels(parts.op, parts.x.type, weight.type)
    tiling = boxes.tile(kernel, parts.op.dilation, parts.window, parts.op.stride, inputs, outputs)
    if isinstance(tiling, str):
        raise Unplanned(tiling)
    precise = not precision.allows_tf32(region.body, parts.conv)
    after, quick = (_lower(region, parts, quick) for quick in (False, True))
    detail = ConvBoxesPlan(
        axes=axes,
        window=parts.window,
        step=parts.op.stride,
        batch=region.sizes.local(parts.x.type.shape[0]),
        groups=parts.op.groups,
        inputs=inputs,
        outputs=outputs,
        source=region.args[parts.x.name].name,
        weight=region.args[weight.name].name,
        precise=precise,
        tiling=tiling,
        after=after,
        quick=None if precise or quick == after else quick,
        total=parts.total,
        mean=parts.reduce is not None and isinstance(parts.reduce.op, ReduceOp) and parts.reduce.op.fn == "mean",
    )
    return region.plan(f"{name}_conv_boxes", detail, workspace=bool(parts.total), tf32="conv")
