"""Linear layers: which kernel computes one, what it can finish, its tiles, and its time.

The figures are those of ``templates/gemm_sm90.cu.j2``, fitted to times measured on an H200.
"""

from __future__ import annotations

from fusegen import dims, narrow
from fusegen.ir import HALVES, Graph, MatmulOp, Node, PointwiseOp, ReduceOp, SoftmaxOp
from fusegen.machines import MACHINES, Machine
from fusegen.rowspace import RowSpace, feature_axes
from fusegen.tuning import kernel_or_library

FEATURES = 128
"""Features of a block's tile: rows up to this length are whole within a warp."""
_LANE_FEATURES = 4
"""Neighbouring features of a lane in the epilogue."""
_CHUNK = 64
_CLUSTERS = 66
_LEAST_CHUNKS = 4
_WIDTHS = range(32, 193, 16)
_NARROW = 64
_WIDE = (96, 128, 160, 192)
"""Widths that may turn out to be better than the expected best."""
_FINISH = 3.0e-6
"""What follows the last product of a tile, which nothing hides."""
_SPLIT = 0.45
"""Share of the bandwidth at which the rows are split before."""
_HALF_TILE = 256
"""Rows and features of a cluster's tile of 16-bit products."""
_HALF_FLOPS, _HALF_LIBRARY = 810e12, 790e12
"""Rates of 16-bit products: the kernel's, and cuBLAS's."""
_LIBRARY_FEATURES = 28
"""Features in the time of what the library does for a row of x besides: few features leave it waiting."""
_START = 5.0e-6
"""Filling the pipeline."""


def _chunk_seconds(width: int) -> float:
    """Time of a block for 64 of k: what does not depend on the tile's width, and the products."""
    return 0.95e-6 + 5.0e-9 * width


def _width(rows: int) -> int:
    return min(_WIDTHS, key=lambda width: (-(-rows // width) * _chunk_seconds(width), width))


def tiles(rows: int) -> dict[str, tuple[int, ...]]:
    """Tile widths to compile for products traced with ``rows`` rows, a narrow one and a good one: best first."""
    best = _width(rows)
    good = [best, *(width for width in _WIDE if width != best)]
    return {f"{width} rows": (_NARROW, width) if width > _NARROW else (width,) for width in good}


def seconds(rows: int, inputs: int, outputs: int, machine: Machine) -> float:
    """Predicted time of the product alone, fp32-accurate."""
    width = _width(rows)
    chunks = -(-inputs // _CHUNK)
    tiles = -(-rows // width) * -(-outputs // (2 * FEATURES))
    clusters = min(_CLUSTERS, -(-tiles * chunks // _LEAST_CHUNKS))
    moved = 4 * (rows * inputs + outputs * inputs + rows * outputs)
    products = -(-tiles * chunks // clusters) * _chunk_seconds(width) + tiles / clusters * _FINISH
    split = 8 * rows * inputs / (_SPLIT * machine.bandwidth)
    return 2 * machine.launch + _START + split + max(products, moved / machine.bandwidth)


def half_seconds(rows: int, inputs: int, outputs: int, machine: Machine) -> float:
    """Predicted time of a product of 16-bit floats: tiles in whole waves."""
    waves = -(-(-(-rows // _HALF_TILE) * -(-outputs // _HALF_TILE)) // _CLUSTERS)
    products = waves * _CLUSTERS * 2 * _HALF_TILE * _HALF_TILE * inputs / _HALF_FLOPS
    moved = 2 * (rows * inputs + outputs * inputs + rows * outputs)
    return machine.launch + _START + max(products, moved / machine.bandwidth)


def _half_refusal(body: Graph, space: RowSpace, node: Node, machine: Machine) -> str | None:
    """The same for a product of 16-bit floats."""
    x, w = (body.node(name) for name in node.inputs[:2])
    inputs, outputs = int(x.type.shape[-1]), int(node.type.shape[-1])
    rows = dims.numel(x.type.shape[:-1], body.sizes)
    if not machine.wgmma:
        return "such a product has a kernel for sm_90 only"
    if {x.type.dtype, w.type.dtype} != {node.type.dtype}:
        return "its operands differ in type"
    if inputs % 8 or int(w.type.shape[-1]) % 8:
        return "tensor copies need rows of whole 16 bytes"
    if node.name == body.outputs[0]:
        return "nothing follows it that could share its kernel"
    moved = 2 * (rows * inputs + outputs * inputs + rows * outputs)
    library = max(2 * rows * inputs * outputs / _HALF_LIBRARY, moved / machine.bandwidth) + machine.launch
    if [n.op for n in body.nodes if isinstance(n.op, PointwiseOp)] != [PointwiseOp(fn="add")]:  # more than a bias
        library += machine.launch + 4 * rows * outputs / machine.bandwidth
    return _by(node, half_seconds(rows, inputs, outputs, machine), library)


def _by(node: Node, ours: float, library: float) -> str | None:
    """The choice between both, as ``refusal`` answers."""
    reason = f"predicted {ours * 1e6:.1f} us where the library's product takes {library * 1e6:.1f}"
    return kernel_or_library(node.name, ours, library, reason)


def group(space: RowSpace, node: Node) -> int:
    """Features that a reduction runs along where a reshape splits those of the product ``node``, else 0."""
    return space.length if space.row_axes and space.row_axes != feature_axes(space, node) else 0


def streams(body: Graph, space: RowSpace, node: Node) -> bool:
    """True when the kernel for few features computes the product rather than the tensor cores."""
    x = body.node(node.inputs[0])
    sizes = (dims.numel(x.type.shape[:-1], body.sizes), int(x.type.shape[-1]), int(node.type.shape[-1]))
    streamed = narrow.seconds(*sizes, MACHINES["sm_90"])
    return streamed is not None and streamed <= seconds(*sizes, MACHINES["sm_90"]) and not group(space, node)


def _library_seconds(rows: int, inputs: int, outputs: int, machine: Machine) -> float:
    """The library's product in fp32, and one pass over its result by the kernel that follows."""
    moved = 4 * (rows * inputs + outputs * inputs + rows * outputs) * (2 if inputs % 4 else 1)  # not aligned
    product = max(2 * rows * inputs * (outputs + _LIBRARY_FEATURES) / machine.flops, moved / machine.bandwidth)
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


def unfit(body: Graph, space: RowSpace, node: Node) -> str | None:
    """Why what follows the fp32 product ``node`` cannot be finished in its tiles, or None."""
    outputs = int(node.type.shape[-1])
    if grouped := group(space, node):
        if grouped % _LANE_FEATURES or FEATURES % grouped:
            return f"groups of {grouped} features do not fill the tiles of its kernel"
    elif space.row_axes and outputs > FEATURES and (name := _unfinished(body, space)):
        return f"{name} needs whole rows of {outputs} features, which several blocks compute"
    return None


def refusal(body: Graph, space: RowSpace, node: Node, machine: Machine) -> str | None:
    """Why the product ``node`` of a region ``body`` is left to the library, or None."""
    if node.type.dtype in HALVES:
        return _half_refusal(body, space, node, machine)
    x = body.node(node.inputs[0])
    inputs, outputs = int(x.type.shape[-1]), int(node.type.shape[-1])
    rows = dims.numel(x.type.shape[:-1], body.sizes)
    streamed = narrow.seconds(rows, inputs, outputs, machine) if streams(body, space, node) else None
    ours = streamed or seconds(rows, inputs, outputs, machine)
    library = _library_seconds(rows, inputs, outputs, machine)
    precise = isinstance(node.op, MatmulOp) and node.op.precise
    return None if precise else _by(node, ours, library)
