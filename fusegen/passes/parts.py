"""Parts of normalised data: computed where they are read.

What is divided by statistics of its own data is a pass after the one that finds these. Where others read parts of it,
each element in one of them at most, they compute it themselves, and it is never written.
"""

from __future__ import annotations

from itertools import pairwise

from fusegen.ir import ArgReduceOp, CatOp, Graph, Node, PointwiseOp, ReduceOp, SliceOp, SoftmaxOp
from fusegen.passes.algebra.collapse import largest_operand
from fusegen.passes.algebra.slices import part_of_operands
from fusegen.passes.rewrite import Match, Numerics, Rule, op

_READERS = (PointwiseOp, ReduceOp, ArgReduceOp, SoftmaxOp)


def _is_normalised(graph: Graph, node: Node) -> bool:
    """Whether a function of data has statistics of the same data."""
    others = set[str]()
    while isinstance(node.op, PointwiseOp):
        data = largest_operand(graph, node)
        others |= set(node.inputs) - {data.name}
        node = data
    own = (node.name, *(node.inputs if isinstance(node.op, CatOp) else ()))  # what is joined, before that
    statistics = graph.needed(*others) & graph.made_of(*own)
    return any(isinstance(graph.node(name).op, ReduceOp) for name in statistics)


def _are_apart(parts: list[Node]) -> bool:
    """Whether slices are along one axis and share no element."""
    ends, axes = list[tuple[int, int]](), set[int]()
    for part in parts:
        assert isinstance(part.op, SliceOp)
        start, length = part.op.start, part.op.length
        if part.op.step != 1 or not isinstance(start, int) or not isinstance(length, int):
            return False
        ends.append((start, start + length))
        axes.add(part.op.axis)
    return len(axes) == 1 and all(one[1] <= other[0] for one, other in pairwise(sorted(ends)))


def _read_apart(m: Match) -> str | None:
    """All that is read of normalised data are parts of it without common elements, by kernels."""
    graph, node = m.graph, m["x"]
    parts = [graph.node(name) for name in dict.fromkeys(graph.users[node.name])]
    if node.name in graph.results or not all(isinstance(part.op, SliceOp) for part in parts):
        return ""
    if not _are_apart(parts) or any(part.name in graph.results for part in parts):
        return ""
    readers = [graph.node(name) for part in parts for name in graph.users[part.name]]
    fused = all(isinstance(reader.op, _READERS) for reader in readers)
    return None if fused and _is_normalised(graph, node) else ""


RULES = (
    Rule(
        "slice(f(x, y)) = f(slice(x), slice(y)),  f elementwise,  of normalised data of which parts alone are read",
        op(SliceOp, op(PointwiseOp, name="x")),
        part_of_operands,
        Numerics.EXACT,
        _read_apart,
    ),
)
