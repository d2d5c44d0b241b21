"""Pairs of elements of much smaller operands (boxes, points, scores): what few numbers each has are taken one by one.

A tensor of all pairs is as large as what follows, times the few numbers of each: coordinates whose differences are
added up, corners of which widths and heights are taken. Taken of the operands, where they are few elements, no kernel
reads or writes such a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from fusegen import dims
from fusegen.ir import Graph, Node, PointwiseOp, ReduceOp, ReshapeOp, SliceOp
from fusegen.passes.algebra.collapse import reduction
from fusegen.passes.algebra.slices import SMALL, part_of_operands
from fusegen.passes.rewrite import Match, Numerics, Rule, op
from fusegen.pointwise import POINTWISE

_FEW = 4
"""Numbers of each pair that are taken one by one."""
_TOGETHER = {"sum": "add", "mean": "add", "max": "maximum", "min": "minimum"}


def _along(node: Node, operand: Node, axis: int) -> int | None:
    """The axis of ``operand`` that is broadcast to ``axis`` of ``node``, if it has one."""
    own = axis - node.type.rank + operand.type.rank
    return own if own >= 0 else None


def _is_small(graph: Graph, operand: Node, node: Node, times: int = 1) -> bool:
    """Whether ``operand`` is much smaller than one of ``times`` parts of ``node``."""
    size, whole = (dims.numel(value.type.shape, graph.sizes) for value in (operand, node))
    return SMALL * size * times <= whole


def _are_pairs(graph: Graph, node: Node, axis: int, times: int, read: Callable[[Node, int], bool]) -> bool:
    """Whether ``node``, and elementwise what it comes from, are ``read`` so, up to operands that are small."""
    pending = [(node, axis)]
    while pending:
        node, axis = pending.pop()
        if not isinstance(node.op, PointwiseOp) or node.name in graph.results or not read(node, axis):
            return False
        for operand in map(graph.node, node.inputs):
            own = _along(node, operand, axis)
            if not _is_small(graph, operand, node, times):
                if own is None or operand.type.shape[own] != node.type.shape[axis]:
                    return False
                pending.append((operand, own))
    return True


def _are_read_in_parts(m: Match) -> str | None:
    """None for pairs of which parts along one axis are read and nothing else, none of them another's elements."""
    part, seen = m.root.op, {m.root.name, m["x"].name}
    assert isinstance(part, SliceOp)

    def read(node: Node, axis: int) -> bool:
        parts = set[SliceOp]()
        seen.add(node.name)
        for user in map(m.graph.node, m.graph.users[node.name]):
            if isinstance(user.op, SliceOp) and user.op.axis == axis and user.op.step == 1:
                parts.add(user.op)
            elif user.name not in seen:
                return False
        ends = sorted(
            (p.start, p.start + p.length) for p in parts if isinstance(p.start, int) and isinstance(p.length, int)
        )
        return len(ends) == len(parts) and all(stop <= start for (_, stop), (start, _) in pairwise(ends))

    varies = m["x"].type.shape[part.axis] != 1
    return None if varies and _are_pairs(m.graph, m["x"], part.axis, 1, read) else ""


def _are_few(m: Match) -> str | None:
    """None for pairs of few numbers along the axis that is reduced. What others read is computed again."""
    axes, x = reduction(m).axes, m["x"]
    size = x.type.shape[axes[0]] if len(axes) == 1 else 0
    if not isinstance(size, int) or not 1 < size <= _FEW:
        return ""
    seen = {m.root.name}

    def read(node: Node, _: int) -> bool:
        alone = set(m.graph.users[node.name]) <= seen
        seen.add(node.name)
        return alone or (isinstance(node.op, PointwiseOp) and POINTWISE[node.op.fn].flops <= 1)

    return None if _are_pairs(m.graph, x, axes[0], size, read) else ""


def _number(m: Match, place: int, count: int) -> Node:
    """Number ``place`` of ``count`` of every pair, without the axis along which these are."""
    found: dict[tuple[str, int], Node] = {}

    def of_operand(node: Node, axis: int) -> Node:
        shape = node.type.shape
        part = node if shape[axis] == 1 else m.add(SliceOp(axis=axis, start=place, length=1), node)
        return m.add(ReshapeOp(shape=(*shape[:axis], *shape[axis + 1 :])), part)

    def of_pairs(node: Node, axis: int) -> Node:
        operands = []
        for operand in map(m.graph.node, node.inputs):
            own = _along(node, operand, axis)
            if own is not None and (operand.name, own) not in found:
                of = of_operand if _is_small(m.graph, operand, node, count) else of_pairs
                found[operand.name, own] = of(operand, own)
            operands.append(operand if own is None else found[operand.name, own])
        return m.add(node.op, *operands)

    return of_pairs(m["x"], *reduction(m).axes)


def _one_by_one(m: Match) -> Node:
    (axis,), fn = reduction(m).axes, reduction(m).fn
    count = m["x"].type.shape[axis]
    assert isinstance(count, int)
    total, *others = (_number(m, place, count) for place in range(count))
    for other in others:
        total = m.add(PointwiseOp(fn=_TOGETHER[fn]), total, other)
    total = m.add(PointwiseOp(fn="div"), total, m.const(count)) if fn == "mean" else total
    return m.add(ReshapeOp(shape=m.root.type.shape), total) if reduction(m).keepdim else total


RULES = (
    Rule(
        "slice(f(x, y)) = f(slice(x), slice(y)),  f elementwise,  of pairs that are read in parts",
        op(SliceOp, op(PointwiseOp, name="x"), step=1),
        part_of_operands,
        Numerics.EXACT,
        _are_read_in_parts,
    ),
    Rule(
        "sum(f(x, y)) = f(x0, y0) + f(x1, y1) + ...,  mean, max and min likewise,  of few numbers of each pair",
        op(ReduceOp, op(PointwiseOp, name="x"), fn=tuple(_TOGETHER)),
        _one_by_one,
        Numerics.REASSOCIATES,
        _are_few,
    ),
)
