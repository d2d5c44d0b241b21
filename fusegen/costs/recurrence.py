"""Layers of recurrent networks: how a cluster shares the units of one, and the expected time.

The figures are those of ``templates/recurrence.cu.j2``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import ceil, log2

from fusegen import dims
from fusegen.ir import GATES, Cell, DType, Frozen, Graph, Node, RecurrenceOp, RecurrentOp
from fusegen.machines import Machine
from fusegen.tuning import kernel_or_library

_WARP, _PARTS = 32, 4
"""Threads of a warp; warps that a multiprocessor serves at a time."""
_MOST_THREADS = 512
_REGISTERS, _OTHERS = 65536, 52
"""Of a block that has a multiprocessor to itself, and those of a thread for neither weights nor sums."""
_MOST_SUMS = 32
"""Of a thread at a time."""
_MOST_SHARED = 232448
"""Bytes of shared memory of a block."""
_AT_ONCE = {1: 132, 2: 66, 4: 30, 8: 15, 16: 7}
"""Clusters of so many blocks that an H200 has room for at once."""
_MOST_RESIDENT = 2
"""Blocks that are counted on to share a multiprocessor."""
_CLOCK = 1.755e9
_STEP, _FUNCTIONS, _TOGETHER, _DOUBLED, _TURN = 175.0, 115.0, 215.0, 90.0, 500.0
"""Clocks of a step beside its products (43 tiles of six networks on an H200); those of gates; of a cluster, and of each
doubling of its blocks; of each further turn."""
_SHUFFLE, _HIDDEN, _FEW = 5.2, 0.58, 1.75
"""Clocks of a shuffle of a warp; share of the lesser of products and reads that shows; warps as few as wait."""
_READ = 4
"""Clocks that shared memory takes for 16 bytes of a warp's threads, whether they are the same or not."""
_START = 9.0e-6
"""Of a kernel: the weights come on chip."""
_LIBRARY_START = 20.0e-6
_PERSISTENT = {"lstm": 192, "gru": 192, "rnn_tanh": 384, "rnn_relu": 384}
"""Units up to which torch asks the library for a kernel of all steps (aten/src/ATen/native/cudnn/RNN.cpp)."""
_PERSISTENT_STEP, _PERSISTENT_PRODUCT = 0.5e-6, 0.25e-12
_LIBRARY_STEP, _LIBRARY_PRODUCT = 8.0e-6, 0.02e-12
"""Of a step and direction by such a kernel, and of its products; without one (four and five networks on an H200, which
took up to twice as long)."""


class RecurrenceTile(Frozen):
    """``lanes`` threads share the sums of ``own`` units, of ``units`` of a block, of ``blocks`` of a cluster, which has
    all units of its samples; ``samples`` at a time; ``held`` of the fours of terms that a thread has of each sum are
    weights in its registers, the others are in shared memory.
    """

    lanes: int
    own: int
    units: int
    blocks: int
    samples: int
    held: int

    @property
    def threads(self) -> int:
        return self.units // self.own * self.lanes

    def fours(self, hidden: int) -> int:
        """Of terms, of each sum of a thread."""
        return ceil(hidden / (4 * self.lanes))

    def _stored(self, cell: Cell, hidden: int) -> int:
        """Fours of weights of a thread in shared memory."""
        return (self.fours(hidden) - self.held) * self.own * GATES[cell]

    def _fixed_bytes(self, cell: Cell, hidden: int) -> int:
        """Shared memory for barriers and weights."""
        return 16 + 16 * self._stored(cell, hidden) * self.threads

    def _turn_bytes(self, cell: Cell, hidden: int) -> int:
        """Shared memory for each ``samples``: their states, twice, and an LSTM's cells."""
        states = 2 * self.samples * 4 * self.lanes * self.fours(hidden) * 4
        return states + (self.threads * 4 if cell == "lstm" else 0)

    def turns(self, cell: Cell, hidden: int) -> int:
        """Times ``samples`` that a cluster has room for."""
        return (_MOST_SHARED - self._fixed_bytes(cell, hidden)) // self._turn_bytes(cell, hidden)

    def _resident(self, cell: Cell, hidden: int) -> int:
        """Blocks that share a multiprocessor, with one turn each."""
        registers = self.threads * (_OTHERS + self.own * GATES[cell] * (4 * self.held + self.samples))
        shared = self._fixed_bytes(cell, hidden) + self._turn_bytes(cell, hidden)
        return max(1, min(_REGISTERS // registers, _MOST_SHARED // shared, _MOST_RESIDENT))

    def seconds(self, cell: Cell, hidden: int, samples: int, steps: int, directions: int, machine: Machine) -> float:
        """Expected time of a layer."""
        at_once = max(1, _AT_ONCE[self.blocks] * self._resident(cell, hidden) // directions)
        turns = min(ceil(ceil(samples / at_once) / self.samples), self.turns(cell, hidden))
        clusters = ceil(samples / (turns * self.samples))
        beside = ceil(min(clusters, at_once) * directions / _AT_ONCE[self.blocks])  # blocks of a multiprocessor
        fours, warps, rows = self.fours(hidden), ceil(self.threads / _WARP), self.own * GATES[cell]
        served = max(warps / _PARTS, _FEW)
        products = beside * self.samples * fours * 4 * rows * served
        reads = beside * _READ * warps * (fours * self.samples + self._stored(cell, hidden))
        shuffles = GATES[cell] * (self.own * self.samples + log2(self.lanes))
        clocks = turns * (max(products, reads) + _HIDDEN * min(products, reads))
        clocks += turns * beside * _SHUFFLE * served * shuffles + (turns - 1) * _TURN
        clocks += _STEP + (_FUNCTIONS if GATES[cell] > 1 else 0.0)
        clocks += _TOGETHER + _DOUBLED * log2(self.blocks) if self.blocks > 1 else 0.0
        return machine.launch + ceil(clusters / at_once) * (_START + steps * clocks / _CLOCK)


def _tiles(cell: Cell, hidden: int, samples: int, directions: int) -> Iterator[RecurrenceTile]:
    """What there is room for."""
    gates = GATES[cell]
    for blocks, at_once in _AT_ONCE.items():
        rows = ceil(samples / max(1, at_once // directions))
        for lanes, own in product((4, 8, 16, 32), (1, 2, 4)):
            side = 1
            while side < min(rows, lanes // own, _MOST_SUMS // (own * gates)):
                side *= 2
            units = ceil(hidden / blocks / (own * _WARP // lanes)) * (own * _WARP // lanes)  # whole warps
            threads = units // own * lanes
            registers = min(255, _REGISTERS // threads) - _OTHERS - own * gates * side
            held = min(ceil(hidden / (4 * lanes)), registers // (4 * own * gates))
            tile = RecurrenceTile(lanes=lanes, own=own, units=units, blocks=blocks, samples=side, held=held)
            idle = (blocks - 1) * units >= hidden  # a block without units
            fits = threads <= _MOST_THREADS and held > 0 and tile.turns(cell, hidden) > 0
            if fits and not idle and own * side <= lanes:
                yield tile


def tiles(
    cell: Cell, hidden: int, samples: int, steps: int, directions: int, machine: Machine
) -> dict[str, RecurrenceTile]:
    """Tiles by blocks, lanes and units of a thread, the one expected to be the fastest first."""
    timed = [
        (tile.seconds(cell, hidden, samples, steps, directions, machine), tile)
        for tile in _tiles(cell, hidden, samples, directions)
    ]
    return {f"{tile.blocks}x{tile.lanes}x{tile.own}": tile for _, tile in sorted(timed, key=lambda pair: pair[0])}


def seconds(body: Graph, tile: RecurrenceTile, machine: Machine) -> float:
    """Expected time of a layer, the region ``body``, in tiles of this shape."""
    op, hidden, samples, steps = traced(body)
    return tile.seconds(op.cell, hidden, samples, steps, op.directions, machine)


def traced(body: Graph) -> tuple[RecurrenceOp, int, int, int]:
    """The layer of a region, its units, and its samples and steps at the traced sizes."""
    node = next(node for node in body.nodes if isinstance(node.op, RecurrenceOp))
    assert isinstance(node.op, RecurrenceOp)
    x, weight, _ = node.op.direction([body.shape(name) for name in node.inputs], 0)
    steps, samples = (x[1], x[0]) if node.op.batch_first else x[:2]
    return node.op, weight[1], max(1, samples), steps


def _library_step(cell: Cell, hidden: int, samples: int) -> float:
    products = samples * hidden**2 * GATES[cell]
    if hidden <= _PERSISTENT[cell]:
        return _PERSISTENT_STEP + products * _PERSISTENT_PRODUCT
    return _LIBRARY_STEP + products * _LIBRARY_PRODUCT


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
    library = op.layers * (_LIBRARY_START + op.directions * steps * _library_step(op.cell, hidden, max(1, samples)))
    reason = f"layers in kernels are expected to take {ours * 1e6:.0f} us, the library {library * 1e6:.0f} us"
    return kernel_or_library(f"{node.name} layers", ours, library, reason)
