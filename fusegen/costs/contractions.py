"""Convolutions and matrix products as contractions: the shape that a kernel sees, and whether one is worth it.

A contraction computes [pixels, outputs]: for every output position (every row of a matrix product)
a row of all output channels (features), which an epilogue then works on before it is stored.
"""

from __future__ import annotations

from collections import Counter
from math import ceil, inf, prod

from fusegen import dims, inference, ops
from fusegen.costs import gemm, hopper, library, precision
from fusegen.costs.matmul_tiling import tile_matmul
from fusegen.costs.tiling import Structure, TooLarge, tile_conv
from fusegen.dims import Dims
from fusegen.ir import (
    HALVES,
    ConstOp,
    ConvOp,
    Graph,
    InputOp,
    MatmulOp,
    Node,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    SoftmaxOp,
)
from fusegen.machines import Machine
from fusegen.spaces.rowspace import RowSpace, feature_axis
from fusegen.tuning import kernel_or_library

SPLIT = 3
"""Tensor-core products of an fp32-accurate one (high by high, high by low, low by high)."""
_RESIDENT = 2
"""Blocks of the portable kernels on a multiprocessor, with many outputs."""
BLOCK_SECONDS = 2e-6
"""Start and end of such a block, where nothing hides them."""
_PLAIN = 0.85
"""Share of the rate that is left where an element of x takes part in few products."""
LOAD_SECONDS = 2e-6
"""What it takes in full fp32 for every load of its input but the first: to arrive and to be split."""
_VOLUME = {False: 1.2, True: 2.2}
"""Times over that a convolution along three axes takes in full fp32: the least where its stride is 1 (1.2 to 4.0 of
four), and strided (1.2, 2.5 and 3.8 of three)."""
_ONE_TAP = 1.35
"""The same of a kernel of one (1.1 to 1.6 of seven, of 32 to 256 channels)."""
_IN_TURNS = 0.8
"""Share of its expected time that a kernel takes whose blocks compute box after box from a load of x, along three axes
as along two (20 convolutions of few channels took 0.5 to 1.3 of that without it, H100)."""
_SHARED_SECONDS = 1.5e-6
"""To add up the sums of the blocks that share a tile."""
_SLICE_SECONDS, _WORD_FLOPS = 5e-7, 25
"""Of few outputs, whose products are no limit: a slice of weights, which all warps of a block wait for, and a word of x
as operations of plain fp32."""
_CLEARLY = 0.85
"""A convolution that nothing follows leaves the library only for a kernel expected to take less than this share."""
PLAIN_TAPS = 64
"""Of the convolution that plain fp32 is meant for."""
_PLAIN_FLOPS, _PLAIN_SECONDS, _PLAIN_OUTPUTS = 0.3, 4e-6, 16
"""The share of the fp32 rate that it reaches, the time of a block that has little to do, the channels of a block."""
_STREAMED, _NEIGHBOURS, _GATHERED = 1.5, 2.5, 10
"""Times over that the traffic of an operand of every result counts: read as results are stored; or as products lie, in
Hopper's kernel, or where the portable one has neighbours of a phase each side by side; or there else."""
_OF_CHANNELS = 2
"""The same of an operand with a value for every channel of every sample: each result reads it (mean and variance of a
norm before sums over 96 channels: 143 us as products lie, 90 in a kernel of rows behind the library's)."""
_PORTABLE_TF32 = 2.7
"""Times over that the portable kernel takes in TF32 of what is expected (19 random convolutions took 1.0 to 7.2 times,
the median 2.5)."""
_PORTABLE_STRIDED = {True: 1.2, False: 1.1}
"""The same of strided convolutions and without smaller tiles (8 took 0.8 to 1.4 times), where the asynchronous kernel
reads its input in place, or writes a grid for every residue of the stride (which took 0.8 to 1.5 times)."""
_PORTABLE_DILATED = 1.4
"""Times over that it takes in full fp32 of what is expected where it is dilated and the asynchronous kernel may be
beside it (16 channels to 32: 77 us, 38 expected, and the other one 55; 24 to 24, strided: 67 us, 41 expected, and the
other one 52). Else it is near: 92 us, 82 expected, and the other one 142; 77 us, 67 expected, and the other one 100."""
_IDLE = 0.5
"""Share of the multiprocessors that the asynchronous kernel leaves idle, from which on the portable one, whose tiles
are smaller, may be faster in TF32."""
LEAST_OUTPUTS = 8
"""Of a group: an operand of the tensor cores."""
_BANKS = 32
"""Of shared memory, a word wide each."""


def reduces(body: Graph) -> bool:
    """Whether results in ``body`` are reduced, not only stored."""
    return any(isinstance(node.op, (ReduceOp, SoftmaxOp)) for node in body.nodes)


def portable_seconds(
    body: Graph,
    node: Node,
    whole: bool,
    machine: Machine,
    merge: bool = True,
    precise: bool = False,
    few: bool = True,
) -> float:
    """Expected time of the mma.sync kernel at the traced sizes, its epilogue for free. It must fit.

    ``precise``: in full fp32, also where TF32 may be permitted. ``few``: with smaller tiles where positions are few,
    as it has them if its results are only stored.
    """
    split = precise or not precision.allows_tf32(body, node) or isinstance(node.op, MatmulOp)
    shape, block_seconds, resident, loaded, in_turns = body.shape(node.name), BLOCK_SECONDS, _RESIDENT, 0, False
    if isinstance(node.op, ConvOp):
        x, w = (body.node(name).type for name in node.inputs[:2])
        inputs, outputs = inference.group_channels(node.op, x, w)
        few = few and not reduces(body)
        positions = shape[0] * node.op.groups * prod(shape[2:]) if few else None
        tiling = tile_conv(Structure(node.op, inference.kernel_size(w), inputs, outputs, whole, merge, positions))
        blocks = shape[0] * node.op.groups * ceil(outputs / tiling.output_tile) * tiling.grid_phases
        blocks *= ceil(prod(shape[2:]) / tiling.grid_phases / tiling.phases / tiling.positions(split))
        shares, in_turns = tiling.shares(blocks, machine.multiprocessors * resident), tiling.turns and not tiling.affine
        block_flops = tiling.block_flops(split) / shares * _conflicts(node.op)
        block_seconds += (ceil(tiling.loads / shares) - 1) * LOAD_SECONDS if split else 0.0
        block_seconds += _SHARED_SECONDS if shares > 1 else 0.0
        if not split and (outputs < LEAST_OUTPUTS or max(tiling.merged) > 1):
            own = tiling.shape(split)
            resident, loaded = own.resident, blocks * tiling.loads * tiling.chunk * own.plane
            block_seconds += own.first_slices[-1] / tiling.grid_phases * _SLICE_SECONDS
    else:
        length, features = body.shape(node.inputs[0])[-1], shape[-1]
        rows, columns = tile_matmul(features, whole).tile
        batches = prod(shape[:-2]) if body.node(node.inputs[1]).type.rank > 2 else 1
        blocks = batches * ceil(prod(shape[:-1]) / batches / rows) * ceil(features / columns)
        block_flops = 6.0 * rows * columns * length
    slots = machine.multiprocessors * resident
    waves = ceil(blocks / slots)
    moved = sum(4 * dims.numel(body.node(name).type.shape, body.sizes) for name in (*node.inputs, node.name))
    rate = machine.mma_flops * (1.0 if split else _PLAIN)
    seconds = waves * (block_flops * slots / rate + block_seconds) + moved / machine.bandwidth
    if in_turns:
        seconds *= _IN_TURNS
    elif split and isinstance(node.op, ConvOp):
        if node.op.rank == 3:
            seconds *= _VOLUME[not node.op.transposed and max(node.op.stride) > 1]
        elif prod(inference.kernel_size(body.node(node.inputs[1]).type)) == 1:
            seconds *= _ONE_TAP
    return seconds + loaded * _WORD_FLOPS / machine.flops


def _conflicts(conv: ConvOp) -> int:
    """Times that a fragment meets a bank of shared memory: eight positions, four neighbouring words of each."""
    step = 1 if conv.transposed else conv.stride[-1]
    words = {position * step + word for position in range(8) for word in range(4)}
    return max(Counter(word % _BANKS for word in words).values())


def plain_seconds(body: Graph, node: Node, whole: bool, machine: Machine) -> float:
    """Expected time of a convolution in plain fp32, in one launch; infinite where there is no such kernel.

    It is for what is left of a collapsed convolution: precise, and of few products.
    """
    if not isinstance(node.op, ConvOp) or not node.op.precise or whole:
        return inf
    if prod(inference.kernel_size(body.node(node.inputs[1]).type)) > PLAIN_TAPS:
        return inf
    x, w = (body.node(name).type for name in node.inputs[:2])
    _, outputs = inference.group_channels(node.op, x, w)
    filled = ceil(outputs / _PLAIN_OUTPUTS) * _PLAIN_OUTPUTS / outputs
    waves = filled * ops.flops(body, node) / (_PLAIN_FLOPS * machine.flops)
    moved = sum(4 * dims.numel(body.node(name).type.shape, body.sizes) for name in (*node.inputs, node.name))
    return waves + moved / machine.bandwidth + _PLAIN_SECONDS


def tensor_core_seconds(
    body: Graph, node: Node, whole: bool, machine: Machine, finished: bool = False
) -> tuple[float, float]:
    """Expected times of the asynchronous and of the portable kernel; infinite for one that does not run.

    In TF32 that is the portable one for the most part: convolutions of 1x1 that it was expected to be better at took it
    twice as long. ``finished``: with the operands that each result has one of.
    """
    asynchronous, tf32 = asynchronous_seconds(body, node, machine), precision.allows_tf32(body, node)
    if finished:
        asynchronous += operand_seconds(body, node, machine, streamed=not whole, neighbours=True)
    beside = asynchronous < inf and tf32
    portable = (_portable_beside if beside else portable_seconds)(body, node, whole, machine)
    if finished:
        neighbours = isinstance(node.op, ConvOp) and node.op.transposed and node.op.stride[-1] > 1
        portable += operand_seconds(body, node, machine, streamed=False, neighbours=neighbours)
    return asynchronous, portable


def _portable_beside(body: Graph, node: Node, whole: bool, machine: Machine) -> float:
    """Expected time of the portable kernel in TF32 where it may be faster than the asynchronous one; else infinite.

    That is where the other one has few tiles, or boxes with gaps, or a grid for every residue of a stride.
    """
    least = _strided_seconds(body, node, whole, machine)
    if least == inf and not _leaves_idle(body, node, machine):
        return inf
    return min(least, _PORTABLE_TF32 * portable_seconds(body, node, whole, machine))


def _strided_seconds(body: Graph, node: Node, whole: bool, machine: Machine) -> float:
    """The same without smaller tiles, where the asynchronous kernel has such boxes or grids; else infinite."""
    assert isinstance(node.op, ConvOp)
    x, w = (body.node(name).type for name in node.inputs[:2])
    _, outputs = inference.group_channels(node.op, x, w)
    strided = not node.op.transposed and max(node.op.stride) > 1
    if not strided or outputs <= LEAST_OUTPUTS or prod(inference.kernel_size(w)) == 1:
        return inf
    in_place = hopper.reads_in_place(body, node, machine)
    if not in_place and hopper.residues(body, node) < prod(node.op.stride):
        return inf
    return _PORTABLE_STRIDED[in_place] * portable_seconds(body, node, whole, machine, few=False)


def _leaves_idle(body: Graph, node: Node, machine: Machine) -> bool:
    """Whether the asynchronous kernel has too few tiles for the machine, in a convolution that is one in TF32.

    Where cuDNN may decide on full fp32, the file has kernels beside it for that; for reductions the portable kernel's
    tiles are no smaller.
    """
    if not isinstance(node.op, ConvOp) or reduces(body):
        return False
    return precision.surely_in_tf32(body, node) and hopper.blocks(body, node) <= (1 - _IDLE) * machine.multiprocessors


def kernel_seconds(body: Graph, node: Node, whole: bool, machine: Machine, finished: bool = False) -> float:
    """Expected time of the kernel that runs on ``machine``; ``finished``: as above.

    The portable kernel must fit wherever the Hopper one runs: it takes the calls that that one does not.
    """
    tensor = min(tensor_core_seconds(body, node, whole, machine, finished))
    plain = plain_seconds(body, node, whole, machine)
    return min(tensor, plain + (operand_seconds(body, node, machine, streamed=False) if finished else 0.0))


def bound_seconds(body: Graph, conv: str, machine: Machine) -> float:
    """What the asynchronous kernel is expected to take beyond the one that a convolution has where it may be any."""
    node = body.node(conv)
    asynchronous, _ = tensor_core_seconds(body, node, False, machine, finished=True)
    return asynchronous - kernel_seconds(body, node, False, machine, finished=True)


def _differs(shape: Dims, rank: int) -> bool:
    """Whether an operand of this shape differs from channel to channel and otherwise, with results of ``rank`` axes."""
    own = (*(1,) * (rank - len(shape)), *shape)
    return own[1] != 1 and any(size != 1 for axis, size in enumerate(own) if axis != 1)


def operand_seconds(body: Graph, node: Node, machine: Machine, streamed: bool, neighbours: bool = False) -> float:
    """What it costs a convolution's epilogue to read operands of a value for each result, beside reading them once.

    ``streamed``: Hopper's kernel reads them in runs, ahead, as it stores results that are finished one by one, also
    those that differ along channels and some axes only. Else a lane holds results of many channels, whose operands
    it reads 4 bytes at a time; other warps multiply meanwhile. ``neighbours``: results of a channel that lie side by
    side are held together.
    """
    if not isinstance(node.op, ConvOp):
        return 0.0
    size = dims.numel(node.type.shape, body.sizes)
    read = {name for n in body.nodes if n is not node for name in n.inputs}
    whole = [n for n in body.nodes if isinstance(n.op, InputOp) and n.name in read]
    once = 4 * size / machine.bandwidth
    if streamed:
        return (_STREAMED - 1) * sum(_differs(n.type.shape, node.type.rank) for n in whole) * once
    traffic = sum(dims.numel(n.type.shape, body.sizes) == size for n in whole) * once
    products = ops.flops(body, node) / machine.tensor_flops * (1 if precision.allows_tf32(body, node) else SPLIT)
    fewer = (n.type.shape for n in whole if dims.numel(n.type.shape, body.sizes) != size)
    of_channels = _OF_CHANNELS * once * sum(_differs(shape, node.type.rank) for shape in fewer)
    return max(0.0, ((_NEIGHBOURS if neighbours else _GATHERED) - 1) * traffic + of_channels - products)


def asynchronous_seconds(body: Graph, node: Node, machine: Machine) -> float:
    """Expected time of a convolution on Hopper's tensor cores; infinite where there is no such kernel."""
    if not isinstance(node.op, ConvOp) or not machine.wgmma or hopper_refusal(body, node):
        return inf
    precise = not precision.allows_tf32(body, node)
    prepared = hopper.conv_seconds(body, node, machine, precise, plain=not reduces(body))
    if precise:
        return prepared
    if hopper.pays_in_halves(body, node, None, machine):
        return hopper.conv_seconds(body, node, machine, False, in_halves=True)
    return min(prepared, hopper.in_place_seconds(body, node, machine))


def fp32_pays(body: Graph, node: Node, whole: bool, machine: Machine) -> bool:
    """Whether a convolution that may be in TF32 is worth a kernel of Hopper's for sizes at which cuDNN decides on fp32.

    Without one the portable kernel takes those calls, and it is in the file in any case.
    """
    assert isinstance(node.op, ConvOp)
    if precision.surely_in_tf32(body, node):
        return False
    portable = portable_seconds(body, node, whole, machine, precise=True)
    if max(node.op.dilation) > 1:
        portable *= _PORTABLE_DILATED
    return hopper.conv_seconds(body, node, machine, True) < portable


def hopper_refusal(body: Graph, conv: Node) -> str | None:
    """Why the tensor cores of sm_90a have no kernel for a convolution, or None."""
    assert isinstance(conv.op, ConvOp)
    x, w = (body.node(name).type for name in conv.inputs[:2])
    return hopper.refusal(conv.op, inference.conv_channels(conv.op, x, w), not precision.allows_tf32(body, conv))


def _only_adds_bias(body: Graph, node: Node) -> bool:
    """True when a bias alone follows, which the library's call takes too."""
    work = [n for n in body.nodes if not isinstance(n.op, (InputOp, ConstOp, ReshapeOp)) and n is not node]
    outputs = node.type.shape[feature_axis(node)]
    return [n.op for n in work] == [PointwiseOp(fn="add")] and any(
        dims.product(body.node(name).type.shape) == outputs for name in work[0].inputs if name != node.name
    )


def _is_alone(body: Graph, node: Node) -> bool:
    """True when nothing follows the contraction but a bias."""
    return node.name == body.outputs[0] or _only_adds_bias(body, node)


def library_share(body: Graph, node: Node, machine: Machine, saves: bool = False) -> float:
    """What a kernel may take: the library's time, and that of a pass over its result for what follows.

    Less where it is alone, and ``saves`` nothing elsewhere.
    """
    seconds = library.seconds(body, node, machine)
    if node.name != body.outputs[0]:  # also a bias is a pass
        seconds += 2 * 4 * dims.numel(node.type.shape, body.sizes) / machine.bandwidth + machine.launch
    return seconds * (_CLEARLY if _is_alone(body, node) and not saves else 1.0)


def refusal(body: Graph, space: RowSpace, machine: Machine, saved: float = 0.0) -> str | None:
    """Why the contraction in ``body`` is left to the library, or None when a kernel computes it.

    ``saved``: seconds that a convolution's kernel takes off what reads its result.
    """
    node = body.node(space.source)
    assert isinstance(node.op, (ConvOp, MatmulOp))
    sizes = [node.type.shape[feature_axis(node)], *body.node(node.inputs[1]).type.shape]
    if isinstance(node.op, ConvOp) and any(not isinstance(size, int) for size in sizes):
        return "its weight has a size that is known only at run time"
    if isinstance(node.op, ConvOp) and node.op.groups > 1 and space.row_axes:
        return "a reduction over the channels of several groups"
    if any(dims.numel(body.node(name).type.shape, body.sizes) == 0 for name in (*node.inputs, node.name)):
        return "it is empty"
    by_gemm = fits_gemm(body, space, node)
    plain = is_plain_product(body, node) or by_gemm
    if plain and any(list(axes) != sorted(axes) for axes in map(space.base_axes, body.outputs)):
        return "its result is laid out in another way: a view is free"
    if by_gemm and (machine.wgmma or node.type.dtype in HALVES or gemm.runs_anywhere(body, space, node)):
        return gemm.refusal(body, space, node, machine, _is_alone(body, node))
    if unfit := not_portable(body, space, node):
        return gemm.unfit(body, space, node) or unfit if plain else unfit
    if isinstance(node.op, MatmulOp) and _is_alone(body, node):
        return "nothing follows it that could share its kernel"
    ours = kernel_seconds(body, node, bool(space.row_axes), machine, finished=True)
    library = library_share(body, node, machine, bool(saved)) + saved
    reason = f"a kernel is expected to take {ours * 1e6:.0f} us, and worth it up to {library * 1e6:.0f} us"
    return kernel_or_library(node.name, ours, library, reason)


def statistics_refusal(body: Graph, space: RowSpace, machine: Machine, saved: float) -> str | None:
    """Why a kernel for ``body`` does not also find statistics of its channels, which saves so much, or None.

    Only the tensor-core kernel has them in its epilogue; the portable one reads its result again.
    """
    node = body.node(space.source)
    if not machine.wgmma or hopper_refusal(body, node):
        return "only sm_90a's kernel finds statistics while it stores"
    return refusal(body, space, machine, saved)


def is_plain_product(body: Graph, node: Node) -> bool:
    """True for a product with one weight, whatever the batches of the other factor."""
    return isinstance(node.op, MatmulOp) and body.node(node.inputs[1]).type.rank == 2


def fits_gemm(body: Graph, space: RowSpace, node: Node) -> bool:
    """True for products that ``plan.gemm`` has a kernel for, with what follows them."""
    if node.type.dtype in HALVES:
        return is_plain_product(body, node)
    return isinstance(node.op, MatmulOp) and gemm.unfit(body, space, node) is None


def not_portable(body: Graph, space: RowSpace, node: Node) -> str | None:
    """Why the portable kernels cannot compute the contraction ``node`` and what follows it, or None."""
    if len(space.shape) != node.type.rank:
        return "a reshape splits the axes of its result"
    if node.type.dtype in HALVES:
        return f"it is {node.type.dtype.value}, for which such a product has no kernel"
    if isinstance(node.op, MatmulOp) and not gemm.factors(body, node).fixed:
        return "the sizes of its weight are known only at run time"
    if isinstance(node.op, MatmulOp) and node.op.left_transposed:
        return "its left factor is stored transposed"
    try:
        if isinstance(node.op, ConvOp):
            x, w = (body.node(name).type for name in node.inputs[:2])
            inputs, outputs = inference.group_channels(node.op, x, w)
            tile_conv(Structure(node.op, inference.kernel_size(w), inputs, outputs, bool(space.row_axes)))
        else:
            tile_matmul(int(node.type.shape[-1]), bool(space.row_axes))
    except TooLarge as error:
        return str(error)
    return None
