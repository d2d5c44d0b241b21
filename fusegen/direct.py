"""Convolutions of groups of few channels, depthwise ones above all: plain fp32, bound by what they read and write.

A thread computes a tile of neighbouring results of all output channels of a group from the input lines
that their windows span, so that what the windows share is read once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import gcd, prod

from fusegen import contractions, dims, ops
from fusegen.ir import ConvOp, DType, Frozen, Graph, InputOp, MatmulOp, Node
from fusegen.machines import Machine
from fusegen.poolspace import MAX_REPEATED, along_channels, around, operations
from fusegen.rowspace import NotFusable, RowSpace
from fusegen.tf32 import LEAST_CHANNELS
from fusegen.tuning import kernel_or_library

MAX_POSITIONS, MAX_RESULTS = 16, 32
"""Of a thread: more threads at once read faster than larger tiles do, and sums are in registers."""
MAX_PRODUCTS = 1024
"""Of a thread and an input channel, written out one after the other."""
MAX_HELD = 76
"""Values that a thread holds at once: half of 128 registers are for addresses, and for what is on its way."""
_FEW_HELD = 68
"""Values of a thread with 96 registers, of which a multiprocessor has more."""
_WEIGHTS, _VOLUME = 8, 16
"""Weights held at once, and what the places in a volume take beyond those in an image."""
_BANDWIDTH, _FLOPS = 0.75, 0.33
"""Shares of a machine's rates that the kernel reaches."""


class Tile(Frozen):
    """Results of a thread along z, y, x; aligned accesses to the input read ``vector`` elements."""

    vector: int
    results: tuple[int, int, int]
    threads: int
    """Of a block."""
    blocks: int
    """Of a multiprocessor, to leave registers for."""


@dataclass(frozen=True)
class DirectRegion:
    """A region's parts: the chain up to the convolution, and the one after it, where it is an input."""

    conv: Node
    before: Graph
    after: Graph
    before_space: RowSpace
    after_space: RowSpace

    @property
    def op(self) -> ConvOp:
        assert isinstance(self.conv.op, ConvOp)
        return self.conv.op


def takes(body: Graph, node: Node) -> bool:
    """True for convolutions whose groups are too narrow for tensor cores."""
    if not isinstance(node.op, ConvOp) or node.op.groups == 1:
        return False
    x, w = (body.node(name).type for name in node.inputs[:2])
    if any(not isinstance(size, int) for size in w.shape):
        return False
    inputs, outputs = ops.group_channels(node.op, x, w)
    return inputs < LEAST_CHANNELS and outputs < contractions.LEAST_OUTPUTS


def lines(op: ConvOp, kernel: tuple[int, ...], axis: int, results: int) -> int:
    """Positions of the input that neighbouring results along an axis span."""
    reach = op.dilation[axis] * (kernel[axis] - 1)
    if not op.transposed:
        return (results - 1) * op.stride[axis] + reach + 1
    first = (op.padding[axis] - reach) // op.stride[axis]
    return (results - 1 + op.padding[axis]) // op.stride[axis] - first + 1


def _lines_at_once(op: ConvOp, kernel: tuple[int, ...], axis: int, results: int) -> int:
    """Lines of a layer that a thread holds at once, while it goes through the taps along y."""
    uses: dict[int, list[int]] = {}
    for r, k in product(range(results), range(kernel[axis])):
        place, rest = r * op.stride[axis] + k * op.dilation[axis], 0
        if op.transposed:
            place, rest = divmod(r + op.padding[axis] - k * op.dilation[axis], op.stride[axis])
        if rest == 0:
            uses.setdefault(place, []).append(k)
    return max((sum(min(u) <= k <= max(u) for u in uses.values()) for k in range(kernel[axis])), default=0)


def _held(op: ConvOp, kernel: tuple[int, ...], outputs: int, results: tuple[int, ...]) -> int:
    """Values that a thread holds at once: lines of a layer, sums, weights."""
    rows = _lines_at_once(op, kernel, op.rank - 2, results[-2]) if op.rank > 1 else 1
    rest = _WEIGHTS + (_VOLUME if op.rank > 2 else 0)
    return rows * lines(op, kernel, op.rank - 1, results[-1]) + outputs * prod(results) + rest


def _vectors(op: ConvOp) -> tuple[tuple[int, int], ...]:
    """(width of an access, results that lie side by side in a thread), the widest first."""
    stride = op.stride[-1]
    if op.transposed:  # stores are wider than loads
        return tuple((v, v * stride) for v in (4, 2, 1) if v * stride <= max(4, stride))
    return tuple((v, v // gcd(v, stride)) for v in (4, 2, 1))


def tiles(op: ConvOp, kernel: tuple[int, ...], outputs: int, lengths: tuple[int, ...]) -> tuple[Tile, ...]:
    """The tile for each width of an access, for results of these ``lengths``. Raises ``NotFusable``.

    Of those that fit, the one for which the fewest lines are read.
    """
    found = []
    taps = prod(kernel) / (prod(op.stride) if op.transposed else 1)
    for vector, across in _vectors(op):
        most = min(MAX_POSITIONS, MAX_RESULTS // outputs, int(MAX_PRODUCTS / taps) // outputs) // across
        step = op.stride if op.transposed else (1,) * op.rank
        sizes = [[step[axis] * n for n in (1, 2, 4, 8)] for axis in range(op.rank - 1)]
        fitting = {
            (*results, across): held
            for results in product(*sizes)
            if prod(results) <= most and (held := _held(op, kernel, outputs, (*results, across))) <= MAX_HELD
        }
        if fitting:
            best = min(fitting, key=lambda results: (_read(op, kernel, results[:-1], lengths), prod(results)))
            z, y, x = (1,) * (3 - op.rank) + best
            few = fitting[best] <= _FEW_HELD and op.rank < 3 and outputs == 1
            threads, blocks = (128, 5) if few else (256, 2)
            found.append(Tile(vector=vector, results=(z, y, x), threads=threads, blocks=blocks))
    if not found or found[-1].vector != 1:
        raise NotFusable(f"{prod(kernel)} taps for {outputs} channels of a group are too many for a thread")
    return tuple(found)


def _read(op: ConvOp, kernel: tuple[int, ...], results: tuple[int, ...], lengths: tuple[int, ...]) -> int:
    """Lines that all tiles of these ``results`` read."""
    return prod(-(-lengths[axis] // own) * lines(op, kernel, axis, own) for axis, own in enumerate(results))


def split(body: Graph) -> DirectRegion:
    """The parts of a region with such a convolution. Raises ``NotFusable``."""
    products = [node for node in body.nodes if isinstance(node.op, (ConvOp, MatmulOp))]
    if len(products) != 1:
        raise NotFusable("two convolutions")
    (conv,) = products
    x, w = conv.inputs
    if not isinstance(body.node(w).op, InputOp):
        raise NotFusable(f"the weight of {conv.name} is computed before it")
    if conv.type.dtype is not DType.FLOAT32:
        raise NotFusable(f"it is {conv.type.dtype.value}, for which such a convolution has no kernel")
    before, after = around(body, conv)
    shape = before.node(x).type.shape
    source = next((node.name for node in before.inputs if node.type.shape == shape), None)
    if source is None:
        raise NotFusable(f"no operand has the shape of {x}")
    return DirectRegion(conv, before, after, along_channels(before, source), along_channels(after, conv.name))


def region_tiles(body: Graph, conv: Node) -> tuple[Tile, ...]:
    """The tiles of the kernel for ``conv`` at the traced sizes. Raises ``NotFusable``."""
    assert isinstance(conv.op, ConvOp)
    x, w = (body.node(name).type for name in conv.inputs[:2])
    _, outputs = ops.group_channels(conv.op, x, w)
    return tiles(conv.op, ops.kernel_size(w), outputs, body.shape(conv.name)[2:])


def seconds(body: Graph, conv: Node, machine: Machine) -> float:
    """Expected time of the kernel at the traced sizes."""
    moved = sum(4 * dims.numel(body.node(name).type.shape, body.sizes) for name in (*conv.inputs, conv.name))
    products = ops.flops(body, conv) / (_FLOPS * machine.flops)
    return max(moved / (_BANDWIDTH * machine.bandwidth), products) + machine.launch


def refusal(body: Graph, machine: Machine) -> str | None:
    """Why the convolution in ``body`` is left to the library, or None. Raises ``NotFusable``."""
    parts = split(body)
    conv, op = parts.conv, parts.op
    if dims.numel(conv.type.shape, body.sizes) == 0:
        return "it is empty"
    kernel = ops.kernel_size(body.node(conv.inputs[1]).type)
    tile = region_tiles(body, conv)[0].results[3 - op.rank :]
    spanned = prod(lines(op, kernel, axis, own) for axis, own in enumerate(tile))
    used = prod(tile) * prod(op.stride) ** (-1 if op.transposed else 1)
    if operations(parts.before) * (spanned / used - 1) > MAX_REPEATED:
        return f"{conv.inputs[0]} would be computed again for every tile that reads it"
    ours = seconds(body, conv, machine)
    library = contractions.library_share(body, conv, machine)
    reason = f"a kernel is expected to take {ours * 1e6:.0f} us, and worth it up to {library * 1e6:.0f} us"
    return kernel_or_library(conv.name, ours, library, reason)
