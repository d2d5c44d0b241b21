"""What a block of ``conv_sm90.cu.j2`` keeps in shared memory, and on which way data takes through it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, product
from math import prod
from typing import Literal, TypeAlias

from fusegen.costs.hopper import FILL, LEAST_WIDE, SHARED_BYTES
from fusegen.machines import machine
from fusegen.plan.conv_limits import BARRIER_BYTES, cluster_of, round_up
from fusegen.plan.details import TapResidue

RING = 4
"""Tap rows of streamed weights in shared memory."""
AHEAD = 2
"""Slices of results whose operands are on their way: 12 KB of three warpgroups, and twice as many were no faster."""
MAX_SLOTS = 1024
_UNDER_WAY = 32 << 10
"""Bytes of x in stages below which weights that leave no room for more are streamed: 128 channels to 96, 2x2, took 84
us with 19 KB, 75 with 25, 49 with streamed weights."""
Rows: TypeAlias = Literal["all", "layer", "one"]
"""Tap rows of a residue that a stage holds: those of a layer have their tap along z in common."""
_LABELS: dict[Rows, str] = {"all": "a residue", "layer": "a layer of tap rows", "one": "a tap row"}
_DEPTH, _ROWS_CLOCKS = 8, 16
"""Channels of a product; clocks that its first operand of 64 slots takes out of shared memory."""
_LEAST_STAGES = 5
"""Of layers, those worth having even where a tile reads fewer, and two more; what is left is L1 of later kernels."""
_FED, _FEWER_BYTES = 0.7, 0.75
"""Share of the time of the products that bringing their input tap row by tap row takes, from which on a layer of rows
together is worth a ring for all, and share of the bytes that this may take."""
_FEWER = {4: 1.0, 3: 1.03, 2: 1.18}
"""Times over that a tile takes with so many warpgroups: fewer hide less latency (17 convolutions, H200; five, H100)."""


@dataclass(frozen=True)
class Memory:
    """What a block keeps in shared memory."""

    warpgroups: int
    stream: bool
    rings: int
    chunk: int
    slots: int
    stages: int
    slice: int
    buffers: int
    rows: Rows

    @property
    def way(self) -> tuple[bool, bool, Rows, int]:
        """Weights are streamed, all warpgroups have one ring, a stage has such tap rows; its channels."""
        return self.stream, self.rings == 1, self.rows, self.chunk

    @property
    def label(self) -> str:
        """Names what the way through memory is, whatever fits besides."""
        rings = "one ring" if self.rings == 1 else "a ring each"
        stage = f"{self.chunk} channels of {_LABELS[self.rows]}"
        streamed = ", weights streamed" if self.stream else ""
        return f"{self.warpgroups} warpgroups, {rings}, stages of {stage}{streamed}"


@dataclass(frozen=True)
class Geometry:
    """What the choice of ``Memory`` depends on."""

    residues: tuple[TapResidue, ...]
    tap_rows: tuple[tuple[int, int], ...]
    pitches: tuple[int, ...]
    phases: tuple[int, int]
    depth: int
    columns: int
    """Results of a base slot."""
    width: int
    """Columns of the product."""
    split: int
    operand_bytes: int
    precise: bool
    samples: int = field(kw_only=True)
    """At the traced sizes."""
    kinds: int = field(kw_only=True)
    """Tiles of the same base slots."""
    plain: bool = field(default=False, kw_only=True)
    """Results of many channels are stored one by one, in TF32."""
    streamed: int = field(default=0, kw_only=True)
    """Operands that are copied ahead, as results are stored."""
    beyond: int = field(default=0, kw_only=True)
    """Slots after a warpgroup's own, whose taps are columns of one product."""

    @property
    def base_slots(self) -> int:
        """Of all samples, for one kind of tile."""
        return self.samples * prod(self.pitches)

    def rows_of(self, residue: TapResidue) -> tuple[tuple[int, int], ...]:
        """Shifts along z and y of its tap rows."""
        return self.tap_rows[residue.first_row :][: residue.rows]

    def span(self, block: int, rows: Rows) -> int:
        """Slots of a stage that holds such tap rows of a residue."""
        found = 0
        for residue in self.residues:
            own = [(z if rows == "all" else 0, y) for z, y in self.rows_of(residue)]
            shifts = [(z * self.pitches[1] + y) * self.pitches[2] for z, y in own]
            apart = 0 if rows == "one" else max(shifts) - min(shifts)
            found = max(found, block + residue.taps[-1] + self.beyond + apart)
        return found

    @property
    def layers(self) -> int:
        """Of tap rows, of all residues."""
        return sum(len({z for z, _ in self.rows_of(residue)}) for residue in self.residues)

    @property
    def taps(self) -> int:
        """Of all tap rows: products that a base slot has for each eight channels."""
        return sum(residue.rows * len(residue.taps) for residue in self.residues)

    @property
    def by_layers(self) -> bool:
        """Whether products would wait for input that comes tap row by tap row, of which rows of a layer share most."""
        clocks = self.taps / _DEPTH * max(_ROWS_CLOCKS + self.width / 4, self.width / 2)  # for a channel of 64 slots
        by_rows = self.rows * self.span(64, "one")
        by_layers = self.layers * self.span(4 * 64, "layer") / 4
        return by_rows * 4 / FILL > _FED * clocks and by_layers < _FEWER_BYTES * by_rows

    def staging(self, channels: int) -> int:
        """Bytes through which a warpgroup stores results of so many channels."""
        in_y, in_x = self.phases
        row = 64 * in_x + (0 if in_y == 1 else 16 if in_x == 2 else 8)
        pitch = {4: in_y * row, 2: in_y * row | 8, 1: 68}[in_y * in_x]
        return channels * pitch * 4

    def operands_ahead(self, channels: int) -> int:
        """Bytes of operands that are on their way for a warpgroup, where it stores so many channels at a time."""
        return AHEAD * self.streamed * channels * 64 * self.phases[0] * self.phases[1] * 4

    def ways(self) -> Iterator[tuple[bool, bool, Rows, int]]:
        """(weights streamed, one ring for all warpgroups, tap rows in a stage, channels of a stage), best first.

        With a ring for all and a whole item in it, warpgroups multiply in turns; with rings of their own
        they drift apart by themselves: either way epilogues overlap products. Streamed weights keep
        them in step.
        """
        chunks = self.chunks((32, 16, 8) if self.taps < 3 else (16, 8))
        by_row = self.span(64, "all") * len(self.residues) > 2 * 64 * self.rows  # less to load than all rows at once
        yield from ((False, True, "all", chunk) for chunk in chunks)
        if by_row and self.by_layers:
            yield from ((False, True, "layer", chunk) for chunk in chunks)
        if self.precise and by_row:
            yield from ((False, True, "one", chunk) for chunk in chunks)
        apart: tuple[Rows, ...] = ("one",) if by_row else ("all", "one")
        yield from ((False, False, rows, chunk) for rows in apart for chunk in chunks)
        yield from ((True, True, rows, chunk) for chunk in chunks for rows in ("all", "one"))

    @property
    def rows(self) -> int:
        return sum(residue.rows for residue in self.residues)

    def chunks(self, sizes: tuple[int, ...]) -> list[int]:
        """Channels that a stage may hold, least padding first. Taps go in pairs where four are enough."""
        if self.depth <= 4 and all(len(residue.taps) > 1 for residue in self.residues):
            return [4]
        return sorted(sizes, key=lambda size: (round_up(self.depth, size), -size))

    @property
    def warpgroups(self) -> tuple[int, ...]:
        """A fourth hides more latency, where its accumulators leave registers for the epilogue; two make more tiles."""
        return (3, 2) if self.plain else (4, 3) if self.width <= LEAST_WIDE else (3,)

    @property
    def slices(self) -> tuple[int, ...]:
        """Channels that a warpgroup stages at a time."""
        lanes = 4 // (self.phases[0] * self.phases[1])
        channels = self.columns // (self.phases[0] * self.phases[1])
        if self.precise and lanes == 4 and not self.streamed:
            return tuple(size for size in (32, 16, 8) if channels % size == 0)
        return {1: (4,), 2: (8, 4), 4: (8,)}[lanes]

    @property
    def item_stages(self) -> int:
        """Stages that hold what a tile reads of a chunk of channels."""
        return len(self.residues)

    def stage_bytes(self, slots: int, chunk: int) -> int:
        return slots * chunk * 4

    def holds(self, slots: int, block: int) -> bool:
        """Whether the copies into a stage are not too large."""
        return slots <= MAX_SLOTS

    def turns(self, memory: Memory) -> float:
        """Warpgroups' tiles that the busiest block computes, as four of them side by side would."""
        cluster = cluster_of(self.split, memory.stream)
        items = self.kinds * -(-self.base_slots // (64 * memory.warpgroups * cluster // self.split))
        clusters = machine("sm_90").multiprocessors // cluster
        return -(-items // clusters) * memory.warpgroups * _FEWER[memory.warpgroups]

    def memories(self) -> dict[str, Memory]:
        """What fits, by label, best first: of those that bring data in alike, what leaves the busiest block least."""
        found: dict[str, Memory] = {}
        for (stream, together, rows, chunk), count, size, buffers in product(
            self.ways(), self.warpgroups, self.slices, (2, 1)
        ):
            depth, rings = round_up(self.depth, chunk), 1 if together else count
            if stream and rings > 3:
                continue  # the fourth of the producers' warps brings the weights
            if count == 2 and not any(m.way == (stream, together, rows, chunk) for m in found.values()):
                continue  # two are for more tiles, not for another way
            tiles = [len(residue.tiles(chunk)) for residue in self.residues]
            taps = sum(residue.rows * count for residue, count in zip(self.residues, tiles, strict=True))
            kept = RING * max(tiles) * chunk if stream else taps * depth
            slots = self.span(64 * count // rings, rows)
            item = depth // chunk * {"all": self.item_stages, "layer": self.layers, "one": self.rows}[rows]
            ahead = together and rows == "one" and not stream  # stages are small: some of the next tile's fit too
            wanted = 3 if stream or rings > 1 or rows == "layer" else 3 * item // 2 if ahead else item
            exchange = (self.split - 1) * 2 * 4 * 16 * self.phases[0] * self.phases[1] * 4
            free = SHARED_BYTES - BARRIER_BYTES - self.operand_bytes - kept * self.width * 4
            staged = max(buffers * size, self.columns) if self.beyond else buffers * size
            free -= count * (exchange + self.staging(staged) + self.operands_ahead(size))
            most = 2 * item if ahead else max(item + 2, _LEAST_STAGES) if rows == "layer" else max(wanted, 8)
            stages = min(free // (self.stage_bytes(slots, chunk) * rings), most)
            if stages >= wanted and self.holds(slots, 64 * count // rings):
                memory = Memory(count, stream, rings, chunk, slots, stages, size, buffers, rows)
                found.setdefault(memory.label, memory)
        ways = groupby(found.values(), lambda memory: (memory.stream, memory.rings == 1))
        best = [memory for _, alike in ways for memory in sorted(alike, key=self.turns)]
        return {memory.label: memory for memory in sorted(best, key=self.starves)}

    def starves(self, memory: Memory) -> bool:
        """Whether weights leave too little room for what is on its way beside them."""
        under_way = memory.stages * memory.rings * self.stage_bytes(memory.slots, memory.chunk)
        return memory.rings > 1 and not memory.stream and under_way < _UNDER_WAY
