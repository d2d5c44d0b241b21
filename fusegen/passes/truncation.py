"""Products of data with data whose results are added up: what truncation takes from each, a sum adds up too.

Tensor cores truncate as they add. Products by weights, of either sign, lose towards zero from both sides, and a mean
over many of them averages that out; factors that are both data may have one sign (what follows a ReLU, frequencies,
images), and then every result loses alike.
"""

from __future__ import annotations

from fusegen import dims
from fusegen.ir import (
    Graph,
    InputOp,
    MatmulOp,
    Node,
    ParamOp,
    PermuteOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
)
from fusegen.passes.algebra.collapse import LINEAR
from fusegen.passes.rewrite import Match, Numerics, Outcome, Rule, anything, op, rewrite

_AVERAGED = 64
"""Results to a sum from which on eager's errors, of either sign, are an eighth of one's."""
_THROUGH = (PointwiseOp, ReshapeOp, PermuteOp)


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


def _is_averaged(graph: Graph, node: Node) -> bool:
    """Whether a sum or mean of many results follows, after elementwise work and views alone."""
    users, pending, seen = graph.users(), [node], {node.name}
    while pending:
        own = pending.pop()
        for user in map(graph.node, dict.fromkeys(users[own.name])):
            if isinstance(user.op, ReduceOp) and user.op.fn in LINEAR:
                terms = dims.numel(own.type.shape, graph.sizes) / max(1, dims.numel(user.type.shape, graph.sizes))
                if terms >= _AVERAGED:
                    return True
            elif isinstance(user.op, _THROUGH) and user.name not in seen:
                seen.add(user.name)
                pending.append(user)
    return False


def _of_data(m: Match) -> str | None:
    of_data = _is_data(m.graph, m["x"]) and _is_data(m.graph, m["y"])
    return None if of_data and _is_averaged(m.graph, m.root) else ""


def _summed(m: Match) -> Node:
    assert isinstance(m.root.op, MatmulOp)
    return m.add(m.root.op.replace(summed=True), m["x"], m["y"])


RULES = (
    Rule(
        "sum of f(matmul(x, y)) of data x and y: partial sums leave the tensor cores at every step",
        op(MatmulOp, anything("x"), anything("y"), summed=False),
        _summed,
        Numerics.EXACT,
        _of_data,
    ),
)


def run(graph: Graph) -> Outcome:
    """%m = matmul(%x, %y); %s = reduce.mean(gelu(%m))  ->  %m = matmul(%x, %y, summed)."""
    return rewrite(graph, RULES)
