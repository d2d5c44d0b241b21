"""Layers of recurrent networks: how a cluster shares the units of one, and the expected time.

The figures are those of ``templates/recurrence.cu.j2``.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log2

from fusegen import dims
from fusegen.ir import GATES, Cell, DType, Frozen, Graph, Node, RecurrentOp
from fusegen.machines import Machine
from fusegen.tuning import kernel_or_library

_WARP, _LANES = 32, 128
"""Threads of a warp, and of a multiprocessor's cycle."""
_MOST_THREADS = 512
_HELD = 72
"""Weights of a thread in registers, of 128."""
_SUMS = 16
"""Sums of a thread at a time."""
_MOST_SHARED = 232448
"""Bytes of shared memory of a block."""
_AT_ONCE = {1: 132, 2: 66, 4: 32, 8: 16, 16: 7}
"""Clusters of so many blocks that an H200 has room for at once."""
_CLOCK = 1.7e9
_STEP, _SHUFFLE, _BETWEEN = 900.0, 30.0, 50.0
"""Clocks of a step beside its products, of a shuffle, and of each doubling of the blocks that share a sample."""
_START = 8.0e-6
"""Of a kernel: the weights come on chip."""
_LIBRARY_STEP, _LIBRARY_FLOPS = 12.0e-6, 100e12
"""Of a step of a layer and direction by the library (three networks on an H200), and its products."""


class RecurrenceTile(Frozen):
    """``lanes`` threads share the sums of a unit; ``units`` of a block; ``blocks`` of a cluster, which has all units
    of its samples; ``samples`` at a time; ``held`` of the fours of terms that a thread has of each sum are weights in
    its registers, the others are in shared memory.
    """

    lanes: int
    units: int
    blocks: int
    samples: int
    held: int

    @property
    def threads(self) -> int:
        return self.lanes * self.units

    def fours(self, hidden: int) -> int:
        """Of terms, of each sum of a thread."""
        return ceil(hidden / (4 * self.lanes))

    def stored(self, cell: Cell, hidden: int) -> int:
        """Bytes of the weights in shared memory."""
        return (self.fours(hidden) - self.held) * GATES[cell] * 16 * self.threads

    def turn_bytes(self, cell: Cell, hidden: int) -> int:
        """Bytes of shared memory for each ``samples``: their states, twice, and an LSTM's cells."""
        states = 2 * self.samples * 4 * self.lanes * self.fours(hidden) * 4
        return states + (self.threads * 4 if cell == "lstm" else 0)

    def fits(self, cell: Cell, hidden: int) -> bool:
        return 16 + self.stored(cell, hidden) + self.turn_bytes(cell, hidden) <= _MOST_SHARED

    def seconds(self, cell: Cell, hidden: int, samples: int, steps: int, directions: int, machine: Machine) -> float:
        """Expected time of a layer."""
        at_once = max(1, _AT_ONCE[self.blocks] // directions)
        most = (_MOST_SHARED - 16 - self.stored(cell, hidden)) // self.turn_bytes(cell, hidden)
        turns = min(ceil(ceil(samples / at_once) / self.samples), most)
        waves = ceil(samples / (turns * self.samples) / at_once)
        fours, warps = self.fours(hidden), self.threads / _WARP
        products = self.samples * fours * 4 * GATES[cell] * self.threads / _LANES
        reads = self.samples * fours * warps * max(1, self.lanes // 8) + self.stored(cell, hidden) / 128
        clocks = turns * (products + 0.5 * reads) + _STEP + _BETWEEN * log2(self.blocks)
        clocks += _SHUFFLE * turns * log2(self.lanes)
        return machine.launch + waves * (_START + steps * clocks / _CLOCK)


def _tiles(cell: Cell, hidden: int, samples: int, directions: int) -> Iterator[RecurrenceTile]:
    """What there is room for."""
    gates = GATES[cell]
    for blocks, at_once in _AT_ONCE.items():
        units = ceil(hidden / blocks)
        rows = ceil(samples / max(1, at_once // directions))
        for lanes in (4, 8, 16, 32):
            own = ceil(units / (_WARP // lanes)) * (_WARP // lanes)  # whole warps
            side = 1
            while side < min(rows, lanes, _SUMS // gates):
                side *= 2
            fours = ceil(hidden / (4 * lanes))
            tile = RecurrenceTile(
                lanes=lanes, units=own, blocks=blocks, samples=side, held=min(fours, _HELD // (4 * gates))
            )
            if tile.threads <= _MOST_THREADS and tile.fits(cell, hidden):
                yield tile


def tiles(
    cell: Cell, hidden: int, samples: int, steps: int, directions: int, machine: Machine
) -> dict[str, RecurrenceTile]:
    """Tiles by blocks and lanes, the one expected to be the fastest first."""
    timed = [
        (tile.seconds(cell, hidden, samples, steps, directions, machine), tile)
        for tile in _tiles(cell, hidden, samples, directions)
    ]
    return {f"{tile.blocks}x{tile.lanes}": tile for _, tile in sorted(timed, key=lambda pair: pair[0])}


def refusal(graph: Graph, node: Node, machine: Machine) -> str | None:
    """Why the layers of ``node`` are left to torch, or None."""
    op = node.op
    assert isinstance(op, RecurrentOp)
    operands = [graph.node(name) for name in node.inputs]
    if any(operand.type.dtype is not DType.FLOAT32 for operand in operands):
        return "its kernel computes in float32"
    hidden = operands[1].type.shape[2]
    if not isinstance(hidden, int):
        return "its units are no constant"
    if not machine.wgmma:
        return "its kernel needs the clusters of sm_90"
    first, second = (dims.evaluate(size, graph.sizes) for size in operands[0].type.shape[:2])
    steps, samples = (second, first) if op.batch_first else (first, second)
    found = tiles(op.cell, hidden, max(1, samples), steps, op.directions, machine)
    if not found:
        return f"{hidden} units are more than a cluster has on chip"
    fastest = next(iter(found.values()))
    ours = op.layers * fastest.seconds(op.cell, hidden, max(1, samples), steps, op.directions, machine)
    products = 2 * samples * hidden**2 * GATES[op.cell] / _LIBRARY_FLOPS
    library = op.layers * op.directions * steps * (_LIBRARY_STEP + products)
    reason = f"layers in kernels are expected to take {ours * 1e6:.0f} us, the library {library * 1e6:.0f} us"
    return kernel_or_library(f"{node.name} layers", ours, library, reason)
