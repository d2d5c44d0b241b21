"""Convolutions on the asynchronous tensor cores of sm_90a."""

from __future__ import annotations

from itertools import groupby
from typing import Literal

from fusegen.dims import Dim
from fusegen.ir import Frozen
from fusegen.plan.details.contractions import DirectConvPlan, Reducing, StatisticsPlan
from fusegen.plan.rowprogram import RowProgram

_MOST_ALONG = 8
"""Grids of which a thread holds elements."""


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
        """The taps of the tiles of a row's weights. Where an odd number goes in pairs, one is in two, each time half.

        (A weight of zero in the odd place would make NaN of an infinity.)
        """
        if chunk > 4 or len(self.taps) % 2 == 0:
            return self.taps
        return (*self.taps[:-1], *self.taps[-2:])

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
    """A product: its first operand is four elements of a group's ``loads``, its second weights of eight channels of a
    tap."""

    loads: tuple[int, int, int, int]
    tap: int
    """Of its weight unit."""
    quad: int
    """Of its stage: where its eight channels begin."""


class ProductGroup(Frozen):
    """Products that share loads of the first operand: where those lie in a stage, in floats from a lane's own place.

    A load brings ``vector`` elements, and products count these.
    """

    loads: tuple[int, ...]
    products: tuple[Product, ...]


class InPlacePlan(Frozen):
    """How a convolution reads its input as it lies, along z, y, x."""

    tile: tuple[int, int, int]
    """Base positions of a warpgroup."""
    box: tuple[int, int, int]
    """Elements of a channel that a tensor copy brings for them."""
    taps: tuple[tuple[int, int, int], ...]
    """What the taps read, in input positions from the first, in the order of their weights."""
    unit_taps: int
    """Taps whose weights arrive together."""
    units: tuple[tuple[ProductGroup, ...], ...]
    """For each of those of a chunk of channels, the products."""
    vector: int
    """Elements of a load."""

    @property
    def rounded(self) -> bool:
        """Whether tensor copies round, so that products read what is loaded.

        Not where a chunk is one batch: the next one's loads would write the registers that products on the way read,
        and a conversion gives these others.
        """
        return sum(map(len, self.units)) > 1


class HopperConvPlan(Reducing):
    """A convolution on the tensor cores of sm_90a: structure along z, y, x and the shape of a tile.

    Input position of slot i is ``in_step * i + in_origin`` (+ residue); output position of base b in
    phase p is ``out_step * b + out_origin + p``; a tap reads slot b + shift, 0 <= shift <= ``reach``.
    The epilogue's coordinates are those of a ``ContractionPlan``.
    """

    template: Literal["conv_sm90"] = "conv_sm90"
    precise: bool
    """In full fp32, of values split into halves."""
    in_halves: bool = False
    """Else in fp16, whose 11 bits are TF32's, with scales; ``chunk`` counts pairs of input channels. Else in TF32."""
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
    ahead: int = 0
    """Slices whose operands are on their way while results are stored, which is where the epilogue then runs.
    0: it runs where the products leave their results, before they are staged."""
    all_rows: bool
    """A stage holds all tap rows of a residue, at the traced sizes."""
    slots: int
    stream: bool
    ring: int
    chain: int
    """Products one after the other into the same sum, in full fp32: tensor cores truncate what they add."""
    consumer_registers: int
    producer_registers: int
    abreast: int = 1
    """Taps along x that are columns of one product; ``residues`` then have one."""
    window: WindowPlan | None = None
    in_place: InPlacePlan | None = None
    alternative: HopperConvPlan | None = None
    """The kernel for inputs whose rows and address are multiples of 16 bytes: it reads them as they lie."""
    in_fp32: HopperConvPlan | DirectConvPlan | None = None
    """Beside a kernel in TF32, the one for sizes at which cuDNN decides on full fp32."""
    before: RowProgram | None = None
    """What happens to every value of the source, ``v``, as it is prepared; ``l`` counts input channels."""
    rows: RowProgram
    statistics: StatisticsPlan | None = None

    @property
    def columns(self) -> int:
        return self.phases[0] * self.phases[1] * self.channels

    @property
    def along(self) -> int:
        """Runs of so many grids of the input differ along x alone, and so share its lines."""
        places = self.window.grids if self.window else tuple(residue.at for residue in self.residues)
        runs = [len(list(run)) for _, run in groupby(places, key=lambda at: at[:2])]
        return max(n for n in range(1, _MOST_ALONG + 1) if all(run % n == 0 for run in runs))

    @property
    def width(self) -> int:
        """Columns of the product: those of high and low halves of the weights are apart, and those of taps abreast."""
        return self.columns * (2 if self.precise else self.abreast)

    @property
    def halves_taps(self) -> bool:
        """Some taps are in two pairs of neighbours, half their weights in each."""
        return any(len(residue.tiles(self.chunk)) > len(residue.taps) for residue in self.residues)

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
