"""torch's own operators as the glue calls them: what ``ops.torch_expr`` says in Python, said in C++."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fusegen import dims
from fusegen.dims import Dim, Dims
from fusegen.ir import AttentionOp, ConvOp, MatmulOp, Op, PermuteOp, ReshapeOp, SliceOp
from fusegen.literals import python_float

_NONE = "std::optional<Tensor>()"


def _ints(values: Iterable[Dim]) -> str:
    return f"Ints{{{', '.join(map(dims.cpp, values))}}}"


def _int(value: Dim) -> str:
    return f"int64_t{{{dims.cpp(value)}}}"


def _bool(value: bool) -> str:
    return str(value).lower()


def _aten(name: str, *arguments: str, overload: str = "") -> str:
    return f'aten("aten::{name}", "{overload}", {", ".join(arguments)})'


def _transposed(tensor: str) -> str:
    return _aten("mT", tensor)


def _conv(op: ConvOp, args: Sequence[str]) -> str:
    if op.cropped or any(op.behind):  # several calls of torch's
        return ""
    bias = f"std::optional<Tensor>({args[2]})" if len(args) > 2 else _NONE
    lists = [_ints(values) for values in (op.stride, op.padding, op.dilation)]
    call = (*args[:2], bias, *lists, _bool(op.transposed), _ints(op.output_padding), _int(op.groups))
    if op.precise or op.enlarged:  # its last argument permits TF32
        return _aten("_convolution", *call, *map(_bool, (False, False, True, False)))
    return _aten("convolution", *call)


def _matmul(op: MatmulOp, args: Sequence[str]) -> str:
    a = _transposed(args[0]) if op.left_transposed else args[0]
    if len(args) > 2:
        weight = args[1] if op.transposed else _transposed(args[1])
        return _aten("linear", a, weight, f"std::optional<Tensor>({args[2]})")
    return _aten("matmul", a, _transposed(args[1]) if op.transposed else args[1])


def _attention(op: AttentionOp, args: Sequence[str]) -> str:
    mask = f"std::optional<Tensor>({args[3]})" if len(args) > 3 else _NONE
    scale = f"std::optional<double>({python_float(op.scale)})"
    return _aten("scaled_dot_product_attention", *args[:3], mask, "double{0.0}", _bool(op.causal), scale, _bool(False))


def _slice(op: SliceOp, args: Sequence[str]) -> str:
    stop = dims.add(op.start, dims.mul(op.length, op.step))
    ends = (f"std::optional<int64_t>({dims.cpp(end)})" for end in (op.start, stop))
    return _aten("slice", args[0], _int(op.axis), *ends, _int(op.step), overload="Tensor")


_ROWS: dict[str, Callable[[Any, Sequence[str]], str]] = {
    "conv": _conv,
    "matmul": _matmul,
    "attention": _attention,
    "cat": lambda op, args: _aten("cat", f"Tensors{{{', '.join(args)}}}", _int(op.axis)),
    "reshape": lambda op, args: _aten("reshape", args[0], _ints(op.shape)),
    "permute": lambda op, args: _aten("permute", args[0], _ints(op.order)),
    "slice": _slice,
}


def as_strided(tensor: str, shape: Dims, strides: Dims, offset: Dim) -> str:
    """A view by strides."""
    return _aten("as_strided", tensor, _ints(shape), _ints(strides), f"std::optional<int64_t>({dims.cpp(offset)})")


def expression(op: Op, args: Sequence[str]) -> str:
    """``op`` of the tensors ``args`` as a C++ expression; "" for what the glue does not call."""
    row = _ROWS.get(op.kind)
    return row(op, args) if row else ""


def is_view(op: Op) -> bool:
    """True when torch may give the operand's own memory."""
    return isinstance(op, (ReshapeOp, PermuteOp, SliceOp))
