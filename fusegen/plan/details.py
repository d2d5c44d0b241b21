"""What each kernel template needs to know: its constants, geometry and row program."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from fusegen.convreduce import PositionFn, has_moments
from fusegen.dims import Dim
from fusegen.direct import Tile
from fusegen.ir import DType, Frozen
from fusegen.plan.rowprogram import RowProgram
from fusegen.tiling import ConvTiling, MatmulTiling


class PointwisePlan(Frozen):
    """A grid-stride elementwise kernel over the output's elements.

    ``rows`` has one phase of element statements; its operands' and stores' ``index`` are C++ over
    ``index``, the element. ``vector_args`` are the operands indexed by ``index`` itself: loaded as
    16-byte vectors where alignment allows.
    """

    template: Literal["pointwise"] = "pointwise"
    elements: Dim
    """Element count over binding names."""
    vector_args: tuple[str, ...] = ()
    rows: RowProgram


class WindowBounds(Frozen):
    """The positions of an axis from ``start`` on that lie below ``stop``, a size over binding names."""

    start: int
    stop: Dim


class WindowAxis(Frozen):
    """One axis of a window-sum kernel (three, innermost last; absent axes have kernel 1, one full window)."""

    kernel: int
    step: int
    """Of the positions in a window."""
    windows: tuple[WindowBounds, ...]
    tap_window: tuple[int, ...]
    """Tap -> index of its window."""
    full: bool
    """One window, the whole axis at any length."""
    size: Dim
    """Length over binding names."""
    least: int
    """Shortest length at which the convolution has an output."""


class WindowSumPlan(Frozen):
    """One-launch collapse of a convolution under a mean or sum over all its spatial axes."""

    template: Literal["window_sum"] = "window_sum"
    transposed: bool
    mean: bool
    """Divide by ``positions``, the number of the convolution's output positions."""
    positions: Dim
    rank: int
    in_channels: int
    out_channels: int
    groups: int
    axes: tuple[WindowAxis, WindowAxis, WindowAxis]
    source: str
    weight: str
    batch: Dim
    threads: int
    min_blocks: int
    """Resident blocks of a multiprocessor to leave registers for."""
    unroll: int
    """Independent loads in flight per thread."""
    rows: RowProgram


class RowReducePlan(Frozen):
    """Pointwise and reductions along one axis of [outer, length, inner], read once, written once."""

    template: Literal["row_reduce"] = "row_reduce"
    source: str
    outer: Dim
    inner: Dim
    strided: bool
    """True when ``inner`` can exceed 1: lanes run along ``inner``."""
    parts: tuple[int, int]
    """Threads that share one row, for scalar and for 16-byte accesses."""
    lanes: tuple[int, int]
    """Rows side by side in a block, likewise."""
    resident: int
    """Resident threads of a multiprocessor to leave registers for."""
    double: bool
    """Values are kept and computed in double."""
    rows: RowProgram


class RowStreamPlan(Frozen):
    """Rows of any length in [outer, before, middle, run, inner], a row being [before, run].

    A pass over the row for each phase; element statements are computed again in every phase that needs
    them. ``kept`` names the operands that several passes read. ``middle`` is 1 where rows are one run.
    """

    template: Literal["row_stream"] = "row_stream"
    outer: Dim
    before: Dim
    middle: Dim
    run: Dim
    inner: Dim
    strided: bool
    """True when ``inner`` can exceed 1: threads side by side take neighbouring rows."""
    kept: tuple[str, ...]
    unroll: tuple[int, int]
    """Accesses in flight per thread, scalar and of 16 bytes."""
    rows: RowProgram


class ContractionAxis(Frozen):
    """One spatial axis of a convolution; ``size`` and ``output`` are its lengths over binding names."""

    kernel: int
    stride: int
    padding: int
    dilation: int
    output_padding: int
    size: Dim
    output: Dim


ABSENT_AXIS = ContractionAxis(kernel=1, stride=1, padding=0, dilation=1, output_padding=0, size=1, output=1)
"""In place of what a convolution of fewer axes lacks."""


class TapStep(Frozen):
    """A product 16 bytes of a slot deep and as much of another: of the next channels, or of another tap."""

    tap: int
    """Slots from the base to the first."""
    quad: int
    apart: int
    """Slots to the other, of another tap; 0: it is of the next channels."""
    tile: int
    """Of the weights, [channels of a stage][columns] each."""


class TapResidue(Frozen):
    """Taps of a convolution that read the same residue of its strides: ``rows`` tap rows, ``taps`` along x in each."""

    at: tuple[int, int, int]
    first_row: int
    rows: int
    taps: tuple[int, ...]

    def tiles(self, chunk: int) -> tuple[int, ...]:
        """The taps of the tiles of a row's weights. -1 has zeros, beside the last tap where taps go in pairs."""
        if chunk > 4 or len(self.taps) % 2 == 0:
            return self.taps
        return (*self.taps[:-1], -1, self.taps[-1])

    def steps(self, chunk: int) -> tuple[TapStep, ...]:
        """The products of a row."""
        if chunk > 4:
            return tuple(
                TapStep(tap=tap, quad=quad, apart=0, tile=i)
                for i, tap in enumerate(self.taps)
                for quad in range(0, chunk // 4, 2)
            )
        firsts = [min(i, len(self.taps) - 2) for i in range(0, len(self.taps), 2)]
        return tuple(
            TapStep(tap=self.taps[i], quad=0, apart=self.taps[i + 1] - self.taps[i], tile=2 * n)
            for n, i in enumerate(firsts)
        )


class StatisticsPlan(Frozen):
    """Mean and variance of every channel of a stored result, over samples and positions, and what follows from them.

    ``rows`` has one phase of element statements over ``mean``, ``variance`` and operands at ``channel``.
    """

    channels: int
    positions: Dim
    """Of a sample, over binding names."""
    rows: RowProgram


class PositionResult(Frozen):
    """What a convolution's kernel gives of every channel of every sample of results that it does not store."""

    fn: PositionFn
    output: str


class PartTaps(Frozen):
    """What the taps of a residue read in one part of the windows: slots of a grid, further along z, y, x."""

    grid: int
    shift: tuple[int, int, int]


class WindowPlan(Frozen):
    """A pooling of a convolution's results, in patches of 64 for a product.

    Windows lie ``within`` a patch along y and x; along an axis where they do not, base positions are
    windows, and their positions are ``parts``, computed one after the other.
    """

    fn: Literal["max", "mean"]
    divisor: int
    """Of a mean's sums."""
    within: tuple[int, int]
    patch: tuple[int, int]
    """Rows and columns of the 64 results of a product."""
    row: int
    """Slots of a row of a stage."""
    grids: tuple[tuple[int, int, int], ...]
    """The residue of the stride that each grid of the input holds."""
    counts: tuple[int, int, int]
    """Parts along z, y, x."""
    parts: tuple[tuple[PartTaps, ...], ...]
    """For every part, by residue of the taps."""
    before: RowProgram
    """What happens to every result ``v`` of the convolution; the plan's ``rows`` follow the pooling."""


class Product(Frozen):
    """A product: its first operand is four of a group's ``loads``, its second weights of eight channels of a tap."""

    loads: tuple[int, int, int, int]
    tap: int
    """Of its weight unit."""
    quad: int
    """Of its stage: where its eight channels begin."""


class ProductGroup(Frozen):
    """Products that share loads of the first operand: where those lie in a stage, in floats from a lane's own place."""

    loads: tuple[int, ...]
    products: tuple[Product, ...]


class InPlacePlan(Frozen):
    """How a convolution reads its input as it lies, along z, y, x."""

    tile: tuple[int, int, int]
    """Base positions of a warpgroup."""
    box: tuple[int, int, int]
    """Elements of a channel that a tensor copy brings for them."""
    taps: tuple[tuple[int, int, int], ...]
    """Shifts of the taps, in the order of their weights."""
    unit_taps: int
    """Taps whose weights arrive together."""
    units: tuple[tuple[ProductGroup, ...], ...]
    """For each of those of a chunk of channels, the products."""


class HopperConvPlan(Frozen):
    """A convolution on the tensor cores of sm_90a: structure along z, y, x and the shape of a tile.

    Input position of slot i is ``in_step * i + in_origin`` (+ residue); output position of base b in
    phase p is ``out_step * b + out_origin + p``; a tap reads slot b + shift, 0 <= shift <= ``reach``.
    The epilogue's coordinates are those of a ``ContractionPlan``.
    """

    template: Literal["conv_sm90"] = "conv_sm90"
    precise: bool
    """In full fp32, of values split into halves, else in TF32."""
    transposed: bool
    source: str
    weight: str
    batch: Dim
    groups: int
    inputs: int
    outputs: int
    """Channels of a group."""
    kernel: tuple[int, int, int]
    stride: tuple[int, int, int]
    padding: tuple[int, int, int]
    dilation: tuple[int, int, int]
    reach: tuple[int, int, int]
    lead: tuple[int, int, int]
    in_step: tuple[int, int, int]
    in_origin: tuple[int, int, int]
    out_step: tuple[int, int, int]
    out_origin: tuple[int, int, int]
    residues: tuple[TapResidue, ...]
    tap_rows: tuple[tuple[int, int], ...]
    """Shifts along z and y of every tap row."""
    phases: tuple[int, int]
    """Phases along y and x that share a block."""
    outer_phases: tuple[tuple[int, int, int], ...]
    """First phase of every kind of tile."""
    idle_taps: bool
    """Some phase lacks taps that others have: it multiplies by zeros there."""
    sizes: tuple[tuple[Dim, Dim, Dim], tuple[Dim, Dim, Dim]]
    """Input and output lengths over binding names."""
    channels: int
    """Output channels of a block."""
    split: int
    channel_tiles: int
    cluster: int
    warpgroups: int
    chunk: int
    """Input channels of a stage."""
    rings: int
    """Rings of stages: one that all warpgroups read, or one for each."""
    stages: int
    """Stages of a ring."""
    buffers: int
    """Staging buffers of the results of a warpgroup."""
    slice: int
    """Channels of a buffer."""
    all_rows: bool
    """A stage holds all tap rows of a residue, at the traced sizes."""
    slots: int
    stream: bool
    ring: int
    chain: int
    """Products one after the other into the same sum, in full fp32: tensor cores truncate what they add."""
    consumer_registers: int
    producer_registers: int
    window: WindowPlan | None = None
    in_place: InPlacePlan | None = None
    alternative: HopperConvPlan | None = None
    """The kernel for inputs whose rows and address are multiples of 16 bytes: it reads them as they lie."""
    rows: RowProgram
    statistics: StatisticsPlan | None = None
    reduced: tuple[PositionResult, ...] = ()
    """Results are not stored, but reduced over all positions: the store of ``rows`` has the value of one."""

    @property
    def moments(self) -> bool:
        """More than sums of what is reduced."""
        return has_moments(result.fn for result in self.reduced)

    @property
    def columns(self) -> int:
        return self.phases[0] * self.phases[1] * self.channels

    @property
    def width(self) -> int:
        """Columns of the product: those with high and low halves of the weights are apart."""
        return self.columns * (2 if self.precise else 1)

    @property
    def max_taps(self) -> int:
        return max(len(residue.tiles(self.chunk)) for residue in self.residues)

    @property
    def kind_taps(self) -> int:
        return sum(residue.rows * len(residue.tiles(self.chunk)) for residue in self.residues)

    @property
    def promotes(self) -> bool:
        """Sums of products are so long that they leave the tensor cores in between."""
        chunks = -(-self.inputs // self.chunk)
        return self.precise and self.chain < chunks * sum(r.rows * len(r.steps(self.chunk)) for r in self.residues)


class PhasePoolPlan(Frozen):
    """A pooling of a transposed convolution's results whose windows are the phases of a position."""

    fn: Literal["max", "mean"]
    divisor: int
    """Of a mean's sums."""
    before: RowProgram
    """What happens to every result ``v`` of the convolution; the plan's ``rows`` follow the pooling."""


class ContractionPlan(Frozen):
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
    rows: RowProgram
    statistics: StatisticsPlan | None = None
    reduced: tuple[PositionResult, ...] = ()
    """As in ``HopperConvPlan``."""
    pool: PhasePoolPlan | None = None

    @property
    def moments(self) -> bool:
        """As in ``HopperConvPlan``."""
        return has_moments(result.fn for result in self.reduced)


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
    tiles: tuple[Tile, ...]
    """One for each width of an access, the widest first."""
    before: RowProgram
    after: RowProgram


class PoolAxis(Frozen):
    """One pooled axis; ``size`` and ``output`` are its lengths over binding names."""

    kernel: int
    stride: int
    padding: int
    dilation: int
    size: Dim
    output: Dim
    clipped: bool
    """Some window may reach past the input."""


class PoolPlan(Frozen):
    """Maximum or mean over windows, with the chains before and after it.

    ``before`` runs on every element read, ``after`` on every result; their texts are over ``plane``, the
    position along the axes before the pooled ones, and ``z``, ``y`` and ``x``, those along the pooled axes.
    """

    template: Literal["pool"] = "pool"
    fn: Literal["max", "mean"]
    adaptive: bool
    """Windows that cover the axis, of lengths known at run time."""
    axes: tuple[PoolAxis, PoolAxis, PoolAxis]
    planes: Dim
    rows_are_planes: bool
    """One pooled axis: the middle axis is the planes."""
    count_include_pad: bool
    fixed_count: int | None
    """What every sum is divided by, where that is one number."""
    vectors: tuple[int, ...]
    """Neighbouring elements that one aligned access reads, the widest first."""
    outputs: tuple[int, ...]
    """For each of them: results of a thread, one below the other."""
    unrolled: bool
    source: str
    before: RowProgram
    after: RowProgram
    of_plane: tuple[str, ...]
    """Values of ``before``, operands and what follows from them, that are the same all over a plane,"""
    of_row: tuple[str, ...]
    """along a row of it,"""
    of_column: tuple[str, ...]
    """and, operands only, at a place of any row: where a thread reads rows in whole."""


class ConvApartPlan(Frozen):
    """A convolution, then a kernel that reduces what it wrote to the workspace: the ``parts`` of the kernel's plan."""

    template: Literal["conv_apart"] = "conv_apart"
    conv: ContractionPlan
    elements: Dim
    """Of the convolution's result, over binding names."""
    sizes: tuple[tuple[Dim, ...], tuple[Dim, ...]]
    """The run-time sizes that either part takes, over those of the whole."""


class GemmPlan(Frozen):
    """Product of a matrix [height, inputs] and a weight, or of a batch of those, on the tensor cores of sm_90a.

    In the epilogue ``outer`` is the row, ``l`` the feature.
    """

    template: Literal["gemm_sm90"] = "gemm_sm90"
    source: str
    source_transposed: bool = False
    """Every matrix of the source is stored as [inputs, rows]."""
    weight: str
    weight_transposed: bool
    """The weight is stored as [outputs, inputs], else as [inputs, outputs]."""
    weight_batched: bool = False
    """Every matrix of the batch has a weight of its own."""
    height: Dim
    """Rows, of all matrices."""
    lines: Dim
    """Rows of a matrix: fewer than ``height`` where tiles keep to one."""
    inputs: Dim
    outputs: Dim
    cluster: int
    """Blocks side by side that share the rows of a tile."""
    widths: tuple[int, ...]
    """Rows of a tile, ascending: the last for all heights above the others."""
    instructions: tuple[int, ...]
    """Columns of the products' instructions."""
    group: int = 0
    """Neighbouring features that reductions run along, each group for itself: then a row is one of those
    of a row, ``outer`` counts groups, and ``l`` is the feature within one. 0: all features."""
    rows: RowProgram

    @property
    def batched(self) -> bool:
        return self.lines != self.height


class HalfGemmPlan(Frozen):
    """The same product of 16-bit floats, with a pointwise epilogue in fp32."""

    template: Literal["gemm_half_sm90"] = "gemm_half_sm90"
    source: str
    weight: str
    weight_transposed: bool
    """The weight is stored as [outputs, inputs], else as [inputs, outputs]."""
    height: Dim
    inputs: int
    outputs: int
    dtype: DType
    rows: RowProgram

    @property
    def instruction(self) -> str:
        """The element type as the instructions name it."""
        return {DType.BFLOAT16: "bf16", DType.FLOAT16: "f16"}[self.dtype]


class NarrowPlan(Frozen):
    """Product of a matrix [height, inputs] and a weight of few outputs, in plain fp32.

    In the epilogue ``outer`` is the row, ``l`` the feature.
    """

    template: Literal["linear_narrow"] = "linear_narrow"
    source: str
    weight: str
    weight_transposed: bool
    """As in ``GemmPlan``."""
    height: Dim
    inputs: int
    outputs: int
    rows_at_once: int
    """Rows of a warp."""
    warps: int
    resident: int
    """Blocks of a multiprocessor."""
    rows: RowProgram


Detail: TypeAlias = Annotated[
    PointwisePlan
    | PoolPlan
    | WindowSumPlan
    | ContractionPlan
    | ConvApartPlan
    | DirectConvPlan
    | HopperConvPlan
    | GemmPlan
    | HalfGemmPlan
    | NarrowPlan
    | RowReducePlan
    | RowStreamPlan,
    Field(discriminator="template"),
]
