"""Convolutions and products that run on any device, and what convolutions of all kernels have in common."""

from __future__ import annotations

from typing import Literal

from fusegen.costs.conv_tiling import ConvTiling
from fusegen.costs.direct_tiles import Tile
from fusegen.costs.matmul_tiling import MatmulTiling
from fusegen.dims import Dim
from fusegen.ir import Frozen
from fusegen.plan.rowprogram import RowProgram
from fusegen.spaces.convreduce import Fold, PositionFn, folds, has_exponentials, has_moments
from fusegen.spaces.convsweep import SweptFn


class EagerAxis(Frozen):
    """The axis of eager's convolution, whose precision is that of the kernel."""

    stride: int = 1
    padding: int = 0
    around: int = 0
    """Zeros around the input, on both sides together."""
    dilation: int = 1
    output_padding: int = 0
    enlarged: int = 0
    """How often each element of its input is one of the kernel's; 0: it has the kernel's own input and weights."""


class ContractionAxis(Frozen):
    """One spatial axis of a convolution; ``size`` and ``output`` are its lengths over binding names."""

    kernel: int
    stride: int
    padding: int
    dilation: int
    output_padding: int
    behind: int = 0
    """Zeros behind the input beyond ``padding``."""
    eager: EagerAxis | None = None
    """None for an absent axis."""
    size: Dim
    output: Dim

    @property
    def around(self) -> int:
        """Zeros around the input, on both sides together."""
        return 2 * self.padding + self.behind


ABSENT_AXIS = ContractionAxis(kernel=1, stride=1, padding=0, dilation=1, output_padding=0, size=1, output=1)
"""In place of what a convolution of fewer axes lacks."""


class StatisticsPlan(Frozen):
    """Mean and variance of every channel of a stored result, over samples and positions, and what follows from them.

    Or of every sample, over positions and neighbouring channels. ``rows`` has one phase of element statements over
    ``mean``, ``variance`` and operands at ``row``: a channel, or a sample's groups of channels sample by sample.
    """

    channels: int
    groups: int = 0
    """Of neighbouring channels, of every sample; 0: samples share the statistics of every channel."""
    positions: Dim
    """Of a sample, over binding names."""
    variance: bool
    """Whether more than the mean is asked for."""
    rows: RowProgram

    @property
    def squares(self) -> bool:
        """Whether warps keep more than sums."""
        return self.variance or self.groups == 0


class PositionResult(Frozen):
    """What a convolution's kernel gives of every channel of every sample of results that it does not store."""

    fn: PositionFn
    output: str


class Reducing(Frozen):
    """A convolution's kernel that may give reductions over all positions in place of its results."""

    reduced: tuple[PositionResult, ...] = ()
    """Results are not stored, but reduced over all positions: the store of ``rows`` has the value of one."""

    @property
    def moments(self) -> bool:
        """More than sums of what is reduced."""
        return has_moments(result.fn for result in self.reduced)

    @property
    def exponentials(self) -> bool:
        """The logarithm of a sum of exponentials of what is reduced."""
        return has_exponentials(result.fn for result in self.reduced)

    @property
    def folds(self) -> tuple[Fold, ...]:
        """What it folds its results into, where no more than that is asked for."""
        return folds(result.fn for result in self.reduced)


class SweepPlan(Frozen):
    """A reduction of a convolution's results in registers, over what a block computes in turn.

    That is the phases of a position of a transposed convolution, which are the windows of a pooling, or all
    positions along the axes ``swept`` (z, y, x).
    """

    fn: SweptFn
    divisor: int | None
    """Of a mean's sums; None for as many as a block meets."""
    swept: tuple[bool, bool, bool]
    before: RowProgram
    """What happens to every result ``v`` of the convolution; the plan's ``rows`` follow the reduction."""


class ContractionPlan(Reducing):
    """Implicit GEMM with an epilogue: rows of ``outputs`` channels (features), one per output position.

    In the epilogue ``outer`` is the sample, ``l`` the output channel, ``inner`` the flattened output
    position; for a matrix product ``outer`` is the row (batch * height of them) and ``l`` the feature.
    """

    template: Literal["contraction"] = "contraction"
    head: Literal["conv", "conv_transpose", "matmul"]
    source: str
    weight: str
    weight_transposed: bool = False
    """Matrix product: the weight is stored as [N, K]."""
    weight_batched: bool = False
    """Matrix product: the weight has the batch axes of the source."""
    batch: Dim
    """Samples of a convolution, or batches of a matrix product with a weight for each."""
    height: Dim = 1
    """Matrix product: rows of a batch."""
    inputs: int
    """Input channels, or the contracted length of a matrix product."""
    outputs: int
    groups: int = 1
    axes: tuple[ContractionAxis, ...] = ()
    precise: bool = False
    """Full fp32 whatever torch's TF32 setting says, as eager computes it."""
    tiling: ConvTiling | None = None
    products: MatmulTiling | None = None
    before: RowProgram | None = None
    """What happens to every value of the source, ``v``, before its products; ``l`` counts input channels (features)."""
    rows: RowProgram
    statistics: StatisticsPlan | None = None
    sweep: SweepPlan | None = None

    @property
    def accumulates(self) -> bool:
        """Whether blocks add up or multiply all positions along some axes: none may be met twice."""
        return self.sweep is not None and any(self.sweep.swept) and self.sweep.fn not in ("max", "min")

    @property
    def shares(self) -> bool:
        """Several blocks may compute the sums of a tile, each over some of its channels."""
        whole = self.statistics or self.reduced or self.sweep
        return self.tiling is not None and self.tiling.few and self.tiling.loads > 3 and not whole


class DirectReduction(Frozen):
    """A reduction over all positions of what ``DirectConvPlan.after`` makes of a convolution's results."""

    fn: SweptFn
    joined: int
    """As in ``direct.JOINED``."""
    rows: RowProgram
    """What follows ``reduced``; ``sample`` and ``l`` are those of the result, and ``inner`` is 0."""


class DirectConvPlan(Frozen):
    """A convolution of groups of few channels in plain fp32, with elementwise chains before and after it.

    In both chains ``sample`` is the sample, ``l`` the channel, ``inner`` the flattened position.
    """

    template: Literal["conv_direct"] = "conv_direct"
    transposed: bool
    rank: int
    axes: tuple[ContractionAxis, ContractionAxis, ContractionAxis]
    batch: Dim
    groups: int
    inputs: int
    outputs: int
    """Channels of a group."""
    source: str
    weight: str
    precise: bool
    """As in ``ContractionPlan``."""
    tiles: tuple[Tile, ...]
    """One for each width of an access, the widest first."""
    chunk: int
    """Channels of the input whose weights are in shared memory at a time; 0: weights are read as they lie."""
    before: RowProgram
    after: RowProgram
    reduction: DirectReduction | None = None


class PlainConvPlan(Frozen):
    """A convolution of few products in plain fp32, and what follows it element by element.

    There ``outer`` is the sample, ``l`` the channel, ``inner`` the flattened position.
    """

    template: Literal["conv_plain"] = "conv_plain"
    transposed: bool
    axes: tuple[ContractionAxis, ContractionAxis, ContractionAxis]
    batch: Dim
    groups: int
    inputs: int
    outputs: int
    source: str
    weight: str
    double: bool
    """What follows is arithmetic, in double: what it takes away may be most of a result."""
    rows: RowProgram


class ConvApartPlan(Frozen):
    """A convolution, then a kernel that reduces what it wrote to the workspace: the ``parts`` of the kernel's plan."""

    template: Literal["conv_apart"] = "conv_apart"
    conv: ContractionPlan
    elements: Dim
    """Of the convolution's result, over binding names."""
    sizes: tuple[tuple[Dim, ...], tuple[Dim, ...]]
    """The run-time sizes that either part takes, over those of the whole."""
