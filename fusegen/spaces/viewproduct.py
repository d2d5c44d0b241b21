"""Matrix products whose factors are computed as they are read, from behind views, and what follows them.

A kernel computes tiles of rows and columns of one matrix after the other. Where an element of a factor comes from, and
where a result goes, follows from the numbers of its matrix, row, term and column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusegen.dims import Dim, Dims
from fusegen.ir import (
    DEVICE_ONLY,
    ConstOp,
    DType,
    Graph,
    InputOp,
    MatmulOp,
    Node,
    Op,
    PermuteOp,
    PointwiseOp,
    ReshapeOp,
    TriangleOp,
)
from fusegen.spaces import placement, prologue, viewspace
from fusegen.spaces.once import once
from fusegen.spaces.placement import Joined, Places
from fusegen.spaces.rowspace import NotFusable, analyze

MATRIX, ROW, TERM, COLUMN = "matrix", "row", "k", "column"
"""What the kernel calls the numbers of a product's matrix, row, term of the sum, and column."""
MOST_READS = 12
"""Loads that an element of a factor may wait for: while a block computes them, one after the other, none multiplies."""


@dataclass(frozen=True)
class ViewProduct:
    """``head``: the product, of ``left`` and ``right``, each wanted at its places; ``result``: where results go."""

    head: Node
    left: Node
    right: Node
    left_places: Places
    right_places: Places
    result: Places
    after: frozenset[str]
    """The head and what follows it."""
    matrices: Dims
    lines: Dims
    inputs: Dim
    outputs: Dim


def heads(body: Graph) -> list[Node]:
    return [node for node in body.nodes if isinstance(node.op, MatmulOp)]


@once
def takes(body: Graph) -> bool:
    """True for one product with elementwise work and views, of which no kernel of plain rows has every element."""
    found = heads(body)
    rest = (InputOp, ConstOp, PointwiseOp, *viewspace.VIEWS)
    if len(found) != 1 or any(node is not found[0] and not isinstance(node.op, rest) for node in body.nodes):
        return False
    try:
        before, after = prologue.split(body)
        analyze(after)
        if before:
            prologue.space(before, found[0])
    except NotFusable:
        return True
    return False


def split(body: Graph) -> ViewProduct:
    """The product of ``body``, with the places of its factors' elements and of its result. Raises ``NotFusable``."""
    (head,) = heads(body)
    assert isinstance(head.op, MatmulOp)
    left, right = (body.node(name) for name in head.inputs)
    *lead, rows, outputs = head.type.shape
    inputs = left.type.shape[-2 if head.op.left_transposed else -1]
    k, column = placement.position(TERM, inputs), placement.position(COLUMN, outputs)
    right_places: Places = (column, k) if head.op.transposed else (k, column)
    matrices: Dims = ()
    lines: Dims = (*lead, rows)
    if right.type.rank == 2 and not head.op.left_transposed:  # rows of all matrices, one after the other
        of_rows = placement.whole(lines, ROW)
        left_places: Places = (*of_rows, k)
    else:
        matrices, lines = tuple(lead), (rows,)
        of_matrices, row = placement.whole(matrices, MATRIX), placement.position(ROW, rows)
        of_rows = (*of_matrices, row)
        left_places = (*of_matrices, k, row) if head.op.left_transposed else (*of_rows, k)
        right_places = right_places if right.type.rank == 2 else (*of_matrices, *right_places)
    known = following(body, {head.name: (*of_rows, column)})
    if body.outputs[0] not in known or any(name in known for name in head.inputs):
        raise NotFusable("its result does not follow from the product")
    return ViewProduct(
        head=head,
        left=left,
        right=right,
        left_places=left_places,
        right_places=right_places,
        result=known[body.outputs[0]],
        after=frozenset(known),
        matrices=matrices,
        lines=lines,
        inputs=inputs,
        outputs=outputs,
    )


def digits(places: Places, body: Graph) -> list[Joined]:
    """The same for equal places, however their axes were split and joined."""
    return [placement.joined([(place, 1)], body.sizes) for place in places]


def following(
    body: Graph, heads: Mapping[str, Places], until: Node | None = None, kept: tuple[type[Op], ...] = ()
) -> dict[str, Places]:
    """Where each value that follows from ``heads``, and not from ``until``, has the element which is made of theirs at
    these places. ``kept``: ops whose elements are made of several, and lie where these do. Raises ``NotFusable``."""
    known = dict(heads)
    for node in body.nodes:
        if node is until or isinstance(node.op, DEVICE_ONLY):
            continue
        sources = [name for name in dict.fromkeys(node.inputs) if name in known]
        if not sources:
            continue
        found = known[sources[0]]
        match node.op:
            case PointwiseOp():
                alike = all(body.node(name).type.shape == node.type.shape for name in sources)
                if not alike or any(digits(known[name], body) != digits(found, body) for name in sources[1:]):
                    raise NotFusable(f"{node.name} pairs results with others")
                known[node.name] = found
            case ReshapeOp(shape=shape):
                known[node.name] = placement.regrouped(found, shape)
            case TriangleOp():
                known[node.name] = found
            case PermuteOp(order=order):
                known[node.name] = tuple(found[axis] for axis in order)
            case op if isinstance(op, kept):
                known[node.name] = found
            case _:
                raise NotFusable(f"{node.name} ({node.op.kind}) is neither elementwise nor a view of all results")
    return known


def check_types(body: Graph) -> None:
    """Raises ``NotFusable`` where ``body`` has a result of truth values, or values of other types."""
    viewspace.check_elements(body, (DType.FLOAT32, DType.BOOL))
    if any(body.node(name).type.dtype is not DType.FLOAT32 for name in body.outputs):
        raise NotFusable("its result is no float32 tensor")


def check_alone(body: Graph) -> None:
    """Raises ``NotFusable`` where ``body`` has several results, or types that no kernel has."""
    if len(body.outputs) > 1:
        raise NotFusable("it is read outside the kernel too")
    check_types(body)


def check(body: Graph) -> ViewProduct:
    """The product of ``body``. Raises ``NotFusable`` where no kernel has all of it."""
    check_alone(body)
    found = split(body)
    for factor, places in ((found.left, found.left_places), (found.right, found.right_places)):
        loads = placement.loads(body, factor.name, places)
        if loads > MOST_READS:
            raise NotFusable(f"an element of {factor.name} may come from {loads} places")
    return found
