"""Losses of class numbers: the logarithm of a softmax is read at one place of every row, so it need not be written."""

from __future__ import annotations

import ast
from math import prod
from typing import NamedTuple

from fusegen.dims import Dims
from fusegen.inference import reduced_shape
from fusegen.ir import DType, EagerOp, Node, PointwiseOp, ReduceOp, ReshapeOp, SoftmaxOp
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op

WORTH = 1 << 22
"""Elements of a softmax that leave the L2 cache before they are read again; writing them takes longer than launches."""
_ROWS = 512
"""Rows from which torch's loss, of one block, takes longer than two launches."""
_CLASSES = 1
"""The axis of the classes."""
_TARGET = "aten.nll_loss_nd.default"


class _Loss(NamedTuple):
    """Arguments of ``aten.nll_loss_nd(input, target, weight=None, reduction, ignore_index)``; 0 and 1 are inputs."""

    source: int
    classes: int
    weight: int | None = None
    reduction: int = 1
    ignored: int = -100


_NONE, _SUM = 0, 2


def _loss(node: Node) -> _Loss:
    assert isinstance(node.op, EagerOp)
    return _Loss(*ast.literal_eval(f"({node.op.arguments.format(*range(len(node.inputs)))},)"))


def _rows(x: Node, keepdim: bool = False) -> Dims:
    return reduced_shape(x.type.shape, (_CLASSES,), keepdim)


def _from_statistics(m: Match) -> Node:
    """%y = nll_loss(log_softmax(%x), %t)  ->  %e = log(sum(exp(%x - max(%x)))) + (max(%x) - %x[%t]), reduced."""
    loss, x, classes = _loss(m.root), m["x"], m["classes"]
    rows, axes = x.type.replace(shape=_rows(x)), tuple(range(x.type.rank - 1))
    # A region grows from its last nodes on: what is of truth values alone joins when it has read other data.
    counts = m.eager("aten.ne.Scalar", f"{{0}}, {loss.ignored}", rows.replace(dtype=DType.BOOL), classes)
    ones = m.add(PointwiseOp(fn="where"), counts, m.const(1.0), m.const(0.0))
    number = m.add(ReduceOp(fn="sum", axes=axes, keepdim=False), ones)
    peak = m.add(ReduceOp(fn="max", axes=(_CLASSES,), keepdim=False), x)
    kept = m.add(ReshapeOp(shape=_rows(x, keepdim=True)), peak)
    power = m.add(PointwiseOp(fn="exp"), m.add(PointwiseOp(fn="sub"), x, kept))
    total = m.add(ReduceOp(fn="sum", axes=(_CLASSES,), keepdim=False), power)
    # Torch's own loss of x itself, row by row: -x[t], and its checks of t.
    taken = m.eager(_TARGET, f"{{0}}, {{1}}, None, {_NONE}, {loss.ignored}", rows, x, classes)
    apart = m.add(PointwiseOp(fn="add"), peak, taken)
    each = m.add(PointwiseOp(fn="add"), m.add(PointwiseOp(fn="log"), total), apart)
    each = m.add(PointwiseOp(fn="where"), counts, each, m.const(0.0))
    if loss.reduction == _NONE:
        return each
    added = m.add(ReduceOp(fn="sum", axes=axes, keepdim=False), each)
    return added if loss.reduction == _SUM else m.add(PointwiseOp(fn="div"), added, number)


def _is_written_for_nothing_else(m: Match) -> str | None:
    assert isinstance(m.root.op, EagerOp)
    softmax, x = m["softmax"], m["x"]
    if m.root.op.target != _TARGET or x.type.dtype is not DType.FLOAT32:
        return ""
    loss, sizes = _loss(m.root), m.graph.shape(x.name)
    if loss.weight is not None or m.root.type.shape != (_rows(x) if loss.reduction == _NONE else ()):
        return ""
    slow = len(sizes) == 2 and sizes[0] >= _ROWS and loss.reduction != _NONE
    if len(sizes) < 2 or not (slow or prod(sizes) >= WORTH) or softmax.name in m.graph.outputs:
        return ""
    readers = (m.graph.node(name) for name in m.graph.users[softmax.name])
    sums = (isinstance(n.op, ReduceOp) and n.op.axes == (_CLASSES,) for n in readers if n.name != m.root.name)
    return None if all(sums) else ""


RULES = (
    Rule(
        "nll(log_softmax(x), t) = log(sum(exp(x - max(x)))) + max(x) - x[t],  of large x",
        op(EagerOp, op(SoftmaxOp, anything("x"), name="softmax", axis=_CLASSES, log=True), anything("classes")),
        _from_statistics,
        Numerics.REASSOCIATES,
        _is_written_for_nothing_else,
    ),
)
