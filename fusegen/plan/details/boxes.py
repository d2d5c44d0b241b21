"""Mean poolings of convolutions that are computed from box means."""

from __future__ import annotations

from typing import Literal

from fusegen.costs.boxes import BoxTiling, Total
from fusegen.dims import Dim
from fusegen.ir import Frozen
from fusegen.plan.details.contractions import ABSENT_AXIS, ContractionAxis
from fusegen.plan.rowprogram import RowProgram


class ConvBoxesPlan(Frozen):
    """A convolution of box means in place of its mean pooling, and what follows it element by element.

    In the chain ``sample`` is the sample, ``l`` the channel, ``inner`` the flattened position.
    """

    template: Literal["conv_boxes"] = "conv_boxes"
    head: Literal["conv"] = "conv"
    axes: tuple[ContractionAxis, ...]
    """Of the convolution as eager computes it, but for ``output``: the length after the pooling."""
    window: tuple[int, ...]
    step: tuple[int, ...]
    """Of the pooling."""
    batch: Dim
    groups: int
    inputs: int
    outputs: int
    """Channels of a group."""
    source: str
    weight: str
    precise: bool
    """Full fp32 whatever torch's TF32 setting says, as eager computes it."""
    tiling: BoxTiling
    after: RowProgram
    quick: RowProgram | None
    """The same for sums of TF32 products, where that is another text."""
    total: Total
    mean: bool
    """Of the total."""

    def along(self, axis: int) -> tuple[ContractionAxis, int, int]:
        """Axis z, y or x (0 to 2) with its window and step."""
        at = axis - (3 - len(self.axes))
        return (self.axes[at], self.window[at], self.step[at]) if at >= 0 else (ABSENT_AXIS, 1, 1)
