"""How ATen's norms and statistics become IR ops.

Statistics are of the tensor's own element type here, so only float32 and float64 are imported: torch
accumulates 16-bit statistics in float32.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from fusegen import dims
from fusegen.dims import Dims
from fusegen.ir import DType, NormalizeOp, ReduceOp, ReshapeOp
from fusegen.trace.aten.call import IMPORTERS, Call, Imported, Value, axes_of, pointwise, register
from fusegen.trace.aten.elementwise import cube

_WIDE = (DType.FLOAT32, DType.FLOAT64)


def _reduced(call: Call, fn: Any, x: Value, axes: tuple[int, ...], keepdim: bool = True) -> Value:
    return call.build.add(ReduceOp(fn=fn, axes=axes, keepdim=keepdim), x)


def _shaped(call: Call, x: Value, shape: Dims) -> Value:
    return x if x.type.shape == shape else call.build.add(ReshapeOp(shape=shape), x)


def _affine(call: Call, shape: Dims) -> list[Value]:
    """Scale and shift of the call, as far as it has them, in ``shape``. A shift alone does not occur."""
    given = [call[name] for name in ("weight", "bias") if call.args.get(name) is not None]
    return [_shaped(call, value, shape) for value in given]


def _count(x: Value, axes: tuple[int, ...]) -> dims.Dim:
    return dims.product(x.type.shape[axis] for axis in axes)


def _unbiased(call: Call, var: Value, x: Value, axes: tuple[int, ...], correction: int = 1) -> Value:
    """``var`` with the divisor n - correction instead of n."""
    if correction == 0:
        return var
    count = _count(x, axes)
    return pointwise(call, "div", pointwise(call, "mul", var, count), dims.sub(count, correction))


# --- norms --------------------------------------------------------------------------------------


@register("layer_norm.default", "rms_norm.default")
def _layer_norm(call: Call) -> Imported:
    x = call["input"]
    if x.type.dtype not in _WIDE:
        return None
    center = call["fn"] == "layer_norm"
    eps = call["eps"] if call["eps"] is not None else 2.0**-23 if x.type.dtype is DType.FLOAT32 else 2.0**-52
    first = x.type.rank - len(call["normalized_shape"])
    op = NormalizeOp(axes=tuple(range(first, x.type.rank)), eps=eps, center=center)
    return call.build.add(op, x, *_affine(call, x.type.shape[first:]))


@register("group_norm.default")
def _group_norm(call: Call) -> Imported:
    x, groups = call["input"], call["num_groups"]
    if x.type.dtype not in _WIDE or x.type.rank < 2:
        return None
    batch, channels, *spatial = x.type.shape
    split = (batch, groups, dims.floordiv(channels, groups), *spatial)
    op = NormalizeOp(axes=tuple(range(2, len(split))), eps=call["eps"])
    y = call.build.add(op, _shaped(call, x, split), *_affine(call, (*split[1:3], *(1,) * len(spatial))))
    return _shaped(call, y, x.type.shape)


def _per_channel(x: Value) -> Dims:
    return (x.type.shape[1], *(1,) * (x.type.rank - 2))


def _by_running(call: Call, x: Value) -> Value:
    """Normalised by the running statistics."""
    shape = _per_channel(x)
    mean, var = (_shaped(call, call[name], shape) for name in ("running_mean", "running_var"))
    scale = pointwise(call, "rsqrt", pointwise(call, "add", var, call["eps"]))
    y = pointwise(call, "mul", pointwise(call, "sub", x, mean), scale)
    for fn, operand in zip(("mul", "add"), _affine(call, shape), strict=False):
        y = pointwise(call, fn, y, operand)
    return y


def _moved(call: Call, running: Value, value: Value) -> Value:
    """The running statistic after one more value: (1 - momentum) running + momentum value."""
    momentum = call["momentum"]
    old = pointwise(call, "mul", running, 1 - momentum)
    return pointwise(call, "add", old, pointwise(call, "mul", _shaped(call, value, running.type.shape), momentum))


def _statistics(call: Call, x: Value, axes: tuple[int, ...]) -> tuple[Value, Value]:
    """(mean, unbiased variance) over ``axes``, as running statistics take them."""
    return _reduced(call, "mean", x, axes), _unbiased(call, _reduced(call, "var", x, axes), x, axes)


@register("batch_norm.default")
def _batch_norm(call: Call) -> Imported:
    if (found := _batch_norm_with_statistics(call)) is None or not isinstance(found, tuple):
        return None
    y, _, _, *moved = found
    for name, value in zip(("running_mean", "running_var"), moved, strict=False):
        if value is not None:
            call.build.update(call[name], value)
    return y


@register("_native_batch_norm_legit_functional.default", "_native_batch_norm_legit.no_stats")
def _batch_norm_with_statistics(call: Call) -> Imported:
    x = call["input"]
    if x.type.dtype not in _WIDE or x.type.rank < 2:
        return None
    if not call["training"]:
        return None if call.args.get("running_mean") is None else (_by_running(call, x), *(None,) * 4)
    axes = (0, *range(2, x.type.rank))
    moved: list[Value] = []
    if call.args.get("running_mean") is not None:
        statistics = zip(("running_mean", "running_var"), _statistics(call, x, axes), strict=True)
        moved = [_moved(call, call[name], value) for name, value in statistics]
    op = NormalizeOp(axes=axes, eps=call["eps"])
    y = call.build.add(op, x, *_affine(call, _per_channel(x)))
    return (y, None, None, *moved)


@register("_native_batch_norm_legit_no_training.default")
def _batch_norm_eval(call: Call) -> Imported:
    x = call["input"]
    return (_by_running(call, x), None, None) if x.type.dtype in _WIDE and x.type.rank >= 2 else None


@register("instance_norm.default")
def _instance_norm(call: Call) -> Imported:
    x, running = call["input"], call["running_mean"]
    if x.type.dtype not in _WIDE or x.type.rank < 3:
        return None
    if not call["use_input_stats"]:
        return _by_running(call, x)
    axes = tuple(range(2, x.type.rank))
    if running is not None:  # the op writes the mean over the batch of each sample's running statistics
        for name, value in zip(("running_mean", "running_var"), _statistics(call, x, axes), strict=True):
            per_channel = _reduced(call, "mean", value, (0,))
            call.build.update(call[name], _moved(call, call[name], per_channel))
    op = NormalizeOp(axes=axes, eps=call["eps"])
    return call.build.add(op, x, *_affine(call, _per_channel(x)))


# --- statistics ---------------------------------------------------------------------------------


def _variance(call: Call, root: bool) -> tuple[Value, tuple[int, ...], bool] | None:
    """(variance or deviation, axes, keepdim) of a var, std, var_mean or std_mean call."""
    x = call["self"]
    given = call.args.get("correction", 1 if call.args.get("unbiased", True) else 0)
    correction = 1 if given is None else given
    if x.type.dtype not in _WIDE or x.type.rank == 0 or correction != int(correction):
        return None
    axes, keepdim = axes_of(call.args.get("dim"), x.type.rank), bool(call.args.get("keepdim"))
    value = _unbiased(call, _reduced(call, "var", x, axes, keepdim), x, axes, int(correction))
    return (pointwise(call, "sqrt", value) if root else value), axes, keepdim


def _var(call: Call, root: bool) -> Imported:
    found = _variance(call, root)
    return found[0] if found else None


def _var_mean(call: Call, root: bool) -> Imported:
    if (found := _variance(call, root)) is None:
        return None
    value, axes, keepdim = found
    return value, _reduced(call, "mean", call["self"], axes, keepdim)


for _fn, _root in (("var", False), ("std", True)):
    for _overload in ("default", "dim", "correction"):
        IMPORTERS[f"{_fn}.{_overload}"] = partial(_var, root=_root)
        IMPORTERS[f"{_fn}_mean.{_overload}"] = partial(_var_mean, root=_root)


_VECTOR_NORMS = ("linalg_vector_norm.default", "norm.ScalarOpt_dim", "norm.Scalar", "linalg_norm.default")


@register(*_VECTOR_NORMS, "linalg_matrix_norm.str_ord")
def _vector_norm(call: Call) -> Imported:
    """Those of vectors, and of matrices the Frobenius norm, which is that of all elements."""
    x, order = call["self"], call.args.get("ord", call.args.get("p", 2))
    order = 2 if order in (None, "fro") else order
    as_matrix = call["fn"] == "linalg_norm" and x.type.rank != 1 and len(call.args.get("dim") or ()) != 1
    of_matrix = isinstance(order, str) or (as_matrix and call.args.get("ord") is not None)
    if of_matrix or call.args.get("dtype") is not None or x.type.dtype not in _WIDE or x.type.rank == 0:
        return None
    axes, keepdim = axes_of(call.args.get("dim"), x.type.rank), bool(call.args.get("keepdim"))
    reduce = partial(_reduced, call, axes=axes, keepdim=keepdim)
    if order == 2:
        return pointwise(call, "sqrt", reduce("sum", pointwise(call, "square", x)))
    size = pointwise(call, "abs", x)
    if order == 1:
        return reduce("sum", size)
    if math.isinf(order):
        return reduce("max" if order > 0 else "min", size)
    if order == 0:
        return None
    power = cube(call, size) if order == 3 else pointwise(call, "pow", size, order)
    return pointwise(call, "pow", reduce("sum", power), 1 / order)


@register("aminmax.default")
def _aminmax(call: Call) -> Imported:
    x = call["self"]
    if x.type.rank == 0:
        return None
    axes, keepdim = axes_of(call.args.get("dim"), x.type.rank), bool(call.args.get("keepdim"))
    return _reduced(call, "min", x, axes, keepdim), _reduced(call, "max", x, axes, keepdim)
