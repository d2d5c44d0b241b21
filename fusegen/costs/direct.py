"""Convolutions of groups of few channels, depthwise ones above all: plain fp32, bound by what they read and write.

A thread computes a tile of results of the output channels of a group, or some of these, from the input lines that
their windows span, so that what the windows share is read once. The results are neighbours; along z and y, those of a
strided transposed convolution may be of one phase instead, which is an ordinary convolution of stride 1 by every
``gap``-th tap.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from fusegen import dims, inference, ops
from fusegen.costs import contractions, direct_shared, hopper, precision
from fusegen.costs.direct_tiles import CHAIN, Tile, along_axes, chain, lines_read, tiles
from fusegen.costs.tiling import TooLarge
from fusegen.ir import ConvOp, DType, Graph, InputOp, MatmulOp, Node
from fusegen.machines import DEFAULT_TARGET, Machine, machine
from fusegen.spaces.poolspace import along_channels, around, operations, over_channels
from fusegen.spaces.rowspace import NotFusable, RowSpace
from fusegen.tuning import kernel_or_library

_BANDWIDTH, _FLOPS = 0.75, 0.33
"""Shares of a machine's rates that the kernel reaches."""
_PHASED_MOVED, _PHASED_WORK, _IDLE = 1.1, 1.3, 1.5
"""Of channels whose threads have results of one phase each: what the traffic takes, and the products, whose weights
are loaded one by one; times over for each axis some phases of which have fewer taps, for which a warp's lanes wait."""
_FEW_SECONDS = 5e-6
"""Of the arithmetic of a convolution of a single group."""
_ALTERNATIVE = 0.85
"""Share of the other kernels' expected time below which one more in the file is worth it."""
JOINED = 1
"""Turns of the threads that share a group of a sample in whose time they join what they have found."""
_ROUNDING = 1.5
"""Times over that it may take, for it rounds to TF32, where products take longer than memory."""
_TRANSPOSED = (4, 1.9)
"""Outputs up to which a transposed convolution is sooner than is expected, and the tensor cores later: how many times
over the one may seem to take of the other (13 cases of 1 to 6 outputs: 0.54 to 0.9 and 1.1 to 1.46 of what is
expected; h200-heads-at-first-sight.json)."""
_TURN = 2e-7
"""Seconds at the least for a thread to add up the input channels that it reads at once (1x1 with 144 to
576 input channels took 0.24 to 1.8 us, h200-graphs.json)."""
_LOADED = 8
"""Operations that an element of a second tensor before the products stands for: it is loaded by itself."""
_PREPARED = 8e-6
"""Of the portable tensor-core kernel, besides its expected time, where it has little to do: it packs weights first.
That time is the one of its usual tiles, with which both were compared."""


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


def is_narrow(body: Graph, node: Node) -> bool:
    """True for convolutions whose groups are too narrow for tensor cores."""
    if not isinstance(node.op, ConvOp) or node.op.groups == 1:
        return False
    x, w = (body.node(name).type for name in node.inputs[:2])
    if any(not isinstance(size, int) for size in w.shape):
        return False
    inputs, outputs = inference.group_channels(node.op, x, w)
    return inputs * prod(inference.kernel_size(w)) <= CHAIN and outputs < contractions.LEAST_OUTPUTS


def takes(body: Graph, node: Node) -> bool:
    """True for convolutions whose groups are too narrow for tensor cores, or that have little for these to do."""
    if not isinstance(node.op, ConvOp):
        return False
    known = all(isinstance(size, int) for size in body.node(node.inputs[1]).type.shape)
    return known and (is_narrow(body, node) or is_small(body, node))


def is_small(body: Graph, node: Node) -> bool:
    """True where tensor cores are expected to take longer for a convolution, with what they prepare.

    False for ``precise`` ones whose errors eager averages out: of these, sums keep what rounding takes.
    """
    assert isinstance(node.op, ConvOp)
    if node.op.precise and not node.op.summed:
        return False
    rates = machine(DEFAULT_TARGET)
    x, w = (body.node(name).type for name in node.inputs[:2])
    _, outputs = inference.group_channels(node.op, x, w)
    many = outputs >= contractions.LEAST_OUTPUTS and ops.flops(body, node) > _FEW_SECONDS * _FLOPS * rates.flops
    apart = node.op.groups > 1 and not precision.allows_tf32(body, node)  # tensor cores multiply three times over
    if many and outputs > direct_shared.MOST_OUTPUTS and not apart:
        return False
    try:
        if not _adds_up_few(body, node):
            return False
        rounds = many and precision.allows_tf32(body, node) and not _waits_for_memory(body, node, rates)
    except NotFusable:
        return False
    whole = contractions.reduces(body)
    try:
        if many:
            tensor = min(contractions.tensor_core_seconds(body, node, whole, rates))
        else:
            portable = contractions.portable_seconds(body, node, whole, rates, few=False) + _PREPARED
            tensor = min(contractions.asynchronous_seconds(body, node, rates), portable)
    except TooLarge:
        return True
    few, times = _TRANSPOSED
    if node.op.transposed and outputs <= few and precision.allows_tf32(body, node):
        tensor *= times
    return (_ROUNDING if rounds else 1.0) * seconds(body, node, rates) < tensor


def pays_in_fp32(body: Graph, node: Node, machine: Machine) -> bool:
    """Whether a convolution in TF32 is worth a kernel in plain fp32 for sizes at which cuDNN decides on full fp32.

    Of few outputs, tensor cores multiply three times over, and mostly wait.
    """
    assert isinstance(node.op, ConvOp)
    x, w = (body.node(name).type for name in node.inputs[:2])
    _, outputs = inference.group_channels(node.op, x, w)
    if node.op.groups > 1 or outputs > direct_shared.MOST_OUTPUTS or not precision.allows_tf32(body, node):
        return False
    try:
        split(body)
        if not _adds_up_few(body, node):
            return False
        portable = contractions.portable_seconds(body, node, False, machine, precise=True, few=False)
    except (NotFusable, TooLarge):
        return False
    others = min(portable, hopper.conv_seconds(body, node, machine, True))
    return seconds(body, node, machine) < _ALTERNATIVE * others


def _adds_up_few(body: Graph, conv: Node) -> bool:
    """Whether no chain of additions of a thread is too long. Raises ``NotFusable``."""
    assert isinstance(conv.op, ConvOp)
    (tile, *_), work = region_tiles(body, conv), _work(body, conv)
    alongs = along_axes(work.op, work.kernel, tile.phased[3 - work.op.rank :])
    return chain(alongs, work.inputs) <= CHAIN * max(1, tile.shares)


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
    whole = contractions.reduces(after)
    if whole and isinstance(conv.op, ConvOp) and conv.op.groups > 1:
        raise NotFusable("a reduction over the channels of several groups")
    shape = before.node(x).type.shape
    source = next((node.name for node in before.inputs if node.type.shape == shape), None)
    if source is None:
        raise NotFusable(f"no operand has the shape of {x}")
    after_space = over_channels(after, conv.name) if whole else along_channels(after, conv.name)
    if any((axes := after_space.base_axes(name)) != tuple(sorted(axes)) for name in after.outputs):
        raise NotFusable("its result is laid out in another way: a view is free")
    return DirectRegion(conv, before, after, along_channels(before, source), after_space)


def region_tiles(body: Graph, conv: Node) -> tuple[Tile, ...]:
    """The tiles of the kernel for ``conv`` at the traced sizes. Raises ``NotFusable``.

    Where a reduction over the channels follows, a thread has all of them.
    """
    work, rates = _work(body, conv), machine(DEFAULT_TARGET)
    one_group, reduced = work.op.groups == 1, contractions.reduces(body)
    whole = one_group and reduced
    found = work.tiles() if one_group or not reduced else ()
    if not found or not one_group or work.outputs >= contractions.LEAST_OUTPUTS:
        channels, groups = (work.inputs, work.outputs), work.samples * work.op.groups
        apart = tiles(work.op, work.kernel, channels, work.lengths, groups)
        all_outputs = all(tile.outputs == work.outputs for tile in apart)
        if whole and not found and not all_outputs:
            raise NotFusable("a reduction over more channels than a thread has")
        sooner = not found or _turn_seconds(body, conv, apart, rates) <= _turn_seconds(body, conv, found, rates)
        if sooner and (all_outputs or not whole):
            found = apart
    plain = isinstance(body.node(conv.inputs[0]).op, InputOp)  # else operands of the chain before it differ by channel
    return found if plain else tuple(tile.replace(ahead=1) for tile in found)


def seconds(body: Graph, conv: Node, machine: Machine, before: float = 0.0) -> float:
    """Expected time of the kernel at the traced sizes, with so many operations ``before`` the products."""
    found = region_tiles(body, conv)
    work = _work_seconds(body, conv, found, machine) + 2 * before / (_FLOPS * machine.flops)
    moved, idle = _moved_seconds(body, conv, machine), _idle_phases(_work(body, conv), found[0])
    if idle is None:
        return max(moved, work) + machine.launch
    return (_PHASED_MOVED * moved + _PHASED_WORK * work) * _IDLE**idle + machine.launch


def _idle_phases(work: direct_shared.Work, tile: Tile) -> int | None:
    """Axes some phases of which have fewer taps than others.

    None where threads have several phases, or few channels, or no phase has several taps.
    """
    if work.op.groups > 1 or tile.outputs < contractions.LEAST_OUTPUTS:
        return None
    alongs = along_axes(work.op, work.kernel, tile.phased[3 - work.op.rank :])
    several = [along for along in alongs if along.phased and along.kernel > along.gap]
    return sum(along.kernel % along.gap > 0 for along in several) if several else None


def _moved_seconds(body: Graph, conv: Node, machine: Machine) -> float:
    moved = sum(4 * dims.numel(body.node(name).type.shape, body.sizes) for name in (*conv.inputs, conv.name))
    return moved / (_BANDWIDTH * machine.bandwidth)


def _work_seconds(body: Graph, conv: Node, found: tuple[Tile, ...], machine: Machine) -> float:
    if found[0].shares and found[0].outputs == _work(body, conv).outputs:
        return _turn_seconds(body, conv, found, machine)
    turns = ceil(_work(body, conv).inputs / found[0].ahead)
    return max(ops.flops(body, conv) / (_FLOPS * machine.flops), turns * _TURN)


def _waits_for_memory(body: Graph, conv: Node, machine: Machine) -> bool:
    """Whether products take no longer than what is read and written: rounding to TF32, not counted, costs nothing then.

    Raises ``NotFusable``.
    """
    return _work_seconds(body, conv, region_tiles(body, conv), machine) <= _moved_seconds(body, conv, machine)


def reduced_seconds(body: Graph, conv: Node, machine: Machine) -> float:
    """Expected time of the kernel for narrow groups where a reduction of each channel is all that is written.

    Threads of a block share the tiles of a group of a sample, as the launcher decides.
    """
    work, tile = _work(body, conv), _likely(body, conv, region_tiles(body, conv))
    units = work.samples * work.op.groups * ceil(work.outputs / tile.outputs)
    absent = 3 - work.op.rank
    alongs = along_axes(work.op, work.kernel, tile.phased[absent:])
    axes = zip(alongs, work.lengths, tile.results[absent:], strict=True)
    own = prod(ceil(along.tiles(length, results)) for along, length, results in axes)
    slots = machine.multiprocessors * tile.blocks
    sharers = [2**n for n in range(5, tile.threads.bit_length())]
    turns = min(max(ceil(units * n / tile.threads), slots) * (ceil(own / n) + JOINED) for n in sharers)
    moved = sum(4 * dims.numel(body.node(name).type.shape, body.sizes) for name in conv.inputs)
    full = max(moved / (_BANDWIDTH * machine.bandwidth), ops.flops(body, conv) / (_FLOPS * machine.flops))
    return float(full * turns * tile.threads / (units * own)) + machine.launch


def _likely(body: Graph, conv: Node, found: tuple[Tile, ...]) -> Tile:
    """The tile of ``found`` that calls of the traced sizes have, where their tensors are aligned."""
    work = _work(body, conv)
    stored = work.lengths[-1]
    read = stored if len(work.lengths) < conv.type.rank - 2 else body.shape(conv.inputs[0])[-1]
    fitting = (tile for tile in found if read % tile.vector == 0 and stored % tile.results[2] == 0)
    return next(fitting, found[-1])


def _turn_seconds(body: Graph, conv: Node, found: tuple[Tile, ...], machine: Machine) -> float:
    """Expected time of the arithmetic with the tile of ``found`` that calls of the traced sizes have, aligned."""
    return _work(body, conv).seconds(_likely(body, conv, found), machine)


def _work(body: Graph, conv: Node) -> direct_shared.Work:
    op = conv.op
    assert isinstance(op, ConvOp)
    x, w = (body.node(name).type for name in conv.inputs[:2])
    batch, _, *lengths = body.shape(conv.name)
    channels, kernel = inference.group_channels(op, x, w), inference.kernel_size(w)
    if inference.is_line(op, kernel):
        op = op.replace(stride=(1,), padding=(0,), dilation=(1,), output_padding=(0,))
        kernel, lengths = (1,), [prod(lengths)]
    return direct_shared.Work(op, kernel, *channels, tuple(lengths), batch)


def repeated(body: Graph, parts: DirectRegion, machine: Machine) -> str | None:
    """Why the chain up to the convolution is none of its kernel, which computes it for every tile, or None."""
    conv = parts.conv
    chain = operations(parts.before)
    if not chain:
        return None
    shape = body.node(conv.inputs[0]).type.shape
    chain += _LOADED * (sum(node.type.shape == shape for node in parts.before.inputs) - 1)
    tile, work = region_tiles(body, conv)[0], _work(body, conv)
    absent = 3 - work.op.rank
    alongs = along_axes(work.op, work.kernel, tile.phased[absent:])
    turns = ceil(work.outputs / tile.outputs)
    read = turns * lines_read(alongs, work.lengths, tile.results[absent:])
    elements = prod(body.shape(conv.inputs[0])[:2]) * read
    moved = 2 * 4 * dims.numel(body.node(conv.inputs[0]).type.shape, body.sizes)
    apart = seconds(body, conv, machine) + moved / machine.bandwidth + machine.launch
    again = seconds(body, conv, machine, chain * elements) > apart
    return f"{conv.inputs[0]} would be computed again for every tile that reads it" if again else None


def refusal(body: Graph, machine: Machine) -> str | None:
    """Why the convolution in ``body`` is left to the library, or None. Raises ``NotFusable``."""
    parts = split(body)
    conv = parts.conv
    if dims.numel(conv.type.shape, body.sizes) == 0:
        return "it is empty"
    if reason := repeated(body, parts, machine):
        return reason
    ours = seconds(body, conv, machine)
    library = contractions.library_share(body, conv, machine)
    reason = f"a kernel is expected to take {ours * 1e6:.0f} us, and worth it up to {library * 1e6:.0f} us"
    return kernel_or_library(conv.name, ours, library, reason)
