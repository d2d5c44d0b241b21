"""Importers of functions that torch has as one op, and that are made of a few of ours."""

from __future__ import annotations

import math
from functools import partial

from fusegen.ir import DType
from fusegen.trace.aten.call import IMPORTERS, Call, Value, numbers, pointwise, register


@register("heaviside.default")
def _heaviside(call: Call) -> Value | None:
    """0 below zero and of NaN, 1 above, and the second operand at zero."""
    x, at_zero = call["self"], call["values"]
    if DType.BOOL in (x.type.dtype, at_zero.type.dtype):
        return None
    above = numbers(call, pointwise(call, "gt", x, 0), x)
    return pointwise(call, "where", pointwise(call, "eq", x, 0), at_zero, above)


def _extreme_number(call: Call, beyond: str) -> Value | None:
    """The second where it is ``beyond`` the first or that is NaN, so that NaN comes of two of them alone."""
    a, b = call["self"], call["other"]
    if call.result.dtype is DType.BOOL:
        return None
    other = pointwise(call, "or", pointwise(call, beyond, a, b), pointwise(call, "ne", a, a))
    return pointwise(call, "where", other, b, a)


IMPORTERS["fmax.default"] = partial(_extreme_number, beyond="lt")
IMPORTERS["fmin.default"] = partial(_extreme_number, beyond="gt")


def _is_infinity(call: Call, which: float) -> Value | None:
    x = call["self"]
    return None if x.type.dtype is DType.BOOL else pointwise(call, "eq", x, which)


IMPORTERS["isposinf.default"] = partial(_is_infinity, which=math.inf)
IMPORTERS["isneginf.default"] = partial(_is_infinity, which=-math.inf)


def _times(call: Call, factor: float) -> Value | None:
    return pointwise(call, "mul", call["self"], factor)


IMPORTERS["deg2rad.default"] = partial(_times, factor=math.pi / 180)
IMPORTERS["rad2deg.default"] = partial(_times, factor=180 / math.pi)


@register("special_ndtr.default")
def _normal_distribution(call: Call) -> Value | None:
    """(1 + erf(x / sqrt(2))) / 2, step by step as ATen: nothing is left of it far below zero."""
    x = call["self"]
    if x.type.dtype not in (DType.FLOAT32, DType.FLOAT64):
        return None
    erf = pointwise(call, "erf", pointwise(call, "mul", x, math.sqrt(0.5)))
    return pointwise(call, "mul", pointwise(call, "add", erf, 1.0), 0.5)
