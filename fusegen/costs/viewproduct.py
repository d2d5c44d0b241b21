"""Matrix products whose factors are computed as they are read: tiles of the kernel, and its expected time.

The figures are those of ``templates/gemm_views.cu.j2``.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil

from fusegen import dims, ops
from fusegen.costs import gemm
from fusegen.ir import FillOp, Frozen, Graph, Node, PermuteOp
from fusegen.machines import SECTOR, Machine
from fusegen.spaces import viewspace
from fusegen.spaces.viewproduct import ViewProduct, check
from fusegen.tuning import kernel_or_library

_WARP, _WARPS, _LANES = 32, 8, 128
_CHUNKS = (8, 16, 32)
"""Of k, in shared memory at a time."""
_CLOCK = 1.7e9
_START = 2.0e-6
"""Of a kernel, beside its launch."""
_WAIT = 0.8e-6
"""What a chunk of k takes at least: to arrive from memory, and the products."""
_PRODUCTS, _SIDE, _RESULT, _FUNCTION = 0.6, 44, 30, 1.5
"""Clocks of a multiprocessor: the share of those at its fp32 rate that products take; for 128 elements of a factor in
shared memory, which every warp reads; for 128 results; for an operation of functions of 128 elements (23 tiles of seven
products, on an H100: all within 15%)."""


class ViewTile(Frozen):
    """``rows`` of a warp, and ``columns`` of each of its lanes; ``chunk`` of k at a time."""

    rows: int
    columns: int
    chunk: int

    @property
    def height(self) -> int:
        return _WARPS * self.rows

    @property
    def width(self) -> int:
        return _WARP * self.columns


_TILES = tuple((rows, columns) for rows in (8, 4, 2, 1) for columns in (2, 4, 1))


def functions(body: Graph, factor: Node) -> int:
    """Operations of functions that an element of ``factor`` takes."""
    flops = {name: ops.function_flops(body, body.node(name)) for name in body.needed(factor.name)}
    return sum(count // max(1, dims.numel(body.node(name).type.shape, body.sizes)) for name, count in flops.items())


def _sectors(body: Graph, factor: Node) -> int:
    """How many times as many sectors of memory are read for ``factor`` as where its elements lie side by side: those of
    several matrices may be neighbours (heads last, of 4: 65 us, and 17 us where each has its own matrix).
    """
    most = 1
    for name in body.needed(factor.name):
        node = body.node(name)
        if isinstance(node.op, PermuteOp):
            shape = body.shape(node.inputs[0])
            last = next((axis for axis in reversed(range(len(shape))) if shape[axis] != 1), 0)
            if last not in node.op.order[-2:]:
                most = max(most, min(SECTOR, dims.evaluate(shape[last], body.sizes)))
    return most


def _timed(body: Graph, found: ViewProduct, machine: Machine) -> list[tuple[float, ViewTile]]:
    """Tiles and the expected time of all of them, memory aside: the fastest first."""
    inputs, outputs = (dims.evaluate(size, body.sizes) for size in (found.inputs, found.outputs))
    matrices, rows = (dims.numel(axes, body.sizes) for axes in (found.matrices, found.lines))
    factors = (found.left, found.right)
    left, right = (_SIDE * _sectors(body, factor) + _FUNCTION * functions(body, factor) for factor in factors)
    chunk = next((size for size in _CHUNKS if inputs <= size), _CHUNKS[-1])
    terms = ceil(inputs / chunk) * chunk

    def seconds(tile: ViewTile) -> float:
        clocks = _PRODUCTS * terms * tile.height * tile.width / _LANES
        clocks += terms * tile.height * left / _LANES
        clocks += terms * tile.width * right / _LANES
        clocks += tile.height * tile.width * _RESULT / _LANES
        blocks = matrices * ceil(rows / tile.height) * ceil(outputs / tile.width)
        return max(ceil(blocks / machine.multiprocessors) * clocks / _CLOCK, terms / chunk * _WAIT)

    candidates = [ViewTile(rows=rows, columns=columns, chunk=chunk) for rows, columns in _TILES]
    return sorted(((seconds(tile), tile) for tile in candidates), key=lambda timed: timed[0])


def tiles(body: Graph, found: ViewProduct, machine: Machine) -> dict[str, ViewTile]:
    """Tiles by rows x columns of a block, the one that is expected to be the fastest first."""
    return {f"{tile.height}x{tile.width}": tile for _, tile in _timed(body, found, machine)}


def seconds(body: Graph, found: ViewProduct, machine: Machine) -> float:
    """Expected time of the kernel."""
    (best, _), result = _timed(body, found, machine)[0], body.node(body.outputs[0])
    read = {name for node in body.nodes if not isinstance(node.op, FillOp) for name in node.inputs}
    moved = sum(bytes_of(body, node) for node in (*body.inputs, result) if node.name in read or node is result)
    return machine.launch + _START + max(best, moved / machine.bandwidth)


def bytes_of(body: Graph, node: Node) -> int:
    return node.type.dtype.bytes * dims.numel(node.type.shape, body.sizes)


def is_gathered(node: Node) -> bool:
    """True for matrices whose batch is no single axis of where they lie: the library copies them."""
    if not isinstance(node.op, PermuteOp):
        return False
    batch = [axis for axis in node.op.order[:-2] if node.type.shape[node.op.order.index(axis)] != 1]
    return any(after != before + 1 for before, after in pairwise(batch))


def pass_seconds(body: Graph, names: set[str], result: Node, machine: Machine) -> float:
    """One pass that computes ``result`` by the nodes ``names`` of the body, if it is more than views of matrices."""
    nodes = [node for node in body.nodes if node.name in names and not ops.is_leaf(node.op)]
    if not any(viewspace.copies(node, body) or is_gathered(node) for node in nodes):
        return 0.0
    read = {name for node in nodes for name in node.inputs} - {node.name for node in nodes}
    moved = sum(bytes_of(body, body.node(name)) for name in read) + bytes_of(body, result)
    return machine.launch + moved / machine.bandwidth


def apart_seconds(body: Graph, found: ViewProduct, machine: Machine) -> float:
    """The same with a pass over each factor that is no view, and the fastest product of these with what follows it."""
    result = body.node(body.outputs[0])
    passes = [pass_seconds(body, body.needed(factor.name), factor, machine) for factor in (found.left, found.right)]
    after = pass_seconds(body, set(found.after) - {found.head.name}, result, machine)
    return sum(passes) + gemm.product_seconds(body, found.head, machine, after)


def refusal(body: Graph, machine: Machine) -> str | None:
    """Why no kernel computes ``body``, a product behind views, or None. Raises ``NotFusable`` too."""
    found = check(body)
    ours, apart = seconds(body, found, machine), apart_seconds(body, found, machine)
    reason = f"a kernel is expected to take {ours * 1e6:.1f} us, and worth it up to {apart * 1e6:.1f} us"
    return kernel_or_library(f"{found.head.name} views", ours, apart, reason)
