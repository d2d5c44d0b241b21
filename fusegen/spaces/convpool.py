"""A pooling in the epilogue of a convolution: windows side by side, so that each result is in one window.

The convolution's results are never written. The kernel for sm_90a computes them in patches that hold whole
windows along the last two axes, or, along an axis where windows fit no patch, one position of all windows
after the other (``hopper_taps.Taps.parts``) into the same running results. Windows of the stride of a transposed
convolution are its phases, which the portable kernel computes one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusegen import dims, inference
from fusegen.costs import contractions, hopper, library, precision
from fusegen.costs.hopper_taps import Windows
from fusegen.costs.tiling import Structure, TooLarge, tile_conv
from fusegen.ir import ConvOp, DType, Graph, Node, PoolOp
from fusegen.machines import Machine
from fusegen.spaces.poolspace import CHANNELS, along_channels, cut
from fusegen.spaces.rowspace import NotFusable, RowSpace
from fusegen.tuning import together_or_apart

_PORTABLE = 1.5
"""Times over what is expected of it that the portable kernel takes for a transposed convolution (1.3 and 1.7, H200)."""
_IN_TURNS = 0.35
"""Share of it, without its stores, that is left where a block computes all phases from one load of x (both of two)."""


@dataclass(frozen=True)
class ConvPool:
    """A region's parts: the convolution with the chain up to the pooling, and the chain after it.

    Both chains run along the channels; ``before_space`` is over the convolution's result, ``after_space``
    over the pooling's, which is an input of ``after``.
    """

    conv: Node
    pool: Node
    before: Graph
    after: Graph
    before_space: RowSpace
    after_space: RowSpace

    @property
    def op(self) -> PoolOp:
        assert isinstance(self.pool.op, PoolOp)
        return self.pool.op

    @property
    def by_phases(self) -> bool:
        """Whether a window is all phases of a position of a strided transposed convolution."""
        conv = self.conv.op
        return isinstance(conv, ConvOp) and conv.transposed and self.op.kernel == conv.stride != (1,) * conv.rank

    @property
    def windows(self) -> Windows:
        return Windows.of(self.op.kernel)


def split(body: Graph) -> ConvPool:
    """The parts of a region with a convolution and a pooling. Raises ``NotFusable``."""
    pool, before, after = cut(body)
    convs = [node for node in before.nodes if isinstance(node.op, ConvOp)]
    if len(convs) != 1 or any(isinstance(node.op, ConvOp) for node in after.nodes):
        raise NotFusable("its convolution is not the one that it pools")
    (conv,) = convs
    assert isinstance(conv.op, ConvOp)
    if not isinstance(pool.op, PoolOp) or pool.op.rank != conv.op.rank:
        raise NotFusable(f"{pool.name} has no windows of a fixed size along the axes of {conv.name}")
    side_by_side = pool.op.kernel == pool.op.stride and not any(pool.op.padding) and not pool.op.ceil
    if not side_by_side or any(step != 1 for step in pool.op.dilation):
        raise NotFusable(f"the windows of {pool.name} overlap, have gaps, or reach past the result of {conv.name}")
    if any(name not in body.by_name or body.node(name).op.kind != "input" for name in conv.inputs):
        raise NotFusable(f"an operand of {conv.name} is computed before it")
    spaces = along_channels(before, conv.name), along_channels(after, pool.name)
    for part, space in zip((before, after), spaces, strict=True):
        check_operands(part, space)
    return ConvPool(conv, pool, before, after, *spaces)


def check_operands(part: Graph, space: RowSpace) -> None:
    """Operands have a value for each channel, or one for all. Raises ``NotFusable``."""
    for node in part.nodes:
        if node.name not in space.axes or node.name == space.source:
            continue
        for operand in map(part.node, node.inputs):
            own = space.axes[node.name][node.type.rank - operand.type.rank :]
            varies = {base for bases, size in zip(own, operand.type.shape, strict=True) if size != 1 for base in bases}
            if operand.name not in space.axes and not varies <= {CHANNELS}:
                raise NotFusable(f"{operand.name} varies along other axes than the channels")


def _channels(body: Graph, conv: Node) -> tuple[int, int]:
    """Inputs and outputs of a group."""
    assert isinstance(conv.op, ConvOp)
    x, w = (body.node(name).type for name in conv.inputs[:2])
    return inference.group_channels(conv.op, x, w)


def unfit(
    body: Graph, conv: Node, left: Node, *, whole: bool = False, swept: tuple[bool, bool, bool] = (False, False, False)
) -> str | None:
    """Why the portable kernel, which takes the calls with TF32 off, has not ``conv`` up to ``left`` of it, or None.

    ``whole``, ``swept``: as in ``Structure``.
    """
    assert isinstance(conv.op, ConvOp)
    weight = body.node(conv.inputs[1]).type
    if any(not isinstance(size, int) for size in weight.shape):
        return "its weight has a size that is known only at run time"
    if conv.type.dtype is not DType.FLOAT32:
        return f"it is {conv.type.dtype.value}, for which such a convolution has no kernel"
    if dims.numel(left.type.shape, body.sizes) == 0:
        return "it is empty"
    try:
        tile_conv(Structure(conv.op, inference.kernel_size(weight), *_channels(body, conv), whole, swept=swept))
    except TooLarge as error:
        return str(error)
    return None


def refusal(body: Graph, machine: Machine) -> str | None:
    """Why the pooling in ``body`` is no part of its convolution's kernel, or None. Raises ``NotFusable``."""
    parts = split(body)
    conv = parts.conv
    assert isinstance(conv.op, ConvOp)
    if reason := unfit(body, conv, parts.pool):
        return reason
    channels = _channels(body, conv)
    result, pooled = (4 * dims.numel(node.type.shape, body.sizes) / machine.bandwidth for node in (conv, parts.pool))
    portable = contractions.portable_seconds(body, conv, False, machine, merge=False)
    if parts.by_phases:
        if channels[1] < contractions.LEAST_OUTPUTS:
            return f"groups of fewer than {contractions.LEAST_OUTPUTS} output channels would mostly multiply zeros"
        weight = body.node(conv.inputs[1]).type
        tiling = tile_conv(Structure(conv.op, inference.kernel_size(weight), *channels, False))
        ours = (_IN_TURNS * (portable - result) if tiling.turns else _PORTABLE * portable - result) + pooled
        portable *= 1.0 if tiling.turns else _PORTABLE
    else:
        if not machine.wgmma:
            return "only the kernel for sm_90a pools what it computes"
        if reason := contractions.hopper_refusal(body, conv) or hopper.window_refusal(conv.op, parts.windows):
            return reason
        ours = hopper.pooled_seconds(body, conv, parts.windows, machine, not precision.allows_tf32(body, conv))
    asynchronous = contractions.asynchronous_seconds(body, conv, machine)
    alone = min(portable, asynchronous, library.seconds(body, conv, machine))
    apart = alone + result + pooled + machine.launch
    return together_or_apart(parts.pool.name, ours, apart)
