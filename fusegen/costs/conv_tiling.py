"""Tilings of the portable convolution kernel: what a block computes, in which order, from which buffers."""

from __future__ import annotations

from math import ceil, prod

from fusegen.ir import Frozen

_STEP, _RESULT, _WORD = 30, 15, 0.4
"""Instructions of a warp: beside sixteen products of its fragments, for a result, for a word of one channel of x."""
MOST_SHARES = 8
"""Blocks that share the channels of a tile."""


class TilingAxis(Frozen):
    """How the taps of one spatial axis (three, innermost last) fall on output phases and rows of x.

    ``gap``: between the taps of one phase. ``alone``: every tap has a load of x to itself.
    ``row``: step between the rows that are loaded; ``span``: rows beyond those of the first tap.
    """

    kernel: int
    stride: int
    padding: int
    dilation: int
    phases: int
    gap: int
    alone: bool
    row: int
    span: int


class TilingShape(Frozen):
    """The part of a tiling that depends on the precision. ``plane`` is in words."""

    k_steps: int
    """Groups of eight products in a slice of weights."""
    first_slices: tuple[int, ...]
    """Slices before each phase's, and their number."""
    tiles_p: int
    resident: int
    """Blocks of a multiprocessor, whose shared memory and registers they share."""
    stages: int
    slots: int
    plane: int


class ConvTiling(Frozen):
    """Blocks, warps and the order of products of the portable convolution kernel."""

    axes: tuple[TilingAxis, TilingAxis, TilingAxis]
    merged: tuple[int, int, int]
    """Output phases along each axis that are rows of the products beside the channels."""
    interleaved: int
    """Output phases along the width that one block computes."""
    width_origin: int
    """Least input offset of a tap along the width."""
    chunk: int
    """Channels of x in shared memory at a time."""
    channel_chunks: int
    affine: bool
    """Eight neighbouring products are eight neighbouring channels of one tap."""
    warps_o: int
    warps_p: int
    tiles_o: int
    few: bool = False
    """For few positions: blocks may share the channels of a tile."""
    turns: bool = False
    """A block computes box after box, and every phase, from one load of x; all weights are in shared memory."""
    plain: TilingShape
    split: TilingShape

    @property
    def output_tile(self) -> int:
        return 16 * self.warps_o * self.tiles_o

    def shape(self, split: bool) -> TilingShape:
        return self.split if split else self.plain

    def _depth(self, split: bool) -> float:
        """Products of an output, padding included, on average over the phases."""
        shape = self.shape(split)
        return shape.first_slices[-1] * shape.k_steps * 8 / self.grid_phases

    def products(self, split: bool) -> int:
        """Multiply-adds of a position and a channel, for all outputs of a block."""
        return max(1, round(self.output_tile * self._depth(split) / (self.chunk * self.channel_chunks)))

    def turn_words(self, split: bool) -> float:
        """What a turn takes, its epilogue included, as words of x of all channels that are loaded meanwhile."""
        shape = self.shape(split)
        steps = shape.first_slices[-1] * shape.k_steps / 2 / self.grid_phases
        fragments = shape.tiles_p * ((8 + 7 * self.tiles_o) if split else (4 + 2 * self.tiles_o))
        results = shape.tiles_p * self.tiles_o * 4 * self.interleaved
        instructions = self.warps_o * self.warps_p * (steps * (fragments + _STEP) + results * _RESULT)
        return instructions / (_WORD * self.chunk)

    @property
    def loads(self) -> int:
        """Loads of x of a block."""
        return self.channel_chunks * prod(ceil(axis.kernel / axis.phases) for axis in self.axes if axis.alone)

    @property
    def grid_phases(self) -> int:
        return len(self.plain.first_slices) - 1

    @property
    def phases(self) -> int:
        """Outputs of a channel for each of a block's positions."""
        return self.interleaved * prod(self.merged)

    def shares(self, blocks: int, slots: int) -> int:
        """Blocks for each of so many tiles, of ``slots`` that run at once; the launcher computes the same."""
        most = min(MOST_SHARES, self.loads // 2) if self.few else 1
        return max((n for n in (1, 2, 4, 8) if n <= most and n * blocks <= slots), default=1)

    def positions(self, split: bool) -> int:
        """Output positions of a block, for each of its phases."""
        return self.warps_p * 8 * self.shape(split).tiles_p

    def block_flops(self, split: bool) -> float:
        """TF32 multiplications and additions of a block, padding included; three of fp16 take the time of 1.5."""
        return 2.0 * self._depth(split) * self.output_tile * self.positions(split) * (1.5 if split else 1)
