"""How the portable convolution kernel is tiled: which blocks, chunks of channels and buffers fit a structure best."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice, product
from math import ceil, gcd, prod
from typing import NamedTuple

from fusegen.costs.conv_taps import Taps
from fusegen.costs.conv_tiling import ConvTiling, TilingAxis, TilingShape
from fusegen.ir import ConvOp

_SHARED_WORDS = {2: 24_576, 3: 18_432, 4: 13_824}
"""Shared memory of a block, by the number of blocks that share a multiprocessor: of sm_90, fewer on others."""
_MAX_INTERLEAVED = 4
_FAR = 8
"""Rows between two taps from which on each has a load to itself."""
_WARPS = 4
"""Of a block; several share a multiprocessor, so that one computes while another loads or stores."""
_WARP_TILES = 8
"""Fragments of eight positions in a warp, over all phases of a block."""
_TURNS = (4, 2)
"""Boxes that a block should compute from one load of x, where it computes several: as many as may be."""
_SWEPT_TILES = 4
"""Where there is a running result for each value of a thread too."""
_FILLED, _SHARES, _SHARED_CHANNELS = 120, 4, 16
"""Blocks to which a convolution of few positions is cut: about one for every multiprocessor; of these, as many as may
share a tile, and the channels that each of them has then at least."""
_RESIDENT = {False: {1: 4, 2: 3, 3: 2, 4: 2}, True: {1: 4, 2: 3, 3: 3, 4: 2}}
"""Blocks of a multiprocessor, in full fp32 or not, by the fragments of outputs in a warp: as registers allow."""
_OUTPUT_TILES = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (4, 3), (4, 4))
"""(warps, fragments of 16 outputs in each) along the outputs."""
_MOST_MERGED = 64
"""Rows that channels and phases of a transposed convolution may make together."""
_CANDIDATES = 3
"""Tiles along the outputs, and depths for each, that a measurement may choose from."""


class TooLarge(Exception):
    """A structure whose input does not fit into shared memory."""


def _output_tiles(outputs: int, whole: bool) -> list[tuple[int, int]]:
    """(warps along the outputs, fragments of each), best first; ``whole``: one block holds every output."""

    if whole:
        fitting = [choice for choice in _OUTPUT_TILES if 16 * prod(choice) >= outputs]
        if not fitting:
            raise TooLarge(f"{outputs} output channels do not fit into one block, as a reduction over them needs")
        return fitting

    def cost(choice: tuple[int, int]) -> int:
        tile = 16 * prod(choice)
        return ceil(outputs / tile) * (tile + 8)  # every tile loads x once more

    # One warp along the outputs: weights, which every block streams, serve as many positions as possible.
    return sorted((choice for choice in _OUTPUT_TILES if choice[0] == 1), key=cost)


def _slice_words(k_steps: int, affine: bool, tile: int, split: bool) -> int:
    """Words of a slice of weights, with its offsets."""
    return (k_steps * 8 + split) * tile + ceil(k_steps * (1 if affine else 8) / 4) * 4


def _aligned_plane(words: int) -> int:
    """At least ``words``, 8 modulo 16: four planes' fragments fall into different banks."""
    return (words + 7) // 16 * 16 + 8


def _nominal_box(positions: int, rank: int) -> tuple[int, int, int]:
    if rank == 1:
        return 1, 1, positions
    width = min(32, positions)
    height = positions // width
    return (1, height, width) if rank == 2 or height < 4 else (2, height // 2, width)


def _turning_box(positions: int, rank: int, turns: int) -> tuple[int, int, int]:
    """What so many boxes of a block come to, one after the other along the first axis."""
    if rank == 1:
        return 1, 1, turns * positions
    width = min(32, positions)
    height = positions // width
    return (1, turns * height, width) if rank == 2 else (turns, height, width)


def _chunks(channels: int) -> Iterator[tuple[int, bool]]:
    """(channels at a time, affine) candidates, best first."""
    if channels % 8 == 0 or channels >= 32:
        for chunk in (32, 16, 8):
            if chunk == 8 or ceil(channels / chunk) * chunk <= ceil(channels / 8) * 8:
                yield chunk, True
    for parts in range(1, channels + 1):
        chunk = ceil(channels / parts)
        if chunk < 32 and ceil(channels / chunk) == parts:
            yield chunk, False


def _k_steps(steps: list[int], affine: bool, tile: int, split: bool) -> int:
    """Groups of eight products in a slice: few padded ones, few barriers, slices that fit."""
    if split:  # a product of halves takes two groups
        choices = range(2, max(2, min(12, 6144 // (8 * tile))) + 1, 2)
    else:
        choices = range(1, max(1, min(max(8, 256 // tile), 512 // tile)) + 1)
        if affine:
            common = gcd(*steps)
            return max(k for k in choices if common % k == 0)
    return min(choices, key=lambda k: sum(ceil(s / k) * (k + 0.5) for s in steps))


class Structure(NamedTuple):
    """What the tiling of a convolution with ``channels`` -> ``outputs`` per group depends on."""

    conv: ConvOp
    kernel: tuple[int, ...]
    channels: int
    outputs: int
    whole: bool
    """A block holds every output channel of its positions, for a reduction over them."""
    merge: bool = False
    """Phases of a transposed convolution may be rows of the products, as channels are."""
    positions: int | None = None
    """Of the result, in all samples and groups; where these are few, a block has fewer of them."""
    swept: tuple[bool, bool, bool] = (False, False, False)
    """Axes along which a block computes box after box, and keeps what they come to in registers."""
    reduced: bool = False
    """A block reduces its results in registers and stores none of them."""


def tile_conv(structure: Structure) -> ConvTiling:
    """The tiling that is expected to be best. Raises ``TooLarge``."""
    return _conv_tilings(structure, 1)[0]


def conv_tilings(structure: Structure) -> dict[str, ConvTiling]:
    """Candidates by what is particular to them, ``tile_conv``'s first. Raises ``TooLarge``."""
    found: dict[str, ConvTiling] = {}
    for tiling in _conv_tilings(structure, _CANDIDATES):
        found.setdefault(f"{tiling.output_tile} channels, {tiling.chunk} deep", tiling)
    return found


def _conv_tilings(structure: Structure, most: int) -> list[ConvTiling]:
    """Those that fit, best first, up to ``most`` for each of as many tiles. Raises ``TooLarge`` where none does."""
    conv, kernel, channels, outputs, whole, merge, positions, swept, reduced = structure
    axes = list(zip(kernel, conv.stride, conv.padding, conv.dilation, strict=True))
    taps = tuple(Taps(*axis, conv.transposed) for axis in [(1, 1, 0, 1)] * (3 - conv.rank) + axes)
    phases = tuple(axis.phases for axis in taps)
    if merge and not whole and _merges(taps, outputs):
        together = tuple(axis.merged() for axis in taps)
        tiles = _output_tiles(outputs * prod(phases), True)[:1]
        if found := _fitting(together, conv.rank, channels, tiles, most, phases, _Parts(turns=True)):
            return found
    tiles = _output_tiles(outputs, whole)[:most]
    few = None
    if positions is not None and not (whole or conv.transposed):
        few = _fitting_few(taps, conv.rank, channels, outputs, tiles[0], positions)
    if few:
        return [few]
    parts = _Parts(turns=True, whole=whole, reduced=reduced)
    if any(swept):
        parts = _Parts(warp_tiles=_SWEPT_TILES, turns=not conv.transposed, reduced=True)
    found = _fitting(taps, conv.rank, channels, tiles, most, parts=parts)
    if not found:
        raise TooLarge("the input that a few output positions meet does not fit into shared memory")
    return found


def _fitting_few(
    taps: tuple[Taps, ...], rank: int, channels: int, outputs: int, tile: tuple[int, int], positions: int
) -> ConvTiling | None:
    """The tiling where blocks of the usual size would leave multiprocessors idle, or None.

    A block then has one to itself, and twice the warps along the outputs if it can: they share what they load.
    """
    warps_o, tiles_o = tile
    wider = 2 if tiles_o % 2 == 0 else 1

    def blocks(warp_tiles: int) -> int:
        return ceil(positions / (_WARPS * 8 * warp_tiles)) * ceil(outputs / (16 * warps_o * tiles_o))

    if blocks(_WARP_TILES) >= _FILLED:
        return None
    shares = min(_SHARES, max(1, channels // _SHARED_CHANNELS))
    fewer = next((count for count in (4, 2, 1) if blocks(count) * shares >= _FILLED), 1)
    parts = _Parts(wider * _WARPS, fewer, 2)
    found = next(iter(_fitting(taps, rank, channels, [(wider * warps_o, tiles_o // wider)], 1, parts=parts)), None)
    return found and found.replace(few=True)


def _merges(taps: tuple[Taps, ...], outputs: int) -> bool:
    """Whether the phases of a few ``outputs`` are computed together: no more products, padding included."""
    phases = prod(axis.phases for axis in taps)
    if phases == 1 or outputs * phases > _MOST_MERGED:
        return False
    apart = ceil(outputs / 16) * prod(sum(map(len, axis.offsets)) for axis in taps)
    return ceil(outputs * phases / 16) * prod(axis.merged().kernel for axis in taps) <= apart


@dataclass(frozen=True)
class _Parts:
    """Of a block: its warps, their fragments of eight positions, and the most blocks of a multiprocessor.

    ``turns``: it may compute several boxes from one load of x. ``whole``, ``reduced``: as in ``Structure``.
    """

    warps: int = _WARPS
    warp_tiles: int = _WARP_TILES
    resident: int = 4
    turns: bool = False
    whole: bool = False
    reduced: bool = False


def _fitting(
    taps: tuple[Taps, ...],
    rank: int,
    channels: int,
    tiles: list[tuple[int, int]],
    most: int,
    merged: tuple[int, ...] = (1, 1, 1),
    parts: _Parts = _Parts(),
) -> list[ConvTiling]:
    """Tilings that fit, up to ``most`` for each of the ``tiles`` along the outputs."""
    # Taps far apart have a load of x each: rows between them are not read.
    apart = tuple(axis.most > 1 and axis.spread // gcd(axis.step, axis.spread) > _FAR for axis in taps[:2])
    candidates = list(_chunks(channels))
    found: list[ConvTiling] = []
    for warps_o, tiles_o in tiles:
        for nominal, chunks in ((True, candidates), (False, candidates[::-1])):
            fitters = (
                _Fitter(taps, (alone[0], alone[1]), rank, channels, warps_o, tiles_o, merged, parts)
                for alone in dict.fromkeys((apart, (True, True)))
            )
            fits = (fitter.fit(chunk, affine, nominal) for fitter in fitters for chunk, affine in chunks)
            if of_tile := list(islice(filter(None, fits), most)):
                found += of_tile
                break
    return found


@dataclass(frozen=True)
class _Fitter:
    """Tries chunks of channels for one way to load x. ``alone``: along depth, height, each tap has its own load."""

    taps: tuple[Taps, ...]
    alone: tuple[bool, bool]
    rank: int
    channels: int
    warps_o: int
    tiles_o: int
    merged: tuple[int, ...]
    parts: _Parts

    @property
    def interleaved(self) -> int:
        phases = self.taps[2].phases
        return phases if phases <= _MAX_INTERLEAVED else 1

    @property
    def warps_p(self) -> int:
        return self.parts.warps // self.warps_o

    @cached_property
    def axes(self) -> tuple[TilingAxis, TilingAxis, TilingAxis]:
        depth, height, width = self.taps
        return (
            depth.tiled(alone=self.alone[0]),
            height.tiled(alone=self.alone[1]),
            width.tiled(width=True, together=self.interleaved > 1),
        )

    @cached_property
    def phases(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """For every grid phase: loads of x per chunk of channels, and taps of one load by interleaved phase."""
        width = [len(offsets) for offsets in self.taps[2].offsets]
        groups = [tuple(width)] if self.interleaved > 1 else [(count,) for count in width]
        found = []
        for depth in self.taps[0].offsets:
            for height in self.taps[1].offsets:
                counts = [
                    (len(o) if a else 1, 1 if a else len(o)) for o, a in zip((depth, height), self.alone, strict=True)
                ]
                loads, taps = counts[0][0] * counts[1][0], counts[0][1] * counts[1][1]
                found += [(loads, tuple(taps * count for count in group)) for group in groups]
        return tuple(found)

    def fit(self, chunk: int, affine: bool, nominal: bool) -> ConvTiling | None:
        """The tiling with this chunk if a box of ``nominal`` or else of the least size fits into shared memory."""
        tile = 16 * self.warps_o * self.tiles_o
        chunks = ceil(self.channels / chunk)
        steps = [(loads, [ceil(count * chunk / 8) for count in counts]) for loads, counts in self.phases]

        def shape(split: bool) -> TilingShape | None:
            k_steps = _k_steps([s for _, counts in steps for s in counts if s], affine, tile, split)
            slices = [(loads, sum(ceil(s / k_steps) for s in counts)) for loads, counts in steps]
            words = _Words(
                slice=_slice_words(k_steps, affine, tile, split),
                planes=chunk if affine else chunk + 1,
                table=0 if any(self.alone) else 1,
                fewest=min(count for _, count in slices if count),
            )
            first_slices = tuple(accumulate((loads * count * chunks for loads, count in slices), initial=0))
            return self._shape(words, k_steps, first_slices, split, nominal)

        plain, split = shape(False), shape(True)
        if plain is None or split is None:
            return None
        found = ConvTiling(
            axes=self.axes,
            merged=(self.merged[0], self.merged[1], self.merged[2]),
            interleaved=self.interleaved,
            width_origin=min(min(offsets) for offsets in self.taps[2].offsets if offsets),
            chunk=chunk,
            channel_chunks=chunks,
            affine=affine,
            warps_o=self.warps_o,
            warps_p=self.warps_p,
            tiles_o=self.tiles_o,
            plain=plain,
            split=split,
        )
        return self._in_turns(found) or found

    def _in_turns(self, tiling: ConvTiling) -> ConvTiling | None:
        """``tiling`` for blocks that compute several boxes each, where x and all weights fit besides results."""
        if not self.parts.turns or tiling.loads > 1 or tiling.interleaved < self.taps[2].phases:
            return None
        depth, height, width = (axis.tiled(width=n == 2, together=True) for n, axis in enumerate(self.taps))
        axes = (depth, height, width)
        plain, split = self._turned(tiling, axes, False), self._turned(tiling, axes, True)
        if plain is None or split is None:
            return None
        return tiling.replace(axes=axes, turns=True, plain=plain, split=split)

    def _turned(self, tiling: ConvTiling, axes: tuple[TilingAxis, ...], split: bool) -> TilingShape | None:
        shape = tiling.shape(split)
        slice = _slice_words(shape.k_steps, tiling.affine, tiling.output_tile, split)
        taken = shape.first_slices[-1] * slice + self._results(tiling, shape) + 3 * self.warps_p * tiling.output_tile
        planes = tiling.chunk + (not tiling.affine and not split)
        for turns, resident in product(_TURNS, range(shape.resident, 1, -1)):
            box = _turning_box(tiling.positions(split), self.rank, turns)
            spare = ((_SHARED_WORDS[resident] - taken) // planes - 8) // 16 * 16 + 8
            if spare >= self._plane(axes, box):
                return shape.replace(resident=resident, stages=shape.first_slices[-1], slots=1, plane=spare)
        return None

    def _plane(self, axes: tuple[TilingAxis, ...], box: tuple[int, int, int]) -> int:
        """Words of a channel that a box meets, as `measure` in the template."""
        rows = [(b - 1) * (t.step // a.row) + a.span + 1 for t, a, b in zip(self.taps, axes, box, strict=True)]
        return _aligned_plane(rows[0] * rows[1] * ((rows[2] + 6) // 4 * 4))

    def _results(self, tiling: ConvTiling, shape: TilingShape) -> int:
        """Words through which a block's results go to their places, as ``RESULT_WORDS`` in the template."""
        if self.parts.reduced:
            return 0
        if max(tiling.merged) > 1:
            return self.parts.warps * tiling.output_tile * (shape.tiles_p * 8 + 4)
        if self.parts.whole:
            return tiling.output_tile * (self.warps_p * shape.tiles_p + 1) * 8 * tiling.interleaved
        return self.parts.warps * 16 * (shape.tiles_p + 1) * 8 * tiling.interleaved

    def _shape(
        self, words: _Words, k_steps: int, first_slices: tuple[int, ...], split: bool, nominal: bool
    ) -> TilingShape | None:
        tiles_p = max(1, self.parts.warp_tiles // self.interleaved)
        choices = range(min(self.parts.resident, _RESIDENT[split][self.tiles_o]), 1, -1)
        shapes = (self._fitted(words, k_steps, first_slices, tiles_p, resident, nominal) for resident in choices)
        return next((shape for shape in shapes if shape), None)

    def _fitted(
        self, words: _Words, k_steps: int, first_slices: tuple[int, ...], tiles_p: int, resident: int, nominal: bool
    ) -> TilingShape | None:
        box = _nominal_box(self.warps_p * tiles_p * 8, self.rank) if nominal else (1, 1, 8)
        need = self._plane(self.axes, box)
        for stages in (3, 2):
            slots = 1 + ceil((stages - 1) / words.fewest)
            free = _SHARED_WORDS[resident] - stages * words.slice
            spare = (free // (slots * words.planes + words.table) - 8) // 16 * 16 + 8
            if spare >= need:
                # Somewhat more than the nominal box needs: boxes follow the sizes of a call.
                plane = min(spare, _aligned_plane(need * 5 // 4)) if nominal else spare
                return TilingShape(
                    k_steps=k_steps,
                    first_slices=first_slices,
                    tiles_p=tiles_p,
                    resident=resident,
                    stages=stages,
                    slots=slots,
                    plane=plane,
                )
        return None


@dataclass(frozen=True)
class _Words:
    """Words of shared memory of a slice of weights with its offsets; planes of a chunk of x."""

    slice: int
    planes: int
    table: int
    fewest: int
    """Slices of a load of x."""
