"""The axes of a convolution, with their sizes at run time."""

from __future__ import annotations

from fusegen import inference, windows
from fusegen.ir import ConvOp, Node
from fusegen.plan.details import ABSENT_AXIS, ContractionAxis, EagerAxis
from fusegen.plan.region import Region


def axes_of(region: Region, conv: ConvOp, node: Node, x: Node, w: Node) -> tuple[ContractionAxis, ...]:
    kernel = inference.kernel_size(w.type)
    whole = windows.eager(conv, kernel)
    axes: list[ContractionAxis] = []
    for axis in range(conv.rank):
        size = region.sizes.local(x.type.shape[2 + axis])
        output = windows.output_size(conv, kernel, axis, size)
        region.sizes.define(node.type.shape[2 + axis], output)  # a rounded size, after a pooling, has no symbol
        axes.append(
            ContractionAxis(
                kernel=kernel[axis],
                stride=conv.stride[axis],
                padding=conv.padding[axis],
                dilation=conv.dilation[axis],
                output_padding=conv.output_padding[axis],
                behind=conv.behind[axis] if conv.behind else 0,
                eager=EagerAxis(
                    stride=whole.stride[axis],
                    padding=whole.padding[axis],
                    around=whole.around(axis),
                    dilation=whole.dilation[axis],
                    output_padding=whole.output_padding[axis],
                    enlarged=conv.enlarged[axis] if conv.enlarged else 0,
                ),
                size=size,
                output=output,
            )
        )
    return tuple(axes)


def line_of(region: Region, x: Node) -> ContractionAxis:
    """All positions of ``x`` as one axis, for ``inference.is_line``."""
    size = region.sizes.product(x.type.shape[2:])
    return ABSENT_AXIS.replace(size=size, output=size, eager=EagerAxis())
