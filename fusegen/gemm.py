"""Matrix products on the tensor cores of sm_90a: what a kernel can finish, its tiles, and its time.

The figures are those of ``templates/gemm_sm90.cu.j2``, fitted to times measured on an H200.
"""

from __future__ import annotations

from fusegen import dims
from fusegen.ir import Graph, MatmulOp, Node, ReduceOp, SoftmaxOp
from fusegen.machines import Machine
from fusegen.rowspace import RowSpace

FEATURES = 128
"""Features of a block's tile: rows up to this length are whole within a warp."""
_CHUNK = 64
_CLUSTERS = 66
_LEAST_CHUNKS = 4
_WIDTHS = range(32, 193, 32)
_NARROW = 64
_START = 5.0e-6
"""Filling the pipeline, and what follows the last product."""


def _chunk_seconds(width: int) -> float:
    """Time of a block for 64 of k: what does not depend on the tile's width, and the products."""
    return 1.0e-6 + 5.3e-9 * width


def _width(rows: int) -> int:
    return min(_WIDTHS, key=lambda width: (-(-rows // width) * _chunk_seconds(width), width))


def widths(rows: int) -> tuple[int, ...]:
    """Tile widths to compile for products traced with ``rows`` rows: a narrow one, and the best."""
    best = _width(rows)
    return (_NARROW, best) if best > _NARROW else (best,)


def seconds(rows: int, inputs: int, outputs: int, machine: Machine) -> float:
    """Predicted time of the product alone, fp32-accurate."""
    width = _width(rows)
    chunks = -(-inputs // _CHUNK)
    tiles = -(-rows // width) * -(-outputs // (2 * FEATURES))
    clusters = min(_CLUSTERS, -(-tiles * chunks // _LEAST_CHUNKS))
    moved = 4 * (3 * rows * inputs + outputs * inputs + rows * outputs)
    return (
        2 * machine.launch
        + _START
        + max(-(-tiles * chunks // clusters) * _chunk_seconds(width), moved / machine.bandwidth)
    )


def _library_seconds(rows: int, inputs: int, outputs: int, machine: Machine) -> float:
    """The library's product in fp32, and one pass over its result by the kernel that follows."""
    moved = 4 * (rows * inputs + outputs * inputs + rows * outputs)
    product = max(2 * rows * inputs * outputs / machine.flops, moved / machine.bandwidth)
    return 2 * machine.launch + product + 4 * rows * outputs / machine.bandwidth


def _unfinished(body: Graph, space: RowSpace) -> str | None:
    """The first node that needs a whole row while only parts of it are on chip."""
    reduced: set[str] = set()
    for node in body.nodes:
        if isinstance(node.op, (ReduceOp, SoftmaxOp)) or reduced & set(node.inputs):
            reduced.add(node.name)
            inside = isinstance(node.op, ReduceOp) and node.op.fn == "var"  # distances from the mean
            if inside or (node.name in space.axes and space.is_element(node.name)):
                return node.name
    return None


def refusal(body: Graph, space: RowSpace, node: Node, machine: Machine) -> str | None:
    """Why the product ``node`` of a region ``body`` is left to the library, or None."""
    x = body.node(node.inputs[0])
    inputs, outputs = int(x.type.shape[-1]), int(node.type.shape[-1])
    rows = dims.numel(x.type.shape[:-1], body.sizes)
    if space.row_axes and outputs > FEATURES and (name := _unfinished(body, space)):
        return f"{name} needs whole rows of {outputs} features, which several blocks compute"
    ours, library = seconds(rows, inputs, outputs, machine), _library_seconds(rows, inputs, outputs, machine)
    precise = isinstance(node.op, MatmulOp) and node.op.precise
    if ours > library and not precise:
        return f"predicted {ours * 1e6:.1f} us where the library's product takes {library * 1e6:.1f}"
    return None
