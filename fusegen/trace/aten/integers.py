"""Importers of ops that make integers, or work on integers alone, and of ranges."""

from __future__ import annotations

import math
from typing import Any

import torch

from fusegen import dims
from fusegen.ir import INTEGERS, WIDE_INTEGERS, DType, RangeOp, ReshapeOp
from fusegen.trace.aten.call import Call, Value, converted, pointwise, register

_EXACT = 2**24
"""Up to here every integer is a float32."""


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool)


@register("arange.default", "arange.start", "arange.start_step")
def _arange(call: Call) -> Value | None:
    """Numbers with whole distances. As floats they are small: torch rounds others as it adds them up."""
    start, step, dtype = call.args.get("start", 0), call.args.get("step", 1), call.result.dtype
    like = call.build.first_input(None)
    whole = _is_whole(start) and _is_whole(call["end"]) and isinstance(step, int)
    if like is None or not whole or dtype not in (DType.FLOAT32, *WIDE_INTEGERS):
        return None
    (length,) = call.result.shape
    last = dims.add(start, dims.mul(length, step))
    if dtype is not DType.INT64:  # at the sizes of every call
        bound = _EXACT if dtype is DType.FLOAT32 else 2**31 - 1
        if not all(call.build.at_least(bound, end) and call.build.at_least(end, -bound) for end in (start, last)):
            return None
    return call.build.add(RangeOp(length=length, start=start, step=step, dtype=dtype), like)


def _rounded(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))


@register("linspace.default")
def _linspace(call: Call) -> Value | None:
    """From the nearer end, in steps that are rounded once, as ATen."""
    start, end, steps = call["start"], call["end"], call["steps"]
    like = call.build.first_input(None)
    if like is None or call.result.dtype is not DType.FLOAT32 or not isinstance(steps, int) or not 2 <= steps <= _EXACT:
        return None
    if isinstance(start, str) or isinstance(end, str):  # sizes
        return None
    start, end = _rounded(start), _rounded(end)
    step = _rounded(_rounded(end - start) / _rounded(steps - 1))
    if not math.isfinite(step):
        return None
    place = call.build.add(RangeOp(length=steps, dtype=DType.FLOAT32), like)
    low = pointwise(call, "add", pointwise(call, "mul", place, step), start)
    left = pointwise(call, "sub", steps - 1, place)
    high = pointwise(call, "sub", end, pointwise(call, "mul", left, step))
    return pointwise(call, "where", pointwise(call, "lt", place, steps // 2), low, high)


@register("one_hot.default")
def _one_hot(call: Call) -> Value | None:
    """Whether a class is each of them. As with torch, one that is none of them is an error."""
    ids, count = call["self"], call["num_classes"]
    like = call.build.first_input(None)
    if like is None or ids.type.dtype is not DType.INT64 or count in (-1, 0, 1):
        return None
    ids = call.build.add(ReshapeOp(shape=(*ids.type.shape, 1)), pointwise(call, "class_number", ids, count))
    flags = pointwise(call, "eq", ids, call.build.add(RangeOp(length=count), like))
    return converted(call, flags, DType.INT64)


@register("floor_divide.default", "floor_divide.Scalar", "div.Tensor_mode", "div.Scalar_mode")
def _floor_divide(call: Call) -> Value | None:
    """Of integers. Quotients of floats that are rounded are torch's."""
    if call.result.dtype not in INTEGERS or call.args.get("rounding_mode", "floor") != "floor":
        return None
    return pointwise(call, "floor_divide", call["self"], call["other"])
