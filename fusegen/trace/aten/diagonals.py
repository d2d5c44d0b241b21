"""Importers of what is on one side of a diagonal, on it alone, or is it."""

from __future__ import annotations

from fusegen.ir import ExpandOp, PermuteOp, ReduceOp, SliceOp, TriangleOp
from fusegen.trace.aten.call import Call, Value, register
from fusegen.trace.aten.shapes import reshaped


@register("tril.default", "triu.default")
def _triangle(call: Call) -> Value | None:
    if not isinstance(call["diagonal"], int):
        return None
    return call.build.add(TriangleOp(upper=call["fn"] == "triu", diagonal=call["diagonal"]), call["self"])


def _diagonal_matrix(call: Call, x: Value) -> Value:
    """Rows of equal elements, and of those the diagonal."""
    rows = reshaped(call, x, (*x.type.shape, 1))
    spread = call.build.add(ExpandOp(shape=(*x.type.shape, x.type.shape[-1])), rows)
    return call.build.add(TriangleOp(upper=True), call.build.add(TriangleOp(upper=False), spread))


@register("diag_embed.default", "diagflat.default")
def _diag_embed(call: Call) -> Value | None:
    x: Value = call["self"]
    if call["offset"] != 0 or (call["fn"] == "diagflat" and x.type.rank != 1):
        return None
    if call["fn"] == "diag_embed" and {axis % call.result.rank for axis in (call["dim1"], call["dim2"])} != {
        call.result.rank - 2,
        call.result.rank - 1,
    }:
        return None
    return _diagonal_matrix(call, x)


def _diagonal(call: Call, x: Value, offset: int, first: int, second: int) -> Value | None:
    """Of the elements of a matrix, row by row, one of each row: every one is a column further."""
    others = [axis for axis in range(x.type.rank) if axis not in (first, second)]
    order = (*others, first, second)
    if order != tuple(range(x.type.rank)):
        x = call.build.add(PermuteOp(order=order), x)
    rows, columns = x.type.shape[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        return None
    below, beside = max(-offset, 0), max(offset, 0)
    length = max(min(rows - below, columns - beside), 0)
    elements = reshaped(call, x, (*x.type.shape[:-2], rows * columns))
    start = below * columns + beside if length else 0
    part = SliceOp(axis=elements.type.rank - 1, start=start, length=length, step=columns + 1)
    return call.build.add(part, elements)


@register("diagonal.default")
def _diagonals(call: Call) -> Value | None:
    x: Value = call["self"]
    first, second = (axis % x.type.rank for axis in (call["dim1"], call["dim2"]))
    return _diagonal(call, x, call["offset"], first, second)


@register("diag.default")
def _diag(call: Call) -> Value | None:
    x: Value = call["self"]
    if x.type.rank == 2:
        return _diagonal(call, x, call["diagonal"], 0, 1)
    return _diagonal_matrix(call, x) if call["diagonal"] == 0 else None


@register("trace.default")
def _trace(call: Call) -> Value | None:
    diagonal = _diagonal(call, call["self"], 0, 0, 1)
    return None if diagonal is None else call.build.add(ReduceOp(fn="sum", axes=(0,), keepdim=False), diagonal)
