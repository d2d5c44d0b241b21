"""Parts that are cut out of operands, or fetched from them, for kernels that read them where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusegen import dims
from fusegen.dims import Dim, Dims
from fusegen.ir import GatherOp, Graph, InputOp, Node, ReshapeOp, SliceOp

CUT = (SliceOp, GatherOp)
"""Ops that take part of an operand."""


@dataclass(frozen=True)
class Part:
    """What lies from ``starts`` on in ``whole``, an operand of a kernel or a reshape of one. ``index``: of its axis
    ``axis``, the elements whose numbers that operand has, or a reshape of one; ``wraps``: see ``ir.GatherOp``."""

    whole: Node
    starts: Dims
    index: Node | None = None
    axis: int = 0
    wraps: bool = False


def root_of(node: Node, by_name: Mapping[str, Node]) -> Node:
    """What ``node`` is a reshape of."""
    while isinstance(node.op, ReshapeOp):
        node = by_name[node.inputs[0]]
    return node


def part_of(node: Node, by_name: Mapping[str, Node]) -> Part | None:
    """Where ``node`` lies in an operand, if it is slices of one, of neighbours along every axis.

    What lies like a tensor of its own is none: a view of torch's, which nothing copies.
    """
    starts: list[Dim] = [0] * node.type.rank
    if isinstance(node.op, GatherOp):
        whole, index = (by_name[name] for name in node.inputs)
        operands = all(isinstance(root_of(part, by_name).op, InputOp) for part in (whole, index))
        return Part(whole, (0,) * whole.type.rank, index, node.op.axis, node.op.wraps) if operands else None
    whole = node
    while isinstance(whole.op, SliceOp) and whole.op.step == 1:
        starts[whole.op.axis] = dims.add(starts[whole.op.axis], whole.op.start)
        whole = by_name[whole.inputs[0]]
    cut = [axis for axis, size in enumerate(whole.type.shape) if node.type.shape[axis] != size]
    if not cut or all(size == 1 for size in node.type.shape[: cut[-1]]):
        return None
    return Part(whole, tuple(starts)) if isinstance(root_of(whole, by_name).op, InputOp) else None


def parts_in(body: Graph) -> dict[str, Part]:
    """The parts of operands in ``body``, by name."""
    by_name = body.by_name
    found = {node.name: part_of(node, by_name) for node in body.nodes if isinstance(node.op, CUT)}
    return {name: part for name, part in found.items() if part}


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


def indices(body: Graph) -> set[str]:
    """Operands of ``body``, and reshapes of them, that say which elements of others are fetched, and nothing else."""
    users, by_name = body.users, body.by_name
    found: set[str] = set()
    for node in reversed(body.nodes):
        readers = [by_name[name] for name in users[node.name]]
        fetched = all(
            reader.name in found or (isinstance(reader.op, GatherOp) and reader.inputs[0] != node.name)
            for reader in readers
        )
        if readers and fetched and isinstance(node.op, (InputOp, ReshapeOp)) and node.name not in body.outputs:
            found.add(node.name)
    return found
