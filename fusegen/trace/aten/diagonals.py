"""Importers of what is on one side of a diagonal, or on it alone."""

from __future__ import annotations

from fusegen.ir import ExpandOp, TriangleOp
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


@register("diag.default")
def _diag(call: Call) -> Value | None:
    """Of a vector; that of a matrix is torch's view, whatever its sizes."""
    x: Value = call["self"]
    return _diagonal_matrix(call, x) if x.type.rank == 1 and call["diagonal"] == 0 else None
