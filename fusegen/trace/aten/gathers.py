"""Importers of ops that fetch what a tensor of whole numbers names."""

from __future__ import annotations

from fusegen.ir import DType, GatherOp
from fusegen.trace.aten.call import Call, Value, register

_WHOLE = (DType.INT64, DType.INT32)


def _gathered(call: Call, x: Value, index: Value, axis: int, wraps: bool = False) -> Value | None:
    if index.type.dtype not in _WHOLE or not x.type.rank:
        return None
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
