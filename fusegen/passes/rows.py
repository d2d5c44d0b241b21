"""Reductions over rows and more, of data whose rows are reduced anyway: the rows first, where they lie on chip.

A softmax in a loss is a kernel of rows. A sum over all of what follows from it is not, so the softmax would be written
and read again; the sum of each row is that kernel's, and few numbers are left.
"""

from __future__ import annotations

from math import prod

from fusegen.ir import ConstOp, Graph, Node, PointwiseOp, ReduceOp, SoftmaxOp
from fusegen.passes.algebra.collapse import in_two_steps, reduction
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op
from fusegen.spaces.once import once

_ROW = 16
"""Elements of a row from which on few results are left of it."""


def _elements(graph: Graph, node: Node) -> set[str]:
    """``node`` and the tensors of its shape that it follows from, element by element or along rows."""
    found, pending = set[str](), [node.name]
    while pending:
        own = graph.node(pending.pop())
        if own.name in found or own.type.shape != node.type.shape or isinstance(own.op, ConstOp):
            continue
        found.add(own.name)
        if isinstance(own.op, (PointwiseOp, SoftmaxOp)):
            pending += own.inputs
    return found


def _waits(graph: Graph, node: Node, root: Node) -> bool:
    """Whether ``node`` follows from ``root``, or from another reduction of the same data along the same axes."""
    assert isinstance(root.op, ReduceOp)
    before = map(graph.node, graph.needed(node.name))
    return any(isinstance(n.op, ReduceOp) and n.op.axes == root.op.axes and n.inputs == root.inputs for n in before)


@once
def _rows(graph: Graph) -> tuple[tuple[Node, tuple[int, ...]], ...]:
    """What is computed along rows, and their axes."""
    found = [(node, node.op) for node in graph.nodes if isinstance(node.op, (SoftmaxOp, ReduceOp))]
    return tuple((node, (op.axis,) if isinstance(op, SoftmaxOp) else op.axes) for node, op in found)


def _first(m: Match) -> tuple[int, ...]:
    """The axes along which a kernel reduces rows of the data of ``x`` anyway, some of this reduction's; else none."""
    shape, sizes, own = m["x"].type.shape, m.graph.shape(m["x"].name), set(reduction(m).axes)
    found: tuple[int, ...] = ()
    data: set[str] = set()
    for node, axes in _rows(m.graph):
        rows = m.graph.node(node.inputs[0])
        fits = rows.type.shape == shape and set(axes) < own and prod(sizes[axis] for axis in axes) >= _ROW
        if not fits or prod(sizes[axis] for axis in axes) <= prod(sizes[axis] for axis in found):
            continue
        data = data or _elements(m.graph, m["x"])
        if data & _elements(m.graph, rows) and not _waits(m.graph, node, m.root):
            found = axes
    return found


RULES = (
    Rule(
        "sum(x) = sum of the sums of rows,  where rows of its data are reduced,  mean, max and min likewise",
        op(ReduceOp, anything("x"), fn=("sum", "mean", "max", "min")),
        lambda m: in_two_steps(m, _first(m)),
        Numerics.REASSOCIATES,
        lambda m: None if _first(m) else "",
    ),
)
