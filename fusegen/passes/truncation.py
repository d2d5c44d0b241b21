"""Products whose results are added up: what truncation takes from each, a sum adds up too.

Tensor cores truncate as they add. Products of rows by weights, of either sign, lose towards zero from both sides, which
a mean over many of them averages out, but not over the larger of several (max pooling, then a mean that the rest
cancels: 1.4 times the error that is allowed): what they lose on average is given back. Factors that are both data may
have one sign (what follows a ReLU, frequencies, images), where they lose more, or be whole numbers, of which nothing is
lost: their partial sums leave the tensor cores more often. So do those of a convolution, whose positions have the
weights of a channel in common, where data vary little (3 - x for an image x, 5x5 taps of 12 channels, averaged: 4 times
eager's error with nine products to a partial sum). A variance, which is no norm's, has twice the error of its data.
"""

from __future__ import annotations

from collections.abc import Callable

from fusegen import dims
from fusegen.costs import precision
from fusegen.ir import (
    ConstOp,
    ConvOp,
    Graph,
    InputOp,
    MatmulOp,
    Node,
    ParamOp,
    PermuteOp,
    PointwiseOp,
    PoolOp,
    ReduceOp,
    ReshapeOp,
)
from fusegen.passes.algebra.collapse import LINEAR
from fusegen.passes.rewrite import Match, Numerics, Outcome, Rule, anything, op, rewrite

_AVERAGED = 64
"""Results to a sum from which on eager's errors, of either sign, are an eighth of one's."""
_BORNE = 3
"""Times over that errors may count for it: each chunk's sum is truncated, by half a unit in the last place on average
(the mean of sixth powers had 0.97 to 1.01 of the error that is allowed, that of cubes 0.54)."""
_THROUGH = (PointwiseOp, ReshapeOp, PermuteOp, PoolOp)
_ADDED, _EXTREMES = (*LINEAR, "var"), ("max", "min")


def _is_data(graph: Graph, node: Node) -> bool:
    """Whether an input leads to ``node``, and no parameter."""
    pending, seen, found = [node], {node.name}, False
    while pending:
        own = pending.pop()
        if isinstance(own.op, ParamOp):
            return False
        found = found or isinstance(own.op, InputOp)
        fresh = [name for name in own.inputs if name not in seen]
        seen.update(fresh)
        pending += map(graph.node, fresh)
    return found


def _times(graph: Graph, user: Node, times: dict[str, float]) -> float:
    """How many times over a relative error of the product is one of ``user``, of the ``times`` of its operands."""
    own = [times.get(name, 0.0) for name in user.inputs]
    fn = user.op.fn if isinstance(user.op, (PointwiseOp, ReduceOp)) else ""
    if fn in ("square", "var"):
        return 2 * own[0]
    if fn in ("mul", "div"):
        return sum(own)
    if fn == "pow" and isinstance(power := graph.node(user.inputs[1]).op, ConstOp) and isinstance(power.value, float):
        return abs(power.value) * own[0]
    return max(own)


def _is_centre(graph: Graph, mean: Node) -> bool:
    """Whether ``mean`` is taken from what it is the mean of."""
    readers = (graph.node(name) for name in graph.users[mean.name])
    return any(node.op == PointwiseOp(fn="sub") and node.inputs == (*mean.inputs, mean.name) for node in readers)


def _is_centred(graph: Graph, var: Node) -> bool:
    """Whether the mean is taken from what ``var`` is the variance of, as norms do, which divide by it then."""
    readers = (graph.node(name) for name in graph.users[var.inputs[0]])
    return any(isinstance(node.op, ReduceOp) and node.op.fn == "mean" and _is_centre(graph, node) for node in readers)


def _terms(graph: Graph, reduce: Node) -> float:
    """Elements to a result."""
    before, after = graph.node(reduce.inputs[0]).type.shape, reduce.type.shape
    return dims.numel(before, graph.sizes) / max(1, dims.numel(after, graph.sizes))


def _averaged(graph: Graph, node: Node, cancels: Callable[[Graph, Node], bool] = lambda *_: False) -> float:
    """How many times over errors count where many results are added up, after chains, views and maxima; else 0.

    ``cancels``: of a sum, whether errors of one sign are of no consequence.
    """
    times, found = {node.name: 1.0}, 0.0
    for user in graph.nodes:
        if not any(name in times for name in user.inputs):
            continue
        fn = user.op.fn if isinstance(user.op, ReduceOp) else ""
        counted = _times(graph, user, times)
        if fn in _ADDED and _terms(graph, user) >= _AVERAGED:
            if not (_is_centred if fn == "var" else cancels)(graph, user):
                found = max(found, counted)
        elif fn in (*_ADDED, *_EXTREMES) or isinstance(user.op, _THROUGH):
            times[user.name] = counted
    return found


def _is_of_data(m: Match) -> bool:
    return _is_data(m.graph, m["x"]) and _is_data(m.graph, m["y"])


def _of_data(m: Match) -> str | None:
    return None if _is_of_data(m) and _averaged(m.graph, m.root) else ""


def _summed(m: Match) -> Node:
    assert isinstance(m.root.op, MatmulOp)
    amplified = _averaged(m.graph, m.root) > _BORNE
    return m.add(m.root.op.replace(summed=True, amplified=amplified), m["x"], m["y"])


def _by_weights(m: Match) -> str | None:
    return None if not _is_of_data(m) and _averaged(m.graph, m.root, _is_centre) else ""


def _averaged_product(m: Match) -> Node:
    assert isinstance(m.root.op, MatmulOp)
    return m.add(m.root.op.replace(averaged=True), m["x"], m["y"])


def _of_positions(m: Match) -> str | None:
    """A mean that is taken from the data itself, as norms do, takes what is common to both with it."""
    in_fp32 = not precision.surely_in_tf32(m.graph, m.root)
    return None if in_fp32 and _averaged(m.graph, m.root, _is_centre) else ""


def _averaged_conv(m: Match) -> Node:
    assert isinstance(m.root.op, ConvOp)
    return m.add(m.root.op.replace(averaged=True), m["x"], m["w"])


RULES = (
    Rule(
        "sum of f(conv(x, w)) in full float32: partial sums leave the tensor cores more often",
        op(ConvOp, anything("x"), anything("w"), averaged=False),
        _averaged_conv,
        Numerics.EXACT,
        _of_positions,
    ),
    Rule(
        "sum of f(matmul(x, w)) of weights w: what truncation takes is given back",
        op(MatmulOp, anything("x"), anything("y"), averaged=False),
        _averaged_product,
        Numerics.EXACT,
        _by_weights,
    ),
    Rule(
        "sum of f(matmul(x, y)) of data x and y: partial sums leave the tensor cores at every step",
        op(MatmulOp, anything("x"), anything("y"), summed=False),
        _summed,
        Numerics.EXACT,
        _of_data,
    ),
)


def run(graph: Graph) -> Outcome:
    """Powers beyond cubes before the sum: ``amplified``, for which tensor cores are not precise enough.

    %m = matmul(%x, %y); %s = reduce.mean(gelu(%m))  ->  %m = matmul(%x, %y, summed)."""
    return rewrite(graph, RULES)
