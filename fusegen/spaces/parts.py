"""Parts that are cut out of operands, for kernels that read them where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusegen import dims
from fusegen.dims import Dim, Dims
from fusegen.ir import Graph, InputOp, Node, ReshapeOp, SliceOp


@dataclass(frozen=True)
class Part:
    """What lies from ``starts`` on in ``whole``, an operand of a kernel or a reshape of one."""

    whole: Node
    starts: Dims


def part_of(node: Node, by_name: Mapping[str, Node]) -> Part | None:
    """Where ``node`` lies in an operand, if it is slices of one, of neighbours along every axis.

    What lies like a tensor of its own is none: a view of torch's, which nothing copies.
    """
    starts: list[Dim] = [0] * node.type.rank
    whole = node
    while isinstance(whole.op, SliceOp) and whole.op.step == 1:
        starts[whole.op.axis] = dims.add(starts[whole.op.axis], whole.op.start)
        whole = by_name[whole.inputs[0]]
    cut = [axis for axis, size in enumerate(whole.type.shape) if node.type.shape[axis] != size]
    if not cut or all(size == 1 for size in node.type.shape[: cut[-1]]):
        return None
    root = whole
    while isinstance(root.op, ReshapeOp):
        root = by_name[root.inputs[0]]
    return Part(whole, tuple(starts)) if isinstance(root.op, InputOp) else None


def parts_in(body: Graph) -> dict[str, Part]:
    """The parts of operands in ``body``, by name."""
    by_name = body.by_name
    found = {node.name: part_of(node, by_name) for node in body.nodes if isinstance(node.op, SliceOp)}
    return {name: part for name, part in found.items() if part}


def cut_up(body: Graph, found: Mapping[str, Part]) -> set[str]:
    """Operands of ``body`` of which nothing but the parts ``found`` is read."""
    users = body.users()
    views: set[str] = set()
    for node in reversed(body.nodes):
        readers = users[node.name]
        seen = isinstance(node.op, (InputOp, ReshapeOp, SliceOp)) and node.name not in body.outputs
        if seen and readers and all(name in found or name in views for name in readers):
            views.add(node.name)
    return views
