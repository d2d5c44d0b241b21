"""Plans kernels of rows that registers hold: read once, reduced, and written once."""

from __future__ import annotations

from math import prod
from typing import Literal

from fusegen import dims
from fusegen.dims import Dims
from fusegen.ir import ConvOp, DType, GetItemOp, Graph, ParamOp, PointwiseOp, RegionOp
from fusegen.machines import LINE
from fusegen.plan.details import RowReducePlan
from fusegen.plan.region import Region, is_arithmetic
from fusegen.plan.rowdraft import Style
from fusegen.plan.rowprogram import RowProgram
from fusegen.plan.rowquotients import DividedLowering
from fusegen.plan.types import KernelPlan
from fusegen.pointwise import POINTWISE
from fusegen.spaces.parts import CUT

_FEW = 32
"""Elements of the data for each of a statistic."""
_MANY = 1 << 21
"""Elements that fill the GPU's threads with 16 of them each."""
_FEW_ELEMENTS = 1 << 14
"""Elements of all rows that are no work for the GPU: a kernel of them takes as long as its text."""
_FILLED = 128
"""Blocks that leave no multiprocessor without one, about."""
_BESIDE = 352
"""Threads of a block, of which a multiprocessor has two, with the registers for 64 values each."""


_TEXT = 3072
"""Instructions, about, that are written out for the elements of a thread: text that is longer is fetched again and
again (64 sines and 128 quotients of a thread: 96 us, 161 KB)."""
_HELD = 64
"""Elements in a thread's registers."""


def _most_held(region: Region) -> int:
    """Elements of a strided row's thread: of those, what is computed of each is written out."""
    space, nodes = region.space, region.body.nodes
    each = sum(
        POINTWISE[node.op.fn].instructions
        for node in nodes
        if isinstance(node.op, PointwiseOp) and node.name in space.axes and space.is_element(node.name)
    )
    most = _HELD
    while most > 8 and most * each > _TEXT:
        most //= 2
    return most


_BLOCK = 1024
"""Elements of contiguous rows for a block at least, where they are many: blocks of fewer begin no faster than memory is
read (sums of the products of two rows of 2 to 12 elements, 2 million of them: 76 us with 32 rows to a block)."""
_RAGGED = 128
"""Elements from which on rows that are no whole number of accesses long are read in these nevertheless (three tensors'
rows of 515: 79 us one by one and 67; divergence of two of 10,007: 275 and 181). Not beside what all rows read, of which
a thread would have each fourth (layer norm of 769 with its affine: 47 us one by one, 53 so)."""
_FEW_TOGETHER = 7
"""Elements of contiguous rows up to which a thread has several of them (pairs of 38 million numbers, their maximum: 716
us with a thread for each, of four that share a row)."""


_AHEAD = 64
"""Elements in a thread's registers, up to which all tensors of a contiguous row are read before the first statement:
else one waits for another (cosines of three rows of 640, 131,072 of them: 304 us and 240, where memory takes 238)."""


def split(
    length: int, rows: int, strided: bool, wide: bool, taken: int = 1, most: int = _HELD, several: bool = False
) -> tuple[int, int]:
    """(threads that share a row, rows side by side) for ``rows`` of ``length`` elements; ``wide``: 16-byte accesses.

    ``taken``: elements of a window that is read for one of them; ``most``: elements of a thread of strided rows;
    ``several``: whole tensors that these are read from.

    Strided rows: up to 64 values in a thread's registers (64 of one row, or 16 of four neighbouring
    rows) and 512 threads with 128 registers each; fewer rows side by side, or more threads with fewer
    registers, were slower on sm_90; of rows of more than 256, whole lines and two smaller blocks of a multiprocessor
    are faster. What several tensors bring leaves registers for eight values of each row (96 channels of x silu(y) over
    their norm: 229 us with 16 threads and 16 lines, 300 with 8 and 32; 64 channels: 221 with 8 and 16, 250 with 8 and
    32), for 16 of one row where accesses are single (48 channels of x sigmoid(y) over their norm: 270 us with 3 threads
    and 64 lines, 396 to 523 with one). Contiguous rows: 8 to 15 values a thread, 8 where they are read one by one; 16
    to 32 of rows that take a block, of which two share a multiprocessor (4,096 rows of 16,384 elements over their
    norms: 135 us with 512 threads, 153 with 1,024). Threads with fewer cost more than they hide, unless they would not
    fill the GPU.
    Strided rows that leave most multiprocessors without a block are shared by more threads, one line side by side.
    Of few elements altogether a thread has one or two: text for more is fetched from memory, and nothing hides that.
    """
    many = rows * length >= _MANY
    few = rows * length <= _FEW_ELEMENTS
    if strided:
        if few:
            parts = min(length, 32)
            return parts, min(32, 512 // parts)
        least = -(-length // 4) if many else length
        held = most // 4 if wide else min(most, max(16, _HELD // taken), _HELD // 4 if several else _HELD)
        parts = min(128, max(-(-length // held), min(8, least)) if wide else -(-length // held))
        lanes = max(8, min(max(32, 128 // parts) if wide else 64 if several else 128, 512 // parts))
        if wide and several:
            parts = max(min(8, least), 1 << (-(-length // 8) - 1).bit_length())
            lanes = max(16, 128 // parts)
        elif wide and lanes < 32:  # whole lines, and two blocks
            lanes = 16 if parts * 16 <= _BESIDE else 8
        while rows < _FILLED * lanes * (4 if wide else 1) and lanes > (8 if wide else 32) and 8 * parts <= length:
            parts, lanes = 2 * parts, lanes // 2
        return parts, lanes
    if taken > 1 or not many or (length <= 1024 and not wide):
        values = 8
    elif length <= 1024:
        values = 15
    else:
        values = 32 if 4096 < length <= 16384 else 16
    parts = 1 << (-(-min(length, 16) // 4) - 1).bit_length()  # each has an access of 16 bytes, if these are
    while parts < 1024 and length > parts * values:
        parts *= 2
    while few and parts < 128 and length > 2 * parts:
        parts *= 2
    threads = 128
    while many and threads < 512 and length * (threads // parts) < _BLOCK:
        threads *= 2
    return parts, max(1, threads // parts)


def _split_narrow(length: int, abreast: int, wide: bool, several: bool, most: int) -> tuple[int, int]:
    """``split``, both powers of two, of strided rows of which ``abreast`` lie side by side: less than a line.

    Neighbouring threads read what follows in a row, too, so that a warp's are whole sectors (softmax of 32 to 512
    elements with one, two, three and seven rows beside each, 8.4 million in all: 19 to 32 us; 28 to 93 with rows in
    runs). A thread has four of each row, if it can: those of fewer wait for memory too often (8 elements: 42 us).
    """
    side = max(1, abreast // 4) if wide else abreast
    held = most // 4 if wide else min(most, _HELD // 4)
    if several:
        held = max(1, held // 2)
    sharing = max(-(-length // held), min(-(-length // 4), LINE // side))
    parts = min(1 << (sharing - 1).bit_length(), 512 // side)
    return parts, max(side, 256 // parts)


def _resident(parts: int, lanes: int) -> int:
    """Threads of a multiprocessor, to leave registers for, where blocks of strided rows have so many: two blocks, one
    of which waits for memory while the other computes (weighted sums of 700 of 65,536 rows: 63 us; 78 with one).
    """
    return max(512, 2 * parts * lanes) if lanes < 32 and parts * lanes <= _BESIDE else 512


_FEW_SUMMED = 1 << 12
"""Elements, of all rows together, that a launch adds up in no time."""
_FEW_WEIGHTS = 1 << 20
"""Elements of a parameter that are read in the time of a launch, so that arithmetic on them is no limit."""


def _is_statistic(graph: Graph, name: str) -> bool:
    """Whether a value has few elements beside the data of its kernel, or follows from such values alone."""
    node = graph.node(name)
    made = graph.node(node.inputs[0]) if isinstance(node.op, GetItemOp) else node
    if not isinstance(made.op, RegionOp):
        return False
    of_sums = any(isinstance(inner.op, ConvOp) and inner.op.precise for inner in made.op.body.nodes)
    if made.op.template == "conv_reduce" or of_sums:  # convolutions of sums are of few samples, or of few places
        return True
    if not made.op.template.startswith("row"):
        return False
    data = [operand for operand in made.inputs if not isinstance(graph.node(operand).op, ParamOp)]
    least = _FEW * dims.numel(node.type.shape, graph.sizes)
    return all(_is_statistic(graph, operand) for operand in data) or any(
        dims.numel(graph.shape(operand), graph.sizes) >= least for operand in data
    )


def sums_few(region: Region) -> bool:
    """Whether ``region`` adds up few elements, and writes nothing else: what is left of such a sum may be small."""
    space = region.space
    rows, _ = space.traced(region.body.sizes)
    sums = is_arithmetic(region.body, ("sum", "mean")) and not any(map(space.is_element, region.body.outputs))
    return sums and not region.pooled and rows * space.length <= _FEW_SUMMED


def _in_double(region: Region) -> bool:
    """Whether ``region`` is arithmetic on statistics, or sums of parameters: double costs nothing where these are few.

    What is left of statistics may be small; what is rounded in a sum of weights is in every result, where eager's
    roundings of as many products average out.
    """
    data = [arg.node for arg in region.args.values() if not isinstance(region.graph.node(arg.node).op, ParamOp)]
    arithmetic = is_arithmetic(region.body, ("sum", "mean", "var"))
    if not data:
        return arithmetic and all(
            dims.numel(arg.type.shape, region.body.sizes) <= _FEW_WEIGHTS for arg in region.args.values()
        )
    return arithmetic and all(_is_statistic(region.graph, name) for name in data)


def _is_stored_turned(region: Region, rows: RowProgram) -> bool:
    """Whether strided rows are stored as rows, whose elements lie side by side, in whole accesses."""
    elements = [store for store in rows.stores if store.per_element]
    written = {output.name for output in region.outputs if output.dtype is DType.FLOAT32}
    found = [store.along_row and not store.like_source and store.output in written for store in elements]
    return rows.length % 4 == 0 and bool(found) and all(found)


class _HeldLowering(DividedLowering):
    """Knows operands of strided rows of which neighbouring rows have neighbours: whole accesses read those."""

    def vector(self, order: list[int], index: str) -> Literal["", "source", "row"]:
        inner = [axis for axis in self.space.inner_axes if self.space.shape[axis] != 1]
        return "source" if inner and order[-len(inner) :] == inner else ""

    def part_vector(self, terms: list[tuple[str, str]]) -> Literal["", "part"]:
        over_inner = [text for name, text in terms if name == "inner"]
        return "part" if over_inner == ["inner"] else ""


def _in_whole_accesses(apart: Dims) -> bool:
    """Whether what is so far apart may be read in accesses of 16 bytes, as far as sizes are known."""
    return all(size % 4 == 0 for size in apart if isinstance(size, int))


def plan(region: Region, name: str) -> KernelPlan:
    space = region.space
    inner = region.product(space.inner_axes)
    strided, double = inner != 1, _in_double(region) or sums_few(region)
    taken = prod(region.pooled.op.kernel) if region.pooled else 1
    rows, _ = space.traced(region.body.sizes)
    size, most = rows * space.length, _most_held(region)
    style = Style("{}[i][j]", "{}[i]", moves_rows=True, double=double)
    lowered = region.lower(space, style, "v", _HeldLowering if strided else DividedLowering)
    cut = isinstance(region.body.node(space.source).op, CUT)
    vectors = [operand for operand in lowered.operands if operand.along_row and not strided]
    if strided:
        vectors = [operand for operand in lowered.operands if operand.vector and operand.per_element]
        vectors = [operand for operand in vectors if _in_whole_accesses(operand.apart or ())]
    data = {arg.name for arg in region.args.values() if dims.numel(arg.type.shape, region.body.sizes) >= size}
    several = any(operand.arg in data for operand in vectors)
    paired = isinstance(region.body.node(space.source).op, PointwiseOp)
    source = "" if region.pooled or cut or paired else region.args[space.source].name
    together = bool(source) and not strided and space.length <= _FEW_TOGETHER and not vectors
    ragged = not strided and not double and not region.pooled and space.length % 4 != 0 and space.length >= _RAGGED
    if ragged:  # rows of operands begin where the source's do; else neighbours would read far from each other
        along = [operand for operand in lowered.operands if operand.along_row]
        ragged = bool(source or along) and all(operand.index == f"outer * {space.length} + l" for operand in along)
    splits = [
        (1, 256) if together else split(space.length, rows, strided, wide, taken, most, several)
        for wide in (False, True)
    ]
    turned = strided and not double and _is_stored_turned(region, lowered)
    abreast = space.abreast(region.body.sizes)
    if abreast:
        splits = [_split_narrow(space.length, abreast, wide, several, most) for wide in (False, True)]
    held = max(-(-space.length // (parts * wide)) * wide for (parts, _), wide in zip(splits, (1, 4), strict=True))
    whole = [operand for operand in vectors if operand.arg in data and not (strided or double)]
    ahead = whole[: max(0, _AHEAD // held - bool(source))]
    runs = tuple(operand.apart or () for operand in vectors)
    apart = tuple(dict.fromkeys(size for sizes in runs for size in sizes))
    detail = RowReducePlan(
        source=source,
        wide=not region.pooled and not (strided and cut) and _in_whole_accesses(apart),
        vectors=tuple(operand.name for operand in vectors),
        ahead=tuple(operand.name for operand in ahead),
        apart=tuple(size for size in apart if not isinstance(size, int)),
        outer=region.product(space.outer_axes),
        inner=inner,
        strided=strided,
        parts=(splits[0][0], splits[1][0]),
        lanes=(splits[0][1], splits[1][1]),
        abreast=abreast,
        resident=_resident(*splits[1]) if strided and not abreast else 512,
        turned=turned,
        double=double,
        paired=paired,
        together=together,
        ragged=ragged,
        rows=lowered,
    )
    return region.plan(f"{name}_row_reduce", detail)
