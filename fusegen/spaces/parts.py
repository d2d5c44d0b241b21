"""Parts that are cut out of operands, or fetched from them, for kernels that read them where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusegen import dims
from fusegen.dims import Dim, Dims
from fusegen.ir import (
    ExpandOp,
    GatherElementsOp,
    GatherOp,
    Graph,
    InputOp,
    Node,
    PermuteOp,
    ReshapeOp,
    SliceOp,
)
from fusegen.spaces.once import once

NAMED = (GatherOp, GatherElementsOp)
"""Ops whose second operand says which elements of the first are taken."""
CUT = (SliceOp, *NAMED)
"""Ops that take part of an operand."""
_FREE = (ReshapeOp, SliceOp, PermuteOp, ExpandOp)


@dataclass(frozen=True)
class Part:
    """What lies from ``starts`` on in ``whole``, an operand of a kernel or a reshape of one; ``named``: of one axis,
    what another operand names, or a view of one."""

    whole: Node
    starts: Dims
    named: Fetched | None = None


@dataclass(frozen=True)
class Fetched:
    """What ``op`` takes: the elements that ``index`` names."""

    op: GatherOp | GatherElementsOp
    index: Node


def root_of(node: Node, by_name: Mapping[str, Node]) -> Node:
    """What ``node`` is a reshape of."""
    while isinstance(node.op, ReshapeOp):
        node = by_name[node.inputs[0]]
    return node


def uncut(node: Node, by_name: Mapping[str, Node]) -> tuple[Node, Dims]:
    """What ``node`` is slices of, of neighbours along every axis, and where in it they begin."""
    starts: list[Dim] = [0] * node.type.rank
    while isinstance(node.op, SliceOp) and node.op.step == 1:
        starts[node.op.axis] = dims.add(starts[node.op.axis], node.op.start)
        node = by_name[node.inputs[0]]
    return node, tuple(starts)


def _named_part(node: Node, op: GatherOp | GatherElementsOp, by_name: Mapping[str, Node]) -> Part | None:
    """Where the elements lie that numbers name; of slices too, and in places that slices name, but along that axis."""
    data, index = (by_name[name] for name in node.inputs)
    in_places = isinstance(op, GatherElementsOp)
    whole, starts = uncut(data, by_name) if in_places else (data, (0,) * data.type.rank)
    numbers, _ = uncut(index, by_name) if in_places else (index, ())
    if not all(isinstance(root_of(part, by_name).op, InputOp) for part in (whole, numbers)):
        return None
    if whole.type.shape[op.axis] != data.type.shape[op.axis]:
        return None
    return Part(whole, starts, Fetched(op, index))


def part_of(node: Node, by_name: Mapping[str, Node]) -> Part | None:
    """Where ``node`` lies in an operand, if it is slices of one, of neighbours along every axis.

    What lies like a tensor of its own is none: a view of torch's, which nothing copies.
    """
    if isinstance(node.op, NAMED):
        return _named_part(node, node.op, by_name)
    whole, starts = uncut(node, by_name)
    cut = [axis for axis, size in enumerate(whole.type.shape) if node.type.shape[axis] != size]
    if not cut or all(size == 1 for size in node.type.shape[: cut[-1]]):
        return None
    return Part(whole, starts) if isinstance(root_of(whole, by_name).op, InputOp) else None


def fetches_operands(node: Node, by_name: Mapping[str, Node]) -> bool:
    """Whether ``node``, an op of ``NAMED``, takes elements of an operand, which another one names, not of what is
    computed: that would be computed again for each.
    """
    if isinstance(node.op, GatherOp):
        return part_of(node, by_name) is not None
    data, index = (by_name[name] for name in node.inputs)
    while isinstance(data.op, _FREE):
        data = by_name[data.inputs[0]]
    return isinstance(data.op, InputOp) and isinstance(root_of(index, by_name).op, InputOp)


def parts_in(body: Graph) -> dict[str, Part]:
    """The parts of operands in ``body``, by name."""
    by_name = body.by_name
    numbers = indices(body)
    cut = (node for node in body.nodes if isinstance(node.op, CUT) and node.name not in numbers)
    found = {node.name: part_of(node, by_name) for node in cut}
    return {name: part for name, part in found.items() if part}


def named(node: Node, by_name: Mapping[str, Node]) -> Node:
    """The part, or the elements that numbers name in places, of which ``node`` is a reshape with other axes of one; or
    ``node``.
    """
    root = root_of(node, by_name)
    sizes = [[size for size in shape if size != 1] for shape in (root.type.shape, node.type.shape)]
    return root if isinstance(root.op, (GatherElementsOp, SliceOp)) and sizes[0] == sizes[1] else node


def cut_up(body: Graph, found: Mapping[str, Part]) -> set[str]:
    """Operands of ``body`` of which nothing but the parts ``found`` is read."""
    users = body.users
    views: set[str] = set()
    for node in reversed(body.nodes):
        readers = users[node.name]
        seen = isinstance(node.op, (InputOp, ReshapeOp, *CUT)) and node.name not in body.outputs
        if seen and readers and all(name in found or name in views for name in readers):
            views.add(node.name)
    return views


@once
def indices(body: Graph) -> set[str]:
    """Operands of ``body``, and views of them, that say which elements of others are fetched, and nothing else."""
    users, by_name = body.users, body.by_name
    found: set[str] = set()
    for node in reversed(body.nodes):
        readers = [by_name[name] for name in users[node.name]]
        fetched = all(
            reader.name in found or (isinstance(reader.op, NAMED) and reader.inputs[0] != node.name)
            for reader in readers
        )
        if readers and fetched and isinstance(node.op, (InputOp, ReshapeOp, SliceOp)) and node.name not in body.outputs:
            found.add(node.name)
    return found
