"""How ATen ops become IR ops: one row per overload that is more than an elementwise function.

An importer gets a ``Call`` and returns the name of the node that it built, or None when these
arguments are outside what the IR says (the op is then left to torch as an eager node).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

import torch

from fusegen.dims import Dim, Dims
from fusegen.ir import (
    ConvOp,
    ExpandOp,
    MatmulOp,
    Op,
    PermuteOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    SoftmaxOp,
    TensorType,
)


@dataclass(frozen=True)
class Value:
    """A tensor operand: its node and type."""

    name: str
    type: TensorType


class Build(Protocol):
    """What importers build nodes with."""

    def add(self, op: Op, *operands: Value) -> Value: ...

    def scalar(self, value: float | Dim, like: Value) -> Value: ...

    def update(self, buffer: Value, value: Value) -> None:
        """Make ``value`` the next value of ``buffer``, as an op does that writes to it unseen by the trace."""


@dataclass(frozen=True)
class Call:
    """One ATen call: arguments by schema name (defaults filled in), the traced type of its (first) result."""

    build: Build
    args: dict[str, Any]
    result: TensorType

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    def plain(self, *names: str) -> bool:
        """True when the named optional arguments are absent or false."""
        return not any(self.args.get(name) for name in names)


_Reduction: TypeAlias = Literal["sum", "mean", "max", "min", "prod", "logsumexp"]
Imported: TypeAlias = "Value | tuple[Value | None, ...] | None"
"""One value, or one for each result of the op; None where the IR has no form of it."""
Importer: TypeAlias = Callable[[Call], Imported]
IMPORTERS: dict[str, Importer] = {}


def _register(*overloads: str) -> Callable[[Importer], Importer]:
    def decorate(function: Importer) -> Importer:
        IMPORTERS.update(dict.fromkeys(overloads, function))
        return function

    return decorate


def _axes(value: Any, rank: int) -> tuple[int, ...]:
    """An axis argument (none, one or several, from either end) as sorted axes; none or empty: all."""
    if value is None or value == []:
        return tuple(range(rank))
    chosen = value if isinstance(value, (list, tuple)) else [value]
    return tuple(sorted(axis % rank for axis in chosen))


def _spread(value: Any, rank: int) -> tuple[int, ...]:
    """An int-or-list argument as one int per axis."""
    values = [value] if isinstance(value, int) else list(value)
    return tuple(values * rank if len(values) == 1 else values)


def _operand(call: Call, value: Any, like: Value) -> Value:
    return value if isinstance(value, Value) else call.build.scalar(value, like)


def _pointwise(call: Call, fn: str, *operands: Any) -> Value:
    """An elementwise node; numbers among the operands become scalars."""
    like = next(o for o in operands if isinstance(o, Value))
    return call.build.add(PointwiseOp(fn=fn), *(_operand(call, o, like) for o in operands))


# --- convolutions -----------------------------------------------------------------------------


def _conv(call: Call, transposed: bool, rank: int) -> Value | None:
    x, padding = call["input"], call["padding"]
    if x.type.rank != rank + 2:  # unbatched
        return None
    dilation, stride = _spread(call["dilation"], rank), _spread(call["stride"], rank)
    if isinstance(padding, str):
        kernel = call["weight"].type.shape[2:]
        reach = tuple(d * (int(k) - 1) for d, k in zip(dilation, kernel, strict=True))
        if padding == "same" and any(r % 2 for r in reach):
            return None
        padding = [r // 2 for r in reach] if padding == "same" else [0] * rank
    op = ConvOp(
        transposed=transposed,
        stride=stride,
        padding=_spread(padding, rank),
        dilation=dilation,
        output_padding=_spread(call["output_padding"], rank) if transposed else (0,) * rank,
        groups=call["groups"],
    )
    operands = [x, call["weight"], *([call["bias"]] if call["bias"] is not None else [])]
    return call.build.add(op, *operands)


for _rank in (1, 2, 3):
    for _overload in ("default", "padding"):
        IMPORTERS[f"conv{_rank}d.{_overload}"] = partial(_conv, transposed=False, rank=_rank)
    _overload = "default" if _rank == 1 else "input"
    IMPORTERS[f"conv_transpose{_rank}d.{_overload}"] = partial(_conv, transposed=True, rank=_rank)


# --- matrix products ----------------------------------------------------------------------------


@_register("linear.default")
def _linear(call: Call) -> Value | None:
    x, w, b = call["input"], call["weight"], call["bias"]
    if w.type.rank != 2:
        return None
    return call.build.add(MatmulOp(transposed=True), x, w, *([b] if b is not None else []))


@_register("mm.default", "bmm.default", "matmul.default")
def _matmul(call: Call) -> Value | None:
    a, b = call["self"], call["mat2" if "mat2" in call.args else "other"]
    return call.build.add(MatmulOp(), a, b)


@_register("addmm.default", "baddbmm.default")
def _addmm(call: Call) -> Value | None:
    a, b = (call[name] for name in (("mat1", "mat2") if "mat1" in call.args else ("batch1", "batch2")))
    product, bias = call.build.add(MatmulOp(), a, b), call["self"]
    if call["alpha"] != 1:
        product = _pointwise(call, "mul", product, call["alpha"])
    if call["beta"] == 0:
        return product
    if call["beta"] != 1:
        bias = _pointwise(call, "mul", bias, call["beta"])
    return _pointwise(call, "add", product, bias)


# --- reductions ---------------------------------------------------------------------------------


def _keeps_dtype(call: Call) -> bool:
    """True when the call computes in its operand's own element type."""
    return call.args.get("dtype") in (None, getattr(torch, call["self"].type.dtype.value))


def _reduce(call: Call, fn: _Reduction) -> Value | None:
    x = call["self"]
    if not _keeps_dtype(call) or x.type.dtype != call.result.dtype or x.type.rank == 0:
        return None
    axes, keepdim = _axes(call.args.get("dim"), x.type.rank), bool(call.args.get("keepdim"))
    return call.build.add(ReduceOp(fn=fn, axes=axes, keepdim=keepdim), x)


_REDUCTIONS: dict[_Reduction, tuple[str, ...]] = {
    "sum": ("sum.default", "sum.dim_IntList"),
    "mean": ("mean.default", "mean.dim"),
    # max.dim and min.dim: the values; ``convert`` imports them only when nothing reads the indices.
    "max": ("max.default", "amax.default", "max.dim"),
    "min": ("min.default", "amin.default", "min.dim"),
    "prod": ("prod.default", "prod.dim_int"),
    "logsumexp": ("logsumexp.default",),
}
for _fn, _overloads in _REDUCTIONS.items():
    IMPORTERS.update(dict.fromkeys(_overloads, partial(_reduce, fn=_fn)))


@_register("softmax.int", "_softmax.default", "log_softmax.int", "_log_softmax.default")
def _softmax(call: Call) -> Value | None:
    x = call["self"]
    if not call.plain("half_to_float") or not _keeps_dtype(call) or x.type.rank == 0:
        return None
    return call.build.add(SoftmaxOp(axis=call["dim"] % x.type.rank, log="log" in call["fn"]), x)


@_register("adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default", "adaptive_avg_pool3d.default")
def _adaptive_average(call: Call) -> Value | None:
    x, size = call["self"], list(call["output_size"])
    if size != [1] * len(size) or x.type.rank != len(size) + 2:
        return None
    return call.build.add(ReduceOp(fn="mean", axes=tuple(range(2, x.type.rank)), keepdim=True), x)


# --- elementwise with arguments -----------------------------------------------------------------


@_register("add.Tensor", "sub.Tensor", "add.Scalar", "sub.Scalar")
def _add(call: Call) -> Value | None:
    if call.args.get("alpha", 1) != 1:
        scaled = (
            _pointwise(call, "mul", call["other"], call["alpha"])
            if isinstance(call["other"], Value)
            else (call["other"] * call["alpha"])
        )
        return _pointwise(call, call["fn"], call["self"], scaled)
    return _pointwise(call, call["fn"], call["self"], call["other"])


@_register("rsub.Scalar", "rsub.Tensor")
def _rsub(call: Call) -> Value | None:
    return _pointwise(call, "sub", call["other"], call["self"]) if call.args.get("alpha", 1) == 1 else None


@_register("pow.Tensor_Scalar")
def _pow(call: Call) -> Value | None:
    special = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    if call["exponent"] in special:
        return _pointwise(call, special[call["exponent"]], call["self"])
    return _pointwise(call, "pow", call["self"], call["exponent"])


@_register("clamp.default", "clamp.Tensor", "hardtanh.default", "clamp_min.default", "clamp_max.default")
def _clamp(call: Call) -> Value | None:
    low = call.args.get("min", call.args.get("min_val"))
    high = call.args.get("max", call.args.get("max_val"))
    value = call["self"]
    if low is not None:
        value = _pointwise(call, "maximum", value, low)
    if high is not None:
        value = _pointwise(call, "minimum", value, high)
    return value if value is not call["self"] else None


@_register("relu6.default")
def _relu6(call: Call) -> Value | None:
    return _pointwise(call, "minimum", _pointwise(call, "relu", call["self"]), 6.0)


@_register("leaky_relu.default")
def _leaky_relu(call: Call) -> Value | None:
    return _pointwise(call, "leaky_relu", call["self"], call["negative_slope"])


@_register("elu.default")
def _elu(call: Call) -> Value | None:
    if call["scale"] != 1 or call["input_scale"] != 1:
        return None
    return _pointwise(call, "elu", call["self"], call["alpha"])


@_register("softplus.default")
def _softplus(call: Call) -> Value | None:
    return _pointwise(call, "softplus", call["self"], call["beta"], call["threshold"])


@_register("gelu.default")
def _gelu(call: Call) -> Value | None:
    return _pointwise(call, "gelu" if call["approximate"] == "none" else "gelu_tanh", call["self"])


# --- shapes -------------------------------------------------------------------------------------


def _to(call: Call, x: Value, shape: Dims) -> Value:
    return x if x.type.shape == shape else call.build.add(ReshapeOp(shape=shape), x)


@_register(
    "view.default",
    "reshape.default",
    "_unsafe_view.default",
    "flatten.using_ints",
    "squeeze.default",
    "squeeze.dim",
    "squeeze.dims",
    "unsqueeze.default",
    "unflatten.int",
)
def _reshape(call: Call) -> Value | None:
    return _to(call, call["self"], call.result.shape)


@_register("permute.default", "transpose.int", "t.default")
def _permute(call: Call) -> Value | None:
    x = call["self"]
    order = list(range(x.type.rank))
    if "dims" in call.args:
        order = [axis % x.type.rank for axis in call["dims"]]
    elif x.type.rank >= 2:
        first, second = (
            call[name] % x.type.rank if name in call.args else i for i, name in enumerate(("dim0", "dim1"))
        )
        order[first], order[second] = order[second], order[first]
    return call.build.add(PermuteOp(order=tuple(order)), x)


@_register("expand.default")
def _expand(call: Call) -> Value | None:
    return call.build.add(ExpandOp(shape=call.result.shape), call["self"])


@_register("clone.default", "contiguous.default", "alias.default", "detach.default", "lift_fresh_copy.default")
def _same(call: Call) -> Value | None:
    value: Value = call["self"]
    return value


@_register("dropout.default")
def _dropout(call: Call) -> Value | None:
    return None if call["train"] and call["p"] != 0 else call["input"]
