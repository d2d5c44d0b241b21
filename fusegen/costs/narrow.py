"""Matrix products of few features, which memory bounds: how a warp is laid out, and the time.

The figures are those of ``templates/linear_narrow.cu.j2``, fitted to times measured on an H200.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusegen.machines import Machine

MOST_FEATURES = 32
_STEP = 128
"""Of k: a warp's lanes, four values each."""
_LEAST_FEATURES = 4
"""Up to these, a warp takes eight rows at a time: fewer features than lanes to a row would be padded."""
_PORTABLE_BYTES, _HOPPER_BYTES = 96 * 1024, 208 * 1024
"""Shared memory for the weights: on every device, and on sm_90."""
_FLOPS = 0.6
"""Share of the multiply-add rate that loads from shared memory leave."""
_JOIN = 0.7
"""Steps of products in the time of adding up the lanes."""
_START = 2.0e-6
"""Fetching the weights, and what follows the last product."""


@dataclass(frozen=True)
class Layout:
    """``rows`` of a warp at a time, against all features; ``resident`` blocks of ``warps`` on a multiprocessor."""

    rows: int
    warps: int
    resident: int
    width: int
    """Features, with padding."""
    shared_bytes: int

    @property
    def portable(self) -> bool:
        return self.shared_bytes <= _PORTABLE_BYTES


def layout(inputs: int, outputs: int) -> Layout | None:
    """How a product is laid out, or None when it does not fit."""
    if outputs > MOST_FEATURES:
        return None
    rows = 8 if outputs <= _LEAST_FEATURES else 4
    lanes = 32 // rows
    width = -(-outputs // lanes) * lanes
    shared = -(-inputs // _STEP) * _STEP * width * 4
    if shared > _HOPPER_BYTES:
        return None
    resident = 2 if rows * width <= 64 and shared <= _PORTABLE_BYTES else 1
    return Layout(rows=rows, warps=8, resident=resident, width=width, shared_bytes=shared)


def seconds(rows: int, inputs: int, outputs: int, machine: Machine) -> float | None:
    """Predicted time: X read once, or the products where those take longer; None when it does not fit."""
    if (found := layout(inputs, outputs)) is None:
        return None
    moved = 4 * (rows * inputs + rows * outputs + inputs * outputs) / machine.bandwidth
    steps = -(-inputs // _STEP)
    products = 2 * rows * _STEP * (steps + _JOIN) * found.width / (_FLOPS * machine.flops)
    busy = min(1.0, rows / (found.rows * found.warps * found.resident * machine.multiprocessors))
    return machine.launch + _START + max(moved, products) / busy
