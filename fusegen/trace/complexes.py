"""Complex numbers: what is made of real tensors and ends in such is computed of real and imaginary parts.

Fourier transforms and what is done of their results are torch's, and kernels take over where they end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from fusegen.ir import DType, EagerOp, InputOp, ParamOp, TensorType
from fusegen.trace.aten import IMPORTERS, Call, Value, pointwise
from fusegen.trace.draft import Draft

Number: TypeAlias = "Value | float"
Parts: TypeAlias = "tuple[Number, Number]"
"""The real and the imaginary part of a tensor or number."""


def is_complex(node: fx.Node) -> bool:
    """Whether a complex tensor is among what a call reads or computes."""
    values = tree_leaves([node.meta["val"], *(source.meta.get("val") for source in node.all_input_nodes)])
    return any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)


def unchanged(overload: str, named: dict[str, Any]) -> Value | None:
    """What a call would only give back: a slice of all, or what is written over all.

    ``named``: its arguments by name. None for other calls.
    """
    whole = named.get("start") in (None, 0) and named.get("end") in (None, sys.maxsize) and named.get("step") == 1
    found: Value | None = None
    if overload == "slice.Tensor" and whole:
        found = named["self"]
    elif overload == "copy.default" or (overload == "slice_scatter.default" and whole):
        found = named["src"] if named["src"].type == named["self"].type else None
    return found


_MOVING = (
    *("view.default", "reshape.default", "flatten.using_ints", "unsqueeze.default", "squeeze.dim", "expand.default"),
    *("permute.default", "transpose.int", "slice.Tensor", "select.int", "contiguous.default", "clone.default"),
)
"""Ops that move elements: each part of the result is the op of that part."""
_SAME = ("contiguous.default", "clone.default")


class _Arithmetic:
    """Real arithmetic of numbers and tensors. Products with zeros are taken as torch takes them: inf * 0 is NaN."""

    def __init__(self, draft: Draft, result: TensorType):
        self.call = Call(draft, {}, (result,))

    def of(self, fn: str, a: Number, b: Number) -> Number:
        if not isinstance(a, Value) and not isinstance(b, Value):
            return {"add": a + b, "sub": a - b, "mul": a * b}[fn]
        if fn != "mul" and b == 0.0:
            return a
        if (fn == "add" and a == 0.0) or (fn == "mul" and a == 1.0):
            return b
        if fn == "mul" and b == 1.0:
            return a
        return pointwise(self.call, fn, a, b)

    def times(self, x: Parts, y: Parts) -> Parts:
        """``(a + bi)(c + di) = (ac - bd) + (ad + bc)i``"""
        (a, b), (c, d) = x, y
        real = self.of("sub", self.of("mul", a, c), self.of("mul", b, d))
        return real, self.of("add", self.of("mul", a, d), self.of("mul", b, c))

    def each(self, fn: str, x: Parts, y: Parts) -> Parts:
        return self.of(fn, x[0], y[0]), self.of(fn, x[1], y[1])


def _parts(draft: Draft, value: Any) -> Parts | None:
    """Those of an argument; None for a tensor of torch's."""
    if not isinstance(value, Value):
        return (float(value.real), float(value.imag)) if isinstance(value, (int, float, complex)) else None
    if value.type.dtype is DType.FLOAT32:
        return value, 0.0
    if value.type.dtype is not DType.COMPLEX64:
        return None
    if value.name not in draft.parts and isinstance(draft.nodes[value.name].op, (ParamOp, InputOp)):
        pairs = TensorType(dtype=DType.FLOAT32, shape=(*value.type.shape, 2))
        op = EagerOp(target="aten.view_as_real.default", arguments="{0}", results=(pairs,), tuple_result=False)
        draft.parts[value.name] = _of_pairs(draft, draft.emit(f"{value.name}_real", op, (value,), pairs))
    return draft.parts.get(value.name)


def _of_pairs(draft: Draft, pairs: Value) -> tuple[Value, Value]:
    """The parts of what lies side by side along the last axis."""
    part = TensorType(dtype=DType.FLOAT32, shape=pairs.type.shape[:-1])
    found = [_moved(draft, "select.int", {"self": pairs, "dim": -1, "index": i}, part) for i in (0, 1)]
    return found[0], found[1]


def _moved(draft: Draft, overload: str, named: Mapping[str, Any], result: TensorType) -> Value:
    value = IMPORTERS[overload](Call(draft, {"fn": overload.split(".")[0], **named}, (result,)))
    assert isinstance(value, Value)
    return value


def _filled(draft: Draft, part: Value, result: TensorType) -> Value:
    """A part with the result's shape."""
    return part if part.type.shape == result.shape else _moved(draft, "expand.default", {"self": part}, result)


def _by_moving(draft: Draft, overload: str, named: Mapping[str, Any], result: TensorType) -> Parts | None:
    parts = _parts(draft, named["self"])
    if parts is None or not all(isinstance(part, Value) for part in parts):
        return None
    if overload in _SAME:
        return parts
    real, imaginary = (_moved(draft, overload, {**named, "self": part}, result) for part in parts)
    return real, imaginary


def _by_arithmetic(draft: Draft, overload: str, named: Mapping[str, Any], result: TensorType) -> Parts | None:
    fn, work = overload.split(".")[0], _Arithmetic(draft, result)
    x = _parts(draft, named["self"])
    y = _parts(draft, named["other"]) if "other" in named else (0.0, 0.0)
    if x is None or y is None:
        return None
    if fn in ("add", "sub"):
        return work.each(fn, x, y) if named["alpha"] == 1 else None
    if fn == "mul":
        return work.times(x, y)
    return work.each("mul", x, (-1.0 if fn == "neg" else 1.0, -1.0))


def _by_making(draft: Draft, overload: str, named: Mapping[str, Any], result: TensorType) -> Parts | None:
    work = Call(draft, {}, (result,))
    operands = [value for value in named.values() if isinstance(value, Value)]
    if any(value.type.dtype is not DType.FLOAT32 for value in operands):
        return None
    if overload == "view_as_complex.default":
        return _of_pairs(draft, named["self"])
    if overload == "complex.default":
        return named["real"], named["imag"]
    size, angle = named["abs"], named["angle"]
    real, imaginary = (pointwise(work, "mul", size, pointwise(work, fn, angle)) for fn in ("cos", "sin"))
    return real, imaginary


_ROWS: dict[str, Callable[[Draft, str, Mapping[str, Any], TensorType], Parts | None]] = {
    **dict.fromkeys(_MOVING, _by_moving),
    **dict.fromkeys(("add.Tensor", "sub.Tensor", "mul.Tensor", "neg.default"), _by_arithmetic),
    **dict.fromkeys(("_conj.default", "conj.default", "conj_physical.default"), _by_arithmetic),
    **dict.fromkeys(("view_as_complex.default", "complex.default", "polar.default"), _by_making),
}


def in_parts(draft: Draft, overload: str, named: Mapping[str, Any], result: TensorType) -> Value | Parts | None:
    """A call of complex numbers in real arithmetic: a real result, or the parts of a complex one.

    None where it is torch's alone.
    """
    own = result.replace(dtype=DType.FLOAT32)
    if overload in ("view_as_real.default", "real.default", "imag.default", "resolve_conj.default"):
        found = _parts(draft, named["self"])
        if found is None or overload == "resolve_conj.default":
            return found
        tensors = [part if isinstance(part, Value) else None for part in found]
        if overload != "view_as_real.default":
            return tensors[0] if overload == "real.default" else tensors[1]
        if None in tensors:
            return None
        return _moved(draft, "stack.default", {"tensors": tensors, "dim": -1}, own)
    if overload not in _ROWS or result.dtype is not DType.COMPLEX64:
        return None
    parts = _ROWS[overload](draft, overload, named, own)
    if parts is None or not any(isinstance(part, Value) for part in parts):
        return None
    whole = [_filled(draft, part, own) if isinstance(part, Value) else part for part in parts]
    return whole[0], whole[1]
