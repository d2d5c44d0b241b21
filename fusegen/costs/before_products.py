"""Whether a contraction's kernel computes the elementwise chain before it, as it prepares or splits its data."""

from __future__ import annotations

from math import inf

from fusegen.costs import contractions, gemm, hopper, precision
from fusegen.dims import numel
from fusegen.ir import HALVES, ConvOp, Graph, MatmulOp, Node
from fusegen.machines import Machine
from fusegen.spaces import prologue
from fusegen.spaces.poolspace import operations
from fusegen.spaces.rowspace import RowSpace

_OPERATION = 1.8e-8
"""Seconds that an operation on every value of a chunk takes a block that splits the rows of its tile for itself."""
_AS_IT_IS = "its kernel reads its data as it lies"


def refusal(before: Graph, body: Graph, space: RowSpace, machine: Machine) -> str | None:
    """Why the chain ``before`` is none of the kernel for ``body``, which begins with its result, or None.

    Raises ``NotFusable``.
    """
    node = body.node(space.source)
    prologue.space(before, node)
    if not machine.wgmma:
        return _AS_IT_IS
    if isinstance(node.op, ConvOp):
        return _of_convolution(body, node, bool(space.row_axes), machine)
    return _of_product(before, body, space, node, machine)


def _of_convolution(body: Graph, node: Node, whole: bool, machine: Machine) -> str | None:
    """Only the asynchronous kernel prepares its data, and may read it in place."""
    asynchronous, portable = contractions.tensor_core_seconds(body, node, whole, machine, finished=True)
    if asynchronous > portable or contractions.plain_seconds(body, node, whole, machine) < inf:
        return _AS_IT_IS
    precise = not precision.allows_tf32(body, node)
    return _AS_IT_IS if not precise and hopper.reads_in_place(body, node, machine) else None


def _of_product(before: Graph, body: Graph, space: RowSpace, node: Node, machine: Machine) -> str | None:
    assert isinstance(node.op, MatmulOp)
    if node.op.left_transposed or node.type.dtype in HALVES or not contractions.fits_gemm(body, space, node):
        return _AS_IT_IS
    if gemm.runs_anywhere(body, space, node):
        return _AS_IT_IS
    if gemm.form(body, space, node) == "prepared":
        return None
    data = prologue.source(before)
    saved = machine.launch + 2 * 4 * numel(data.type.shape, body.sizes) / machine.bandwidth
    again = gemm.chunks_in_place(body, node) * operations(before) * _OPERATION
    return f"{before.outputs[0]} would be computed again for every tile of features" if again > saved else None
