"""Importers of sliding windows: what lies in each is read again where it is needed."""

from __future__ import annotations

from fusegen import dims
from fusegen.ir import PadOp, PermuteOp, UnfoldOp
from fusegen.trace.aten.call import Call, Value, register
from fusegen.trace.aten.shapes import reshaped


def _windows(call: Call, x: Value, op: UnfoldOp) -> Value | None:
    """``x`` in windows, where there is one."""
    if min(op.size, op.step) < 1 or not call.build.at_least(x.type.shape[op.axis], op.dilation * (op.size - 1) + 1):
        return None
    return call.build.add(op, x)


@register("unfold.default")
def _unfold(call: Call) -> Value | None:
    x, rank = call["self"], call["self"].type.rank
    if rank == 0 or not isinstance(call["size"], int) or not isinstance(call["step"], int):
        return None
    axis = call["dimension"] % rank
    found = _windows(call, x, UnfoldOp(axis=axis, count=call.result.shape[axis], size=call["size"], step=call["step"]))
    return found and call.build.add(PermuteOp(order=(*range(axis + 1), *range(axis + 2, rank + 1), axis + 1)), found)


@register("im2col.default")
def _im2col(call: Call) -> Value | None:
    """Zeros around the image, windows along both axes, counted in the form that torch has, and their elements as
    channels."""
    x: Value = call["self"]
    if x.type.rank == 3:  # one image without a batch axis
        x = reshaped(call, x, (1, *x.type.shape))
    call.build.not_empty(x.type.shape[1])  # torch says what is wrong
    around = (0, 0, *call["padding"])
    padded = call.build.add(PadOp(before=around, after=around), x) if any(around) else x
    found: Value | None = padded
    for axis in (3, 2):
        size, step, dilation = (call[name][axis - 2] for name in ("kernel_size", "stride", "dilation"))
        rest = dims.sub(padded.type.shape[axis], dilation * (size - 1) + 1)
        count = dims.floordiv(dims.add(rest, step), step)
        op = UnfoldOp(axis=axis, count=count, size=size, step=step, dilation=dilation)
        found = found and _windows(call, found, op)
    if found is None:
        return None
    turned = call.build.add(PermuteOp(order=(0, 1, 3, 5, 2, 4)), found)
    return reshaped(call, turned, call.result.shape)
