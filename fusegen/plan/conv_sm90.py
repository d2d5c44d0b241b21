"""The shape of a tile of ``conv_sm90.cu.j2``, whose taps are shifts (``hopper_taps.Taps``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from fusegen import dims
from fusegen.costs import hopper
from fusegen.costs.hopper_taps import Taps
from fusegen.dims import Dim
from fusegen.ir import ConvOp
from fusegen.machines import machine
from fusegen.plan import conv_in_place
from fusegen.plan.conv_limits import REGISTERS, Triple, cluster_of, round_up, triple
from fusegen.plan.conv_memory import AHEAD, RING, Geometry
from fusegen.plan.conv_window import Pooling
from fusegen.plan.details import (
    ABSENT_AXIS,
    ContractionAxis,
    HopperConvPlan,
    PositionResult,
    StatisticsPlan,
    TapResidue,
)
from fusegen.plan.rowprogram import RowProgram
from fusegen.spaces.convreduce import folds, has_exponentials, has_moments
from fusegen.tuning import choose

MAX_COLUMNS = 128
MAX_WARPS = 16
"""Of consumers. Each has a value of every channel to take statistics about."""
CHAIN = 9
"""Products one after the other into the same sum in full fp32."""
AVERAGED_CHAIN = 3
"""The same where results are averaged: what truncation takes from each does not average out."""
MAX_TAP_ROWS = 128


class Operands(NamedTuple):
    """Names of the node and of the tensors, and the number of samples: over binding names, and as traced."""

    node: str
    source: str
    weight: str
    batch: Dim
    samples: int


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
    in_halves: bool = False,
) -> HopperConvPlan | str:
    """The plan, or why there is none.

    ``traced``: (input, output) lengths at the traced sizes, by axis; ``channels``: in and out;
    ``reduces``: the epilogue reduces over the channels; ``lower(split)`` makes its program; ``reduced``:
    what is stored in place of its results; ``in_place``: a second kernel reads its input as it lies, where it can;
    ``in_halves``: in fp16, where TF32 is permitted; ``streamed``: operands with an element for every result, for a
    program that runs in the order of the stores.
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
    words = -(-inputs // 2) if in_halves else inputs
    abreast = 1 if precise or in_halves or pooling or streamed else hopper.abreast(taps, inputs, outputs)
    if abreast > 1:
        residues = tuple(residue.replace(taps=(0,)) for residue in residues)
    phases, outer_phases = _phases(taps, outputs, reduces)
    # Running results of all of a thread's values need half of its registers.
    share = 2 if pooling and parts != (1, 1, 1) and pooling.windows.within[0] == 1 else phases[0] * phases[1]
    halves = 2 if precise else 1
    lengths = [*[(1, 1)] * (3 - len(axes)), *traced]
    bases = [(size, output // count) for (size, output), count in zip(lengths, parts, strict=True)]
    pitches = tuple(axis.pitch(*own) for axis, own in zip(taps, bases, strict=True))
    plain = not (precise or reduces or pooling or statistics or reduced) and outputs > hopper.LEAST_WIDE
    plain = plain and all(axis.phases == 1 for axis in taps)
    most = MAX_COLUMNS
    if plain and not in_place:  # narrower blocks, where there are few
        slots = operands.samples * prod(pitches)
        _, most, _ = hopper.block_shape(slots, round_up(outputs, 8), conv.groups, machine("sm_90"))
    # With all channels of two positions and what is read for each, registers do not do (127 channels to 127, 1x1,
    # blended with the input behind a norm over them: 465 us, 213 with half as many).
    rows = lower(False)
    crowded = reduces and any(operand.per_element and operand.index != "l" for operand in rows.operands)
    tile = _tile(outputs, most // share // halves, reduces)
    if crowded and not isinstance(narrow := _tile(outputs, most // 2 // share, reduces), str):
        tile = narrow
    if isinstance(tile, str):
        return tile
    block, tiles, split = tile
    if split > 1:
        rows = lower(True)
    functions = [result.fn for result in reduced]
    # A warp has a value of every channel that its lanes share.
    by_channel = (statistics and statistics.squares) or has_moments(functions) or has_exponentials(functions)
    averaged = (precise and conv.averaged) or (reduced and (not folds(functions) or "sum" in folds(functions)))
    loaded = [*rows.operands, *(pooling.before.operands if pooling else ())]
    geometry = Geometry(
        residues,
        tap_rows,
        pitches,
        phases,
        words,
        phases[0] * phases[1] * block,
        phases[0] * phases[1] * block * halves * abreast,
        split,
        (len({operand.name for operand in loaded if operand.index == "l"}) + (precise or in_halves))
        * (channels[1] + block + 4)
        * 4
        + (MAX_WARPS * block * 4 if by_channel else 0),
        precise,
        samples=operands.samples,
        kinds=conv.groups * tiles // split * len(outer_phases),
        plain=plain,
        streamed=streamed,
        beyond=taps[-1].reach if abreast > 1 else 0,
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
        in_halves=in_halves,
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
        cluster=cluster_of(split, memory.stream),
        warpgroups=memory.warpgroups,
        chunk=memory.chunk,
        rings=memory.rings,
        stages=memory.stages,
        buffers=memory.buffers,
        slice=memory.slice,
        ahead=AHEAD if streamed else 0,
        all_rows=patches.item_stages == len(residues) if patches else memory.rows == "all",
        slots=memory.slots,
        abreast=abreast,
        stream=memory.stream,
        ring=RING if memory.stream else 0,
        chain=AVERAGED_CHAIN if averaged else CHAIN,
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
    storing = conv_in_place.Storing((patches or geometry).staging(memory.slice), geometry.operands_ahead(memory.slice))
    found = conv_in_place.alternative(prepared, taps, positions, geometry.operand_bytes, storing)
    return prepared if isinstance(found, str) else prepared.replace(alternative=found)


def _sizes(sizes: list[Dim]) -> tuple[Dim, Dim, Dim]:
    z, y, x = sizes
    return z, y, x
