"""Convolutions of ``conv_sm90.cu.j2`` that read their input as it lies: their tiles, and products from registers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import NamedTuple

from fusegen.costs.hopper import (
    LEAST_RING,
    PATCH,
    SHARED_BYTES,
    in_place_box,
    in_place_patch,
    in_place_refusal,
    lane_vector,
    unit_taps,
)
from fusegen.costs.hopper_taps import Taps
from fusegen.machines import SECTOR
from fusegen.plan.conv_limits import BARRIER_BYTES, REGISTERS, Triple, cluster_of, round_up
from fusegen.plan.details import HopperConvPlan, InPlacePlan, Product, ProductGroup

_BATCH = 4
"""Products whose operands are in registers at a time, at most."""
_PAIR, _PATCH_PAIR = 32, 8
"""Base slots between the two of a lane; in a patch whose results are pooled."""
_MAX_STAGES = 8
_ENOUGH, _FEWER = ((3, 3),), ((2, 3), (3, 2), (2, 2))
"""Stages, at least, and warpgroups; those where boxes of every other element are so large that no more fit."""
_MAX_RING = 24
"""Units of weights in shared memory, at most."""
_MAX_BOX = 256


def _groups(
    taps: list[Triple], unit: int, chunk: int, axes: list[Taps], tile: Triple, box: Triple, between: int
) -> Iterator[tuple[ProductGroup, ...]]:
    """For every weight slot of a chunk its products, in batches that share what they load."""
    vector, skew = lane_vector(axes), axes[-1].in_origin % 4

    def offset(z: int, y: int, x: int) -> int:
        return (z * box[1] + y) * box[2] + x

    slots = between // (tile[1] * tile[2]), between // tile[2] % tile[1], between % tile[2]
    pair = offset(*(at * axis.in_step for at, axis in zip(slots, axes, strict=True)))
    for first in range(0, len(taps), unit):
        steps = list(product(range(0, chunk // 4, 2), range(first, first + unit)))
        size = next((n for n in (4, 3, 2) if len(steps) % n == 0), _BATCH)
        groups = []
        for at in range(0, len(steps), size):
            loads: dict[int, int] = {}
            products = []
            for quad, tap in steps[at : at + size]:
                own = offset(*taps[tap]) + skew
                read = [own + i * pair + (quad + h) * 4 * prod(box) for h in (0, 1) for i in (0, 1)]
                vectors = ((loads.setdefault(place - place % vector, len(loads)), place % vector) for place in read)
                a, b, c, d = (load * vector + element for load, element in vectors)
                products.append(Product(loads=(a, b, c, d), tap=tap - first, quad=quad))
            groups.append(ProductGroup(loads=tuple(loads), products=tuple(products)))
        yield tuple(groups)


def _alone(prepared: HopperConvPlan, down: Taps, width: int) -> bool:
    """Whether a warpgroup's positions are better in one row, though taps below each other then share no loads.

    Of rows that are no whole sectors, both ends of a run share one with the next run. L2 reads it from memory where the
    other half comes later, as that of another warpgroup does: with two runs of 32 a kernel took 1.34 times as long.
    """
    stored = not prepared.reduced and any(store.per_element for store in prepared.rows.stores)
    return (stored and width % SECTOR > 0) or down.offsets[-1] < down.in_step  # what no other row reads


class Storing(NamedTuple):
    """Bytes of a warpgroup that stores its results."""

    staging: int
    """Of a slice, on its way out."""
    ahead: int
    """Of operands of the next slices, on their way in."""


def alternative(
    prepared: HopperConvPlan, axes: list[Taps], bases: Triple, operand_bytes: int, storing: Storing
) -> HopperConvPlan | str:
    """``prepared`` without its preparation of the input, or why there is no such kernel.

    ``bases``: base positions along each axis at the traced sizes.
    """
    if reason := in_place_refusal(axes, prepared.precise):
        return reason
    window = prepared.window
    if window and (window.patch != PATCH or len(window.parts) > 1):
        return "windows that are no part of 8 by 8 results are read from a grid"
    if not window and _alone(prepared, axes[1], bases[2]):
        found = _of_patch(prepared, axes, in_place_patch(bases[1], bases[2], True), operand_bytes, storing)
        if not isinstance(found, str):
            return found
    patch = window.patch if window else in_place_patch(bases[1], bases[2])
    return _of_patch(prepared, axes, patch, operand_bytes, storing)


def _of_patch(
    prepared: HopperConvPlan, axes: list[Taps], patch: tuple[int, int], operand_bytes: int, storing: Storing
) -> HopperConvPlan | str:
    """As ``alternative``, where a warpgroup computes ``patch``."""
    window, tile = prepared.window, (1, *patch)
    box = in_place_box(tile, axes)
    if max(box) > _MAX_BOX:
        return f"what a tile reads of a channel, {box}, is too large for a tensor copy"
    z, y, x = (axis.offsets for axis in axes)
    vector = lane_vector(axes)
    beside, below = product(z, y, x), ((at_z, at_y, at_x) for at_z in z for at_x in x for at_y in y)
    taps = list(beside if vector > 1 else below)  # those that share loads
    sizes = (8,) if len(taps) > 2 else (32, 16, 8)
    chunks = sorted(sizes, key=lambda size: (round_up(prepared.inputs, size), -size))
    exchange = (prepared.split - 1) * 2 * 4 * 16 * prepared.phases[0] * prepared.phases[1] * 4
    ways = list(product((2, 1), (False, True)))
    if storing.ahead:  # makes room for itself: weights stay resident where they are without it
        ways.sort(key=lambda way: way[1])
    else:
        del chunks[1:]
    strided = any(axis.in_step > 1 for axis in axes)
    for (least, warpgroups), chunk, (buffers, stream) in product(
        _ENOUGH + _FEWER if strided else _ENOUGH, chunks, ways
    ):
        stage = round_up(chunk * prod(box) * 4, 128) * warpgroups
        resident = len(taps) * round_up(prepared.inputs, chunk) * prepared.columns * 4
        unit = unit_taps(len(taps), prepared.columns, chunk)
        unit_bytes = unit * chunk * prepared.columns * 4
        own = exchange + buffers * storing.staging + storing.ahead
        free = SHARED_BYTES - BARRIER_BYTES - operand_bytes - warpgroups * own
        stages = min(
            (free - (LEAST_RING * unit_bytes if stream else resident)) // stage, least if stream else _MAX_STAGES
        )
        if stages >= least:
            break
    else:
        return "its taps do not fit in shared memory"
    ring = min((free - stages * stage) // unit_bytes, _MAX_RING) if stream else 0
    in_place = InPlacePlan(
        tile=tile,
        box=box,
        taps=tuple(taps),
        unit_taps=unit if stream else len(taps),
        units=tuple(
            _groups(taps, unit if stream else len(taps), chunk, axes, tile, box, _PATCH_PAIR if window else _PAIR)
        ),
        vector=vector,
    )
    consumer, producer = REGISTERS[warpgroups]
    return prepared.replace(
        in_place=in_place,
        abreast=1,
        cluster=cluster_of(prepared.split, stream),
        warpgroups=warpgroups,
        chunk=chunk,
        rings=warpgroups,
        stages=stages,
        buffers=buffers,
        stream=stream,
        ring=ring,
        consumer_registers=consumer,
        producer_registers=producer,
    )
