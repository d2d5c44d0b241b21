"""Importers of reductions that are made of several ops: truth values, counts, and sums of what is chosen or weighed."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from fusegen import dims
from fusegen.ir import DType, ReduceOp, SliceOp
from fusegen.trace.aten.call import IMPORTERS, Call, Value, axes_of, numbers, pointwise, register
from fusegen.trace.aten.elementwise import truth
from fusegen.trace.aten.shapes import reshaped

_Reduction = Literal["sum", "max", "min"]


def _reduced(call: Call, fn: _Reduction, x: Value, dim: Any) -> Value:
    op = ReduceOp(fn=fn, axes=axes_of(dim, x.type.rank), keepdim=bool(call.args.get("keepdim")))
    return call.build.add(op, x)


def _flags(call: Call, x: Value, truths: Value) -> Value:
    """``truths``, of the shape of ``x``, as ones and zeros in float32."""
    return numbers(call, truths, Value("", x.type.replace(dtype=DType.FLOAT32)))


def _over_truths(call: Call, fn: _Reduction) -> Value | None:
    """The largest or smallest of ones and zeros. NaN is true."""
    x, dim = call["self"], call.args.get("dim")
    if x.type.rank == 0 or dim == []:  # of no axis, torch reduces nothing
        return None
    for axis in axes_of(dim, x.type.rank):
        call.build.not_empty(x.type.shape[axis])
        if x.type.shape[axis] == 0:
            return None
    return pointwise(call, "ne", _reduced(call, fn, _flags(call, x, truth(call, x)), dim), 0)


for _overload in ("default", "dim", "dims"):
    IMPORTERS[f"any.{_overload}"] = partial(_over_truths, fn="max")
    IMPORTERS[f"all.{_overload}"] = partial(_over_truths, fn="min")


@register("count_nonzero.default", "count_nonzero.dim_IntList")
def _count_nonzero(call: Call) -> Value | None:
    """Where floats are made of it (``trace.counts``)."""
    x = call["self"]
    if call.result.dtype is not DType.FLOAT32 or x.type.rank == 0:
        return None
    return _reduced(call, "sum", _flags(call, x, truth(call, x)), call["dim"])


@register("nanmean.default")
def _mean_of_numbers(call: Call) -> Value | None:
    """Their sum by their count, as ATen; of none it is NaN."""
    x, dim = call["self"], call["dim"]
    if x.type.dtype is not DType.FLOAT32 or call["dtype"] is not None or x.type.rank == 0:
        return None
    is_number = pointwise(call, "eq", x, x)
    total = _reduced(call, "sum", pointwise(call, "where", is_number, x, 0.0), dim)
    return pointwise(call, "div", total, _reduced(call, "sum", _flags(call, x, is_number), dim))


@register("trapezoid.dx", "trapz.dx")
def _trapezoid(call: Call) -> Value | None:
    """The sum less half of both ends, as ATen computes it of equal distances."""
    x = call["y"]
    if x.type.dtype is not DType.FLOAT32 or x.type.rank == 0:
        return None
    axis = call["dim"] % x.type.rank
    size = x.type.shape[axis]
    if not call.build.at_least(size, 1):
        return None
    total = _reduced(call, "sum", x, axis)
    ends = (call.build.add(SliceOp(axis=axis, start=start, length=1), x) for start in (0, dims.sub(size, 1)))
    first, last = (reshaped(call, end, total.type.shape) for end in ends)
    half = pointwise(call, "mul", pointwise(call, "add", first, last), 0.5)
    return pointwise(call, "mul", pointwise(call, "sub", total, half), call["dx"])
