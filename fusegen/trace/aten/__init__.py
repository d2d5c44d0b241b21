"""How ATen ops become IR ops: one row per overload that is more than an elementwise function.

An importer gets a ``Call`` and returns the name of the node that it built, or None when these
arguments are outside what the IR says (the op is then left to torch as an eager node).
"""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeAlias

import torch

from fusegen import dims
from fusegen.ir import ArgReduceOp, ConvOp, DType, PadOp, ReduceOp, ReshapeOp, ScanOp, SoftmaxOp
from fusegen.trace.aten import (  # noqa: F401  (they register their importers)
    diagonals,
    dropout,
    elementwise,
    functions,
    gathers,
    integers,
    norms,
    pads,
    pools,
    products,
    recurrent,
    reductions,
    resampling,
    shapes,
    windows,
)
from fusegen.trace.aten.call import IMPORTERS, Call, Imported, Value, axes_of, numbers, pointwise, register, spread

__all__ = ["IMPORTERS", "Call", "Imported", "Value", "pointwise"]

_Reduction: TypeAlias = Literal["sum", "mean", "max", "min", "prod", "logsumexp"]


# --- convolutions -----------------------------------------------------------------------------


def _conv(call: Call, transposed: bool, rank: int) -> Value | None:
    x, padding = call["input"], call["padding"]
    if isinstance(call["groups"], str):  # weights made of data: groups are samples
        return None
    if x.type.rank == rank + 1:  # one sample without a batch axis
        x = call.build.add(ReshapeOp(shape=(1, *x.type.shape)), x)
    dilation, stride = spread(call["dilation"], rank), spread(call["stride"], rank)
    if isinstance(padding, str):
        kernel = call["weight"].type.shape[2:]
        reach = tuple(d * (int(k) - 1) for d, k in zip(dilation, kernel, strict=True))
        if padding == "same" and any(r % 2 for r in reach):  # one more at the end
            x = call.build.add(PadOp(before=(0,) * (rank + 2), after=(0, 0, *(r % 2 for r in reach))), x)
        padding = [r // 2 for r in reach] if padding == "same" else [0] * rank
    op = ConvOp(
        transposed=transposed,
        stride=stride,
        padding=spread(padding, rank),
        dilation=dilation,
        output_padding=spread(call["output_padding"], rank) if transposed else (0,) * rank,
        groups=call["groups"],
    )
    y = call.build.add(op, x, call["weight"], *([call["bias"]] if call["bias"] is not None else []))
    return y if y.type.rank == call.result.rank else call.build.add(ReshapeOp(shape=call.result.shape), y)


for _rank in (1, 2, 3):
    for _overload in ("default", "padding"):
        IMPORTERS[f"conv{_rank}d.{_overload}"] = partial(_conv, transposed=False, rank=_rank)
    _overload = "default" if _rank == 1 else "input"
    IMPORTERS[f"conv_transpose{_rank}d.{_overload}"] = partial(_conv, transposed=True, rank=_rank)


# --- reductions ---------------------------------------------------------------------------------


def _keeps_dtype(call: Call) -> bool:
    """True when the call computes in its operand's own element type."""
    return call.args.get("dtype") in (None, getattr(torch, call["self"].type.dtype.value))


def _reduce(call: Call, fn: _Reduction) -> Value | None:
    x = call["self"]
    if fn == "sum" and x.type.dtype is DType.BOOL and call.result.dtype is DType.FLOAT32 and x.type.rank:
        x = numbers(call, x, Value("", call.result))  # a count
    elif not _keeps_dtype(call) or x.type.dtype != call.result.dtype or x.type.rank == 0:
        return None
    axes, keepdim = axes_of(call.args.get("dim"), x.type.rank), bool(call.args.get("keepdim"))
    return call.build.add(ReduceOp(fn=fn, axes=axes, keepdim=keepdim), x)


def _scan(call: Call, fn: Literal["sum", "prod"]) -> Value | None:
    x = call["self"]
    if not _keeps_dtype(call) or x.type.dtype is not DType.FLOAT32 or x.type.rank == 0:
        return None
    return call.build.add(ScanOp(fn=fn, axis=call["dim"] % x.type.rank), x)


IMPORTERS["cumsum.default"] = partial(_scan, fn="sum")
IMPORTERS["cumprod.default"] = partial(_scan, fn="prod")

_REDUCTIONS: dict[_Reduction, tuple[str, ...]] = {
    "sum": ("sum.default", "sum.dim_IntList"),
    "mean": ("mean.default", "mean.dim"),
    "max": ("max.default", "amax.default"),
    "min": ("min.default", "amin.default"),
    "prod": ("prod.default", "prod.dim_int"),
    "logsumexp": ("logsumexp.default",),
}
for _fn, _overloads in _REDUCTIONS.items():
    IMPORTERS.update(dict.fromkeys(_overloads, partial(_reduce, fn=_fn)))


_Place: TypeAlias = Literal["argmax", "argmin"]


def _arg_reduce(call: Call, fn: _Place) -> Value | None:
    x = call["self"]
    if x.type.dtype is not DType.FLOAT32 or x.type.rank == 0:
        return None
    keepdim, dim = bool(call.args.get("keepdim")), call.args.get("dim")
    if dim is not None:
        return call.build.add(ArgReduceOp(fn=fn, axis=dim % x.type.rank, keepdim=keepdim), x)
    flat = call.build.add(ReshapeOp(shape=(dims.product(x.type.shape),)), x)  # where among all elements
    found = call.build.add(ArgReduceOp(fn=fn, axis=0, keepdim=False), flat)
    return call.build.add(ReshapeOp(shape=call.result.shape), found) if keepdim else found


def _extreme(call: Call, fn: _Reduction, place: _Place) -> Imported:
    """The values, and where they are."""
    value = _reduce(call, fn)
    return value and (value, _arg_reduce(call, place))


IMPORTERS["argmax.default"] = partial(_arg_reduce, fn="argmax")
IMPORTERS["argmin.default"] = partial(_arg_reduce, fn="argmin")
IMPORTERS["max.dim"] = partial(_extreme, fn="max", place="argmax")
IMPORTERS["min.dim"] = partial(_extreme, fn="min", place="argmin")


@register("softmax.int", "_softmax.default", "log_softmax.int", "_log_softmax.default")
def _softmax(call: Call) -> Value | None:
    x = call["self"]
    if not call.plain("half_to_float") or not _keeps_dtype(call) or x.type.rank == 0:
        return None
    return call.build.add(SoftmaxOp(axis=call["dim"] % x.type.rank, log="log" in call["fn"]), x)
