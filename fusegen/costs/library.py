"""What cuDNN's convolutions and cuBLAS's products are expected to take, and in which precision they are.

Fitted to ``benchmarks/results/convolutions-h200.json`` and ``h200-library-convolutions.json``.
"""

from __future__ import annotations

from math import log2, prod

from fusegen import dims, inference, ops
from fusegen.costs import precision
from fusegen.ir import ConvOp, Graph, MatmulOp, Node
from fusegen.machines import Machine

_PASSES = {True: 2.8, False: 1.2}
"""In TF32 or fp32: times over that cuDNN moves input and result (H200, NCHW). It transposes both for TF32."""
_FP32 = 0.65
"""What it reaches of a machine's fp32 rate."""
_NARROW = {True: (128, 0.86), False: (64, 0.3)}
"""Output channels that fill its tiles, and the loss with half as many."""
_INPUTS, _TRANSPOSED = 64, 1.4
"""Input channels to which it fills up a transposed convolution, and the times over that its products take even so."""
_VOLUME = (64, 3.0)
"""Taps up to which it transposes a convolution along three axes at that rate, and the times over that more take."""
_STRIDED_GROUPS, _STRIDED_VOLUME = 2.5, 1.35
"""Least times over that a strided convolution of several groups takes, or one along three axes in TF32.

Of 14 random models (H200), which took 2.7 to 19 times, or 1.4 to 3.4 times."""
_STRIDED_TAPS = (25, 1.4)
"""Taps from which on a strided convolution along two axes may take 2.3 to 2.8 times as long in TF32, and the times over
that it is expected to (6 of 16 with 5x5 and 7x7 taps did, for no reason to be seen; the others 0.95 to 1.4 times:
h200-strided-library.json)."""
_PHASES = (1.0, 1.2, 1.5)
"""Times over that a transposed convolution of stride 1, 2 or more takes (the lower quartiles of 65 that are strided,
h200-library-convolutions.json; the medians are 1.3 and 1.7)."""
_UNALIGNED = 1.6
"""Times over that a convolution of 1x1 in fp32 moves input and result whose channels are no multiple of 16 bytes."""
_UNALIGNED_RATE, _UNALIGNED_MOVED, _UNALIGNED_SECONDS = 0.82, 0.6, 13.5e-6
"""Of the same in TF32: share of the rate of ``mma.sync`` that its products have, share of the traffic's time that they
do not hide, and the rest (16 of networks, planes of 7x7 to 55x55, which took 0.7 to 1.6 times as long)."""
_BESIDE = (-1.2, 0.6)
"""Times over that a convolution takes whose kernels lie side by side, once at least: the first, and the second for each
doubling of its taps (11 of 2x2 to 32x32, which took 0.8 to 1.5 times as long)."""
_ONE_TAP_TILE, _ONE_TAP_REST = 64, 0.3
"""Positions of a tile of a convolution of 1x1 in TF32, whose products are those of ``mma.sync``; and the share of the
shorter of products and traffic that the longer one does not hide (15 of networks, h200-one-tap.json, and 512 to 1500
channels of 300 positions, with 128 outputs or more: 0.77 to 1.24 of what they took)."""
_WEIGHTS = 6
"""Times over that cuDNN moves the weights of a convolution in TF32: it transposes them (512x512x3x3: 14.9 us, H100)."""
_STRIDED_INPUTS = 32
"""Channels of a strided convolution of 1x1 in full fp32 from which on it is a matrix product where the data lies; in
TF32 it is one of few outputs only (192 to 256 channels of 56x56, 96 samples: 225 us, of which 168 transpose;
h200-long-sums.json)."""
_LEAST_PLANE = (100, 1.6)
"""Positions below which products of several taps take longer in TF32, and how many times over (planes of 7x7, 32
samples, 256 and 512 channels to 512, H100)."""
_LAUNCHES = 8
"""Of its call, transposes of the operands included."""


def seconds(body: Graph, node: Node, machine: Machine) -> float:
    """Expected time of the library's call at the traced sizes, and of a copy of an input that it cannot pad itself."""
    copied = 0.0
    if isinstance(node.op, ConvOp) and any(node.op.behind):
        copied = 2 * 4 * dims.numel(body.shape(node.inputs[0]), body.sizes) / machine.bandwidth + machine.launch
    return copied + _call_seconds(body, node, machine)


def _call_seconds(body: Graph, node: Node, machine: Machine) -> float:
    x, w = (body.node(name).type for name in node.inputs[:2])
    moved = 4 * (dims.numel(x.shape, body.sizes) + dims.numel(node.type.shape, body.sizes)) / machine.bandwidth
    flops = ops.flops(body, node)
    if isinstance(node.op, MatmulOp):
        weights = 4 * dims.numel(w.shape, body.sizes) / machine.bandwidth
        return max(flops / machine.flops, moved + weights) + machine.launch
    assert isinstance(node.op, ConvOp)
    tf32 = precision.allows_tf32(body, node)
    full, loss = _NARROW[tf32]
    inputs, outputs = inference.group_channels(node.op, x, w)
    rate = machine.tensor_flops if tf32 else _FP32 * machine.flops
    products = flops / rate * (1 + loss * max(0.0, full / outputs - 1))
    if tf32 and node.op.transposed:
        products *= max(_TRANSPOSED, _INPUTS / inputs)
    most, times = _VOLUME
    if node.op.transposed and node.op.rank == 3 and prod(inference.kernel_size(w)) > most:
        products *= times
    strided, one_tap = max(node.op.stride) > 1, prod(inference.kernel_size(w)) == node.op.groups == 1
    transposes = node.op.transposed or (outputs >= full if tf32 else inputs < _STRIDED_INPUTS)
    if one_tap and not (strided and transposes):  # a matrix product where the data lies
        positions = prod(body.shape(node.name)[2:])
        tiles = -(-positions // _ONE_TAP_TILE) * _ONE_TAP_TILE / max(1, positions)
        tiled = flops / machine.mma_flops * tiles
        if positions % 4 and tf32 and not strided:
            filled = -(-outputs // full) * full / outputs
            return tiled * filled / _UNALIGNED_RATE + _UNALIGNED_MOVED * moved + _UNALIGNED_SECONDS
        moved *= _UNALIGNED if positions % 4 else 1.0
        if not tf32 or outputs < full:
            return products + moved + 2 * machine.launch
        products = tiled
        return max(products, moved) + _ONE_TAP_REST * min(products, moved) + 2 * machine.launch
    if tf32 and not node.op.transposed and not one_tap:
        few, times = _LEAST_PLANE
        products *= times if prod(body.shape(node.name)[2:]) < few else 1.0
        products += _WEIGHTS * 4 * dims.numel(w.shape, body.sizes) / machine.bandwidth
    seconds = products + _PASSES[tf32 or one_tap] * moved + _LAUNCHES * machine.launch
    if node.op.transposed and node.op.groups == 1:
        return _PHASES[min(max(node.op.stride), len(_PHASES)) - 1] * seconds
    if node.op.transposed or not strided:
        return seconds
    if node.op.groups > 1 and inputs > 1:
        return _STRIDED_GROUPS * seconds
    if node.op.rank == 2 and node.op.stride == inference.kernel_size(w) and not any(node.op.padding):
        first, doubled = _BESIDE
        return max(1.0, first + doubled * log2(prod(node.op.stride))) * seconds
    taps, times = _STRIDED_TAPS
    if tf32 and node.op.rank == 2 and prod(inference.kernel_size(w)) >= taps:
        return times * seconds
    return (_STRIDED_VOLUME if tf32 and node.op.rank == 3 else 1.0) * seconds
