"""Sums of exponentials of what the row's maximum leaves: one sweep over a row finds both."""

from __future__ import annotations

from fusegen.ir import ArgReduceOp, Graph, Node, PointwiseOp, ReduceOp, ReshapeOp, ScanOp, SoftmaxOp
from fusegen.spaces.rowspace import RowSpace


def shifted(body: Graph, total: Node) -> Node | None:
    """x, where ``total`` is the sum of ``exp(x - max(x))`` over what the maximum is taken of."""
    if not isinstance(total.op, ReduceOp) or total.op.fn != "sum":
        return None
    exp = body.node(total.inputs[0])
    apart = body.node(exp.inputs[0]) if exp.op == PointwiseOp(fn="exp") else exp
    if apart is exp or apart.op != PointwiseOp(fn="sub"):
        return None
    x, peak = map(body.node, apart.inputs)
    if isinstance(peak.op, ReshapeOp):
        peak = body.node(peak.inputs[0])
    of_x = isinstance(peak.op, ReduceOp) and peak.op.fn == "max" and peak.inputs == (x.name,)
    return x if of_x and isinstance(peak.op, ReduceOp) and peak.op.axes == total.op.axes else None


def in_one_sweep(body: Graph, space: RowSpace) -> bool:
    """Whether exponentials are added up, and one pass over a row finds all that ``body`` reduces, and stores of it."""
    after, found = set[str](), False
    for node in body.nodes:
        if isinstance(node.op, (SoftmaxOp, ArgReduceOp, ScanOp)):
            return False
        if isinstance(node.op, ReduceOp):
            exponentials = node.op.fn == "logsumexp" or shifted(body, node) is not None
            if node.inputs[0] in after and not (exponentials and node.op.fn == "sum"):
                return False
            found |= exponentials
            after.add(node.name)
        elif after.intersection(node.inputs):
            after.add(node.name)
    return found and not any(space.is_element(name) for name in body.outputs)
