"""Poolings in the epilogue of ``conv_sm90.cu.j2``: tiles in patches of an image, and windows in parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Literal

from fusegen.costs.hopper_taps import Taps, Windows, covered
from fusegen.plan.conv_limits import round_up, triple
from fusegen.plan.conv_memory import MAX_SLOTS, Geometry, Rows
from fusegen.plan.details import PartTaps, WindowPlan
from fusegen.plan.rowprogram import RowProgram

MAX_ROW = 64
"""Slots of a row of a tensor copy."""


@dataclass(frozen=True)
class PatchGeometry(Geometry):
    """The same where a warpgroup computes a patch of an image; a ring's patches lie side by side.

    A stage holds the rows and columns that a tap along z reads of a residue.
    """

    windows: Windows
    lengths: tuple[int, int]
    """Of the results along y and x."""

    @property
    def base_slots(self) -> int:
        return self.samples * self.pitches[0] * covered(self.patch, *self.lengths)

    @property
    def patch(self) -> tuple[int, int]:
        return self.windows.patch(*self.lengths)

    @property
    def parts(self) -> int:
        z, y, x = self.windows.parts
        return z * y * x

    @property
    def kept(self) -> int:
        """Registers of a thread for running results."""
        return self.columns // (4 if self.windows.within[0] > 1 else 2) if self.parts > 1 else 0

    @property
    def warpgroups(self) -> tuple[int, ...]:
        return (4, 3) if self.width // 2 + self.kept <= 48 else (3,)

    @property
    def item_stages(self) -> int:
        return self.layers

    def row(self, block: int) -> int:
        """Slots of a row of a stage."""
        return block // self.patch[0] + max(residue.taps[-1] for residue in self.residues)

    def span(self, block: int, rows: Rows) -> int:
        shifts = [[y for _, y in self.rows_of(residue)] for residue in self.residues]
        return (self.patch[0] + max(max(own) - min(own) for own in shifts)) * self.row(block)

    def stage_bytes(self, slots: int, chunk: int) -> int:
        return round_up(slots * chunk * 4, 128) if self.patch[0] > 1 else slots * chunk * 4

    def holds(self, slots: int, block: int) -> bool:
        return slots <= MAX_SLOTS and (self.patch[0] == 1 or self.row(block) <= MAX_ROW)

    def staging(self, channels: int) -> int:
        return channels * staged_pitch(self.windows.within, self.patch) * 4

    def ways(self) -> Iterator[tuple[bool, bool, Rows, int]]:
        sizes = self.chunks((16, 8))
        rows, columns = self.patch
        alone, beside = (covered((rows, count * columns), *self.lengths) for count in (1, self.warpgroups[0]))
        together = (True, False) if self.parts == 1 and beside <= 1.1 * alone else (False, True)
        yield from ((False, own, "all", chunk) for own in together for chunk in sizes)
        yield from ((True, own, "all", chunk) for own in (False, True) for chunk in sizes)


def staged_pitch(within: tuple[int, int], patch: tuple[int, int]) -> int:
    """Floats of a channel in the staging of a patch, its pairs of rows and its columns reduced: few bank conflicts."""
    return prod(patch) // (within[1] * min(2, within[0])) + 2


@dataclass(frozen=True)
class Pooling:
    """What the epilogue reduces: windows of what ``before`` makes of the results; sums are divided by ``divisor``."""

    windows: Windows
    fn: Literal["max", "mean"]
    divisor: int
    before: RowProgram

    def geometry(self, base: Geometry, lengths: tuple[int, int]) -> PatchGeometry:
        """``base`` for results of these ``lengths`` along y and x."""
        return PatchGeometry(**vars(base), windows=self.windows, lengths=lengths)

    def plan(self, geometry: PatchGeometry, taps: list[Taps], block: int) -> WindowPlan:
        """The plan for rings of ``block`` base slots."""
        parts = []
        for at in product(*map(range, self.windows.parts)):
            moved = [axis.moved[part] for axis, part in zip(taps, at, strict=True)]
            parts.append([[own[r] for own, r in zip(moved, residue.at, strict=True)] for residue in geometry.residues])
        grids = sorted({triple([grid for grid, _ in read]) for part in parts for read in part})

        def taps_of(read: list[tuple[int, int]]) -> PartTaps:
            return PartTaps(
                grid=grids.index(triple([grid for grid, _ in read])), shift=triple([far for _, far in read])
            )

        return WindowPlan(
            fn=self.fn,
            divisor=self.divisor,
            within=self.windows.within,
            patch=geometry.patch,
            row=geometry.row(block),
            grids=tuple(grids),
            counts=self.windows.parts,
            parts=tuple(tuple(map(taps_of, part)) for part in parts),
            before=self.before,
        )
