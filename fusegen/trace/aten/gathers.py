"""Importers of ops that fetch what a tensor of whole numbers names."""

from __future__ import annotations

from fusegen import dims
from fusegen.dims import Dim
from fusegen.ir import WIDE_INTEGERS, GatherOp, RangeOp, ReshapeOp, SliceOp
from fusegen.trace.aten.call import Call, Value, register
from fusegen.trace.aten.shapes import reshaped


def _neighbours(call: Call, index: Value, axis: int, size: Dim) -> SliceOp | None:
    """The part of ``axis`` that ``index`` names, if it is a range within the axis' size, which calls are held to."""
    op, operands = call.build.made_by(index)
    while isinstance(op, ReshapeOp):
        op, operands = call.build.made_by(operands[0])
    if not isinstance(op, RangeOp) or op.step < 1 or (isinstance(op.start, int) and op.start < 0):
        return None
    end = dims.add(op.start, dims.sub(dims.mul(op.length, op.step), op.step - 1))
    found = SliceOp(axis=axis, start=op.start, length=op.length, step=op.step)
    return found if call.build.at_least(size, end) else None


def _gathered(call: Call, x: Value, index: Value, axis: int, wraps: bool = False) -> Value | None:
    if index.type.dtype not in WIDE_INTEGERS or not x.type.rank:
        return None
    if part := _neighbours(call, index, axis, x.type.shape[axis]):
        return reshaped(call, call.build.add(part, x), call.result.shape)
    return call.build.add(GatherOp(axis=axis, wraps=wraps), x, index)


@register("embedding.default")
def _embedding(call: Call) -> Value | None:
    """What is padded, and how gradients are scaled, says nothing of the result."""
    return _gathered(call, call["weight"], call["indices"], 0)


@register("index_select.default")
def _index_select(call: Call) -> Value | None:
    x, index = call["self"], call["index"]
    return _gathered(call, x, index, call["dim"] % max(x.type.rank, 1)) if index.type.rank == 1 else None


@register("index.Tensor")
def _index(call: Call) -> Value | None:
    """``x[:, index]``: one tensor of whole numbers."""
    given = [(axis, index) for axis, index in enumerate(call["indices"]) if index is not None]
    if len(given) != 1 or not isinstance(given[0][1], Value):
        return None
    axis, index = given[0]
    return _gathered(call, call["self"], index, axis, wraps=True)
