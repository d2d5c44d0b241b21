"""Matrix products on the tensor cores: their tiles and their time, by their sizes.

The figures are those of ``gemm_sm90.cu.j2`` and ``gemm_half_sm90.cu.j2``, fitted to times measured on an H200.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, TypeAlias

from fusegen.machines import Machine

ProductForm: TypeAlias = Literal["prepared", "in place", "streamed", "short", "outer"]
"""How a product in fp32 is computed: on the tensor cores, once a kernel has split the rows; by blocks that split the
rows of their tiles for themselves; the same for long sums of few results, in wide tiles that many blocks share; sums of
so few terms that a block keeps its rows in registers, and stores results while others are computed; or of still fewer,
as a sum of outer products in plain fp32."""
FEATURES, OUTER_ROWS = 128, 64
"""Features of a block's tile: rows up to this length are whole within a warp; and rows of one of outer products."""
_CHUNK = 64
_BLOCKS = 132
_LEAST_CHUNKS = 4
_WIDTHS = range(32, 193, 16)
_NARROW = 64
_WIDE = (96, 128, 160, 192)
"""Widths that may turn out to be better than the expected best."""
_FINISH = 5.0e-6
"""What follows the last product of a tile, which nothing hides."""
_CUT, _RUN = 4.0e-6, 6.5e-9
"""Adding up the parts of a tile that is cut, and of each part a row, which one block reads."""
_JOIN, _MANY = (4.0e-6, 40e-9), 4
"""The same for parts that a kernel of its own adds up, and of each row of a tile; from so many parts to a tile on."""
_REDUCE = 12.0e-6
"""The same for reductions along its rows."""
_SPLIT = 0.45
"""Share of the bandwidth at which the rows are split before."""
_HALF_TILE = 256
"""Rows and features of a cluster's tile of 16-bit products."""
_HALF_FLOPS = 810e12
"""Rate of 16-bit products."""
_START = 5.0e-6
"""Filling the pipeline."""
_EARLY = 1.5e-6
"""What a launch saves that comes while the kernel before it ends."""
_IN_PLACE = {64: (5.0e-6, 1.9e-6, 2.0e-6, 6.5e-6, 1.65e-6), 32: (3.6e-6, 1.55e-6, 2.3e-6, 2.9e-6, 1.35e-6)}
"""Where every block splits the rows of its tile for itself, by those rows. While no multiprocessor has two blocks:
start and finish, 64 of k; else start, start and finish of every two blocks, 64 of k of a block."""
_STREAMED = {64: (1.55e-6, 1.55e-6), 128: (3.0e-6, 2.4e-6)}
"""Where blocks split both factors of wide tiles, and share sums: 64 of k of a block, by the rows of a tile; rows stored
one after another, and columns. A warp's conversions wait for one another, 860 instructions with two warps to a
scheduler; to ask for products between them gained nothing."""
LONGEST_CHAIN = 1024
"""Numbers that are added up in plain fp32, one after the other."""
_WORDS = 1.9
"""Times over that these take where lines of a factor are copied word by word."""
SHORT, _SHORT_MOVED = range(16, 33), 0.67
"""Terms of which a product's kernel keeps its rows in registers, and the share of the bandwidth at which it stores. Of
64, conversions take longer than stores (200 us and 156). 32,768 squared results of 32 terms: 1,412 us, with the rows
prepared 2,165; 8,192 squared of 20: 118 and 160."""
OUTER, _OUTER_MOVED = range(1, 16), 0.67
"""Terms of which a kernel adds up outer products, as fast as it stores results, and the same share: in plain fp32, for
chains of so few terms are closer than 22 bits of every factor."""
FEW_TERMS = range(OUTER.start, SHORT.stop)
"""Of either, where results are many."""
_FUNCTION_ALONE, _FUNCTION = 2.2e-9, 1.2e-9
"""What an operation of a function of the results takes for each row of such tiles, of one block of a multiprocessor and
of several, which wait less (H200: a GELU, a SELU and its tanh)."""
_UNALIGNED = 1.4
"""Times over that 64 of k take where rows are copied word by word."""
_WORD_BY_WORD, _ALIGN_TILES = 1.6, 8
"""Times over that 64 of k take where weights are copied so; row tiles, and chunks of a cluster, from which on their
lines are aligned first (H200: 3000 x 2047 times its transpose 515 us, of which a copy is 15)."""
_SPLITS = {1: 0.0, 2: 0.0, 4: 1.2e-6, 8: 4.0e-6}
"""Blocks that share the sums of such a tile, and the time of adding them up."""


def _chunk_seconds(width: int) -> float:
    """Time of a block for 64 of k: what does not depend on the tile's width, and the products."""
    return 0.95e-6 + 5.0e-9 * width


def _spread(width: int, rows: int, inputs: int, outputs: int, matrices: int) -> tuple[int, int]:
    """Tiles of a width, and the clusters that share their chunks of k."""
    blocks = cluster(outputs)
    tiles = matrices * -(-rows // width) * -(-outputs // (blocks * FEATURES))
    return tiles, min(_BLOCKS // blocks, -(-tiles * -(-inputs // _CHUNK) // _LEAST_CHUNKS))


def _moved(rows: int, inputs: int, outputs: int, matrices: int) -> int:
    """Bytes of both factors and the results."""
    return 4 * matrices * (rows * inputs + outputs * inputs + rows * outputs)


def _cut_seconds(width: int, tiles: int, clusters: int) -> float:
    """What it takes to add up the parts of tiles where clusters outnumber them."""
    if tiles * _MANY <= clusters:
        return _JOIN[0] + width * _JOIN[1]
    return _CUT + clusters / tiles * width * _RUN if tiles < clusters else 0.0


def _width(rows: int, inputs: int, outputs: int, matrices: int = 1) -> int:
    """The best width of the tiles."""

    def seconds(width: int) -> float:
        tiles, clusters = _spread(width, rows, inputs, outputs, matrices)
        return tiles * -(-inputs // _CHUNK) / clusters * _chunk_seconds(width) + _cut_seconds(width, tiles, clusters)

    widths = [width for width in _WIDTHS if width >= min(rows, _NARROW)]  # another call may have more rows
    return min(widths, key=lambda width: (seconds(width), width))


def cluster(outputs: int) -> int:
    """Blocks side by side that share the rows of a tile."""
    return 1 if outputs <= FEATURES else 2


def tiles(rows: int, inputs: int, outputs: int, matrices: int = 1) -> dict[str, tuple[int, ...]]:
    """Tile widths to compile for products traced with these sizes, a narrow one and a good one: best first."""
    best = _width(rows, inputs, outputs, matrices)
    good = [best, *(width for width in _WIDE if width != best)]
    return {f"{width} rows": (_NARROW, width) if width > _NARROW else (width,) for width in good}


def seconds(
    rows: int,
    inputs: int,
    outputs: int,
    machine: Machine,
    matrices: int = 1,
    reduces: bool = False,
    turned: bool = False,
) -> float:
    """Predicted time of a product, or of a batch of ``matrices``, fp32-accurate; ``reduces``: along its rows, too;
    ``turned``: these are stored along the columns, and read for their largest values first.
    """
    width, chunks = _width(rows, inputs, outputs, matrices), -(-inputs // _CHUNK)
    tiles, clusters = _spread(width, rows, inputs, outputs, matrices)
    moved = _moved(rows, inputs, outputs, matrices)
    finish = _FINISH + (_REDUCE if reduces else 0.0)
    chunk, aligning = _chunk_seconds(width), 0.0
    if inputs % 4:
        if matrices * -(-rows // width) >= _ALIGN_TILES and tiles * chunks >= _ALIGN_TILES * clusters:
            aligning = machine.launch - _EARLY + 8 * outputs * inputs / machine.bandwidth
        else:
            chunk *= _WORD_BY_WORD
    products = -(-tiles * chunks // clusters) * chunk + tiles / clusters * finish
    products += _cut_seconds(width, tiles, clusters)
    split = 8 * matrices * rows * inputs / (_SPLIT * machine.bandwidth)
    peaks = machine.launch - _EARLY + split / 2 if turned else 0.0
    return 2 * machine.launch - _EARLY + _START + peaks + split + aligning + max(products, moved / machine.bandwidth)


def streamed_rows(rows: int) -> int:
    """Rows of a tile whose blocks split both factors, and share long sums."""
    return next(height for height in _STREAMED if rows <= height or height == max(_STREAMED))


def streamed_seconds(
    rows: int,
    inputs: int,
    outputs: int,
    machine: Machine,
    matrices: int = 1,
    reduces: bool = False,
    turned: bool = False,
    aligned: bool = True,
) -> float:
    """Predicted time of a product whose factors are read once, by the blocks that multiply them; infinite where a block
    would add up more chunks than a chain may have. ``reduces``, ``turned``: as above; ``aligned``: lines of both
    factors are whole accesses.
    """
    height, chunks = streamed_rows(rows), -(-inputs // _CHUNK)
    tiles = matrices * -(-rows // height) * -(-outputs // FEATURES)
    clusters = min(_BLOCKS, -(-tiles * chunks // _LEAST_CHUNKS))
    each, slower = -(-tiles * chunks // clusters), 1.0 if aligned else _WORDS
    if min(each, chunks) > LONGEST_CHAIN:
        return inf
    products = each * _STREAMED[height][turned] * slower + _cut_seconds(height, tiles, clusters)
    products += -(-tiles // clusters) * (_FINISH + (_REDUCE if reduces else 0.0))
    moved = _moved(rows, inputs, outputs, matrices)
    return machine.launch + _START + max(products, moved / machine.bandwidth)


def outer_seconds(rows: int, inputs: int, outputs: int, machine: Machine, matrices: int = 1) -> float:
    """Predicted time of a product as a sum of few outer products."""
    if inputs not in OUTER:
        return inf
    tiles = matrices * -(-rows // OUTER_ROWS) * -(-outputs // FEATURES)
    moved = 4 * (matrices * (rows * inputs + outputs * inputs) + tiles * OUTER_ROWS * FEATURES)
    return machine.launch + _START + moved / (_OUTER_MOVED * machine.bandwidth)


def short_seconds(rows: int, inputs: int, outputs: int, machine: Machine, matrices: int = 1) -> float:
    """Predicted time of a product of so few terms that storing its results takes longer."""
    if inputs not in SHORT:
        return inf
    tiles = matrices * -(-rows // FEATURES) * -(-outputs // FEATURES)
    moved = 4 * (matrices * (rows * inputs + outputs * inputs) + tiles * FEATURES**2)
    return machine.launch + _START + moved / (_SHORT_MOVED * machine.bandwidth)


@dataclass(frozen=True)
class _InPlace:
    """Blocks of a product that split the rows of their tiles for themselves."""

    splits: int
    """That share the sums of a tile."""
    chunks: int
    """Of k, of a block."""
    resident: int
    """Blocks that a multiprocessor has, one after the other or two at a time."""


def _blocks_in_place(height: int, rows: int, inputs: int, outputs: int, matrices: int) -> _InPlace:
    chunks, tiles = -(-inputs // _CHUNK), matrices * -(-rows // height) * -(-outputs // FEATURES)
    room = {more: _BLOCKS * 7 // 8 if more > 2 else _BLOCKS for more in _SPLITS if 8 * more <= height}
    splits = max(n for n, most in room.items() if n == 1 or (tiles * n <= most and n * n <= 2 * chunks))
    return _InPlace(splits, -(-chunks // splits), -(-tiles * splits // _BLOCKS))


def _in_place_seconds(
    height: int, rows: int, inputs: int, outputs: int, machine: Machine, matrices: int, functions: int = 0
) -> float:
    alone, alone_chunk, start, pair, chunk = _IN_PLACE[height]
    slower = _UNALIGNED if inputs % 4 else 1.0
    found = _blocks_in_place(height, rows, inputs, outputs, matrices)
    products = alone + found.chunks * alone_chunk * slower
    if found.resident > 1:
        products = start + -(-found.resident // 2) * pair + found.chunks * found.resident * chunk * slower
    each = _FUNCTION if found.resident > 1 else _FUNCTION_ALONE
    products += functions * found.resident * height / found.splits * each
    moved = _moved(rows, inputs, outputs, matrices)
    return machine.launch + max(products + _SPLITS[found.splits], alone + moved / machine.bandwidth)


def in_place_seconds(rows: int, inputs: int, outputs: int, machine: Machine, matrices: int = 1) -> float:
    """The same where every block splits the rows of its tile for itself."""
    return min(_in_place_seconds(height, rows, inputs, outputs, machine, matrices) for height in _IN_PLACE)


def heights_in_place(
    rows: int, inputs: int, outputs: int, machine: Machine, matrices: int, functions: int
) -> list[int]:
    """Rows of such a tile, best first, where each result takes so many operations of ``functions``."""

    def expected(height: int) -> float:
        return _in_place_seconds(height, rows, inputs, outputs, machine, matrices, functions)

    return sorted(_IN_PLACE, key=expected)


def chunks_in_place(height: int, rows: int, inputs: int, outputs: int, matrices: int) -> int:
    """Chunks of k that a multiprocessor splits, one after the other, where tiles have ``height`` rows."""
    found = _blocks_in_place(height, rows, inputs, outputs, matrices)
    return found.chunks * found.resident


def half_seconds(rows: int, inputs: int, outputs: int, machine: Machine) -> float:
    """Predicted time of a product of 16-bit floats: tiles in whole waves."""
    waves = -(-(-(-rows // _HALF_TILE) * -(-outputs // _HALF_TILE)) // (_BLOCKS // 2))
    products = waves * _BLOCKS * _HALF_TILE * _HALF_TILE * inputs / _HALF_FLOPS
    moved = 2 * (rows * inputs + outputs * inputs + rows * outputs)
    return machine.launch + _START + max(products, moved / machine.bandwidth)
