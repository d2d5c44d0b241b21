"""Elementwise work behind views: which nodes one kernel computes, fetching every element from where views put it.

Where that is, ``spaces/placement.py`` says.
"""

from __future__ import annotations

from collections import Counter

from fusegen import dims
from fusegen.dims import Dims
from fusegen.ir import (
    DEVICE_ONLY,
    HALVES,
    WIDE_INTEGERS,
    CatOp,
    ConstOp,
    DType,
    ExpandOp,
    FillOp,
    FlipOp,
    GatherOp,
    Graph,
    InputOp,
    InterpolateOp,
    MatmulOp,
    Node,
    PadOp,
    PermuteOp,
    PointwiseOp,
    RangeOp,
    ReduceOp,
    ResampleOp,
    ReshapeOp,
    SliceOp,
    TriangleOp,
    UnfoldOp,
)
from fusegen.pointwise import POINTWISE
from fusegen.spaces import placement
from fusegen.spaces.once import once
from fusegen.spaces.parts import NAMED, fetches_operands, indices
from fusegen.spaces.rowspace import NotFusable, analyze

STRIDED = (ExpandOp, PermuteOp, SliceOp, UnfoldOp)
"""Views whose results torch lays out as their data lies."""
_OTHERS = (CatOp, PadOp, FlipOp, ResampleOp, InterpolateOp, UnfoldOp, ExpandOp, TriangleOp, FillOp, RangeOp)
VIEWS = (ReshapeOp, PermuteOp, SliceOp, *_OTHERS)
FETCHES = (*VIEWS, *NAMED)
"""What kernels read through: views, and elements that others name."""
ELSEWHERE = (*_OTHERS, *NAMED)
"""Those that no row space has."""
MOST_READS = 32
"""Operands that one element of a result may come from."""
_FEW, _MOST_READS_OF_FEW = 4096, 96
"""Elements of operands that stay in the nearest cache, and operands that an element may come from with those (splines:
their knots; 5.8 million values of 11, 69 us with all of it in one kernel, 126 MB written and read again otherwise)."""
_SHORT_ROW = 512
"""Elements up to which torch takes longer to copy rows that it turns than a kernel does: rows of 4, 113 MB, 100 us and
62; of 16, 10 MB, 10 and 8; of 72, 18 MB, 12.4 and 6.6."""
_SHORT_RUN = 256
"""Elements that a number names, up to which a block of threads, as torch has one for each, is most of their time
(embeddings of 32, 13.6 MB: 66 us)."""
_MANY = 1 << 20
"""Elements from which on torch's joining of what is cut out takes longer than its call."""


@once
def takes(body: Graph) -> bool:
    """True for elementwise nodes and views alone, of which no row space has every element where it is needed.

    Raises ``NotFusable`` where other nodes are among such views.
    """
    work = [node.op for node in body.nodes if not isinstance(node.op, (InputOp, ConstOp))]
    if any(isinstance(op, (MatmulOp, ReduceOp)) for op in work):
        return False  # see viewproduct and viewreduce
    elementwise = all(isinstance(op, (PointwiseOp, *FETCHES)) for op in work)
    elsewhere = [op for op in work if isinstance(op, ELSEWHERE)]
    if not elementwise and not all(isinstance(op, NAMED) for op in elsewhere):  # kernels of rows fetch, too
        raise NotFusable("what is joined, padded or spread is read as it lies")
    if elsewhere or not elementwise:
        return elementwise
    try:
        space = analyze(body)
    except NotFusable:
        return True
    return any(space.base_axes(name) != space.base_axes(space.source) for name in body.outputs)


def copies(node: Node, body: Graph) -> bool:
    """True where torch would write the result of a view, or of elementwise work."""
    if isinstance(node.op, ReshapeOp):
        source = body.node(node.inputs[0])
        return isinstance(source.op, (PermuteOp, UnfoldOp)) or _joins_copies(source, node, body)
    written = (PointwiseOp, CatOp, PadOp, FlipOp, ResampleOp, InterpolateOp, *NAMED, TriangleOp)
    return isinstance(node.op, written) or is_copied(node, body)


def _joins_copies(spread: Node, reshaped: Node, body: Graph) -> bool:
    """Whether a reshape makes one axis of copies that lie nowhere and of what does: no view has such strides."""
    if not isinstance(spread.op, ExpandOp):
        return False
    own, shape = body.shape(spread.inputs[0]), body.shape(spread.name)
    own = (1,) * (len(shape) - len(own)) + own
    axes = [(size, before != size) for before, size in zip(own, shape, strict=True) if size != 1]
    after = tuple(size for size in body.shape(reshaped.name) if size != 1)
    runs = dims.regrouped(tuple(size for size, _ in axes), after) if 0 not in after else None
    return any(len({axes[i][1] for i in joined}) > 1 for joined, _ in runs or ())


def lies_in_one_piece(part: Node) -> bool:
    """Whether a slice of what lies row by row does so, too."""
    assert isinstance(part.op, SliceOp)
    return part.op.step == 1 and all(size == 1 for size in part.type.shape[: part.op.axis])


def is_copied(node: Node, graph: Graph) -> bool:
    """Whether a view is a result that eager lays out row by row, and its data lies otherwise."""
    if not isinstance(node.op, STRIDED) or node.name not in graph.by_rows:
        return False
    if isinstance(node.op, SliceOp):
        return not lies_in_one_piece(node)
    return not isinstance(node.op, PermuteOp) or not dims.keeps_order(node.op.order, node.type.shape)


def _writer(body: Graph) -> Node:
    """What writes the result of ``body``, which may be reshaped then; or, where it is fetched, in another order."""
    node = body.node(body.outputs[0])
    if isinstance(node.op, PermuteOp) and isinstance(body.node(node.inputs[0]).op, GatherOp):
        return body.node(node.inputs[0])
    while isinstance(node.op, ReshapeOp) and not copies(node, body):
        node = body.node(node.inputs[0])
    return node


def pays(body: Graph) -> bool:
    """False where torch itself writes the result of one view at once, long rows of it; padding it writes twice.

    Windows it reads element by element, as they lie in memory, where caches have most of them already, and likewise
    what it joins where that is cut out of other data (134 MB took 140 us, at full bandwidth 64).
    """
    writer = _writer(body)
    source = body.node(writer.inputs[0]) if isinstance(writer.op, ReshapeOp) else writer
    source = body.node(body.outputs[0]) if isinstance(writer.op, GatherOp) else source
    short = dims.numel(source.type.shape[-1:], body.sizes) <= _SHORT_ROW
    turned = isinstance(source.op, PermuteOp) and (source.op.order[-1] != source.type.rank - 1 or short)
    spread = {name for node in body.nodes if isinstance(node.op, CatOp) for name in node.inputs}  # joined by elements
    written = sum(
        copies(node, body) or isinstance(node.op, FillOp) or (isinstance(node.op, ExpandOp) and node.name in spread)
        for node in body.nodes
    )
    windows = any(isinstance(node.op, UnfoldOp) for node in body.nodes)
    parts = (body.node(name) for name in spread)
    cut = any(isinstance(part.op, SliceOp) and not lies_in_one_piece(part) for part in parts)
    joined = cut and dims.numel(writer.type.shape, body.sizes) >= _MANY
    several = isinstance(writer.op, (PointwiseOp, PadOp, ResampleOp, InterpolateOp)) or written > 1
    return turned or windows or joined or several or _is_fetched_piecemeal(writer, body)


def _is_fetched_piecemeal(node: Node, body: Graph) -> bool:
    """Whether numbers name many short runs of elements, for each of which torch has a block of threads."""
    if not isinstance(node.op, GatherOp):
        return False
    run = dims.numel(body.shape(node.inputs[0])[node.op.axis + 1 :], body.sizes)
    return run <= _SHORT_RUN and dims.numel(node.type.shape, body.sizes) >= _MANY


def numbered(body: Graph) -> list[Dims]:
    """The shapes of ranges: a kernel's positions go as far, however few of their numbers it reads."""
    return [node.type.shape for node in body.nodes if isinstance(node.op, RangeOp)]


def check_elements(body: Graph, floats: tuple[DType, ...]) -> None:
    """Raises ``NotFusable`` where a value is none of ``floats`` and no integer that kernels compute with, or the
    function of one that they do not compute; and where elements are fetched of what is no operand, or by what is none.
    """
    places, by_name = indices(body), body.by_name
    for node in body.nodes:
        if node.name in places:
            continue
        fetched = isinstance(node.op, NAMED)
        if fetched and not fetches_operands(node, by_name):
            raise NotFusable(f"{node.name} fetches what is computed, or from where it is computed")
        if node.type.dtype not in (*floats, *WIDE_INTEGERS):
            raise NotFusable(f"{node.name} is {node.type.dtype.value}; kernels compute in float32")
        dtypes = {node.type.dtype, *(by_name[name].type.dtype for name in node.inputs[: 1 if fetched else None])}
        integers = not isinstance(node.op, DEVICE_ONLY) and bool(dtypes & WIDE_INTEGERS)
        views = isinstance(node.op, (InputOp, ConstOp, *FETCHES)) and not isinstance(node.op, InterpolateOp)
        computed = isinstance(node.op, PointwiseOp) and POINTWISE[node.op.fn].integer
        if integers and not views and not computed:
            raise NotFusable(f"{node.name} ({node.op.kind}) is of integers; kernels compute it in float32")
        if dtypes & WIDE_INTEGERS and dtypes & HALVES:
            raise NotFusable(f"{node.name} is of integers and of 16-bit floats")


@once
def evaluations(body: Graph) -> Counter[str]:
    """How many elements of each value one of the results comes from. Raises ``NotFusable``."""
    places = placement.whole(body.node(body.outputs[0]).type.shape)
    return sum((placement.evaluations(body, name, places) for name in body.outputs), Counter[str]())


def refusal(body: Graph, few: bool) -> str | None:
    """Why no kernel computes ``body``, elementwise work and views, or None. Raises ``NotFusable`` too.

    ``few``: the results are few, so that several functions of the same shape may be.
    """
    sink, *others = map(body.node, body.outputs)
    functions = all(isinstance(node.op, PointwiseOp) and node.type.shape == sink.type.shape for node in (sink, *others))
    if others and not (few and functions):
        return "it is read outside the kernel too"
    if isinstance(sink.op, FillOp):
        return "one number throughout"
    if not copies(_writer(body), body):
        return "its result is laid out in another way than the data: a view is free"
    if isinstance(sink.op, RangeOp):
        return "numbers that torch writes"
    check_elements(body, (DType.FLOAT32, DType.BOOL, *HALVES))
    times = evaluations(body)
    found = {node.name: times[node.name] for node in body.inputs}
    of_many = sum(count for name, count in found.items() if dims.numel(body.shape(name), body.sizes) > _FEW)
    of_all = sum(found.values())
    too_many = of_many > MOST_READS or of_all > _MOST_READS_OF_FEW
    return f"an element of its result may come from {of_all} places" if too_many else None
