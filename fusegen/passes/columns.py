"""Reductions to a few columns, in two steps.

A kernel that reduces rows side by side gives each column of the result threads of its own, neighbours to neighbours.
With few columns most of a warp would have none, so some of the reduced axes are columns at first.
"""

from __future__ import annotations

from math import prod

from fusegen import dims
from fusegen.ir import ConvOp, DType, MatmulOp, PointwiseOp, ReduceOp
from fusegen.passes.algebra.collapse import in_two_steps, largest_operand, reduction
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op

FEW, ENOUGH = 32, 64
"""Columns that leave threads without any, and those that do not."""
WORTH, LEFT = 1 << 20, 16
"""Elements from which on one launch more is worth it, and those of which the first step leaves at most one."""


def _first(m: Match) -> tuple[int, ...]:
    """The axes that go first: all but the last ones, which are enough columns with those that stay; else none."""
    reduce, sizes = reduction(m), m.graph.shape(m["x"].name)
    columns, first = prod(sizes[reduce.axes[-1] + 1 :]), list(reduce.axes)
    if not 1 < columns < min(FEW, ENOUGH):
        return ()
    axis = reduce.axes[-1]
    while first and first[-1] == axis and columns < ENOUGH:
        columns *= sizes[first.pop()]
        axis -= 1
    return tuple(first) if columns >= ENOUGH and prod(sizes[axis] for axis in first) >= LEFT else ()


def _few(m: Match) -> str | None:
    """A convolution's or a product's own kernel may reduce what it computes."""
    source = m["x"]
    if source.type.dtype is not DType.FLOAT32 or dims.numel(source.type.shape, m.graph.sizes) < WORTH:
        return ""
    if not _first(m):
        return ""
    while isinstance(source.op, PointwiseOp):
        source = largest_operand(m.graph, source)
    return "" if isinstance(source.op, (ConvOp, MatmulOp)) else None


RULES = (
    Rule(
        "sum(x) = sum over the last axes of the sum over the others,  to few columns,  mean, max and min likewise",
        op(ReduceOp, anything("x"), fn=("sum", "mean", "max", "min", "prod")),
        lambda m: in_two_steps(m, _first(m)),
        Numerics.REASSOCIATES,
        _few,
    ),
)
