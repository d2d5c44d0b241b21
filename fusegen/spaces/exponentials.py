"""Sums of exponentials of what the row's maximum leaves: one sweep over a row finds both."""

from __future__ import annotations

import itertools

from fusegen.ir import ArgReduceOp, Graph, Node, PointwiseOp, ReduceOp, ReshapeOp, ScanOp, SoftmaxOp
from fusegen.spaces.rowspace import RowSpace

_OF_ROWS = (ArgReduceOp, ReduceOp, ScanOp, SoftmaxOp)


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


def _factors(body: Graph, product: Node) -> tuple[Node, Node] | None:
    """(softmax, other factor) of a product that is only added up along the softmax' axis."""
    readers = [body.node(name).op for name in body.users[product.name]]
    if product.op != PointwiseOp(fn="mul") or product.name in body.outputs or not readers:
        return None
    for one, other in itertools.permutations(map(body.node, product.inputs)):
        if not isinstance(one.op, SoftmaxOp) or one.op.log or one.type.shape != product.type.shape:
            continue
        total = ReduceOp(fn="sum", axes=(one.op.axis,), keepdim=False)
        added = all(isinstance(op, ReduceOp) and op.replace(keepdim=False) == total for op in readers)
        if added and not any(isinstance(body.node(name).op, _OF_ROWS) for name in body.needed(other.name)):
            return one, other
    return None


def is_only_weighed(body: Graph, softmax: Node) -> bool:
    """Whether a softmax is nothing but a factor of what is added up along its axis."""
    products = [_factors(body, body.node(name)) for name in body.users[softmax.name]]
    alone = softmax.name not in body.outputs and bool(products)
    return alone and all(found is not None and found[0] is softmax for found in products)


def weighed(body: Graph, product: Node) -> tuple[Node, Node] | None:
    """(softmax, other factor) of a product whose sum follows from weighted sums of exponentials.

    ``sum(softmax(x) w) = sum(exp(x - max(x)) w) / sum(exp(x - max(x)))``: one sweep over a row finds all of it.
    """
    found = _factors(body, product)
    return found if found and is_only_weighed(body, found[0]) else None


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
