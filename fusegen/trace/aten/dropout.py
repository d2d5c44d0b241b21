"""Importers of dropout: nothing where it does not draw; else what it draws is torch's, from torch's generator."""

from __future__ import annotations

from fusegen.ir import EagerOp, FillOp
from fusegen.literals import python_float
from fusegen.trace.aten.call import Call, Value, pointwise, register


def _draws(call: Call) -> bool:
    return bool(call["train"]) and call["p"] != 0


@register("dropout.default", "alpha_dropout.default", "feature_alpha_dropout.default")
def _dropout(call: Call) -> Value | None:
    return None if _draws(call) else call["input"]


@register("feature_dropout.default")
def _feature_dropout(call: Call) -> Value | None:
    """A factor for each channel of each sample, which torch draws as that of a one.

    ATen draws 0 or 1 / (1 - p) for [samples, channels, 1, ...] and multiplies by it (``_dropout_impl`` in Dropout.cpp),
    so the same call on ones of that shape returns what it draws.
    """
    x: Value = call["input"]
    if not _draws(call):
        return x
    if x.type.rank < 2:
        return None
    shape = (*x.type.shape[:2], *(1,) * (x.type.rank - 2))
    for size in x.type.shape[2:]:  # of nothing, ATen draws nothing
        call.build.not_empty(size)
    like = call.build.first_input(x.type.dtype) or x
    ones = call.build.add(FillOp(value=1.0, shape=shape), like)
    drawing = EagerOp(
        target="aten.feature_dropout.default",
        arguments=f"{{0}}, {python_float(call['p'])}, True",
        results=(ones.type,),
        reason="it draws from torch's generator",
    )
    return pointwise(call, "mul", x, call.build.add(drawing, ones))
