"""Importers of elementwise ops that take more than tensors, or are made of several functions.

Overloads whose arguments are exactly the operands need no importer: ``pointwise.POINTWISE`` names them.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from fusegen.ir import INTEGERS, WIDE_INTEGERS, DType, FillOp, ReshapeOp, TriangleOp
from fusegen.trace.aten.call import IMPORTERS, Call, Value, converted, numbers, pointwise, register

# --- arithmetic ---------------------------------------------------------------------------------


def _scaled(call: Call, value: Any, factor: float) -> Any:
    if factor == 1:
        return value
    return pointwise(call, "mul", value, factor) if isinstance(value, Value) else value * factor


def _add(call: Call, fn: str) -> Value | None:
    return pointwise(call, fn, call["self"], _scaled(call, call["other"], call.args.get("alpha", 1)))


for _overload in ("Tensor", "Scalar"):
    IMPORTERS[f"add.{_overload}"] = partial(_add, fn="add")
    IMPORTERS[f"sub.{_overload}"] = IMPORTERS[f"subtract.{_overload}"] = partial(_add, fn="sub")


@register("rsub.Scalar", "rsub.Tensor")
def _rsub(call: Call) -> Value | None:
    return pointwise(call, "sub", call["other"], _scaled(call, call["self"], call.args.get("alpha", 1)))


def cube(call: Call, x: Value) -> Value:
    """Multiplied out, as ATen does."""
    return pointwise(call, "mul", pointwise(call, "square", x), x)


@register("pow.Tensor_Scalar")
def _pow(call: Call) -> Value | None:
    """Powers that ATen multiplies out, as it does, and the fourth, which is two of its; the others through ``pow``."""
    x, exponent = call["self"], call["exponent"]
    named = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    if exponent in named:
        return pointwise(call, named[exponent], x)
    if exponent == 0:
        return call.build.add(FillOp(value=1.0, shape=x.type.shape), x)
    if exponent == 1:
        return Value(x.name, x.type)
    if exponent == 3:
        return cube(call, x)
    if exponent == 4:
        return pointwise(call, "square", pointwise(call, "square", x))
    if exponent == -2:
        return pointwise(call, "reciprocal", pointwise(call, "square", x))
    return pointwise(call, "pow", x, exponent)


@register("lerp.Scalar", "lerp.Tensor")
def _lerp(call: Call) -> Value | None:
    """From the nearer end, as ATen: exact at weights 0 and 1."""
    start, end, weight = call["self"], call["end"], call["weight"]
    step = pointwise(call, "sub", end, start)
    if isinstance(weight, Value):
        low = pointwise(call, "add", start, pointwise(call, "mul", weight, step))
        high = pointwise(call, "sub", end, pointwise(call, "mul", step, pointwise(call, "sub", 1.0, weight)))
        return pointwise(call, "where", pointwise(call, "lt", pointwise(call, "abs", weight), 0.5), low, high)
    if abs(weight) < 0.5:
        return pointwise(call, "add", start, pointwise(call, "mul", step, weight))
    return pointwise(call, "sub", end, pointwise(call, "mul", step, 1.0 - weight))


def _add_product(call: Call, fn: str) -> Value | None:
    product = pointwise(call, fn, call["tensor1"], call["tensor2"])
    return pointwise(call, "add", call["self"], _scaled(call, product, call["value"]))


IMPORTERS["addcmul.default"] = partial(_add_product, fn="mul")
IMPORTERS["addcdiv.default"] = partial(_add_product, fn="div")


@register("remainder.Tensor", "remainder.Scalar")
def _remainder(call: Call) -> Value | None:
    """What a division rounded down leaves, as ATen: that of one rounded to zero, moved to the divisor's sign."""
    divisor = call["other"]
    rest = pointwise(call, "fmod", call["self"], divisor)
    if isinstance(divisor, Value):
        signs = pointwise(call, "mul", pointwise(call, "sign", rest), pointwise(call, "sign", divisor))
        moved = pointwise(call, "lt", signs, 0)
    else:
        moved = pointwise(call, "lt" if divisor > 0 else "gt", rest, 0)
    return pointwise(call, "where", moved, pointwise(call, "add", rest, divisor), rest)


@register("frac.default")
def _frac(call: Call) -> Value | None:
    return pointwise(call, "sub", call["self"], pointwise(call, "trunc", call["self"]))


# --- bounds -------------------------------------------------------------------------------------


@register(
    "clamp.default",
    "clamp.Tensor",
    "clip.default",
    "clip.Tensor",
    "hardtanh.default",
    "clamp_min.default",
    "clamp_min.Tensor",
    "clamp_max.default",
    "clamp_max.Tensor",
)
def _clamp(call: Call) -> Value | None:
    low = call.args.get("min", call.args.get("min_val"))
    high = call.args.get("max", call.args.get("max_val"))
    value = call["self"]
    if low is not None:
        value = pointwise(call, "maximum", value, low)
    if high is not None:
        value = pointwise(call, "minimum", value, high)
    return value if value is not call["self"] else None


@register("relu6.default")
def _relu6(call: Call) -> Value | None:
    return pointwise(call, "minimum", pointwise(call, "relu", call["self"]), 6.0)


@register("nan_to_num.default")
def _nan_to_num(call: Call) -> Value | None:
    if call["posinf"] is not None or call["neginf"] is not None or call.result.dtype is not DType.FLOAT32:
        return None
    x, largest = call["self"], (2 - 2**-23) * 2.0**127
    finite = pointwise(call, "minimum", pointwise(call, "maximum", x, -largest), largest)
    return pointwise(call, "where", pointwise(call, "ne", x, x), call["nan"] or 0.0, finite)


# --- activations --------------------------------------------------------------------------------


@register("leaky_relu.default")
def _leaky_relu(call: Call) -> Value | None:
    return pointwise(call, "leaky_relu", call["self"], call["negative_slope"])


@register("rrelu.default")
def _rrelu(call: Call) -> Value | None:
    if call["training"]:
        return None
    return pointwise(call, "leaky_relu", call["self"], (call["lower"] + call["upper"]) / 2)


@register("prelu.default", "_prelu_kernel.default")
def _prelu(call: Call) -> Value | None:
    """One slope, or one per channel (axis 1)."""
    x, slope = call["self"], call["weight"]
    if slope.type.rank == 1:
        shape = (slope.type.shape[0], *(1,) * max(0, x.type.rank - 2))
        slope = call.build.add(ReshapeOp(shape=shape if slope.type.shape[0] != 1 else ()), slope)
    return pointwise(call, "leaky_relu", x, slope)


def _exponential_unit(call: Call, alpha: float, scale: float, input_scale: float) -> Value:
    x = call["self"]
    if scale == 1 and input_scale == 1:
        return pointwise(call, "elu", x, alpha)
    below = pointwise(call, "elu", _scaled(call, x, input_scale), alpha * scale)
    return pointwise(call, "where", pointwise(call, "gt", x, 0.0), _scaled(call, x, scale), below)


@register("elu.default")
def _elu(call: Call) -> Value | None:
    return _exponential_unit(call, call["alpha"], call["scale"], call["input_scale"])


@register("celu.default")
def _celu(call: Call) -> Value | None:
    return _exponential_unit(call, call["alpha"], 1.0, 1.0 / call["alpha"])


@register("softplus.default")
def _softplus(call: Call) -> Value | None:
    return pointwise(call, "softplus", call["self"], call["beta"], call["threshold"])


@register("gelu.default")
def _gelu(call: Call) -> Value | None:
    return pointwise(call, "gelu" if call["approximate"] == "none" else "gelu_tanh", call["self"])


@register("log_sigmoid.default")
def _log_sigmoid(call: Call) -> Value | None:
    """min(x, 0) - log(1 + exp(-|x|)), as ATen."""
    x = call["self"]
    power = pointwise(call, "exp", pointwise(call, "neg", pointwise(call, "abs", x)))
    return pointwise(call, "sub", pointwise(call, "minimum", x, 0.0), pointwise(call, "log1p", power))


@register("threshold.default")
def _threshold(call: Call) -> Value | None:
    below = pointwise(call, "le", call["self"], call["threshold"])
    return pointwise(call, "where", below, call["value"], call["self"])


@register("logit.default")
def _logit(call: Call) -> Value | None:
    x, margin = call["self"], call["eps"]
    if margin is not None:
        x = pointwise(call, "minimum", pointwise(call, "maximum", x, margin), 1.0 - margin)
    return pointwise(call, "log", pointwise(call, "div", x, pointwise(call, "sub", 1.0, x)))


def _times_log(call: Call, x: Any, y: Any, fn: str = "log") -> Value:
    """x log(y), zero where x is and y is no NaN."""
    product = pointwise(call, "mul", pointwise(call, fn, y), x)
    is_number = pointwise(call, "eq", y, y)
    is_zero = pointwise(call, "eq", x, 0.0) if isinstance(x, Value) else x == 0
    if is_zero is False:
        return product
    nothing = is_number if is_zero is True else pointwise(call, "and", is_zero, is_number)
    return pointwise(call, "where", nothing, 0.0, product)


def _xlogy(call: Call, fn: str) -> Value | None:
    dtypes = {value.type.dtype for value in (call["self"], call["other"]) if isinstance(value, Value)}
    known = dtypes <= {DType.FLOAT32, *WIDE_INTEGERS} and call.result.dtype is DType.FLOAT32
    return _times_log(call, call["self"], call["other"], fn) if known else None


for _overload in ("xlogy.Tensor", "xlogy.Scalar_Other", "xlogy.Scalar_Self"):
    IMPORTERS[_overload] = partial(_xlogy, fn="log")
for _overload in ("default", "other_scalar", "self_scalar"):
    IMPORTERS[f"special_xlogy.{_overload}"] = partial(_xlogy, fn="log")
    IMPORTERS[f"special_xlog1py.{_overload}"] = partial(_xlogy, fn="log1p")


@register("special_entr.default")
def _entropy(call: Call) -> Value | None:
    """-x log(x): 0 at 0, and -inf below, where a logarithm is NaN."""
    x = call["self"]
    if x.type.dtype is not DType.FLOAT32:
        return None
    found = pointwise(call, "neg", _times_log(call, x, x))
    return pointwise(call, "where", pointwise(call, "lt", x, 0.0), -math.inf, found)


# --- selections and truth values ----------------------------------------------------------------


@register("where.self", "where.Scalar", "where.ScalarSelf", "where.ScalarOther")
def _where(call: Call) -> Value | None:
    return pointwise(call, "where", call["condition"], call["self"], call["other"])


@register("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(call: Call) -> Value | None:
    x, value = call["self"], call["value"]
    if x.type.dtype in INTEGERS and isinstance(value, float):  # it becomes one of them
        value = int(value) if math.isfinite(value) else value
    return pointwise(call, "where", call["mask"], value, x)


@register("index_put.default")
def _write_where_true(call: Call) -> Value | None:
    """One number where a mask of the leading axes is true."""
    x, value, (mask, *others) = call["self"], call["values"], call["indices"]
    if others or call["accumulate"] or not isinstance(mask, Value) or mask.type.dtype is not DType.BOOL:
        return None
    if value.type.rank or value.type.dtype is not x.type.dtype or x.type.dtype is not DType.FLOAT32:
        return None
    shape = (*mask.type.shape, *(1 for _ in x.type.shape[mask.type.rank :]))
    mask = mask if mask.type.shape == shape else call.build.add(ReshapeOp(shape=shape), mask)
    return pointwise(call, "where", mask, value, x)


def truth(call: Call, value: Value) -> Value:
    return value if value.type.dtype is DType.BOOL else pointwise(call, "ne", value, 0)


def _logical(call: Call, fn: str) -> Value | None:
    names = [name for name in ("self", "other") if name in call.args]
    truths = call["fn"].startswith("logical") or call.result.dtype is DType.BOOL
    if not truths:  # on numbers they work on bits
        return pointwise(call, f"bitwise_{fn}", *(call[name] for name in names))
    if not all(isinstance(call[name], Value) for name in names):
        return None
    return pointwise(call, fn, *(truth(call, call[name]) for name in names))


for _fn in ("and", "or", "xor"):
    for _overload in (f"logical_{_fn}.default", f"bitwise_{_fn}.Tensor", f"__{_fn}__.Tensor"):
        IMPORTERS[_overload] = partial(_logical, fn=_fn)
    for _overload in (f"bitwise_{_fn}.Scalar", f"bitwise_{_fn}.Scalar_Tensor", f"__{_fn}__.Scalar"):
        IMPORTERS[_overload] = partial(_logical, fn=_fn)
for _overload in ("logical_not.default", "bitwise_not.default"):
    IMPORTERS[_overload] = partial(_logical, fn="not")


@register("isnan.default")
def _isnan(call: Call) -> Value | None:
    return pointwise(call, "ne", call["self"], call["self"])


@register("isfinite.default")
def _isfinite(call: Call) -> Value | None:
    return pointwise(call, "lt", pointwise(call, "abs", call["self"]), math.inf)


@register("_to_copy.default", "to.dtype", "to.dtype_layout", "to.device", "to.other", "type_as.default")
def _to_copy(call: Call) -> Value | None:
    """Between truth values and numbers, and copies that change nothing."""
    x = call["self"]
    if not call.plain("layout", "pin_memory", "memory_format"):
        return None
    if x.type.dtype is call.result.dtype:
        return Value(x.name, x.type)
    if call.result.dtype is DType.BOOL:
        return truth(call, x)
    if x.type.dtype is DType.BOOL and call.result.dtype in (DType.FLOAT32, *WIDE_INTEGERS):
        return numbers(call, x, Value("", call.result))
    known = {x.type.dtype, call.result.dtype} <= {DType.FLOAT32, *WIDE_INTEGERS}
    return converted(call, x, call.result.dtype) if known else None


# --- constants ----------------------------------------------------------------------------------


def _fill(call: Call, value: float | None = None) -> Value | None:
    """A tensor of one value; ``value`` None: the call's own."""
    dtype = call.result.dtype
    sources = (call.build.first_input(kind) for kind in (dtype, DType.FLOAT32, *WIDE_INTEGERS))
    like = call.args.get("self") or next(filter(None, sources), None)
    own = (call.args[name] for name in ("fill_value", "value", "s") if name in call.args)
    number = next(own, None) if value is None else value
    if like is None or not isinstance(number, (bool, int, float)):
        return None
    other = None if like.type.dtype is dtype else dtype
    exact = number == float(number) or math.isnan(number)
    if other not in (None, DType.BOOL, DType.FLOAT32, *WIDE_INTEGERS) or not exact:
        return None
    return call.build.add(FillOp(value=float(number), shape=call.result.shape, dtype=other), like)


for _name, _value in (("zeros", 0.0), ("empty", 0.0), ("ones", 1.0), ("full", None)):
    for _overload in (f"{_name}.default", f"{_name}_like.default", f"new_{_name}.default"):
        IMPORTERS[_overload] = partial(_fill, value=_value)
for _overload in ("fill.Scalar", "scalar_tensor.default"):
    IMPORTERS[_overload] = _fill
IMPORTERS["zero.default"] = partial(_fill, value=0.0)


@register("eye.default", "eye.m")
def _eye(call: Call) -> Value | None:
    """Ones, and of those the diagonal."""
    if (ones := _fill(call, 1.0)) is None:
        return None
    return call.build.add(TriangleOp(upper=True), call.build.add(TriangleOp(upper=False), ones))
