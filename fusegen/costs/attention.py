"""Attention in one kernel: its tiles, and its expected time.

The figures are those of ``templates/attention.cu.j2``.
"""

from __future__ import annotations

from math import ceil

from fusegen import dims
from fusegen.costs import gemm
from fusegen.costs.viewproduct import bytes_of, functions, pass_seconds
from fusegen.ir import Frozen, Graph, TriangleOp
from fusegen.machines import Machine
from fusegen.spaces.attention import Attention, check, is_masked
from fusegen.tuning import kernel_or_library

_WARP, _LANES, _LINES, _STEP = 32, 128, 16, 16
"""Threads of a warp and of a multiprocessor's cycle; rows of a warp; terms of a product on the tensor cores."""
_SHARED, _MOST_SHARED = 233472, 232448
"""Bytes of shared memory of a multiprocessor and of a block."""
_BLOCK_SHARED = 1024
"""Bytes that the system keeps for a block."""
_REGISTERS = 65536
_FEW_COLUMNS = 96
"""Columns of a result that fit half of a thread's registers."""
_CLOCK = 1.7e9
_START = 3.0e-6
"""Of a kernel, beside its launch: the rows' own factors, and the end."""
_PRODUCTS = 3300
"""Operations of a multiprocessor's clock, of three products of halves."""
_FACTOR, _WEIGHT, _FUNCTION = 14.0, 56.0, 4.0
"""Clocks of 128 elements of keys or values, of 128 weights, and of an operation of functions before these (H100: heads
of 64 terms, 128 and 64 rows to a block)."""
_BLOCK = 1000.0
"""Clocks of a block for each of its warps, beside those of its parts."""
_ALONE, _FEW_WARPS = 1.6, 8
"""Times over that it takes where a multiprocessor has no more warps than these: nothing hides what they wait for."""
_MOST_COLUMNS, _SPILLED = 128, 4.0
"""Columns of a result that fit a thread's registers, and times over that it takes where they do not (196 terms and
columns, an H200: 203 us, and a kilobyte of every thread in memory)."""
_TORCH_START, _TORCH_SCORE, _TORCH_ROWS = 7.0e-6, 11.0e-12, 64
"""Of torch's attention in fp32: beside its launch, for a score of a full device, and rows and keys of a block (nine
sizes of 16 to 128 terms, on an H100)."""
_KEYS = 64
"""Of a part on the asynchronous tensor cores: 128 bytes of halves."""
_MASKED = 0.75
"""Share of the time, where conditions leave scores out."""


class AttentionTile(Frozen):
    """``warps`` of 16 rows each; ``keys`` of a part, which a block has on chip at a time."""

    warps: int
    keys: int

    @property
    def rows(self) -> int:
        return self.warps * _LINES

    def bytes(self, inputs: int, outputs: int) -> int:
        """Shared memory of a block: slots of 16 bytes hold four values as halves."""
        queries, keys = self.rows * ceil(inputs / 16) * 4, self.keys * ceil(inputs / 64) * 16
        return 16 * (queries + keys + ceil(outputs / 64) * 64 * self.keys // 4)

    def resident(self, inputs: int, outputs: int) -> int:
        """Blocks of a multiprocessor: threads keep their results and the weights of a part in registers."""
        registers = 128 if outputs <= _FEW_COLUMNS else 255
        by_memory = _SHARED // (self.bytes(inputs, outputs) + _BLOCK_SHARED)
        return max(1, min(by_memory, _REGISTERS // (registers * self.warps * _WARP)))


_TILES = tuple(AttentionTile(warps=warps, keys=keys) for warps in (8, 4) for keys in (64, 32))


def _timed(body: Graph, found: Attention, machine: Machine) -> list[tuple[float, AttentionTile]]:
    """Tiles and the expected time of all parts, memory aside: the fastest first."""
    rows, keys = (dims.evaluate(size, body.sizes) for size in (found.rows, found.keys))
    matrices, inputs, outputs = dims.numel(found.matrices, body.sizes), found.inputs, found.outputs
    weight = _WEIGHT + _FUNCTION * functions(body, found.weighed)
    masked = is_masked(found)

    def seconds(tile: AttentionTile) -> float:
        wide = ceil(inputs / _STEP) * _STEP + ceil(outputs / 8) * 8
        clocks = 6 * tile.rows * tile.keys * wide / _PRODUCTS
        clocks += tile.keys * (inputs + outputs) * _FACTOR / _LANES + tile.rows * tile.keys * weight / _LANES
        clocks = ceil(keys / tile.keys) * clocks + tile.warps * _BLOCK
        blocks = matrices * ceil(rows / tile.rows)
        share = _MASKED if masked and blocks > machine.multiprocessors else 1.0
        at_once = min(tile.resident(inputs, outputs), ceil(blocks / machine.multiprocessors))
        share *= _ALONE if at_once * tile.warps <= _FEW_WARPS else 1.0
        share *= _SPILLED if outputs > _MOST_COLUMNS else 1.0
        return max(1.0, blocks / machine.multiprocessors) * share * clocks / _CLOCK

    fit = [tile for tile in _TILES if tile.bytes(inputs, outputs) <= _MOST_SHARED]
    return sorted(((seconds(tile), tile) for tile in fit), key=lambda timed: timed[0])


def portable_tile(body: Graph, found: Attention, machine: Machine) -> AttentionTile:
    """The tile of other devices: half as many keys to a part leave registers."""
    return next(tile for _, tile in _timed(body, found, machine) if tile.keys < _KEYS)


def tiles(body: Graph, found: Attention, machine: Machine) -> dict[str, AttentionTile]:
    """Tiles on the asynchronous tensor cores by the rows of a block, the one expected to be the fastest first."""
    return {str(tile.rows): tile for _, tile in _timed(body, found, machine) if tile.keys == _KEYS}


def seconds(body: Graph, found: Attention, machine: Machine) -> float:
    """Expected time of the kernel."""
    best = next(seconds for seconds, tile in _timed(body, found, machine) if tile.keys == _KEYS)
    result = body.node(body.outputs[0])
    moved = sum(bytes_of(body, node) for node in (*body.inputs, result))
    return machine.launch + _START + max(best, moved / machine.bandwidth)


def apart_seconds(body: Graph, found: Attention, machine: Machine) -> float:
    """The same with a kernel or the library for each product, a pass between, and one over factors that are copied."""
    passes = [pass_seconds(body, body.needed(f.name), f, machine) for f in (found.query, found.key, found.value)]
    after = 0.0  # the scores, where no softmax is a pass of its own
    if found.softmax:
        passes.append(machine.launch + 2 * bytes_of(body, found.softmax) / machine.bandwidth)
    else:
        between = body.needed(found.weighed.name) - body.needed(found.scores.name)
        after = pass_seconds(body, between, found.weighed, machine)
    end = pass_seconds(body, set(found.after) - {found.head.name}, body.node(body.outputs[0]), machine)
    products = ((found.scores, after), (found.head, end))
    return sum(passes) + sum(gemm.product_seconds(body, node, machine, more) for node, more in products)


def torch_seconds(body: Graph, found: Attention, machine: Machine) -> float:
    """Expected time of torch's own attention, which reads its operands as they lie."""
    rows, keys = (ceil(dims.evaluate(size, body.sizes) / _TORCH_ROWS) for size in (found.rows, found.keys))
    blocks = dims.numel(found.matrices, body.sizes) * rows
    causal = any(isinstance(node.op, TriangleOp) for node in body.nodes)
    waves = max(blocks, machine.multiprocessors) * (0.5 if causal and blocks > 4 * machine.multiprocessors else 1.0)
    return machine.launch + _TORCH_START + waves * keys * _TORCH_ROWS**2 * _TORCH_SCORE


def refusal(body: Graph, machine: Machine) -> str | None:
    """Why no kernel computes ``body``, attention, or None. Raises ``NotFusable`` too."""
    found = check(body)
    ours = seconds(found.body, found, machine)
    apart = (torch_seconds if found.safe else apart_seconds)(found.body, found, machine)
    reason = f"a kernel is expected to take {ours * 1e6:.1f} us, and worth it up to {apart * 1e6:.1f} us"
    return kernel_or_library(f"{found.head.name} attention", ours, apart, reason)
