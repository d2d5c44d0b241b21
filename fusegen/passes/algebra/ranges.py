"""Bounds that hold for every value of a node other than NaN, whatever the inputs are."""

from __future__ import annotations

import math
from typing import TypeAlias

from fusegen.ir import (
    AdaptivePoolOp,
    ConstOp,
    ExpandOp,
    Graph,
    Node,
    PermuteOp,
    PointwiseOp,
    PoolOp,
    ReduceOp,
    ReshapeOp,
    SliceOp,
    SoftmaxOp,
)

Range: TypeAlias = tuple[float, float]
ANY: Range = (-math.inf, math.inf)

_FIXED: dict[str, Range] = {
    "abs": (0.0, math.inf),
    "exp": (0.0, math.inf),
    "exp2": (0.0, math.inf),
    "square": (0.0, math.inf),
    "sqrt": (0.0, math.inf),
    "relu": (0.0, math.inf),
    "sigmoid": (0.0, 1.0),
    "hardsigmoid": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "erf": (-1.0, 1.0),
    "sin": (-1.0, 1.0),
    "cos": (-1.0, 1.0),
    "sign": (-1.0, 1.0),
}
_KEEPS = (ReshapeOp, PermuteOp, ExpandOp, SliceOp, AdaptivePoolOp)
_PLUS_ZERO = ("abs", "exp", "exp2", "square", "sigmoid", "hardsigmoid")


def of(graph: Graph, node: Node) -> Range:
    """The range of a node; roundings of a bounded function stay within it."""
    if isinstance(node.op, SoftmaxOp):
        return (-math.inf, 0.0) if node.op.log else (0.0, 1.0)
    if isinstance(node.op, ConstOp):
        value = node.op.value
        return (value, value) if isinstance(value, float) and not math.isnan(value) else ANY
    keeps = isinstance(node.op, _KEEPS) or (isinstance(node.op, ReduceOp) and node.op.fn in ("max", "min"))
    if keeps or (isinstance(node.op, PoolOp) and node.op.fn == "max"):
        return of(graph, graph.node(node.inputs[0]))
    if isinstance(node.op, ReduceOp) and node.op.fn in ("sum", "mean"):
        return (0.0, math.inf) if of(graph, graph.node(node.inputs[0]))[0] >= 0 else ANY
    if not isinstance(node.op, PointwiseOp):
        return ANY
    operands = [of(graph, graph.node(name)) for name in node.inputs]
    (low, high), *rest = operands
    match node.op.fn:
        case "relu":
            return max(low, 0.0), max(high, 0.0)
        case "maximum":
            return max(low, rest[0][0]), max(high, rest[0][1])
        case "minimum":
            return min(low, rest[0][0]), min(high, rest[0][1])
        case "div" if low >= 0 and _above_zero(graph, graph.node(node.inputs[1])):
            return 0.0, math.inf
        case "pow" | "mul" if min(own[0] for own in operands[: 1 if node.op.fn == "pow" else 2]) >= 0:
            return 0.0, math.inf
        case "add" if min(low, rest[0][0]) > -math.inf:
            return low + rest[0][0], high + rest[0][1]
        case fn:
            return _FIXED.get(fn, ANY)


def _above_zero(graph: Graph, node: Node) -> bool:
    """Whether what is divided by a node, positive, has its sign: if it is zero, that is not -0."""
    if of(graph, node)[0] > 0:
        return True
    reduces = isinstance(node.op, ReduceOp) and node.op.fn in ("max", "min", "sum", "mean")
    if reduces or isinstance(node.op, _KEEPS):
        return _above_zero(graph, graph.node(node.inputs[0]))
    return isinstance(node.op, PointwiseOp) and node.op.fn in _PLUS_ZERO
