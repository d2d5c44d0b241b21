"""Tilings of convolutions: every product exactly once, in buffers that hold it."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from math import ceil

import pytest

from fusegen.costs.conv_tiling import ConvTiling, TilingAxis, TilingShape
from fusegen.costs.matmul_tiling import matmul_tilings, tile_matmul
from fusegen.costs.tiling import Structure, TooLarge, conv_tilings, tile_conv
from fusegen.ir import ConvOp

SHARED_BYTES = 99 * 1024
"""The least that a block may have on any device from sm_80 on."""


def random_structure(seed: int) -> tuple[ConvOp, tuple[int, ...], int, int]:
    """(convolution, kernel, channels, outputs) per group."""
    draw = random.Random(seed)
    rank, transposed = draw.choice((1, 2, 2, 3)), draw.random() < 0.5
    kernel = tuple(draw.randint(1, 7 if rank < 3 else 3) for _ in range(rank))
    stride = tuple(draw.randint(1, 6) for _ in range(rank))
    dilation = tuple(draw.choice((1, 1, 2, 3, 12)) for _ in range(rank))
    conv = ConvOp(
        transposed=transposed,
        stride=stride,
        padding=tuple(draw.randint(0, d * (k - 1)) for k, d in zip(kernel, dilation, strict=True)),
        dilation=dilation,
        output_padding=tuple(
            draw.randint(0, max(s, d) - 1) if transposed else 0 for s, d in zip(stride, dilation, strict=True)
        ),
    )
    return conv, kernel, draw.choice((1, 3, 8, 12, 16, 20, 33, 48, 64, 100)), draw.choice((1, 8, 30, 64, 96, 130, 256))


def taps(axis: TilingAxis, transposed: bool, phase: int) -> list[tuple[int, int]]:
    """(tap, input offset) of an output phase, as the kernel's ``Axis`` enumerates them."""
    if not transposed:
        return [(k, k * axis.dilation - axis.padding) for k in range(axis.kernel)]
    first = next(
        (k for k in range(axis.kernel) if (phase + axis.padding - k * axis.dilation) % axis.stride == 0), axis.kernel
    )
    found = range(first, axis.kernel, axis.gap)
    return [(k, (phase + axis.padding - k * axis.dilation) // axis.stride) for k in found]


def structures(count: int) -> list[tuple[ConvOp, ConvTiling, int]]:
    found = []
    for seed in itertools.count():
        conv, kernel, channels, outputs = random_structure(seed)
        try:
            positions = None if seed % 2 else 400 * seed % 9_000  # many, or few
            tiling = tile_conv(Structure(conv, kernel, channels, outputs, seed % 3 == 0, positions=positions))
            found.append((conv, tiling, channels))
        except TooLarge:
            continue
        if len(found) == count:
            return found
    raise AssertionError


STRUCTURES = structures(300)


def test_few_positions_have_small_blocks_that_fill_the_device() -> None:
    conv = ConvOp(transposed=False, stride=(3, 3), padding=(1, 1), dilation=(2, 2), output_padding=(0, 0))
    usual = tile_conv(Structure(conv, (3, 3), 64, 32, False))
    assert tile_conv(Structure(conv, (3, 3), 64, 32, False, positions=100_000)) == usual
    assert not usual.few
    assert usual.shares(1, 264) == 1
    for positions, blocks in ((3_120, 49), (16_000, 125)):
        few = tile_conv(Structure(conv, (3, 3), 64, 32, False, positions=positions))
        assert few.few
        assert ceil(positions / few.positions(False)) == blocks
        assert 120 <= blocks * few.shares(blocks, 264) <= 264


def test_merged_phases_meet_what_each_phase_meets() -> None:
    """Every tap of the transposed convolution is one of a phase at an offset that the products have, and only once."""
    merged = 0
    for seed in range(600):
        conv, kernel, channels, outputs = random_structure(seed)
        try:
            tiling = tile_conv(Structure(conv, kernel, channels, min(outputs, 6), False, merge=True))
        except TooLarge:
            continue
        if max(tiling.merged) == 1:
            continue
        merged += 1
        assert conv.transposed
        assert tiling.grid_phases == tiling.interleaved == 1
        assert min(outputs, 6) * tiling.phases <= tiling.output_tile
        assert tiling.merged == (1,) * (3 - conv.rank) + conv.stride
        structure = zip(tiling.axes[3 - conv.rank :], kernel, conv.stride, conv.padding, conv.dilation, strict=True)
        for axis, size, stride, padding, dilation in structure:
            offsets = [offset for _, offset in taps(axis, False, 0)]
            places = Counter(phase + padding - offset * stride for phase in range(stride) for offset in offsets)
            assert all(places[k * dilation] == 1 for k in range(size))
    assert merged > 20


def test_the_taps_of_a_phase_are_those_that_the_definition_gives() -> None:
    for conv, tiling, _ in STRUCTURES:
        for axis in tiling.axes:
            met = Counter()
            for phase in range(axis.phases):
                for k, offset in taps(axis, conv.transposed, phase):
                    met[k] += 1
                    position, source = phase, offset  # j = 0
                    if conv.transposed:
                        assert source * axis.stride - axis.padding + k * axis.dilation == position
                    else:
                        assert source == k * axis.dilation - axis.padding
            assert met == Counter(range(axis.kernel))  # every tap in exactly one phase


def test_the_loaded_rows_hold_every_tap() -> None:
    for conv, tiling, _ in STRUCTURES:
        for number, axis in enumerate(tiling.axes):
            every = [[offset for _, offset in taps(axis, conv.transposed, phase)] for phase in range(axis.phases)]
            if tiling.turns or (number == 2 and tiling.interleaved > 1):
                every = [[offset for offsets in every for offset in offsets]]
                assert number != 2 or min(every[0]) == tiling.width_origin
            for offsets in every:
                for offset in offsets:
                    distance = 0 if axis.alone else offset - min(offsets)
                    assert distance % axis.row == 0
                    assert distance // axis.row <= axis.span
            assert (1 if conv.transposed else axis.stride) % axis.row == 0


@pytest.mark.parametrize("split", [False, True])
def test_slices_hold_every_product(split: bool) -> None:
    for conv, tiling, channels in STRUCTURES:
        depth, height, width = tiling.axes
        shape = tiling.shape(split)
        slices = [0]
        for z, y in itertools.product(range(depth.phases), range(height.phases)):
            rows = len(taps(depth, conv.transposed, z)) * len(taps(height, conv.transposed, y))
            alone = (len(taps(depth, conv.transposed, z)) if depth.alone else 1) * (
                len(taps(height, conv.transposed, y)) if height.alone else 1
            )
            columns = [len(taps(width, conv.transposed, x)) for x in range(width.phases)]
            for group in [columns] if tiling.interleaved > 1 else [[count] for count in columns]:
                counts = [rows // max(1, alone) * count * tiling.chunk for count in group]
                per_load = sum(ceil(ceil(count / 8) / shape.k_steps) for count in counts)
                if tiling.affine and not split:  # no slice is padded: padding would read what is not zero
                    assert all(count % (8 * shape.k_steps) == 0 for count in counts)
                slices.append(slices[-1] + alone * per_load * ceil(channels / tiling.chunk))
        assert tuple(slices) == shape.first_slices
        assert not split or shape.k_steps % 2 == 0  # a product of halves takes two groups of eight


def shared_bytes(tiling: ConvTiling, shape: TilingShape, split: bool) -> int:
    offsets = ceil(shape.k_steps * (1 if tiling.affine else 8) / 4) * 4
    inverses = tiling.output_tile if split else 0
    weights = shape.stages * (shape.k_steps * tiling.output_tile * 8 + inverses + offsets)
    split = shape is tiling.split
    zeros = 0 if tiling.affine or (tiling.turns and split) else 1
    planes = shape.slots * (tiling.chunk + zeros) * shape.plane
    table = 0 if tiling.turns or tiling.axes[0].alone or tiling.axes[1].alone else shape.plane
    return 4 * (weights + planes + table)


def test_buffers_fit_and_are_filled_in_time() -> None:
    for _, tiling, _ in STRUCTURES:
        for split in (False, True):
            shape = tiling.shape(split)
            assert shared_bytes(tiling, shape, split) <= SHARED_BYTES
            columns = tiling.positions(split) * tiling.interleaved
            assert 4 * tiling.output_tile * (columns + 8 * tiling.interleaved) + 1024 <= SHARED_BYTES  # the sums
            assert shape.plane % 16 == 8
            if tiling.turns:  # nothing is fetched while products run
                assert (shape.stages, shape.slots) == (shape.first_slices[-1], 1)
            else:
                assert shape.stages >= 2
                assert shape.slots >= 2


def test_the_first_candidate_is_the_tiling() -> None:
    several = 0
    for conv, tiling, channels in structures(20):
        kernel, outputs = tuple(axis.kernel for axis in tiling.axes)[3 - conv.rank :], tiling.output_tile
        found = list(conv_tilings(Structure(conv, kernel, channels, outputs, False)).values())
        assert found[0] == tile_conv(Structure(conv, kernel, channels, outputs, False))
        assert len(set(found)) == len(found)
        several += len(found) > 1
    assert several > 10


def test_a_reduction_keeps_every_channel_in_one_block() -> None:
    conv, kernel, channels, _ = random_structure(2)
    for outputs in (1, 16, 17, 100, 256):
        assert tile_conv(Structure(conv, kernel, channels, outputs, True)).output_tile >= outputs
    with pytest.raises(TooLarge, match="257 output channels"):
        tile_conv(Structure(conv, kernel, channels, 257, True))
    with pytest.raises(TooLarge, match="300 features"):
        tile_matmul(300, True)
    assert all(tiling.tile[1] >= 256 for tiling in matmul_tilings(256, True).values())
    assert list(matmul_tilings(64, False)) == ["256x64", "128x64", "64x64"]
