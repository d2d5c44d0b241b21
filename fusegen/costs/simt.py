"""Matrix products of few rows, or small altogether, in plain fp32: how blocks are laid out, and the time.

The figures are those of ``templates/gemm_simt.cu.j2``, fitted to times measured on an H200.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusegen.machines import MACHINES, Machine

_WARPS = 8
MOST_ROWS = 8
"""Of a block, and results of a lane's sums."""
_STEP = 128
"""Of k: a warp's lanes, four terms each."""
_BUSY = 8 * 132
"""Warps that keep memory busy."""
_MOST_STEPS = 8
_FEATURES = (32, 16, 8)
"""Of a block, where the weight is stored as [inputs, features]; the last: 32 bytes of a line."""
_START, _BLOCK = 1.9e-6, 0.12e-6
"""What every call takes, and a block of a multiprocessor beside its products."""
_ALONG, _ACROSS = (3.8e-9, 2.7e-9), (12e-9, 3.05e-9)
"""A warp's step, and of it a row's products with one feature: where the weight is read along the inputs, and along the
features (50 of 54 products within 12%, the others within 26%)."""


@dataclass(frozen=True)
class Layout:
    """``widths``: rows of a block, for few and for any number of them."""

    widths: tuple[int, ...]
    features: int
    own: int
    """Features of a warp, where it reads along the inputs, and of a thread else."""
    parts: int
    """Warps, or threads, that share the terms of a sum."""
    steps: int
    """Of theirs, a power of two: those whose loads may be on their way at a time."""


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
        return Layout(widths, features, own=1, parts=parts, steps=_steps(inputs, 4 * parts))
    own = 2 if tiles * outputs // 2 >= _BUSY else 1
    parts = 1
    while parts < min(_WARPS, -(-inputs // _STEP)) and tiles * outputs // own * parts < _BUSY:
        parts *= 2
    return Layout(widths, _WARPS // parts * own, own, parts, _steps(inputs, _STEP * parts))


def _steps(inputs: int, step: int) -> int:
    return min(_MOST_STEPS, 1 << (-(-inputs // step) - 1).bit_length())


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
