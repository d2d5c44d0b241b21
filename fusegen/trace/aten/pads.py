"""Importers of padding: with a number, or with what a tensor's own elements come to. It may also cut elements off."""

from __future__ import annotations

from fusegen import dims
from fusegen.ir import Edge, PadOp, ResampleOp, SliceOp
from fusegen.trace.aten.call import Call, Value, register


def _pads(call: Call) -> list[tuple[int, int]] | None:
    """Elements before and behind, axis by axis from the last one on, where they are numbers; fewer than none are cut
    off."""
    pads = list(call["pad"])
    return list(zip(pads[::2], pads[1::2], strict=True)) if all(isinstance(pad, int) for pad in pads) else None


def _within(call: Call, x: Value, axis: int, low: int, high: int) -> Value:
    """``x`` without so many elements at the ends of ``axis``."""
    if not low and not high:
        return x
    length = dims.add(x.type.shape[axis], -low - high)
    call.build.at_least(length, 0)  # torch refuses others
    return call.build.add(SliceOp(axis=axis, start=low, length=length), x)


def _with_number(call: Call) -> Value | None:
    """Cut first, as ATen does, then padded."""
    x: Value = call["self"]
    pads = _pads(call)
    if pads is None:
        return None
    for place, (low, high) in enumerate(pads):
        x = _within(call, x, x.type.rank - 1 - place, max(0, -low), max(0, -high))
    untouched = ((0, 0),) * (x.type.rank - len(pads))
    ends = [(max(0, low), max(0, high)) for low, high in (*untouched, *reversed(pads))]
    if not any(map(any, ends)):
        return x
    before, after = zip(*ends, strict=True)
    return call.build.add(PadOp(before=before, after=after, value=float(call["value"] or 0.0)), x)


_EDGES: dict[str, Edge] = {"replicate": "hold", "reflect": "mirror", "circular": "wrap"}
"""What stands beyond the ends, by torch's names of it."""


def _continued(call: Call, x: Value, axis: int, low: int, high: int) -> Value | None:
    """``x`` between what its own elements come to along ``axis``: ``low`` before it and ``high`` behind it."""
    size, mode = x.type.shape[axis], call["mode"]
    if low < 0 or high < 0:
        return None
    if not low and not high:
        return x
    if not call.build.at_least(size, {"replicate": 1, "circular": max(low, high)}.get(mode, max(low, high) + 1)):
        return None
    return call.build.add(ResampleOp(axis=axis, start=-low, length=dims.add(size, low + high), edge=_EDGES[mode]), x)


@register("pad.default")
def _pad(call: Call) -> Value | None:
    if call["mode"] == "constant":
        return _with_number(call)
    x: Value | None = call["self"]
    pads = _pads(call)
    if pads is None:
        return None
    for place, (low, high) in enumerate(pads):
        x = x and _continued(call, x, x.type.rank - 1 - place, low, high)
    return x


@register("constant_pad_nd.default")
def _pad_constant(call: Call) -> Value | None:
    return _with_number(call)
