"""Tilings of the portable matrix product: what a block computes."""

from __future__ import annotations

from math import ceil

from fusegen.costs.tiling import TooLarge
from fusegen.ir import Frozen


class MatmulTiling(Frozen):
    """Warps and fragments of the portable matrix-product kernel."""

    warps_m: int
    warps_n: int
    tiles_n: int

    @property
    def tile(self) -> tuple[int, int]:
        """(rows, features) of a block."""
        return 16 * self.warps_m * 4, 8 * self.warps_n * self.tiles_n


def tile_matmul(features: int, whole: bool) -> MatmulTiling:
    """The tiling of a product with so many columns. Raises ``TooLarge``."""
    return next(iter(matmul_tilings(features, whole).values()))


def matmul_tilings(features: int, whole: bool) -> dict[str, MatmulTiling]:
    """Candidates by their (rows, features) of a block, ``tile_matmul``'s first. Raises ``TooLarge``."""
    tiles = ceil(features / 8)
    if whole and tiles > 32:
        raise TooLarge(f"{features} features do not fit into one block, as a reduction over them needs")
    best = 1 if tiles <= 8 else 4 if whole and tiles > 16 else 2
    found: dict[str, MatmulTiling] = {}
    for warps_n in sorted((1, 2, 4), key=lambda warps: warps != best):
        tiling = MatmulTiling(warps_m=4 // warps_n, warps_n=warps_n, tiles_n=min(8, ceil(tiles / warps_n)))
        if not whole or tiling.tile[1] >= features:
            found["x".join(map(str, tiling.tile))] = tiling
    return found
