"""Losses of class numbers, which are named of every row: nothing as large as what they are of is written."""

from __future__ import annotations

import ast
from typing import NamedTuple

from fusegen import dims
from fusegen.dims import Dims
from fusegen.inference import reduced_shape
from fusegen.ir import (
    ConstOp,
    DType,
    EagerOp,
    GatherElementsOp,
    Node,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    SoftmaxOp,
)
from fusegen.passes.rewrite import Match, Numerics, Rule, op

_CLASSES = 1
"""The axis of the classes."""
_TARGET = "aten.nll_loss_nd.default"


class _Loss(NamedTuple):
    """Arguments of ``aten.nll_loss_nd(input, target, weight=None, reduction, ignore_index)``; the first three are
    inputs."""

    source: int
    classes: int
    weight: int | None = None
    reduction: int = 1
    ignored: int = -100


_NONE, _SUM = 0, 2


def _loss(node: Node) -> _Loss:
    assert isinstance(node.op, EagerOp)
    return _Loss(*ast.literal_eval(f"({node.op.arguments.format(*range(len(node.inputs)))},)"))


def _operand(m: Match, number: int) -> Node:
    return m.graph.node(m.root.inputs[number])


def _rows(x: Node, keepdim: bool = False) -> Dims:
    return reduced_shape(x.type.shape, (_CLASSES,), keepdim)


def _named(m: Match, x: Node) -> Node:
    """The element of every row of ``x`` that its class names; the first, where that is ignored."""
    loss = _loss(m.root)
    classes = m.add(ReshapeOp(shape=_rows(x, keepdim=True)), _operand(m, loss.classes))
    taken = m.add(GatherElementsOp(axis=_CLASSES, ignored=loss.ignored), x, classes)
    return m.add(ReshapeOp(shape=_rows(x)), taken)


def _weights(m: Match, weight: Node, rows: Dims) -> Node:
    """The weight of every row's class."""
    loss = _loss(m.root)
    classes = _operand(m, loss.classes)
    if len(rows) != 1:
        classes = m.add(ReshapeOp(shape=(dims.product(rows),)), classes)
    taken = m.add(GatherElementsOp(axis=0, ignored=loss.ignored), weight, classes)
    return taken if len(rows) == 1 else m.add(ReshapeOp(shape=rows), taken)


def _reduced(m: Match, x: Node, each: Node) -> Node:
    """The loss that ``each`` row comes to, of those whose class is not ignored."""
    loss, axes = _loss(m.root), tuple(range(x.type.rank - 1))
    classes = _operand(m, loss.classes)
    counts = m.add(PointwiseOp(fn="ne"), classes, m.add(ConstOp(value=loss.ignored), like=classes))
    weights = m.const(1.0) if loss.weight is None else _weights(m, _operand(m, loss.weight), _rows(x))
    if loss.weight is not None:
        each = m.add(PointwiseOp(fn="mul"), each, weights)
    each = m.add(PointwiseOp(fn="where"), counts, each, m.const(0.0))
    if loss.reduction == _NONE:
        return each
    total = m.add(ReduceOp(fn="sum", axes=axes, keepdim=False), each)
    if loss.reduction == _SUM:
        return total
    counted = m.add(PointwiseOp(fn="where"), counts, weights, m.const(0.0))
    return m.add(PointwiseOp(fn="div"), total, m.add(ReduceOp(fn="sum", axes=axes, keepdim=False), counted))


def _from_statistics(m: Match) -> Node:
    """%y = nll_loss(log_softmax(%x), %t)  ->  %e = log(sum(exp(%x - max(%x)))) + (max(%x) - %x[%t]), reduced."""
    x = m.graph.node(_operand(m, 0).inputs[0])
    peak = m.add(ReduceOp(fn="max", axes=(_CLASSES,), keepdim=False), x)
    kept = m.add(ReshapeOp(shape=_rows(x, keepdim=True)), peak)
    power = m.add(PointwiseOp(fn="exp"), m.add(PointwiseOp(fn="sub"), x, kept))
    total = m.add(ReduceOp(fn="sum", axes=(_CLASSES,), keepdim=False), power)
    apart = m.add(PointwiseOp(fn="sub"), peak, _named(m, x))
    return _reduced(m, x, m.add(PointwiseOp(fn="add"), m.add(PointwiseOp(fn="log"), total), apart))


def _from_rows(m: Match) -> Node:
    """%y = nll_loss(%x, %t)  ->  %e = -%x[%t], reduced."""
    x = _operand(m, 0)
    return _reduced(m, x, m.add(PointwiseOp(fn="neg"), _named(m, x)))


def _is_of_rows(m: Match) -> str | None:
    assert isinstance(m.root.op, EagerOp)
    if m.root.op.target != _TARGET or _operand(m, 0).type.dtype is not DType.FLOAT32 or _operand(m, 0).type.rank < 2:
        return ""
    rows, loss = _rows(_operand(m, 0)), _loss(m.root)
    same = m.root.type.shape == (rows if loss.reduction == _NONE else ())
    return None if same and _operand(m, loss.classes).type.shape == rows else ""


def _is_of_a_softmax(m: Match) -> str | None:
    if _is_of_rows(m) is not None:
        return ""
    softmax = _operand(m, 0)
    if not isinstance(softmax.op, SoftmaxOp) or not softmax.op.log or softmax.op.axis != _CLASSES:
        return ""
    readers = (m.graph.node(name) for name in m.graph.users[softmax.name])
    sums = (isinstance(n.op, ReduceOp) and n.op.axes == (_CLASSES,) for n in readers if n.name != m.root.name)
    return None if softmax.name not in m.graph.results and all(sums) else ""


RULES = (
    Rule(
        "nll(log_softmax(x), t) = log(sum(exp(x - max(x)))) + max(x) - x[t]",
        op(EagerOp),
        _from_statistics,
        Numerics.REASSOCIATES,
        _is_of_a_softmax,
    ),
    Rule("nll(x, t) = -x[t]", op(EagerOp), _from_rows, Numerics.REASSOCIATES, _is_of_rows),
)
