"""Expected time of a convolution in TF32 with its epilogue on sm_90a (``conv_sm90.cu.j2``)."""

from __future__ import annotations

from math import prod

from fusegen import dims, ops
from fusegen.ir import ConvOp, Graph, Node
from fusegen.machines import Machine

_PRODUCTS = 0.5
"""Share of the tensor time that the epilogue does not hide."""
_RESULT, _REDUCED = 8.5, 2.2
"""Bytes of traffic that take as long as the epilogue of a result and its store; and where a reduction takes it in."""
_LAUNCHES = 3
_LEAST_CHANNELS = 8
"""Depth of one product."""
# Fitted to convolutions measured on an H200: within a third of each.


def tap_share(conv: ConvOp, kernel: tuple[int, ...]) -> float:
    """Products done for each that counts: every phase of a transposed convolution runs the taps of all."""
    if not conv.transposed:
        return 1.0
    reach = [(k - 1) * d // s for k, d, s in zip(kernel, conv.dilation, conv.stride, strict=True)]
    return prod((r + 1) * s / k for r, s, k in zip(reach, conv.stride, kernel, strict=True))


def refusal(conv: ConvOp, channels: tuple[int, int], reduces: bool) -> str | None:
    """Why a convolution of (input, output) ``channels`` has no kernel, or None."""
    inputs, outputs = (count // conv.groups for count in channels)
    if inputs < _LEAST_CHANNELS or outputs < _LEAST_CHANNELS:
        return f"groups of fewer than {_LEAST_CHANNELS} channels would mostly multiply zeros"
    return None


def conv_seconds(body: Graph, node: Node, reduces: bool, machine: Machine) -> float:
    """Seconds at the traced sizes: the input is written once as a grid, then the products and what follows them."""
    assert isinstance(node.op, ConvOp)
    x, w = (body.node(name).type for name in node.inputs[:2])
    products = ops.flops(body, node)
    outputs = ops.conv_channels(node.op, x, w)[1] // node.op.groups
    # Below 64 columns a product waits for its operand from shared memory.
    share = tap_share(node.op, ops.kernel_size(w)) * max(1.0, 0.5 + 32 / outputs)
    grid = 2 * 4 * dims.numel(x.shape, body.sizes)
    results = dims.numel(node.type.shape, body.sizes) * (_REDUCED if reduces else _RESULT)
    tensor = _PRODUCTS * products * share / machine.tensor_flops
    return tensor + (grid + results) / machine.bandwidth + _LAUNCHES * machine.launch
