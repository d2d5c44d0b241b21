"""Which convolutions cuDNN is expected to compute in TF32 where torch's settings permit it, and which it surely does.

It decides by all sizes, and a generated module asks it (``emit/operators.tf32``): what is expected here says which
kernel is worth most, and whether the file has one for the other class, too.
"""

from __future__ import annotations

from math import inf, prod
from typing import NamedTuple

from fusegen import inference
from fusegen.ir import ConvOp, Graph, Node
from fusegen.verdict.tf32 import in_tf32

_FEW_CHANNELS = (
    (1, 9, 4, 128),
    (2, 49, 1, 32),
    (2, 25, 4, 1),
    (2, 16, 4, 64),
    (3, 125, 1, 1),
    (3, 8, 4, 1),
)
"""(Axes, taps, input and output channels) from which on cuDNN is expected to compute in TF32 what has fewer channels
than it mostly does. Of 1,624 (H200, h200-tf32-classes.json) most of these did at the sizes of benchmarks, and smaller
ones did not: a file has a kernel for either."""
_FEW_GROUPED = ((2, 4, 9, 2), (3, 2, 27, 4))
"""(Axes, groups, taps and channels of a group) from which on it does, of several groups (672, likewise)."""


class _Sizes(NamedTuple):
    """A range of convolutions, bounds included."""

    rank: int
    transposed: bool
    several: bool
    """Of several groups; channels are those of one."""
    taps: tuple[float, float] = (1, inf)
    stride: tuple[float, float] = (1, inf)
    """The largest."""
    inputs: tuple[float, float] = (1, inf)
    outputs: tuple[float, float] = (1, inf)

    def has(self, op: ConvOp, taps: int, inputs: int, outputs: int) -> bool:
        structure = self.rank == op.rank and self.transposed == op.transposed and self.several == (op.groups > 1)
        sizes = (taps, self.taps), (max(op.stride), self.stride), (inputs, self.inputs), (outputs, self.outputs)
        return structure and all(least <= size <= most for size, (least, most) in sizes)


_IN_FP32 = (
    _Sizes(1, True, False, stride=(1, 1), outputs=(1, 15)),
    _Sizes(1, True, False, stride=(2, inf), outputs=(1, 16)),
    _Sizes(2, False, True, taps=(1, 1), inputs=(1, 95)),
    _Sizes(2, True, False, taps=(1, 4), inputs=(1, 31), outputs=(1, 63)),
    _Sizes(2, True, False, taps=(1, 4), outputs=(1, 7)),
    _Sizes(2, True, False, taps=(5, inf), stride=(2, inf), outputs=(1, 7)),
    _Sizes(2, True, False, stride=(1, 1), inputs=(32, inf), outputs=(1, 7)),
    _Sizes(2, True, True, taps=(1, 4), inputs=(1, 31), outputs=(1, 63)),
    _Sizes(2, True, True, taps=(10, inf), stride=(2, inf), inputs=(1, 7), outputs=(1, 127)),
    _Sizes(2, True, True, stride=(1, 1), inputs=(16, 63), outputs=(1, 127)),
    _Sizes(3, False, True, taps=(1, 1)),
    _Sizes(3, False, True, taps=(125, inf)),
    _Sizes(3, True, False, taps=(1, 8), inputs=(1, 23), outputs=(1, 31)),
    _Sizes(3, True, False, taps=(65, inf), stride=(3, inf)),
    _Sizes(3, True, True, taps=(28, inf), stride=(2, inf)),
)
"""Of 10,160 (H200, h200-tf32-classes.json), those that cuDNN computes in full fp32, whatever torch permits."""
_MANY_INPUTS, _MULTIPLE, _FEW_OUTPUTS = 128, 64, 8
"""Input channels from which cuDNN was seen to compute in TF32 whatever the other sizes (235 convolutions), but for
those of 8 outputs and of groups, and transposed ones of stride 1 along two axes; and of fewer, multiples of which it
did so for (96 and 48 channels of 56x56, 3x3, to 8 to 64 are in full fp32, and so are 80 to 80, 1x1), unless they have
one tap that skips positions (27 of these: 64 channels, and some of 96, in full fp32)."""


def _is_transposed(op: ConvOp) -> bool:
    """As eager has it: an enlarged one is an ordinary convolution there."""
    return op.transposed and not op.enlarged


def allows_tf32(graph: Graph, node: Node) -> bool:
    """True when eager is expected to compute this contraction with TF32 operands where torch's settings permit it."""
    if not isinstance(node.op, ConvOp):
        return True
    if node.op.precise:
        return False
    x, w = (graph.node(name).type for name in node.inputs[:2])
    channels, outputs = inference.group_channels(node.op, x, w)
    transposed = _is_transposed(node.op)
    taps, several = prod(inference.kernel_size(w)), node.op.groups > 1
    if transposed is node.op.transposed and any(own.has(node.op, taps, channels, outputs) for own in _IN_FP32):
        return False
    if in_tf32(transposed, channels):
        return True
    sizes = (node.op.groups, taps, channels) if several else (taps, channels, outputs)
    return any(
        rank == node.op.rank and all(size >= least for size, least in zip(sizes, others, strict=True))
        for rank, *others in (_FEW_GROUPED if several else _FEW_CHANNELS)
    )


def surely_in_tf32(body: Graph, node: Node) -> bool:
    """Whether cuDNN is sure to compute a convolution in TF32 where permitted."""
    assert isinstance(node.op, ConvOp)
    if not allows_tf32(body, node):
        return False
    x, w = (body.node(name).type for name in node.inputs[:2])
    inputs, outputs = inference.group_channels(node.op, x, w)
    if _is_transposed(node.op) and (node.op.rank, max(node.op.stride)) == (2, 1):
        return False
    picks = not node.op.transposed and max(node.op.stride) > 1 and prod(inference.kernel_size(w)) == 1
    many = inputs >= _MANY_INPUTS or (inputs % _MULTIPLE == 0 and not picks)
    return node.op.groups == 1 and many and outputs > _FEW_OUTPUTS
