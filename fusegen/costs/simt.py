"""Matrix products of few rows, or small altogether, in plain fp32: how blocks are laid out, and the time.

The figures are those of ``templates/gemm_simt.cu.j2``, fitted to times measured on an H200.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from fusegen.machines import MACHINES, Machine

_WARPS = 8
MOST_ROWS = 8
"""Of a block, and results of a lane's sums."""
_STEP = 128
"""Of k: a warp's lanes, four terms each."""
_BUSY = 8 * 132
"""Warps that keep memory busy."""
_MOST_STEPS = 8
_BLOCKS = (1, 2, 4, 8)
"""That share a row whose results are reduced, in a cluster."""
_SUMS = 11 << 10
"""Of a block, in its shared memory: those of every part of a row's features, whichever blocks share them."""
_FEATURES = (32, 16, 8)
"""Of a block, where the weight is stored as [inputs, features]; the last: 32 bytes of a line."""
_START, _BLOCK = 1.9e-6, 0.12e-6
"""What every call takes, and a block of a multiprocessor beside its products."""
_ALONG, _ACROSS = (3.8e-9, 2.7e-9), (12e-9, 3.05e-9)
"""A warp's step, and of it a row's products with one feature: where the weight is read along the inputs, and along the
features (50 of 54 products within 12%, the others within 26%)."""
_ROW_START, _JOINED = 2.2e-6, 0.6e-6
"""What a call that reduces rows takes besides, and where blocks share them."""
_ROUND, _FLIGHT, _ROOM = 0.25e-6, 100e9, {2: 8, 3: 4, 9: 2}
"""Time of a block for loads that are on their way together, and their bytes in a second; how many steps they are of, by
rows and features (18 products of 8 to 1,024 rows: 0.7 to 1.4 times what was measured, but for one of 2,048 inputs)."""


@dataclass(frozen=True)
class Layout:
    """``widths``: rows of a block, for few and for any number of them."""

    widths: tuple[int, ...]
    features: int
    own: int
    """Features of a warp, where it reads along the inputs, and of a thread else."""
    parts: int
    """Warps, or threads, that share the terms of a sum."""
    ahead: int
    """Steps of theirs, a power of two, whose loads may be on their way at a time."""
    blocks: int = 0
    """Of a cluster that finishes whole rows; 0: results are finished one by one."""


def layout(sizes: tuple[int, int, int], matrices: int, transposed: bool, fixed: bool) -> Layout:
    """Blocks for a product of (rows, inputs, outputs).

    ``transposed``: its weight is stored as [outputs, inputs]; ``fixed``: another call has as many rows.
    """
    rows, inputs, outputs = sizes
    multiprocessors = MACHINES["sm_90"].multiprocessors
    width = next((width for width in (1, 2, 4) if rows <= width), MOST_ROWS)
    widths = (width,) if fixed or width == MOST_ROWS else (width, MOST_ROWS)
    tiles = matrices * -(-rows // width)
    if not transposed:
        filling = (features for features in _FEATURES if tiles * -(-outputs // features) >= multiprocessors)
        features = next(filling, _FEATURES[-1])
        parts = _WARPS * 32 // features
        return Layout(widths, features, own=1, parts=parts, ahead=_steps(inputs, 4 * parts))
    own = 2 if tiles * outputs // 2 >= _BUSY else 1
    parts = 1
    while parts < min(_WARPS, -(-inputs // _STEP)) and tiles * outputs // own * parts < _BUSY:
        parts *= 2
    return Layout(widths, _WARPS // parts * own, own, parts, _steps(inputs, _STEP * parts))


def _steps(inputs: int, step: int) -> int:
    return min(_MOST_STEPS, 1 << (-(-inputs // step) - 1).bit_length())


@dataclass(frozen=True)
class RowLayout:
    """``blocks`` of a cluster finish ``rows`` whole rows; each has a share of the features, in ``turns``."""

    rows: int
    blocks: int
    turns: int
    features: int
    """Of a turn."""
    own: int
    parts: int
    steps: int
    """Of a turn, whose loads may be on their way at a time or not."""

    @property
    def widths(self) -> tuple[int, ...]:
        """As of ``Layout``."""
        return (self.rows,)

    @property
    def ahead(self) -> int:
        """Steps whose loads are on their way at a time."""
        room = next((room for most, room in _ROOM.items() if self.rows + self.own <= most), 1)
        return min(room, 1 << (self.steps - 1).bit_length())

    @property
    def seconds(self) -> float:
        """Of a block."""
        flight = self.ahead * (self.rows + self.own) * 16 * 32 * _WARPS
        return self.turns * -(-self.steps // self.ahead) * (_ROUND + flight / _FLIGHT)


def _shapes(inputs: int, transposed: bool, rows: int) -> Iterator[tuple[int, int, int, int]]:
    """Features, features of a warp, parts and steps of a turn."""
    if not transposed:
        yield _FEATURES[0], 1, _WARPS, -(-inputs // (4 * _WARPS))
        return
    for parts in (1, 2, 4, 8):
        if parts == 1 or parts * _STEP <= inputs:
            for own in (1, 2, 4, 8):
                if own * rows <= MOST_ROWS:
                    yield _WARPS // parts * own, own, parts, -(-inputs // (_STEP * parts))


def _row_layouts(sizes: tuple[int, int, int], transposed: bool) -> Iterator[RowLayout]:
    rows, inputs, outputs = sizes
    for width in (1, 2, 4, MOST_ROWS):
        for features, own, parts, steps in _shapes(inputs, transposed, width):
            for blocks in _BLOCKS:
                turns = -(-outputs // (blocks * features))
                alone = -(-outputs // features) * features * parts  # where there are no clusters
                filled = (blocks - 1) * turns * features < outputs and width < 2 * rows
                if filled and width * max(turns * features * parts, alone) <= _SUMS:
                    yield RowLayout(width, blocks, turns, features, own, parts, steps)


def _row_seconds(found: RowLayout, sizes: tuple[int, int, int], machine: Machine, matrices: int) -> float:
    rows, inputs, outputs = sizes
    waves = -(-matrices * -(-rows // found.rows) * found.blocks // machine.multiprocessors)
    moved = 4 * matrices * (rows * inputs + inputs * outputs + rows * outputs)
    start = machine.launch + _ROW_START + (_JOINED if found.blocks > 1 else 0.0)
    return start + max(waves * found.seconds, moved / machine.bandwidth)


def row_layout(sizes: tuple[int, int, int], matrices: int, transposed: bool) -> RowLayout | None:
    """How blocks finish whole rows of a product, as for ``layout``; None where they would not hold them."""
    target = MACHINES["sm_90"]
    layouts = _row_layouts(sizes, transposed)
    return min(layouts, key=lambda each: _row_seconds(each, sizes, target, matrices), default=None)


def row_seconds(sizes: tuple[int, int, int], machine: Machine, matrices: int = 1, transposed: bool = False) -> float:
    """The same as ``seconds`` where what follows reduces rows; infinite where no blocks hold them."""
    found = row_layout(sizes, matrices, transposed)
    return inf if found is None else _row_seconds(found, sizes, machine, matrices)


def seconds(sizes: tuple[int, int, int], machine: Machine, matrices: int = 1, transposed: bool = False) -> float:
    """Predicted time of a product of (rows, inputs, outputs), or of a batch of ``matrices``."""
    rows, inputs, outputs = sizes
    found = layout(sizes, matrices, transposed, fixed=False)
    width = found.widths[0]
    blocks = matrices * -(-rows // width) * -(-outputs // found.features)
    steps = -(-inputs // ((_STEP if transposed else 4) * found.parts))
    step, product = _ALONG if transposed else _ACROSS
    moved = 4 * matrices * (rows * inputs + inputs * outputs + rows * outputs)
    share = blocks / machine.multiprocessors
    return (
        machine.launch
        + _START
        + share * (_BLOCK + _WARPS * steps * (step + product * width * found.own))
        + moved / machine.bandwidth
    )
