"""Convolutions of ``conv_sm90.cu.j2`` that read their input as it lies: their tiles, and products from registers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import NamedTuple

from fusegen.costs.hopper import PATCH, Taps, in_place_box, in_place_patch, in_place_refusal
from fusegen.plan.conv_limits import BARRIER_BYTES, REGISTERS, SHARED_BYTES, Triple, cluster_of, round_up
from fusegen.plan.details import HopperConvPlan, InPlacePlan, Product, ProductGroup

_BATCH = 4
"""Products whose operands are in registers at a time, at most."""
_PAIR, _PATCH_PAIR = 32, 8
"""Base slots between the two of a lane; in a patch whose results are pooled."""
_WARPGROUPS = 3
_UNIT_BYTES = 16 * 1024
"""Of streamed weights that arrive together, about."""
_STAGES = 3
_MAX_STAGES = 8
_RING = (8, 24)
"""Units of weights in shared memory, at least and at most."""
_MAX_BOX = 256


def _groups(
    taps: list[Triple], unit: int, chunk: int, tile: Triple, box: Triple, between: int
) -> Iterator[tuple[ProductGroup, ...]]:
    """For every weight slot of a chunk its products, in batches that share what they load."""

    def offset(z: int, y: int, x: int) -> int:
        return (z * box[1] + y) * box[2] + x

    pair = offset(between // (tile[1] * tile[2]), between // tile[2] % tile[1], between % tile[2])
    for first in range(0, len(taps), unit):
        steps = list(product(range(0, chunk // 4, 2), range(first, first + unit)))
        size = next((n for n in (4, 3, 2) if len(steps) % n == 0), _BATCH)
        groups = []
        for at in range(0, len(steps), size):
            loads: dict[int, int] = {}
            products = []
            for quad, tap in steps[at : at + size]:
                own = offset(*taps[tap])
                read = [own + i * pair + (quad + h) * 4 * prod(box) for h in (0, 1) for i in (0, 1)]
                a, b, c, d = (loads.setdefault(place, len(loads)) for place in read)
                products.append(Product(loads=(a, b, c, d), tap=tap - first, quad=quad))
            groups.append(ProductGroup(loads=tuple(loads), products=tuple(products)))
        yield tuple(groups)


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
    tile = 1, *(window.patch if window else in_place_patch(bases[1], bases[2]))
    box = in_place_box(tile, axes)
    if max(box) > _MAX_BOX:
        return f"what a tile reads of a channel, {box}, is too large for a tensor copy"
    z, y, x = (axis.shifts[0] for axis in axes)
    taps = [(at_z, at_y, at_x) for at_z in z for at_x in x for at_y in y]  # those below each other share loads
    sizes = (8,) if len(taps) > 2 else (32, 16, 8)
    chunks = sorted(sizes, key=lambda size: (round_up(prepared.inputs, size), -size))
    exchange = (prepared.split - 1) * 2 * 4 * 16 * prepared.phases[0] * prepared.phases[1] * 4
    ways = list(product((2, 1), (False, True)))
    if storing.ahead:  # makes room for itself: weights stay resident where they are without it
        ways.sort(key=lambda way: way[1])
    else:
        del chunks[1:]
    for chunk, (buffers, stream) in product(chunks, ways):
        stage = round_up(chunk * prod(box) * 4, 128) * _WARPGROUPS
        resident = len(taps) * round_up(prepared.inputs, chunk) * prepared.columns * 4
        fitting = [
            n for n in range(1, len(taps) + 1) if len(taps) % n == 0 and n * chunk * prepared.columns * 4 <= _UNIT_BYTES
        ]
        unit = max(fitting, default=1)
        unit_bytes = unit * chunk * prepared.columns * 4
        own = exchange + buffers * storing.staging + storing.ahead
        free = SHARED_BYTES - BARRIER_BYTES - operand_bytes - _WARPGROUPS * own
        stages = min(
            (free - (_RING[0] * unit_bytes if stream else resident)) // stage, _STAGES if stream else _MAX_STAGES
        )
        if stages >= _STAGES:
            break
    else:
        return "its taps do not fit in shared memory"
    ring = min((free - stages * stage) // unit_bytes, _RING[1]) if stream else 0
    in_place = InPlacePlan(
        tile=tile,
        box=box,
        taps=tuple(taps),
        unit_taps=unit if stream else len(taps),
        units=tuple(_groups(taps, unit if stream else len(taps), chunk, tile, box, _PATCH_PAIR if window else _PAIR)),
    )
    consumer, producer = REGISTERS[_WARPGROUPS]
    return prepared.replace(
        in_place=in_place,
        cluster=cluster_of(prepared.split, stream),
        warpgroups=_WARPGROUPS,
        chunk=chunk,
        rings=_WARPGROUPS,
        stages=stages,
        buffers=buffers,
        stream=stream,
        ring=ring,
        consumer_registers=consumer,
        producer_registers=producer,
    )
