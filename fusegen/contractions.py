"""Convolutions and matrix products as contractions: the shape that a kernel sees, and whether one is worth it.

A contraction computes [pixels, outputs]: for every output position (every row of a matrix product)
a row of all output channels (features), which an epilogue then works on before it is stored.
"""

from __future__ import annotations

from fusegen import dims, gemm, ops
from fusegen.ir import ConvOp, Graph, MatmulOp, Node
from fusegen.machines import Machine
from fusegen.rowspace import RowSpace, feature_axis


def allows_tf32(graph: Graph, node: Node) -> bool:
    """True when eager computes this contraction with TF32 operands as far as torch's settings permit it.

    cuDNN does so for transposed convolutions and for 16 or more input channels per group (measured on
    an H200; with fewer it chooses kernels in full fp32); cuBLAS for every matrix product.
    """
    if isinstance(node.op, ConvOp) and node.op.precise:
        return False
    if isinstance(node.op, ConvOp) and not node.op.transposed:
        x, w = (graph.node(name).type for name in node.inputs[:2])
        channels, _ = ops.conv_channels(node.op, x, w)
        return channels // node.op.groups >= 16
    return True


def flops(graph: Graph, node: Node) -> int:
    """Multiplications and additions at the traced sizes."""
    shapes = [graph.shape(name) for name in node.inputs]
    return ops.ROWS[node.op.kind].flops(node.op, shapes, graph.shape(node.name))


def refusal(body: Graph, space: RowSpace, machine: Machine) -> str | None:
    """Why the contraction in ``body`` is left to the library, or None when a kernel computes it."""
    node = body.node(space.source)
    assert isinstance(node.op, (ConvOp, MatmulOp))
    sizes = [node.type.shape[feature_axis(node)], *body.node(node.inputs[1]).type.shape]
    if any(not isinstance(size, int) for size in sizes):
        return "its weight has a size that is known only at run time"
    if dims.numel(node.type.shape, body.sizes) == 0:
        return "it is empty"
    if machine.wgmma and fits_gemm(node, body.node(node.inputs[1])):
        return gemm.refusal(body, space, node, machine)
    return "no template computes it"


def fits_gemm(node: Node, weight: Node) -> bool:
    """True for products that the sm_90a template computes: one weight, stored as a linear layer's is."""
    return isinstance(node.op, MatmulOp) and node.op.transposed and weight.type.rank == 2
