"""Expected times of convolutions whose blocks compute box after box along some axes, into running results."""

from __future__ import annotations

from math import ceil, prod

from fusegen import dims, inference, ops
from fusegen.costs import contractions, precision
from fusegen.costs.tiling import Structure, tile_conv
from fusegen.ir import ConvOp, Graph, Node
from fusegen.machines import Machine

_PRODUCTS, _TURN_SECONDS, _PHASES = 1.3, 7.5e-7, 1.5
"""Times over that products take, which have half the registers; what a turn takes
of a multiprocessor beside them; times over that a transposed convolution's phases take (13 convolutions, H200)."""
_IN_TURNS = (1.0, 2.5e-7)
"""Of these the first two where turns share a load of x (three convolutions of few channels, H100)."""
_LOAD_SECONDS = 2.5e-6
"""What every further load of input channels takes of a turn in TF32 (2.4 and 5 us, of 256 and of 128 channels)."""
_CHAIN = 10.0
"""Times over that functions before the reduction take: its warps multiply nothing meanwhile.

Of a sine and of an error function (H200), which took 6 and 13 times."""


def _sweep(
    sizes: tuple[int, ...], swept: tuple[bool, ...], positions: int, blocks: int, slots: int
) -> tuple[float, int]:
    """(waves of blocks, turns of each) for the best box of ``positions`` along axes of these ``sizes``.

    ``blocks``: for each box along the axes that are not swept. The launcher chooses alike.
    """
    found = []
    for width in range(8, positions + 8, 8):
        for height in range(1, min(sizes[1], positions // min(width, sizes[2])) + 1):
            box = (positions // (min(width, sizes[2]) * height), height, min(width, sizes[2]))
            counts = [ceil(size / own) for size, own in zip(sizes, box, strict=True)]
            turns = prod(count for count, along in zip(counts, swept, strict=True) if along)
            found.append((max(1.0, blocks * prod(counts) / turns / slots), turns))
    return min(found, key=prod)


def seconds(
    body: Graph, node: Node, before: Graph, swept: tuple[bool, bool, bool], whole: bool, machine: Machine
) -> float:
    """Expected time of the mma.sync kernel whose blocks compute all positions along the axes ``swept``, box by box.

    ``before``: the chain that its results go through before they are reduced.
    """
    conv = node.op
    assert isinstance(conv, ConvOp)
    split = not precision.allows_tf32(body, node)
    x, w = (body.node(name).type for name in node.inputs[:2])
    inputs, outputs = inference.group_channels(conv, x, w)
    tiling = tile_conv(Structure(conv, inference.kernel_size(w), inputs, outputs, whole, swept=swept))
    samples, _, *lengths = body.shape(node.name)
    phases = (tiling.axes[0].phases, tiling.axes[1].phases, tiling.axes[2].phases)
    sizes = tuple(ceil(size / own) for size, own in zip([*[1] * (3 - conv.rank), *lengths], phases, strict=True))
    apart = (*phases[:2], phases[2] // tiling.interleaved)
    turned, others = (
        prod(count for count, own in zip(apart, swept, strict=True) if own is along) for along in (True, False)
    )
    resident = tiling.shape(split).resident
    slots = machine.multiprocessors * resident
    blocks = samples * conv.groups * ceil(outputs / tiling.output_tile) * others
    waves, turns = _sweep(sizes, swept, tiling.positions(split), blocks, slots)
    products, beside = _IN_TURNS if tiling.turns else (_PRODUCTS, _TURN_SECONDS)
    turn = products * tiling.block_flops(split) * slots / machine.mma_flops + resident * beside
    turn += (tiling.loads - 1) * (contractions.LOAD_SECONDS if split else _LOAD_SECONDS)
    turn *= _PHASES if prod(phases) > 1 else 1.0
    chain = sum(ops.function_flops(before, own) for own in before.nodes) * _CHAIN / machine.flops
    moved = sum(4 * dims.numel(body.node(name).type.shape, body.sizes) for name in node.inputs)
    blocks_take = waves * (turns * turned * turn + contractions.BLOCK_SECONDS)
    return blocks_take + chain + moved / machine.bandwidth + machine.launch
