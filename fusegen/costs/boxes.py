"""Mean poolings of convolutions as convolutions of box means: one kernel, which never writes the means.

A region is a mean over boxes at every place of the (padded) input, a convolution of them with the pooling's
stride, the elementwise chain after it, and a sum or mean over what that leaves of a sample or a channel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, inf, prod
from typing import Literal, TypeAlias

from fusegen import dims, inference
from fusegen.costs import contractions
from fusegen.ir import ConvOp, DType, Frozen, Graph, InputOp, Node, PadOp, PointwiseOp, PoolOp, ReduceOp
from fusegen.machines import Machine
from fusegen.spaces import channels
from fusegen.spaces.poolspace import along_channels, around
from fusegen.spaces.rowspace import NotFusable, RowSpace
from fusegen.verdict.tf32 import in_tf32

POSITIONS = 128
"""Results of a block, of every channel of a slice."""
TILE_COLUMNS = (8, 16, 32, 64, 128)
"""Of its positions: the launcher takes those that waste least."""
SHARED_BYTES = 99 << 10
"""Of a block: what every device since compute capability 8.0 has."""
_RESIDENT_BYTES = 40 << 10
"""Weights up to which a block keeps all of them."""
_SLICE = 64
"""Output channels of a block at most: their sums are in registers."""
_ROWS = 32
"""Rows of sums (a channel and a tap across the lines) that a block works on at once, beyond eight channels."""
_MAX_LINES, _MAX_READS, _MAX_SUMS = 16, 64, 27
"""Lines along y and x that the boxes of all taps span, lines along z and y, and rows of sums of a channel."""
_MAX_CHANNELS = 1 << 15
_SPLIT, _ROUNDED = 3, 2
"""Products on the tensor cores for each one in full fp32, and with weights in TF32: means of boxes have more digits."""
_BANDWIDTH, _MMA = 0.6, 0.75
"""Shares of a machine's rates that the kernel reaches."""
_LAUNCHES = 2.0

Total: TypeAlias = Literal["", "channel", "sample"]
"""What is summed up of the results: nothing, the positions of a channel, or all of a sample."""


class BoxTiling(Frozen):
    """Channels that a block works on at once, and what follows from them."""

    chunk: int
    rows: int
    """Rows of sums of a chunk, in whole products."""
    tiles: int
    """Groups of eight output channels of a block."""
    slices: int
    """Blocks for all output channels of a group."""
    resident: bool
    """Whether a block keeps the weights of all chunks."""

    @property
    def channels(self) -> int:
        """Output channels of a block."""
        return 8 * self.tiles


@dataclass(frozen=True)
class BoxConv:
    """A region's parts: box means, the convolution of them, the chain after it (where it is an input), the total."""

    x: Node
    pool: Node
    conv: Node
    padding: tuple[int, ...]
    after: Graph
    after_space: RowSpace
    reduce: Node | None

    @property
    def op(self) -> ConvOp:
        assert isinstance(self.conv.op, ConvOp)
        return self.conv.op

    @property
    def window(self) -> tuple[int, ...]:
        assert isinstance(self.pool.op, PoolOp)
        return self.pool.op.kernel

    @property
    def total(self) -> Total:
        if self.reduce is None:
            return ""
        assert isinstance(self.reduce.op, ReduceOp)
        return "sample" if 1 in self.reduce.op.axes else "channel"


def spans(taps: tuple[int, ...], dilation: tuple[int, ...], window: tuple[int, ...]) -> tuple[int, ...]:
    """Lines along each axis that the boxes of all taps of a result span."""
    return tuple((k - 1) * d + n for k, d, n in zip(taps, dilation, window, strict=True))


def _in_three(values: tuple[int, ...]) -> tuple[int, int, int]:
    z, y, x = (*(1,) * (3 - len(values)), *values)
    return z, y, x


def shared_bytes(tiling: BoxTiling, chunks: int, taps: int, step: int, span: int, width: int) -> int:
    """Of a block with tiles of this ``width``: weights, rows of sums, partial totals, as the launcher computes it."""
    columns = -(-(3 + (width - 1) * step + span) // 4) * 4
    sums = max(tiling.rows * (POSITIONS // width * columns | 1), POSITIONS * tiling.channels)
    weights = (chunks if tiling.resident else 1) * tiling.rows * taps * tiling.channels
    return 4 * (weights + sums + POSITIONS // 16 * tiling.channels)


def tile(
    taps: tuple[int, ...],
    dilation: tuple[int, ...],
    window: tuple[int, ...],
    step: tuple[int, ...],
    inputs: int,
    outputs: int,
) -> BoxTiling | str:
    """How blocks work on such a convolution with ``inputs`` and ``outputs`` channels of a group, or why none does."""
    z, y, x = _in_three(spans(taps, dilation, window))
    kernel = _in_three(taps)
    across = kernel[0] * kernel[1]
    if y > _MAX_LINES or x > _MAX_LINES or z * y > _MAX_READS or across > _MAX_SUMS:
        return f"boxes of {' x '.join(map(str, window))} for {prod(taps)} taps span too many lines for a thread"
    slices = ceil(outputs / _SLICE)
    tiles = ceil(outputs / slices / 8)
    chunk = max(8, _ROWS // across // 8 * 8)
    sizes = [
        min(chunk, -(-inputs // 8) * 8 if inputs > 8 else inputs),
        *(n for n in (8, 4, 2, 1) if n < min(chunk, inputs)),
    ]
    for own in sizes:
        rows, chunks = ceil(own * across / 8) * 8, ceil(inputs / own)
        whole = 4 * chunks * rows * kernel[2] * tiles * 8
        found = BoxTiling(chunk=own, rows=rows, tiles=tiles, slices=slices, resident=whole <= _RESIDENT_BYTES)
        # Of every width: which one wastes least is known at the call.
        if all(shared_bytes(found, chunks, kernel[2], _in_three(step)[2], x, w) <= SHARED_BYTES for w in TILE_COLUMNS):
            return found
    return f"rows of sums for {prod(taps)} taps of stride {step[-1]} do not fit into shared memory"


def unfit(conv: ConvOp, weight: Node, pool: PoolOp) -> str | None:
    """Why the mean ``pool`` of a convolution with ``weight`` has no such kernel, or None."""
    if not all(isinstance(size, int) for size in weight.type.shape):
        return "its weight has a size that is known only at run time"
    outputs, inputs = (int(size) for size in weight.type.shape[:2])
    if outputs // conv.groups < contractions.LEAST_OUTPUTS:
        return f"groups of fewer than {contractions.LEAST_OUTPUTS} output channels would mostly multiply zeros"
    if outputs > _MAX_CHANNELS:
        return f"{outputs} output channels"
    structure = inference.kernel_size(weight.type), conv.dilation, pool.kernel, pool.stride
    found = tile(*structure, inputs, outputs // conv.groups)
    return found if isinstance(found, str) else None


def seconds(graph: Graph, x: Node, w: Node, conv: ConvOp, pool: PoolOp, result: Node, machine: Machine) -> float:
    """Expected time of the kernel for the ``result`` of the mean ``pool`` of ``conv(x, w)`` at the traced sizes."""
    inputs, outputs = inference.group_channels(conv, x.type, w.type)
    taps = inference.kernel_size(w.type)
    tiling = tile(taps, conv.dilation, pool.kernel, pool.stride, inputs, outputs)
    if isinstance(tiling, str):
        return inf
    batch, _, *lengths = graph.shape(result.name)
    width, height = lengths[-1], lengths[-2] if len(lengths) > 1 else 1
    tiles = min(ceil(width / own) * ceil(height * own / POSITIONS) for own in TILE_COLUMNS)
    positions = batch * prod(lengths[:-2]) * tiles * POSITIONS
    deep = ceil(inputs / tiling.chunk) * tiling.rows * taps[-1]
    columns = conv.groups * tiling.slices * tiling.channels
    factors = _SPLIT if conv.precise or not in_tf32(conv.transposed, inputs) else _ROUNDED
    products = 2 * factors * positions * deep * columns / (_MMA * machine.mma_flops)
    moved = 4 * (tiling.slices * dims.numel(x.type.shape, graph.sizes) + dims.numel(result.type.shape, graph.sizes))
    return moved / (_BANDWIDTH * machine.bandwidth) + products + _LAUNCHES * machine.launch


# --- regions ------------------------------------------------------------------------------------


def _boxes(graph: Graph, conv: Node) -> tuple[Node, Node | None] | None:
    """The box means that ``conv`` reads, and the padding under them."""
    if not isinstance(conv.op, ConvOp) or conv.op.transposed or set(conv.op.stride) == {1}:
        return None
    if any((*conv.op.padding, *conv.op.behind, *conv.op.cropped)):
        return None
    pool = graph.node(conv.inputs[0])
    if not isinstance(pool.op, PoolOp) or pool.op.fn != "mean" or pool.op.rank != conv.op.rank:
        return None
    plain = not any(pool.op.padding) and not pool.op.ceil and pool.op.divisor is None
    if not plain or set(pool.op.stride) != {1} or set(pool.op.dilation) != {1}:
        return None
    pad = graph.node(pool.inputs[0])
    return pool, pad if isinstance(pad.op, PadOp) and _around_positions(pad.op) else None


def _around_positions(pad: PadOp) -> bool:
    """Zeros, as many before every spatial axis as after it."""
    return pad.value == 0 and pad.before == pad.after and not any(pad.before[:2])


def is_over_boxes(graph: Graph, conv: Node) -> bool:
    """True for a convolution of box means."""
    return _boxes(graph, conv) is not None


def _is_total(node: Node, value: Node) -> bool:
    """True for a sum or mean of all of a sample of ``value``, or of all positions of its channels."""
    op, rank = node.op, value.type.rank
    over = (tuple(range(1, rank)), tuple(range(2, rank)))
    return isinstance(op, ReduceOp) and op.fn in ("sum", "mean") and op.axes in over


def members(graph: Graph, conv: Node, free: Iterable[str]) -> tuple[set[str], set[str]] | None:
    """(nodes, copied nodes) of the kernel for a convolution of box means, or None."""
    found, available = _boxes(graph, conv), set(free)
    if found is None or conv.type.dtype is not DType.FLOAT32 or unfit_region(graph, conv):
        return None
    users, (pool, pad) = graph.users, found
    readers = [graph.node(name) for name in users[pool.name]]
    if pool.name in graph.results or any(unfit_region(graph, reader) for reader in readers):
        return None
    inside, copies = {conv.name, pool.name}, set[str]()
    if len(readers) > 1:  # each adds up the boxes itself
        copies.add(pool.name)
    if pad is not None:
        inside.add(pad.name)
        copies |= {pad.name} if copies or set(users[pad.name]) != {pool.name} or pad.name in graph.results else set()
    if not inside <= available:
        return None
    value = conv
    while len(following := set(users[value.name])) == 1 and value.name not in graph.results:
        node = graph.node(following.pop())
        if node.name not in available or node.type.dtype is not DType.FLOAT32:
            break
        if _is_total(node, value):
            inside.add(node.name)
            break
        if not isinstance(node.op, PointwiseOp) or node.type != conv.type:
            break
        for name in node.inputs:  # what follows from parameters alone is computed here too
            fixed: set[str] = set()
            if name != value.name and channels.is_fixed(graph, name, fixed):
                copies |= fixed
        inside.add(node.name)
        value = node
    return inside | copies, copies


def unfit_region(graph: Graph, conv: Node) -> str | None:
    """Why a convolution of box means has no kernel, or None."""
    found = _boxes(graph, conv)
    if found is None:
        return "it reads no box means"
    pool = found[0].op
    assert isinstance(conv.op, ConvOp)
    assert isinstance(pool, PoolOp)
    return unfit(conv.op, graph.node(conv.inputs[1]), pool.replace(stride=conv.op.stride))


def split(body: Graph) -> BoxConv:
    """The parts of such a region. Raises ``NotFusable``."""
    (conv,) = (node for node in body.nodes if isinstance(node.op, ConvOp))
    found = _boxes(body, conv)
    if found is None or not isinstance(body.node(conv.inputs[1]).op, InputOp):
        raise NotFusable("an operand of the convolution is computed before it")
    pool, pad = found
    under = body.node((pad or pool).inputs[0])
    last = body.node(body.outputs[0])
    reduce = last if isinstance(last.op, ReduceOp) else None
    value = body.node(reduce.inputs[0]) if reduce else last
    rest = body.replace(nodes=tuple(n for n in body.nodes if n is not reduce), outputs=(value.name,))
    _, after = around(rest, conv)
    padding = pad.op.before[2:] if pad and isinstance(pad.op, PadOp) else (0,) * pool.op.rank  # type: ignore[union-attr]
    return BoxConv(under, pool, conv, padding, after, along_channels(after, conv.name), reduce)
