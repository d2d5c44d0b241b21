"""Matrix products: which kernel computes one, what it can finish, and when the library is faster."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, TypeAlias

from fusegen import dims, ops
from fusegen.costs import narrow, simt, tensor_gemm
from fusegen.costs.tensor_gemm import ProductForm
from fusegen.dims import Dim, Dims
from fusegen.ir import HALVES, Graph, MatmulOp, Node, PointwiseOp, ReduceOp, SoftmaxOp
from fusegen.machines import MACHINES, Machine
from fusegen.spaces.rowspace import RowSpace, feature_axes
from fusegen.tuning import faster, kernel_or_library

_LANE_FEATURES = 4
"""Neighbouring features of a lane in the epilogue."""
_HALF_LIBRARY = 790e12
"""Rate of cuBLAS's 16-bit products."""
_LIBRARY_FLOPS, _LIBRARY_START, _LIBRARY_BATCH = 0.95, (16, 2.5e-6, 4.1e-6), 3.5e-6
"""Share of the rate that the library reaches, and what it takes besides its launch: up to so many rows, and beyond; for
a batch."""
_LIBRARY_INPUTS, _LIBRARY_FEATURES = 28, (28, 64)
"""Inputs in the time of what it does for a tile besides its products: few inputs leave it waiting. Likewise features,
and how many do not."""
_LIBRARY_INPUT = 0.034e-6
"""Time for one of k in a batch, whose sums it does not split."""
_LIBRARY_WIDE, _LIBRARY_LOW = 1000, {16: 10e-9, 64: 4.5e-9}
"""Features from which on it does not split the sums of so few rows either, and the time for one of k."""
_LIBRARY_FEW, _LIBRARY_SPLIT = 30e-6, (64, 0.048e-6, 4.4e-6)
"""Products up to so long have too few tiles: for every k beyond the first ones it takes longer, up to a limit."""
_LIBRARY_LONG, _LIBRARY_TILE, _LIBRARY_TILES = 1 << 14, 64, {1: 0.62, 2: 0.83}
"""Inputs from which on results of so many rows and features, or of two such tiles, are long sums alone; and the share
of the rate that such tiles have, whole ones (64x1M by 1Mx32: 305 us, 1Mx96 by 1Mx64, transposed: 396)."""
_SHORT = 8
"""Operations of functions that are written out for several rows: a sigmoid, and not a tanh."""

Form: TypeAlias = ProductForm | Literal["simt"]
"""Or in plain fp32 where memory or latency bounds a product."""


@dataclass(frozen=True)
class Factors:
    """The axes of a product: those of its batch, whose tiles keep to one matrix, and of a matrix's rows."""

    matrices: Dims
    lines: Dims
    inputs: Dim
    outputs: Dim

    @property
    def fixed(self) -> bool:
        """True when only the number of rows changes from call to call."""
        return isinstance(self.inputs, int) and isinstance(self.outputs, int)

    def traced(self, body: Graph) -> tuple[int, tuple[int, int, int]]:
        """Matrices, and rows, inputs and outputs of one, at the traced sizes."""
        inputs, outputs = (dims.evaluate(size, body.sizes) for size in (self.inputs, self.outputs))
        return dims.numel(self.matrices, body.sizes), (dims.numel(self.lines, body.sizes), inputs, outputs)


def factors(body: Graph, node: Node) -> Factors:
    """The axes of the product ``node``: rows one after another that share a weight are those of one matrix."""
    assert isinstance(node.op, MatmulOp)
    x, w = (body.node(name).type for name in node.inputs[:2])
    split = node.type.rank - 2 if w.rank > 2 or node.op.left_transposed else 0
    inputs = x.shape[-2 if node.op.left_transposed else -1]
    return Factors(node.type.shape[:split], node.type.shape[split:-1], inputs, node.type.shape[-1])


def chunks_in_place(body: Graph, node: Node) -> int:
    """Chunks of k that a multiprocessor splits, one after the other, in such a product."""
    matrices, sizes = factors(body, node).traced(body)
    ((height, *_), *_) = in_place_rows(body, node).values()
    return tensor_gemm.chunks_in_place(height, *sizes, matrices)


def _functions(body: Graph, node: Node) -> int:
    """Operations of the functions of each result of the product ``node``."""
    flops = sum(ops.function_flops(body, n) for n in body.nodes if n.type.shape == node.type.shape)
    return flops // dims.numel(node.type.shape, body.sizes)


def finishes_beside(body: Graph, node: Node) -> bool:
    """Whether a warp finishes rows of such a tile side by side: what follows is short.

    Text that runs once comes from memory, at some 0.2 us for a kilobyte (a GELU and a mish: 12.4 us with rows side by
    side, 9.3 one by one).
    """
    return _functions(body, node) <= _SHORT


def in_place_rows(body: Graph, node: Node) -> dict[str, tuple[int, ...]]:
    """Rows of such a tile, as ``tiles`` has them for the other."""
    matrices, sizes = factors(body, node).traced(body)
    heights = tensor_gemm.heights_in_place(*sizes, MACHINES["sm_90"], matrices, _functions(body, node))
    return {f"{height} rows": (height,) for height in heights}


def _rows_lie_in_tiles(space: RowSpace, node: Node) -> bool:
    """Whether no row that is reduced has more features than a tile of the tensor cores."""
    outputs = node.type.shape[-1]
    return (
        not space.row_axes or bool(group(space, node)) or (isinstance(outputs, int) and outputs <= tensor_gemm.FEATURES)
    )


def takes_in_place(body: Graph, space: RowSpace, node: Node) -> bool:
    """True when blocks that split the rows of their tiles for themselves can compute the product and finish it."""
    return isinstance(node.op, MatmulOp) and _rows_lie_in_tiles(space, node)


def _plain_seconds(body: Graph, node: Node, machine: Machine) -> float:
    """Predicted time of the product in plain fp32, its rows not reduced; infinite where there is no such kernel."""
    assert isinstance(node.op, MatmulOp)
    matrices, sizes = factors(body, node).traced(body)
    return inf if node.op.left_transposed else simt.seconds(sizes, machine, matrices, node.op.transposed)


def _rows_in_fp32(body: Graph, space: RowSpace, node: Node, machine: Machine) -> float:
    """The same with all that follows, rows that are reduced included."""
    assert isinstance(node.op, MatmulOp)
    if not space.row_axes:
        return _plain_seconds(body, node, machine)
    if node.op.left_transposed or group(space, node) or not isinstance(node.type.shape[-1], int):
        return inf
    matrices, sizes = factors(body, node).traced(body)
    return simt.row_seconds(sizes, machine, matrices, node.op.transposed)


def _has_whole_rows(body: Graph, space: RowSpace, node: Node) -> bool:
    """Whether a tile of the tensor cores has all of a row, or nothing needs that."""
    return _rows_lie_in_tiles(space, node) or _unfinished(body, space) is None


def _forms(body: Graph, space: RowSpace, node: Node, machine: Machine) -> dict[str, tuple[Form, float]]:
    """Ways to compute the product, by label, and the expected seconds."""
    assert isinstance(node.op, MatmulOp)
    found = factors(body, node)
    matrices, sizes = found.traced(body)
    forms: dict[str, tuple[Form, float]] = {}
    few = isinstance(found.inputs, int) and not space.row_axes
    outer = tensor_gemm.outer_seconds(*sizes, machine, matrices) if few else inf
    precise_enough = not node.op.amplified and outer == inf
    forms["outer products"] = ("outer", outer)
    if precise_enough and _has_whole_rows(body, space, node):
        reduces, turned = bool(space.row_axes), node.op.left_transposed
        prepared = tensor_gemm.seconds(*sizes, machine, matrices, reduces, turned)
        forms["prepared"] = ("prepared", prepared)
        if not node.op.summed:
            rows, inputs, outputs = sizes
            lines = (rows if turned else inputs, inputs if node.op.transposed else outputs)
            aligned = all(length % 4 == 0 for length in lines)
            streamed = tensor_gemm.streamed_seconds(*sizes, machine, matrices, reduces, turned, aligned)
            forms["streamed"] = ("streamed", streamed)
            if few:
                forms["short"] = ("short", tensor_gemm.short_seconds(*sizes, machine, matrices))
        if takes_in_place(body, space, node):
            forms["in place"] = ("in place", tensor_gemm.in_place_seconds(*sizes, machine, matrices))
    if (plain := _rows_in_fp32(body, space, node, machine)) < inf:
        forms["in plain fp32"] = ("simt", plain)
    return {label: known for label, known in forms.items() if known[1] < inf}


def _least_seconds(body: Graph, space: RowSpace, node: Node, machine: Machine) -> float:
    """Of the fastest of these; infinite where there is none."""
    return min((time for _, time in _forms(body, space, node, machine).values()), default=inf)


def form(body: Graph, space: RowSpace, node: Node) -> Form:
    """What is expected to be the fastest way to compute a product that is not streamed."""
    return faster(f"{node.name} rows", _forms(body, space, node, MACHINES["sm_90"]))


def _half_refusal(body: Graph, space: RowSpace, node: Node, machine: Machine) -> str | None:
    """The same for a product of 16-bit floats."""
    x, w = (body.node(name) for name in node.inputs[:2])
    found = factors(body, node)
    _, (rows, inputs, outputs) = found.traced(body)
    assert isinstance(node.op, MatmulOp)
    if found.matrices or not found.fixed or node.op.left_transposed:
        return "its kernel takes rows as they are stored, and one weight of known sizes"
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
    return _by(node, tensor_gemm.half_seconds(rows, inputs, outputs, machine), library)


def _by(node: Node, ours: float, library: float) -> str | None:
    """The choice between both, as ``refusal`` answers."""
    reason = f"a kernel is expected to take {ours * 1e6:.1f} us, and worth it up to {library * 1e6:.1f} us"
    return kernel_or_library(node.name, ours, library, reason)


def group(space: RowSpace, node: Node) -> int:
    """Features that a reduction runs along where a reshape splits those of the product ``node``, else 0."""
    return space.length if space.row_axes and space.row_axes != feature_axes(space, node) else 0


def streams(body: Graph, space: RowSpace, node: Node) -> bool:
    """True when the kernel for few features computes the product rather than the tensor cores."""
    found = factors(body, node)
    assert isinstance(node.op, MatmulOp)
    if found.matrices or not found.fixed or node.op.left_transposed:
        return False
    _, sizes = found.traced(body)
    h200 = MACHINES["sm_90"]
    streamed = narrow.seconds(*sizes, h200)
    others = _least_seconds(body, space, node, h200)
    return streamed is not None and streamed <= others and not group(space, node)


def runs_anywhere(body: Graph, space: RowSpace, node: Node) -> bool:
    """Whether the kernel of the product is the same one on every device."""
    return streams(body, space, node) or form(body, space, node) == "simt"


def _library_seconds(rows: int, inputs: int, outputs: int, machine: Machine, matrices: int, alone: bool) -> float:
    """The library's product in fp32, and one pass over its result by the kernel that follows, if one does."""
    moved = 4 * matrices * (rows * inputs + outputs * inputs + rows * outputs) / machine.bandwidth
    more, enough = _LIBRARY_FEATURES
    features = max(outputs, min(outputs + more, enough))
    product = 2 * matrices * rows * (inputs + _LIBRARY_INPUTS) * features / (_LIBRARY_FLOPS * machine.flops)
    product = max(product, moved * (2 if inputs % 4 else 1))  # not aligned
    tiles = -(-rows // _LIBRARY_TILE) * -(-outputs // _LIBRARY_TILE)
    if inputs >= _LIBRARY_LONG and matrices == 1 and tiles in _LIBRARY_TILES:
        share = _LIBRARY_TILES[tiles] * machine.flops
        product = max(product, 2 * tiles * _LIBRARY_TILE**2 * inputs / share)
    if matrices > 1:
        product = _LIBRARY_BATCH + max(product, inputs * _LIBRARY_INPUT)
    else:
        first, slope, most = _LIBRARY_SPLIT
        few = min(most, max(0.0, (inputs - first) * slope)) if product < _LIBRARY_FEW else 0.0
        low = next((inputs * time for at_most, time in _LIBRARY_LOW.items() if rows <= at_most), 0.0)
        most_rows, of_few, start = _LIBRARY_START
        product = max(product, low if outputs >= _LIBRARY_WIDE else 0.0)
        product += (of_few if rows <= most_rows else start) + few
    if alone:
        return machine.launch + product
    return 2 * machine.launch + product + 8 * matrices * rows * outputs / machine.bandwidth


def product_seconds(body: Graph, node: Node, machine: Machine, after: float) -> float:
    """Expected time of the product ``node`` and what follows it element by element, by whoever is fastest.

    ``after``: of a pass over the library's result; kernels do it as they store theirs.
    """
    assert isinstance(node.op, MatmulOp)
    matrices, sizes = factors(body, node).traced(body)
    found = [
        tensor_gemm.seconds(*sizes, machine, matrices),
        after + _library_seconds(*sizes, machine, matrices, alone=True),
    ]
    found += [tensor_gemm.in_place_seconds(*sizes, machine, matrices), _plain_seconds(body, node, machine)]
    return min(found)


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
    outputs = node.type.shape[-1]
    if not isinstance(outputs, int):
        return "the length of its rows is known only at run time" if space.row_axes else None
    if grouped := group(space, node):
        if grouped % _LANE_FEATURES or tensor_gemm.FEATURES % grouped:
            return f"groups of {grouped} features do not fill the tiles of its kernel"
    elif not _has_whole_rows(body, space, node) and _rows_in_fp32(body, space, node, MACHINES["sm_90"]) == inf:
        return f"{_unfinished(body, space)} needs whole rows of {outputs} features, which several blocks compute"
    return None


def refusal(body: Graph, space: RowSpace, node: Node, machine: Machine, alone: bool) -> str | None:
    """Why the product ``node`` of a region ``body`` is left to the library, or None.

    ``alone``: nothing follows it that the library's call does not take.
    """
    if node.type.dtype in HALVES:
        return _half_refusal(body, space, node, machine)
    matrices, sizes = factors(body, node).traced(body)
    streamed = narrow.seconds(*sizes, machine) if streams(body, space, node) else None
    ours = streamed or _least_seconds(body, space, node, machine)
    if ours == inf:
        return "tensor cores truncate sums, which powers of them add up"
    rows, _, outputs = sizes
    if space.row_axes and not streamed:
        apart = inf if takes_in_place(body, space, node) else tensor_gemm.in_place_seconds(*sizes, machine, matrices)
        apart = min(apart, _plain_seconds(body, node, machine))
        if apart + machine.launch + 2 * 4 * matrices * rows * outputs / machine.bandwidth < ours:
            return "its rows are reduced sooner by a kernel of their own"
    library = _library_seconds(*sizes, machine, matrices, alone)
    precise = isinstance(node.op, MatmulOp) and node.op.precise
    return None if precise else _by(node, ours, library)
