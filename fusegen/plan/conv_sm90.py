"""The shape of a tile of ``conv_sm90.cu.j2``, whose taps are shifts (``hopper.Taps``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from fusegen import dims
from fusegen.costs import hopper
from fusegen.costs.hopper import Taps
from fusegen.dims import Dim
from fusegen.ir import ConvOp
from fusegen.plan import conv_in_place
from fusegen.plan.conv_limits import BARRIER_BYTES, REGISTERS, SHARED_BYTES, Triple, round_up, triple
from fusegen.plan.details import (
    ABSENT_AXIS,
    ContractionAxis,
    HopperConvPlan,
    PositionResult,
    StatisticsPlan,
    TapResidue,
)
from fusegen.plan.rowprogram import RowProgram
from fusegen.spaces.convreduce import has_moments
from fusegen.tuning import choose

if TYPE_CHECKING:
    from fusegen.plan.conv_window import Pooling

MAX_COLUMNS = 128
MAX_WARPS = 16
"""Of consumers. Each has a value of every channel to take statistics about."""
RING = 4
"""Tap rows of streamed weights in shared memory."""
CHAIN = 9
"""Products one after the other into the same sum in full fp32."""
AVERAGED_CHAIN = 3
"""The same where results are averaged: what truncation takes from each does not average out."""
AHEAD = 2
"""Slices of results whose operands are on their way: 12 KB of three warpgroups, and twice as many were no faster."""
MAX_TAP_ROWS = 128
MAX_SLOTS = 1024


class Operands(NamedTuple):
    """Names of the node, of the tensors, and the number of samples over binding names."""

    node: str
    source: str
    weight: str
    batch: Dim


def _taps(axes: Sequence[ContractionAxis], transposed: bool, parts: Triple) -> list[Taps]:
    return [
        Taps(axis.kernel, axis.stride, axis.padding, axis.dilation, transposed, count)
        for axis, count in zip(axes, parts, strict=True)
    ]


def _residues(axes: list[Taps]) -> tuple[tuple[TapResidue, ...], tuple[tuple[int, int], ...]]:
    z, y, x = axes
    found: list[TapResidue] = []
    rows: list[tuple[int, int]] = []
    for at in product(z.shifts, y.shifts, x.shifts):
        own = list(product(z.shifts[at[0]], y.shifts[at[1]]))
        found.append(TapResidue(at=at, first_row=len(rows), rows=len(own), taps=x.shifts[at[2]]))
        rows += own
    return tuple(found), tuple(rows)


def _phases(axes: list[Taps], outputs: int, reduces: bool) -> tuple[tuple[int, int], tuple[Triple, ...]]:
    """Phases along y and x of a block, and the first phase of every kind of tile.

    Phases side by side in memory belong in one block: it then stores whole sectors. Along y that is
    worth no more than two blocks that share a row.
    """
    z, y, x = (axis.phases for axis in axes)
    in_x = hopper.in_block(x)
    in_y = y if y * in_x in (1, 2, 4) and not (reduces and outputs * y * in_x > 2 * MAX_COLUMNS) else 1
    kinds = product(range(z), range(0, y, in_y), range(0, x, in_x))
    return (in_y, in_x), tuple(kinds)


def _tile(outputs: int, most: int, whole_rows: bool) -> tuple[int, int, int] | str:
    """(channels of a block, ``most`` at a time; channel tiles; blocks that share a row)."""
    tiles = -(-outputs // most)
    if whole_rows:
        tiles = next((n for n in (1, 2, 4) if n >= tiles), 0)
        if tiles == 0:
            return f"a reduction over {outputs} channels spans more than four blocks"
    return round_up(-(-outputs // tiles), 8), tiles, tiles if whole_rows else 1


@dataclass(frozen=True)
class _Memory:
    """What a block keeps in shared memory."""

    warpgroups: int
    stream: bool
    rings: int
    chunk: int
    slots: int
    stages: int
    slice: int
    buffers: int
    all_rows: bool

    @property
    def label(self) -> str:
        """Names what the way through memory is, whatever fits besides."""
        rings = "one ring" if self.rings == 1 else "a ring each"
        stage = f"{self.chunk} channels of {'a residue' if self.all_rows else 'a tap row'}"
        streamed = ", weights streamed" if self.stream else ""
        return f"{self.warpgroups} warpgroups, {rings}, stages of {stage}{streamed}"


@dataclass(frozen=True)
class Geometry:
    """What the choice of ``_Memory`` depends on."""

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
    streamed: int = field(default=0, kw_only=True)
    """Operands that are copied ahead, as results are stored."""

    def span(self, block: int, one_row: bool) -> int:
        """Slots of a stage that holds the tap rows of a residue, or one of them."""
        found = 0
        for residue in self.residues:
            own = self.tap_rows[residue.first_row :][: residue.rows]
            shifts = [(z * self.pitches[1] + y) * self.pitches[2] for z, y in own]
            found = max(found, block + residue.taps[-1] + (0 if one_row else max(shifts) - min(shifts)))
        return found

    def staging(self, channels: int) -> int:
        """Bytes through which a warpgroup stores results of so many channels."""
        in_y, in_x = self.phases
        row = 64 * in_x + (0 if in_y == 1 else 16 if in_x == 2 else 8)
        pitch = {4: in_y * row, 2: in_y * row | 8, 1: 68}[in_y * in_x]
        return channels * pitch * 4

    def operands_ahead(self, channels: int) -> int:
        """Bytes of operands that are on their way for a warpgroup, where it stores so many channels at a time."""
        return AHEAD * self.streamed * channels * 64 * self.phases[0] * self.phases[1] * 4

    def ways(self) -> Iterator[tuple[bool, bool, bool, int]]:
        """(weights streamed, one ring for all warpgroups, one tap row in a stage, channels of a stage), best first.

        With a ring for all and a whole item in it, warpgroups multiply in turns; with rings of their own
        they drift apart by themselves: either way epilogues overlap products. Streamed weights keep
        them in step.
        """
        taps = sum(residue.rows * len(residue.taps) for residue in self.residues)
        chunks = self.chunks((32, 16, 8) if taps < 3 else (16, 8))
        by_row = self.span(64, False) * len(self.residues) > 2 * 64 * self.rows  # less to load than all rows at once
        yield from ((False, True, False, chunk) for chunk in chunks)
        if self.precise and by_row:
            yield from ((False, True, True, chunk) for chunk in chunks)
        yield from ((False, False, row, chunk) for row in ((True,) if by_row else (False, True)) for chunk in chunks)
        yield from ((True, True, row, chunk) for chunk in chunks for row in (False, True))

    @property
    def rows(self) -> int:
        return sum(residue.rows for residue in self.residues)

    def chunks(self, sizes: tuple[int, ...]) -> list[int]:
        """Channels that a stage may hold, least padding first. Taps go in pairs where four are enough."""
        if self.precise and self.depth <= 4 and all(len(residue.taps) > 1 for residue in self.residues):
            return [4]
        return sorted(sizes, key=lambda size: (round_up(self.depth, size), -size))

    @property
    def warpgroups(self) -> tuple[int, ...]:
        """A fourth one hides more latency, where its accumulators leave registers for the epilogue."""
        return (4, 3) if self.width <= 96 else (3,)

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

    def memories(self) -> dict[str, _Memory]:
        """What fits, by label, best first."""
        found: dict[str, _Memory] = {}
        for (stream, together, one_row, chunk), count, size, buffers in product(
            self.ways(), self.warpgroups, self.slices, (2, 1)
        ):
            depth, rings = round_up(self.depth, chunk), 1 if together else count
            if stream and rings > 3:
                continue  # the fourth of the producers' warps brings the weights
            tiles = [len(residue.tiles(chunk)) for residue in self.residues]
            taps = sum(residue.rows * count for residue, count in zip(self.residues, tiles, strict=True))
            kept = RING * max(tiles) * chunk if stream else taps * depth
            slots = self.span(64 * count // rings, one_row)
            item = depth // chunk * (self.rows if one_row else self.item_stages)
            ahead = together and one_row and not stream  # stages are small: some of the next tile's fit too
            wanted = 3 if stream or rings > 1 else 3 * item // 2 if ahead else item
            exchange = (self.split - 1) * 2 * 4 * 16 * self.phases[0] * self.phases[1] * 4
            free = SHARED_BYTES - BARRIER_BYTES - self.operand_bytes - kept * self.width * 4
            free -= count * (exchange + buffers * self.staging(size) + self.operands_ahead(size))
            most = 2 * item if ahead else max(wanted, 8)
            stages = min(free // (self.stage_bytes(slots, chunk) * rings), most)
            if stages >= wanted and self.holds(slots, 64 * count // rings):
                memory = _Memory(count, stream, rings, chunk, slots, stages, size, buffers, not one_row)
                found.setdefault(memory.label, memory)
        return found


def plan(
    conv: ConvOp,
    axes: tuple[ContractionAxis, ...],
    traced: tuple[tuple[int, int], ...],
    channels: tuple[int, int],
    reduces: bool,
    lower: Callable[[bool], RowProgram],
    operands: Operands,
    precise: bool,
    pooling: Pooling | None = None,
    statistics: StatisticsPlan | None = None,
    reduced: tuple[PositionResult, ...] = (),
    in_place: bool = False,
    streamed: int = 0,
) -> HopperConvPlan | str:
    """The plan, or why there is none.

    ``traced``: (input, output) lengths at the traced sizes, by axis; ``channels``: in and out;
    ``reduces``: the epilogue reduces over the channels; ``lower(split)`` makes its program; ``reduced``:
    what is stored in place of its results; ``in_place``: a second kernel reads its input as it lies, where it can;
    ``streamed``: operands with an element for every result, for a program that runs in the order of the stores.
    """
    if pooling and statistics:
        return "statistics are of results that are stored, and pooled ones are not"
    whole = [*[ABSENT_AXIS] * (3 - len(axes)), *axes]
    parts = pooling.windows.parts if pooling else (1, 1, 1)
    taps = _taps(whole, conv.transposed, parts)
    residues, tap_rows = _residues(taps)
    if len(tap_rows) > MAX_TAP_ROWS:
        return f"{len(tap_rows)} tap rows are too many for its tables"
    if reason := hopper.refusal(conv, channels, precise):
        return reason
    inputs, outputs = (count // conv.groups for count in channels)
    phases, outer_phases = _phases(taps, outputs, reduces)
    # Running results of all of a thread's values need half of its registers.
    share = 2 if pooling and parts != (1, 1, 1) and pooling.windows.within[0] == 1 else phases[0] * phases[1]
    halves = 2 if precise else 1
    tile = _tile(outputs, MAX_COLUMNS // share // halves, reduces)
    if isinstance(tile, str):
        return tile
    block, tiles, split = tile
    rows = lower(split > 1)
    loaded = [*rows.operands, *(pooling.before.operands if pooling else ())]
    lengths = [*[(1, 1)] * (3 - len(axes)), *traced]
    bases = [(size, output // count) for (size, output), count in zip(lengths, parts, strict=True)]
    geometry = Geometry(
        residues,
        tap_rows,
        tuple(axis.pitch(*own) for axis, own in zip(taps, bases, strict=True)),
        phases,
        inputs,
        phases[0] * phases[1] * block,
        phases[0] * phases[1] * block * halves,
        split,
        (len({operand.name for operand in loaded if operand.index == "l"}) + precise) * (channels[1] + block + 4) * 4
        + (MAX_WARPS * block * 4 if statistics or has_moments(result.fn for result in reduced) else 0),
        precise,
        streamed=streamed,
    )
    patches = pooling.geometry(geometry, (bases[1][1], bases[2][1])) if pooling else None
    memories = (patches or geometry).memories()
    if not memories:
        return "its taps do not fit in shared memory"
    memory = choose(f"{operands.node} tile", memories)
    consumer, producer = REGISTERS[memory.warpgroups]
    block_slots = 64 * memory.warpgroups // memory.rings
    prepared = HopperConvPlan(
        precise=precise,
        transposed=conv.transposed,
        source=operands.source,
        weight=operands.weight,
        batch=operands.batch,
        groups=conv.groups,
        inputs=inputs,
        outputs=outputs,
        kernel=triple([axis.kernel for axis in whole]),
        stride=triple([axis.step for axis in taps]),
        padding=triple([axis.padding for axis in whole]),
        dilation=triple([axis.dilation for axis in whole]),
        reach=triple([axis.reach for axis in taps]),
        lead=triple([axis.lead for axis in taps]),
        in_step=triple([axis.in_step for axis in taps]),
        in_origin=triple([axis.in_origin for axis in taps]),
        out_step=triple([axis.out_step for axis in taps]),
        out_origin=triple([axis.out_origin for axis in taps]),
        residues=residues,
        tap_rows=tap_rows,
        phases=phases,
        outer_phases=outer_phases,
        idle_taps=any(axis.idle for axis in taps),
        sizes=(
            _sizes([axis.size for axis in whole]),
            _sizes([dims.floordiv(axis.output, count) for axis, count in zip(whole, parts, strict=True)]),
        ),
        channels=block,
        split=split,
        channel_tiles=tiles,
        cluster=split if split > 1 else 2 if memory.stream else 1,
        warpgroups=memory.warpgroups,
        chunk=memory.chunk,
        rings=memory.rings,
        stages=memory.stages,
        buffers=memory.buffers,
        slice=memory.slice,
        ahead=AHEAD if streamed else 0,
        all_rows=patches.item_stages == len(residues) if patches else memory.all_rows,
        slots=memory.slots,
        stream=memory.stream,
        ring=RING if memory.stream else 0,
        chain=AVERAGED_CHAIN if reduced else CHAIN,
        consumer_registers=consumer,
        producer_registers=producer,
        window=pooling.plan(patches, taps, block_slots) if pooling and patches else None,
        rows=rows,
        statistics=statistics,
        reduced=reduced,
    )
    if not in_place:
        return prepared
    positions = triple([axis.bases(output) for axis, (_, output) in zip(taps, lengths, strict=True)])
    storing = conv_in_place.Storing(geometry.staging(memory.slice), geometry.operands_ahead(memory.slice))
    found = conv_in_place.alternative(prepared, taps, positions, geometry.operand_bytes, storing)
    return prepared if isinstance(found, str) else prepared.replace(alternative=found)


def _sizes(sizes: list[Dim]) -> tuple[Dim, Dim, Dim]:
    z, y, x = sizes
    return z, y, x
