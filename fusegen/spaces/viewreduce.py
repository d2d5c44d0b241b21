"""Reductions of what is computed as it is read, from behind views, and what follows them row by row.

A row is what one result is reduced from. Where its elements come from follows from the numbers of the row and of the
element in it: the axes that are left, and those that are reduced, each from the first to the last.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusegen.dims import Dims
from fusegen.ir import CatOp, ConstOp, Graph, InputOp, Node, PointwiseOp, ReduceOp
from fusegen.spaces import placement, viewspace
from fusegen.spaces.once import once
from fusegen.spaces.placement import Places
from fusegen.spaces.rowspace import NotFusable, analyze, analyze_rows
from fusegen.spaces.viewproduct import ROW, TERM, check_types, following

REDUCED = ("sum", "mean", "max", "min", "prod")
"""What takes one pass over the elements, in any order."""


@dataclass(frozen=True)
class ViewReduction:
    """``heads``: the reductions, each of an element at ``places``; ``results``: where what follows from a row goes."""

    heads: tuple[Node, ...]
    places: Places
    results: dict[str, Places]
    rows: Dims
    length: Dims


@once
def takes(body: Graph) -> bool:
    """True for reductions of elementwise work and views, of which no kernel of plain rows has every element."""
    work = [node.op for node in body.nodes if not isinstance(node.op, (InputOp, ConstOp))]
    if not all(isinstance(op, (ReduceOp, PointwiseOp, *viewspace.FETCHES)) for op in work):
        return False
    if not any(isinstance(op, ReduceOp) for op in work):
        return False
    try:
        analyze(body)
    except NotFusable:
        return not _is_read_by_rows(body)
    return any(isinstance(op, viewspace.ELSEWHERE) and not isinstance(op, CatOp) for op in work)


def _is_read_by_rows(body: Graph) -> bool:
    """Whether a kernel of rows has every element, some in parts of its operands, and no pass over views does."""
    try:
        analyze_rows(body)
    except NotFusable:
        return False
    try:
        check(body)
    except NotFusable:
        return True
    return False


def op_of(head: Node) -> ReduceOp:
    """The reduction that ``head`` is."""
    assert isinstance(head.op, ReduceOp)
    return head.op


def _left(head: Node, places: Places) -> Places:
    """The place of the result of ``head`` that an element at ``places`` goes into."""
    op = op_of(head)
    kept = [() if axis in op.axes else place for axis, place in enumerate(places)]
    return tuple(place for axis, place in enumerate(kept) if op.keepdim or axis not in op.axes)


def split(body: Graph, last: int | None = None) -> ViewReduction:
    """The reductions of ``body``, with the places of their elements and of its results. Raises ``NotFusable``.

    ``last``: of the axes that are left, the one along which neighbouring rows lie; None: the last.
    """
    heads = tuple(node for node in body.nodes if isinstance(node.op, ReduceOp))
    ops = [op_of(head) for head in heads]
    shapes = [body.node(head.inputs[0]).type.shape for head in heads]
    if any(shape != shapes[0] for shape in shapes) or any(op.axes != ops[0].axes for op in ops):
        raise NotFusable("it has reductions of different rows")
    if any(op.fn not in REDUCED for op in ops):
        raise NotFusable(f"{ops[0].fn} of what lies behind views takes more than a pass over it")
    shape, axes = shapes[0], ops[0].axes
    left = sorted((axis for axis in range(len(shape)) if axis not in axes), key=lambda axis: axis == last)
    rows, length = tuple(shape[axis] for axis in left), tuple(shape[axis] for axis in axes)
    found = dict(zip(left, placement.whole(rows, ROW), strict=True))
    found |= dict(zip(axes, placement.whole(length, TERM), strict=True))
    places = tuple(found[axis] for axis in range(len(shape)))
    known = following(body, {head.name: _left(head, places) for head in heads})
    if not all(name in known for name in body.outputs):
        raise NotFusable("its result does not follow from the reduction")
    results = {name: known[name] for name in body.outputs}
    return ViewReduction(heads=heads, places=places, results=results, rows=rows, length=length)


def check(body: Graph, last: int | None = None) -> ViewReduction:
    """The reductions of ``body`` (``last``: see ``split``). Raises ``NotFusable`` where no kernel has all of it."""
    check_types(body)
    found = split(body, last)
    for head in found.heads:
        loads = placement.loads(body, head.inputs[0], found.places)
        if loads > viewspace.MOST_READS:
            raise NotFusable(f"an element of {head.inputs[0]} may come from {loads} places")
    return found
