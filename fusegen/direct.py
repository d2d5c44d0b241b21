"""Convolutions of groups of few channels, depthwise ones above all: plain fp32, bound by what they read and write.

A thread computes a tile of results of the output channels of a group, or some of these, from the input lines that
their windows span, so that what the windows share is read once. The results are neighbours; along z and y, those of a
strided transposed convolution may be of one phase instead, which is an ordinary convolution of stride 1 by every
``gap``-th tap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil, gcd, prod

from fusegen import contractions, dims, ops
from fusegen.ir import ConvOp, DType, Frozen, Graph, InputOp, MatmulOp, Node, ReduceOp, SoftmaxOp
from fusegen.machines import DEFAULT_TARGET, Machine, machine
from fusegen.poolspace import along_channels, around, operations
from fusegen.rowspace import NotFusable, RowSpace
from fusegen.tiling import TooLarge
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
_CHAIN = 1024
"""Products that are added up one after the other, at most."""
_FEW_SECONDS = 5e-6
"""Of the arithmetic of a convolution of a single group."""
_PREPARED = 8e-6
"""Of the portable tensor-core kernel, besides its expected time, where it has little to do: it packs weights first."""
_AHEAD = 8
"""Accesses of a thread that are on their way at once."""
_FILLED = 132 * 512
"""Threads from which on larger tiles are worth having fewer of them."""


class Tile(Frozen):
    """Results of a thread along z, y, x; aligned accesses to the input read ``vector`` elements."""

    vector: int
    results: tuple[int, int, int]
    phased: tuple[bool, bool]
    """Along z and y: the results of a thread are of one phase."""
    outputs: int
    """Channels of a group that a thread computes."""
    ahead: int
    """Channels of the input that are read at once."""
    threads: int
    """Of a block."""
    blocks: int
    """Of a multiprocessor, to leave registers for."""

    @property
    def staged(self) -> bool:
        """Whether one store has fewer results than lie side by side in a thread."""
        across = self.results[2]
        return across > (1 if self.vector == 1 else gcd(across, 4))


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
    """True for convolutions whose groups are too narrow for tensor cores, or that have little for them to do."""
    if not isinstance(node.op, ConvOp):
        return False
    x, w = (body.node(name).type for name in node.inputs[:2])
    if any(not isinstance(size, int) for size in w.shape):
        return False
    inputs, outputs = ops.group_channels(node.op, x, w)
    if inputs * prod(ops.kernel_size(w)) > _CHAIN:
        return False
    if node.op.groups > 1:
        return outputs < contractions.LEAST_OUTPUTS
    return is_small(body, node)


def is_small(body: Graph, node: Node) -> bool:
    """True where tensor cores are expected to take longer for a convolution, with what they prepare.

    False for ``precise`` ones, whose sums keep what rounding takes, and before a reduction that may share a kernel.
    """
    assert isinstance(node.op, ConvOp)
    if node.op.precise or any(isinstance(other.op, (ReduceOp, SoftmaxOp)) for other in body.nodes):
        return False
    rates = machine(DEFAULT_TARGET)
    if ops.flops(body, node) > _FEW_SECONDS * _FLOPS * rates.flops:
        return False
    tensor = contractions.asynchronous_seconds(body, node, rates)
    try:
        tensor = min(tensor, contractions.portable_seconds(body, node, False, rates) + _PREPARED)
    except TooLarge:
        return True
    return seconds(body, node, rates) < tensor


@dataclass(frozen=True)
class Along:
    """One axis as a thread meets it: ``phased``: its results are of one phase, and so are the taps."""

    kernel: int
    stride: int
    padding: int
    dilation: int
    transposed: bool
    phased: bool = False

    @classmethod
    def of(cls, op: ConvOp, kernel: tuple[int, ...], axis: int, phased: bool = False) -> Along:
        structure = kernel[axis], op.stride[axis], op.padding[axis], op.dilation[axis]
        return cls(*structure, op.transposed, phased)

    @property
    def gap(self) -> int:
        """Between the taps of a phase."""
        return self.stride // gcd(self.stride, self.dilation) if self.phased else 1

    @property
    def taps(self) -> int:
        """Of a result, at most."""
        return ceil(self.kernel / self.gap)

    def place(self, r: int, k: int) -> int | None:
        """The place that result ``r`` multiplies by tap ``k``, counted from any one; None where the tap is not its."""
        if self.phased:
            return r - k * (self.gap * self.dilation // self.stride)
        if not self.transposed:
            return r * self.stride + k * self.dilation
        place, rest = divmod(r + self.padding - k * self.dilation, self.stride)
        return None if rest else place

    def lines(self, results: int) -> int:
        """Positions of the input that so many results of a thread span."""
        if self.phased:
            return results - self.place(0, self.taps - 1)  # type: ignore[operator]
        reach = self.dilation * (self.kernel - 1)
        if not self.transposed:
            return (results - 1) * self.stride + reach + 1
        first = (self.padding - reach) // self.stride
        return (results - 1 + self.padding) // self.stride - first + 1

    def lines_at_once(self, results: int) -> int:
        """Lines of a layer that a thread holds at once, while it goes through the taps along y."""
        uses: dict[int, list[int]] = {}
        for r, k in product(range(results), range(self.taps)):
            if (place := self.place(r, k)) is not None:
                uses.setdefault(place, []).append(k)
        return max((sum(min(u) <= k <= max(u) for u in uses.values()) for k in range(self.taps)), default=0)

    def tiles(self, length: int, results: int) -> float:
        """Tiles of so many results along an axis of ``length``; those of phases without taps read nothing."""
        if not self.phased:
            return ceil(length / results)
        return min(self.kernel, self.stride // gcd(self.stride, self.dilation)) * ceil(length / self.stride / results)


@dataclass(frozen=True)
class _Way:
    """How a thread may compute: its results along every axis, of so many ``channels`` of a group."""

    alongs: tuple[Along, ...]
    results: tuple[int, ...]
    channels: int

    @property
    def held(self) -> int:
        """Values that a thread holds at once: lines of a layer, sums, weights."""
        rows = self.alongs[-2].lines_at_once(self.results[-2]) if len(self.alongs) > 1 else 1
        rest = _WEIGHTS + (_VOLUME if len(self.alongs) > 2 else 0)
        return rows * self.alongs[-1].lines(self.results[-1]) + self.channels * prod(self.results) + rest

    @property
    def accesses(self) -> int:
        """Lines of a channel that a thread reads."""
        return prod(along.lines(own) for along, own in zip(self.alongs[:-1], self.results[:-1], strict=True))

    def ahead(self, inputs: int, vector: int) -> int:
        """Channels of the input, of so many in a group, that a thread should read at once."""
        accesses = self.accesses * ceil(self.alongs[-1].lines(self.results[-1]) / vector)
        spare = 1 + (MAX_HELD - self.held) // (accesses * vector)
        return max(n for n in range(1, max(1, min(inputs, _AHEAD // accesses, spare)) + 1) if inputs % n == 0)

    def cost(self, outputs: int, lengths: tuple[int, ...], groups: int) -> tuple[float, int, int]:
        """Lines that all threads read, and more where there are few threads; then preferences."""
        parts = ceil(outputs / self.channels)
        threads = groups * parts * prod(ceil(n / own) for n, own in zip(lengths, self.results, strict=True))
        read = parts * _read(self.alongs[:-1], lengths[:-1], self.results[:-1])
        size = self.channels * prod(self.results)
        return read * max(1.0, _FILLED / threads), sum(along.phased for along in self.alongs), size


def _read(alongs: tuple[Along, ...], lengths: tuple[int, ...], results: tuple[int, ...]) -> float:
    """Lines (positions, along the last axis) of a channel that all tiles of these ``results`` read."""
    axes = zip(alongs, lengths, results, strict=True)
    return prod(along.tiles(length, own) * along.lines(own) for along, length, own in axes)


def _alongs(op: ConvOp, kernel: tuple[int, ...], phased: tuple[bool, ...]) -> tuple[Along, ...]:
    """Every axis; ``phased`` for those but the last."""
    return tuple(Along.of(op, kernel, axis, own) for axis, own in enumerate((*phased, False)))


def _vectors(op: ConvOp) -> tuple[tuple[int, int], ...]:
    """(width of an access, results that lie side by side in a thread), the widest first."""
    stride = op.stride[-1]
    if op.transposed:  # stores are wider than loads
        return tuple((v, v * stride) for v in (4, 2, 1) if v * stride <= max(4, stride))
    return tuple((v, v // gcd(v, stride)) for v in (4, 2, 1))


def _ways(op: ConvOp, kernel: tuple[int, ...], outputs: int, across: int) -> Iterator[_Way]:
    """Ways with ``across`` results side by side whose sums and written-out products are not too many."""
    kinds = [(False, True) if op.transposed and step > 1 else (False,) for step in op.stride[:-1]]
    for phased, channels in product(product(*kinds), sorted({ceil(outputs / n) for n in range(1, outputs + 1)})):
        alongs = _alongs(op, kernel, phased)
        steps = [1 if not op.transposed or own else step for own, step in zip(phased, op.stride[:-1], strict=True)]
        taps = prod(along.taps for along in alongs) / (prod((*steps, op.stride[-1])) if op.transposed else 1)
        most = min(MAX_POSITIONS, MAX_RESULTS // channels, int(MAX_PRODUCTS / taps) // channels)
        for rows in product(*([step * n for n in (1, 2, 4, 8)] for step in steps)):
            if prod(rows) * across <= most:
                yield _Way(alongs, (*rows, across), channels)


def tiles(
    op: ConvOp, kernel: tuple[int, ...], channels: tuple[int, int], lengths: tuple[int, ...], groups: int
) -> tuple[Tile, ...]:
    """The tile for each width of an access, for results of these ``lengths``. Raises ``NotFusable``.

    ``channels``: (inputs, outputs) of a group; ``groups``: of all samples. Of those that fit, the one for which the
    fewest lines are read, as long as there are threads enough.
    """
    inputs, outputs = channels
    found = []
    for vector, across in _vectors(op):
        fitting = [way for way in _ways(op, kernel, outputs, across) if way.held <= MAX_HELD]
        if not fitting:
            continue
        best = min(fitting, key=lambda way: way.cost(outputs, lengths, groups))
        absent = 3 - op.rank
        z, y, x = (1,) * absent + best.results
        first, second = (False,) * absent + tuple(along.phased for along in best.alongs[:-1])
        few = best.held <= _FEW_HELD and op.rank < 3 and best.channels == 1
        threads, blocks = (128, 5) if few else (256, 2)
        tile = Tile(
            vector=vector,
            results=(z, y, x),
            phased=(first, second),
            outputs=best.channels,
            ahead=best.ahead(inputs, vector),
            threads=threads,
            blocks=blocks,
        )
        found.append(tile)
    if not found or found[-1].vector != 1:
        raise NotFusable(f"{prod(kernel)} taps of stride {op.stride} are too many for a thread")
    if prod(kernel[:-1]) > 1:  # else taps of several channels would be added up in an order that accesses decide
        least = min(tile.ahead for tile in found)
        found = [tile.replace(ahead=least) for tile in found]
    return tuple(found)


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
    batch, _, *lengths = body.shape(conv.name)
    groups = batch * conv.op.groups
    found = tiles(conv.op, ops.kernel_size(w), ops.group_channels(conv.op, x, w), tuple(lengths), groups)
    plain = isinstance(body.node(conv.inputs[0]).op, InputOp)  # else operands of the chain before it differ by channel
    return found if plain else tuple(tile.replace(ahead=1) for tile in found)


def seconds(body: Graph, conv: Node, machine: Machine, before: float = 0.0) -> float:
    """Expected time of the kernel at the traced sizes, with so many operations ``before`` the products."""
    moved = sum(4 * dims.numel(body.node(name).type.shape, body.sizes) for name in (*conv.inputs, conv.name))
    products = (ops.flops(body, conv) + 2 * before) / (_FLOPS * machine.flops)
    return max(moved / (_BANDWIDTH * machine.bandwidth), products) + machine.launch


def refusal(body: Graph, machine: Machine) -> str | None:
    """Why the convolution in ``body`` is left to the library, or None. Raises ``NotFusable``."""
    parts = split(body)
    conv, op = parts.conv, parts.op
    if dims.numel(conv.type.shape, body.sizes) == 0:
        return "it is empty"
    x, w = (body.node(name) for name in conv.inputs[:2])
    tile = region_tiles(body, conv)[0]
    ours = seconds(body, conv, machine)
    if chain := operations(parts.before):
        alongs = _alongs(op, ops.kernel_size(w.type), tile.phased[3 - op.rank :])
        lengths = body.shape(conv.name)[2:]
        turns = ceil(ops.group_channels(op, x.type, w.type)[1] / tile.outputs)
        read = turns * _read(alongs, lengths, tile.results[3 - op.rank :])
        elements = prod(body.shape(x.name)[:2]) * read
        written = 2 * 4 * dims.numel(x.type.shape, body.sizes) / machine.bandwidth + machine.launch
        if seconds(body, conv, machine, chain * elements) > ours + written:
            return f"{conv.inputs[0]} would be computed again for every tile that reads it"
    library = contractions.library_share(body, conv, machine)
    reason = f"a kernel is expected to take {ours * 1e6:.0f} us, and worth it up to {library * 1e6:.0f} us"
    return kernel_or_library(conv.name, ours, library, reason)
