"""What is spread out along an axis is computed once, and spread out afterwards."""

from __future__ import annotations

from fusegen import inference
from fusegen.dims import Dims
from fusegen.ir import ExpandOp, Node, PointwiseOp, ReduceOp, ReshapeOp
from fusegen.passes.algebra.collapse import reduction
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op
from fusegen.passes.simplify import is_only_read

_OF_EQUALS = ("mean", "max", "min")
"""Reductions that many equal elements leave as one does."""


def _sources(m: Match) -> list[Node]:
    """The operands, those that are spread out as they were before."""
    operands = map(m.graph.node, m.root.inputs)
    return [m.graph.node(node.inputs[0]) if isinstance(node.op, ExpandOp) else node for node in operands]


def _is_spread(m: Match) -> str | None:
    sources = _sources(m)
    if [node.name for node in sources] == list(m.root.inputs):
        return ""
    if inference.broadcast([node.type.shape for node in sources]) == m.root.type.shape:
        return ""
    return is_only_read(m)


def _function_first(m: Match) -> Node:
    return m.add(ExpandOp(shape=m.root.type.shape), m.add(m.root.op, *_sources(m)))


def _source_shape(m: Match) -> Dims:
    """That of what is spread out, with an axis for each of the result's."""
    return (1,) * (m["x"].type.rank - m["source"].type.rank) + m["source"].type.shape


def _spread_axes(m: Match) -> set[int]:
    pairs = enumerate(zip(_source_shape(m), m["x"].type.shape, strict=True))
    return {axis for axis, (before, after) in pairs if before != after}


def _reduces_once(m: Match) -> str | None:
    spread, axes = _spread_axes(m), set(reduction(m).axes)
    if not spread or (spread & axes and reduction(m).fn not in _OF_EQUALS):
        return ""
    return None if spread <= axes else is_only_read(m)


def _reduced_first(m: Match) -> Node:
    kept = m.add(ReshapeOp(shape=_source_shape(m)), m["source"])
    shape = tuple(1 if axis in reduction(m).axes else size for axis, size in enumerate(m["x"].type.shape))
    reduced = m.add(reduction(m).replace(keepdim=True), kept)
    if reduced.type.shape != shape:
        reduced = m.add(ExpandOp(shape=shape), reduced)
    return m.add(ReshapeOp(shape=m.root.type.shape), reduced)


RULES = (
    Rule("f(expand(x)) = expand(f(x))", op(PointwiseOp), _function_first, Numerics.EXACT, _is_spread),
    Rule(
        "reduce(expand(x)) = expand(reduce(x)),  what is equal counts once",
        op(ReduceOp, op(ExpandOp, anything("source"), name="x")),
        _reduced_first,
        Numerics.REASSOCIATES,
        _reduces_once,
    ),
)
