"""One row per structural op: type inference, meaning in torch, and cost. Elementwise rows: ``pointwise``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fusegen import dims, windows
from fusegen.dims import Dim, Dims
from fusegen.errors import GraphError
from fusegen.ir import (
    AdaptivePoolOp,
    AxisTapSumOp,
    AxisWindowSumOp,
    CatOp,
    ConstOp,
    ConvOp,
    DType,
    EagerOp,
    ExpandOp,
    FlipOp,
    GetItemOp,
    Graph,
    InputOp,
    MatmulOp,
    Node,
    NormalizeOp,
    Op,
    PadOp,
    ParamOp,
    PermuteOp,
    PointwiseOp,
    PoolOp,
    ReduceOp,
    RegionOp,
    ReshapeOp,
    ScanOp,
    SliceOp,
    SoftmaxOp,
    TapSumOp,
    TensorType,
    WindowSumOp,
)
from fusegen.literals import python_float
from fusegen.pointwise import POINTWISE

Types = tuple[TensorType, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class OpRow:
    """``infer(op, operand types, declared type)``; ``torch(op, operand texts)`` is a Python expression;
    ``flops(op, operand shapes, result shape)`` counts additions and multiplications. ``flattens(op)``:
    large differences between operands can become small ones between results."""

    infer: Callable[[Any, Types, TensorType], TensorType]
    torch: Callable[[Any, Sequence[str]], str]
    flops: Callable[[Any, Sequence[Shape], Shape], int] = lambda op, operands, result: 0
    flattens: Callable[[Any], bool] = lambda op: False


def broadcast(shapes: Sequence[Dims]) -> Dims:
    """The broadcast of ``shapes``. Raises ``GraphError`` when two sizes are neither equal nor 1."""
    rank = max(map(len, shapes), default=0)
    result: list[Dim] = []
    for axis in range(rank):
        sizes = {shape[axis - rank + len(shape)] for shape in shapes if axis - rank + len(shape) >= 0} - {1}
        if len(sizes) > 1:
            raise GraphError(f"sizes {sorted(map(str, sizes))} on axis {axis} do not broadcast")
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def reduced_shape(shape: Dims, axes: Sequence[int], keepdim: bool) -> Dims:
    """``shape`` with ``axes`` removed, or set to 1 when ``keepdim``."""
    kept = [1 if axis in axes else size for axis, size in enumerate(shape) if keepdim or axis not in axes]
    return tuple(kept)


def _check_axes(axes: Sequence[int], rank: int) -> None:
    if list(axes) != sorted(set(axes)) or any(not 0 <= axis < rank for axis in axes):
        raise GraphError(f"axes {tuple(axes)} are not sorted, distinct axes of a rank-{rank} tensor")


def _infer_pointwise(op: PointwiseOp, types: Types, declared: TensorType) -> TensorType:
    row = POINTWISE.get(op.fn)
    if row is None:
        raise GraphError(f"unknown elementwise function {op.fn!r}; known: {', '.join(sorted(POINTWISE))}")
    if len(types) != row.arity:
        raise GraphError(f"{op.fn} takes {row.arity} operands, not {len(types)}")
    values = types[1:] if op.fn == "where" else types
    dtypes = {t.dtype for t in values}
    if len(dtypes) > 1:
        raise GraphError(f"{op.fn} mixes {sorted(d.value for d in dtypes)}")
    dtype = DType.BOOL if row.boolean else dtypes.pop()
    return TensorType(dtype=dtype, shape=broadcast([t.shape for t in types]))


def _infer_reduce(op: ReduceOp, types: Types, declared: TensorType) -> TensorType:
    _check_axes(op.axes, types[0].rank)
    return TensorType(dtype=types[0].dtype, shape=reduced_shape(types[0].shape, op.axes, op.keepdim))


def _infer_along(op: SoftmaxOp | ScanOp, types: Types, declared: TensorType) -> TensorType:
    _check_axes((op.axis,), types[0].rank)
    return types[0]


def _infer_flip(op: FlipOp, types: Types, declared: TensorType) -> TensorType:
    _check_axes(op.axes, types[0].rank)
    return types[0]


def _infer_normalize(op: NormalizeOp, types: Types, declared: TensorType) -> TensorType:
    _check_axes(op.axes, types[0].rank)
    if broadcast([t.shape for t in types]) != types[0].shape:
        raise GraphError(f"scale and shift {', '.join(map(str, types[1:]))} do not broadcast to {types[0]}")
    return types[0]


def conv_channels(op: ConvOp, x: TensorType, w: TensorType) -> tuple[int, int]:
    """(input channels, output channels) of a convolution, checked. Raises ``GraphError``."""
    if x.rank != op.rank + 2 or w.rank != op.rank + 2:
        raise GraphError(f"a {op.rank}-d convolution of ranks {x.rank} and {w.rank}")
    if any(not isinstance(size, int) for size in (x.shape[1], *w.shape)):
        raise GraphError("channel and kernel sizes of a convolution must be constants")
    first, second = int(w.shape[0]), int(w.shape[1])
    inputs, outputs = (first, second * op.groups) if op.transposed else (second * op.groups, first)
    if x.shape[1] != inputs or outputs % op.groups or inputs % op.groups:
        raise GraphError(f"input has {x.shape[1]} channels, weight {w} with groups={op.groups} wants {inputs}")
    return inputs, outputs


def group_channels(op: ConvOp, x: TensorType, w: TensorType) -> tuple[int, int]:
    """The same of one group."""
    inputs, outputs = conv_channels(op, x, w)
    return inputs // op.groups, outputs // op.groups


def kernel_size(w: TensorType) -> tuple[int, ...]:
    """The kernel extents of a convolution weight."""
    return tuple(int(size) for size in w.shape[2:])


def _infer_conv(op: ConvOp, types: Types, declared: TensorType) -> TensorType:
    x, w = types[0], types[1]
    _, outputs = conv_channels(op, x, w)
    if len(types) > 2 and types[2].shape != (outputs,):
        raise GraphError(f"bias is {types[2]}, not [{outputs}]")
    spatial = (windows.output_size(op, kernel_size(w), axis, x.shape[2 + axis]) for axis in range(op.rank))
    return TensorType(dtype=x.dtype, shape=(x.shape[0], outputs, *spatial))


def _infer_matmul(op: MatmulOp, types: Types, declared: TensorType) -> TensorType:
    a, b = types[0], types[1]
    if a.rank < 2 or b.rank not in (2, a.rank) or (b.rank > 2 and a.shape[:-2] != b.shape[:-2]):
        raise GraphError(f"no matrix product of {a} and {b}")
    rows, inputs = (a.shape[-1], a.shape[-2]) if op.left_transposed else a.shape[-2:]
    length, columns = (b.shape[-1], b.shape[-2]) if op.transposed else b.shape[-2:]
    if inputs != length or a.dtype != b.dtype:
        raise GraphError(f"no matrix product of {a} and {b}: {inputs} columns against {length} rows")
    if len(types) > 2 and types[2].shape != (columns,):
        raise GraphError(f"bias is {types[2]}, not [{columns}]")
    return TensorType(dtype=a.dtype, shape=(*a.shape[:-2], rows, columns))


def _infer_reshape(op: ReshapeOp, types: Types, declared: TensorType) -> TensorType:
    if dims.product(types[0].shape) != dims.product(op.shape):
        raise GraphError(f"cannot reshape {types[0]} to {op.shape}")
    return TensorType(dtype=types[0].dtype, shape=op.shape)


def _infer_permute(op: PermuteOp, types: Types, declared: TensorType) -> TensorType:
    if sorted(op.order) != list(range(types[0].rank)):
        raise GraphError(f"{op.order} is not an order of {types[0].rank} axes")
    return TensorType(dtype=types[0].dtype, shape=tuple(types[0].shape[axis] for axis in op.order))


def _infer_expand(op: ExpandOp, types: Types, declared: TensorType) -> TensorType:
    if broadcast([types[0].shape, op.shape]) != op.shape:
        raise GraphError(f"cannot expand {types[0]} to {op.shape}")
    return TensorType(dtype=types[0].dtype, shape=op.shape)


def _infer_slice(op: SliceOp, types: Types, declared: TensorType) -> TensorType:
    _check_axes((op.axis,), types[0].rank)
    size, shape = types[0].shape[op.axis], list(types[0].shape)
    if all(isinstance(value, int) for value in (size, op.start, op.length)):
        last = int(op.start) + (int(op.length) - 1) * op.step
        if int(op.start) < 0 or last >= int(size):
            raise GraphError(f"elements {op.start} to {last} of an axis of {size}")
    shape[op.axis] = op.length
    return types[0].replace(shape=tuple(shape))


def _infer_cat(op: CatOp, types: Types, declared: TensorType) -> TensorType:
    _check_axes((op.axis,), types[0].rank)
    total: Dim = 0
    for part in types:
        others = [part.shape[: op.axis], part.shape[op.axis + 1 :]]
        if part.dtype != types[0].dtype or others != [types[0].shape[: op.axis], types[0].shape[op.axis + 1 :]]:
            raise GraphError(f"cannot join {types[0]} and {part} along axis {op.axis}")
        total = dims.add(total, part.shape[op.axis])
    return types[0].replace(shape=(*types[0].shape[: op.axis], total, *types[0].shape[op.axis + 1 :]))


def _infer_pad(op: PadOp, types: Types, declared: TensorType) -> TensorType:
    if not len(op.before) == len(op.after) == types[0].rank or min((*op.before, *op.after), default=0) < 0:
        raise GraphError(f"cannot pad {types[0]} by {op.before} and {op.after}")
    sizes = zip(types[0].shape, op.before, op.after, strict=True)
    return types[0].replace(shape=tuple(dims.add(size, before + after) for size, before, after in sizes))


def pool_size(op: PoolOp, axis: int, size: int) -> int:
    """The result's length on one pooled axis (torch documentation of MaxPool2d, AvgPool2d)."""
    spare = size + 2 * op.padding[axis] - op.dilation[axis] * (op.kernel[axis] - 1) - 1
    count = (-(-spare // op.stride[axis]) if op.ceil else spare // op.stride[axis]) + 1
    begins_inside = (count - 1) * op.stride[axis] < size + op.padding[axis]
    return count if begins_inside or not op.ceil else count - 1


def _infer_pool(op: PoolOp | AdaptivePoolOp, types: Types, declared: TensorType) -> TensorType:
    kept = types[0].rank - op.rank
    if kept not in (1, 2) or len(op.size) != op.rank:
        raise GraphError(f"cannot pool {op.rank} axes of {types[0]}")
    if isinstance(op, PoolOp):
        for axis, size in enumerate(types[0].shape[kept:]):
            if isinstance(size, int) and pool_size(op, axis, size) != op.size[axis]:
                raise GraphError(f"pooling makes {pool_size(op, axis, size)} of {size} elements, not {op.size[axis]}")
    return types[0].replace(shape=(*types[0].shape[:kept], *op.size))


def _infer_window_sum(op: WindowSumOp, types: Types, declared: TensorType) -> TensorType:
    batch, channels = types[0].shape[:2]
    return TensorType(dtype=types[0].dtype, shape=(batch, channels, windows.window_count(op.conv, op.kernel)))


def _infer_tap_sum(op: TapSumOp, types: Types, declared: TensorType) -> TensorType:
    first, second = int(types[0].shape[0]), int(types[0].shape[1])
    groups, count = op.conv.groups, windows.window_count(op.conv, op.kernel)
    shape = (second * groups, first // groups, count) if op.conv.transposed else (first, second, count)
    return TensorType(dtype=types[0].dtype, shape=shape)


def _without(shape: Dims, axis: int) -> Dims:
    """The spatial sizes of ``shape`` but the one of ``axis``."""
    return (*shape[2 : 2 + axis], *shape[3 + axis :])


def _infer_axis_window_sum(op: AxisWindowSumOp, types: Types, declared: TensorType) -> TensorType:
    batch, channels, *_ = types[0].shape
    count = len(windows.axis_taps(op.conv, op.kernel, op.axis).windows)
    return types[0].replace(shape=(batch, dims.mul(channels, count), *_without(types[0].shape, op.axis)))


def _infer_axis_tap_sum(op: AxisTapSumOp, types: Types, declared: TensorType) -> TensorType:
    first, second = int(types[0].shape[0]), int(types[0].shape[1])
    count = len(windows.axis_taps(op.conv, op.kernel, op.axis).windows)
    channels = (first * count, second) if op.conv.transposed else (first, second * count)
    return types[0].replace(shape=(*channels, *_without(types[0].shape, op.axis)))


def _infer_getitem(op: GetItemOp, types: Types, declared: TensorType) -> TensorType:
    return declared  # the eager op's node carries the list; trace checked it


def _infer_region(op: RegionOp, types: Types, declared: TensorType) -> TensorType:
    expected = tuple(node.type for node in op.body.inputs)
    if types != expected:
        raise GraphError(f"region takes {', '.join(map(str, expected))}, not {', '.join(map(str, types))}")
    return op.body.node(op.body.outputs[0]).type


def _declared(op: Any, types: Types, declared: TensorType) -> TensorType:
    return declared


def _size_list(shape: Dims) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _torch_slice(op: SliceOp, args: Sequence[str]) -> str:
    stop = dims.add(op.start, dims.mul(op.length, op.step))
    return f"{args[0]}[{':, ' * op.axis}{op.start}:{stop}:{op.step}]"


def _torch_pad(op: PadOp, args: Sequence[str]) -> str:
    pads = [pad for pair in zip(reversed(op.before), reversed(op.after), strict=True) for pad in pair]
    return f"torch.nn.functional.pad({args[0]}, {pads}, value={python_float(op.value)})"


def _torch_pool(op: PoolOp, args: Sequence[str]) -> str:
    options = f"{op.kernel}, {op.stride}, {op.padding}, "
    if op.fn == "max":
        return f"torch.nn.functional.max_pool{op.rank}d({args[0]}, {options}{op.dilation}, ceil_mode={op.ceil})"
    options += f"ceil_mode={op.ceil}, count_include_pad={op.count_include_pad}"
    if op.divisor is not None:
        options += f", divisor_override={op.divisor}"
    return f"torch.nn.functional.avg_pool{op.rank}d({args[0]}, {options})"


def _torch_adaptive_pool(op: AdaptivePoolOp, args: Sequence[str]) -> str:
    name = {"max": "max", "mean": "avg"}[op.fn]
    return f"torch.nn.functional.adaptive_{name}_pool{op.rank}d({args[0]}, {_size_list(op.size)})"


def _torch_const(op: ConstOp, args: Sequence[str]) -> str:
    if isinstance(op.value, str):
        return f"({op.value})"
    return python_float(op.value)


def _torch_normalize(op: NormalizeOp, args: Sequence[str]) -> str:
    x, axes, eps = args[0], list(op.axes), python_float(op.eps)
    if op.center:
        var = f"torch.var({x}, dim={axes}, correction=0, keepdim=True)"
        text = f"({x} - torch.mean({x}, dim={axes}, keepdim=True)) * torch.rsqrt({var} + {eps})"
    else:
        text = f"{x} * torch.rsqrt(torch.mean(torch.square({x}), dim={axes}, keepdim=True) + {eps})"
    for applied, operand in zip(("*", "+"), args[1:], strict=False):
        text += f" {applied} {operand}"
    return f"({text})"


_REDUCE_TORCH = {"max": "amax", "min": "amin"}


def _torch_reduce(op: ReduceOp, args: Sequence[str]) -> str:
    if op.fn == "prod":
        text = args[0]
        for axis in reversed(op.axes):
            text = f"torch.prod({text}, dim={axis}, keepdim={op.keepdim})"
        return text
    if op.fn == "var":
        return f"torch.var({args[0]}, dim={list(op.axes)}, correction=0, keepdim={op.keepdim})"
    if op.fn == "max" or op.fn == "min" or op.axes:
        name = _REDUCE_TORCH.get(op.fn, op.fn)
        return f"torch.{name}({args[0]}, dim={list(op.axes)}, keepdim={op.keepdim})"
    return args[0]


SCAN_STARTS = {"sum": 0.0, "prod": 1.0}
"""What a scan begins with."""


def _torch_scan(op: ScanOp, args: Sequence[str]) -> str:
    """An exclusive scan begins with one more element, in place of the last."""
    text = f"torch.flip({args[0]}, [{op.axis}])" if op.reverse else args[0]
    text = f"torch.cum{op.fn}({text}, dim={op.axis})"
    if op.exclusive:
        last = f"torch.movedim({text}, {op.axis}, -1)"
        text = f"torch.nn.functional.pad({last}, (1, -1), value={SCAN_STARTS[op.fn]}).movedim(-1, {op.axis})"
    return f"torch.flip({text}, [{op.axis}])" if op.reverse else text


def _torch_conv(op: ConvOp, args: Sequence[str]) -> str:
    bias = args[2] if len(args) > 2 else "None"
    if op.precise:  # the one form of the call that names the precision: its last argument permits TF32
        lists = [str(list(values)) for values in (op.stride, op.padding, op.dilation)]
        shape = f"{', '.join(lists)}, {op.transposed}, {list(op.output_padding)}, {op.groups}"
        return f"torch.ops.aten._convolution.default({args[0]}, {args[1]}, {bias}, {shape}, False, False, True, False)"
    options = f"stride={op.stride}, padding={op.padding}, "
    if op.transposed:
        options += f"output_padding={op.output_padding}, "
    options += f"groups={op.groups}, dilation={op.dilation}"
    name = f"conv_transpose{op.rank}d" if op.transposed else f"conv{op.rank}d"
    return f"torch.nn.functional.{name}({args[0]}, {args[1]}, {bias}, {options})"


def _torch_matmul(op: MatmulOp, args: Sequence[str]) -> str:
    a = f"{args[0]}.mT" if op.left_transposed else args[0]
    if len(args) > 2:
        weight = args[1] if op.transposed else f"{args[1]}.mT"
        return f"torch.nn.functional.linear({a}, {weight}, {args[2]})"
    return f"torch.matmul({a}, {args[1]}{'.mT' if op.transposed else ''})"


def _flops_conv(op: ConvOp, operands: Sequence[Shape], result: Shape) -> int:
    weight = operands[1]
    positions = math.prod(operands[0][2:]) if op.transposed else math.prod(result[2:])
    channels = operands[0][1] if op.transposed else result[1]
    return 2 * result[0] * positions * channels * math.prod(weight[1:])


ROWS: dict[str, OpRow] = {
    "input": OpRow(_declared, lambda op, args: f"x{op.position}"),
    "param": OpRow(_declared, lambda op, args: f"params[{op.path!r}]"),
    "const": OpRow(
        lambda op, types, declared: declared.replace(shape=()),
        _torch_const,
    ),
    "pointwise": OpRow(
        _infer_pointwise,
        lambda op, args: POINTWISE[op.fn].torch.format(*args),
        lambda op, operands, result: POINTWISE[op.fn].flops * math.prod(result),
        lambda op: POINTWISE[op.fn].flattens or POINTWISE[op.fn].boolean,
    ),
    "reduce": OpRow(
        _infer_reduce,
        _torch_reduce,
        lambda op, operands, result: (4 if op.fn == "var" else 1) * math.prod(operands[0]),
    ),
    "scan": OpRow(_infer_along, _torch_scan, lambda op, operands, result: math.prod(result)),
    "flip": OpRow(_infer_flip, lambda op, args: f"torch.flip({args[0]}, {list(op.axes)})"),
    "softmax": OpRow(
        _infer_along,
        lambda op, args: f"torch.{'log_' if op.log else ''}softmax({args[0]}, dim={op.axis})",
        lambda op, operands, result: 8 * math.prod(result),
        lambda op: not op.log,
    ),
    "normalize": OpRow(_infer_normalize, _torch_normalize, lambda op, operands, result: 8 * math.prod(result)),
    "conv": OpRow(_infer_conv, _torch_conv, _flops_conv),
    "matmul": OpRow(
        _infer_matmul,
        _torch_matmul,
        lambda op, operands, result: 2 * math.prod(result) * operands[0][-2 if op.left_transposed else -1],
    ),
    "reshape": OpRow(_infer_reshape, lambda op, args: f"torch.reshape({args[0]}, {_size_list(op.shape)})"),
    "permute": OpRow(_infer_permute, lambda op, args: f"torch.permute({args[0]}, {list(op.order)})"),
    "expand": OpRow(_infer_expand, lambda op, args: f"torch.broadcast_to({args[0]}, {_size_list(op.shape)})"),
    "slice": OpRow(_infer_slice, _torch_slice),
    "cat": OpRow(_infer_cat, lambda op, args: f"torch.cat([{', '.join(args)}], dim={op.axis})"),
    "pad": OpRow(_infer_pad, _torch_pad),
    "fill": OpRow(
        lambda op, types, declared: types[0].replace(shape=op.shape),
        lambda op, args: f"{args[0]}.new_full({_size_list(op.shape)}, {python_float(op.value)})",
    ),
    "pool": OpRow(_infer_pool, _torch_pool, lambda op, operands, result: math.prod(op.kernel) * math.prod(result)),
    "adaptive_pool": OpRow(_infer_pool, _torch_adaptive_pool, lambda op, operands, result: math.prod(operands[0])),
    "window_sum": OpRow(
        _infer_window_sum,
        lambda op, args: f"windows.window_sum({args[0]}, {op!r})",
        lambda op, operands, result: math.prod(operands[0]),
    ),
    "tap_sum": OpRow(
        _infer_tap_sum,
        lambda op, args: f"windows.tap_sum({args[0]}, {op!r})",
        lambda op, operands, result: math.prod(operands[0]),
    ),
    "axis_window_sum": OpRow(
        _infer_axis_window_sum,
        lambda op, args: f"windows.axis_window_sum({args[0]}, {op!r})",
        lambda op, operands, result: math.prod(operands[0]),
    ),
    "axis_tap_sum": OpRow(
        _infer_axis_tap_sum,
        lambda op, args: f"windows.axis_tap_sum({args[0]}, {op!r})",
        lambda op, operands, result: math.prod(operands[0]),
    ),
    "eager": OpRow(
        _declared,
        lambda op, args: f"torch.ops.{op.target}({op.arguments.format(*args)})",
        lambda op, operands, result: math.prod(result),
    ),
    "getitem": OpRow(_infer_getitem, lambda op, args: f"{args[0]}[{op.index}]"),
    "region": OpRow(_infer_region, lambda op, args: f"region({', '.join(args)})"),
}


def infer(op: Op, types: Types, declared: TensorType) -> TensorType:
    """The type that ``op`` computes from operands of ``types``. Raises ``GraphError``.

    Leaves (inputs, parameters, eager ops) compute what they are declared to.
    """
    return ROWS[op.kind].infer(op, types, declared)


def flops(graph: Graph, node: Node) -> int:
    """Additions, multiplications and the like of a node at the traced sizes."""
    operands = [graph.shape(name) for name in node.inputs]
    return ROWS[node.op.kind].flops(node.op, operands, graph.shape(node.name))


def torch_expr(op: Op, args: Sequence[str]) -> str:
    """A Python expression for ``op`` on operand texts ``args`` (names x0.., params, windows in scope)."""
    return ROWS[op.kind].torch(op, args)


def flattens(op: Op) -> bool:
    """True when ``op`` can hide an error of its operand: softmax, bounded functions, clamps."""
    return ROWS[op.kind].flattens(op)


def is_leaf(op: Op) -> bool:
    """True for values that exist before the graph runs: inputs, parameters and scalars."""
    return isinstance(op, (InputOp, ParamOp, ConstOp))


def is_heavy(op: Op) -> bool:
    """True for ops that torch's libraries compute when no template does."""
    return isinstance(op, (ConvOp, MatmulOp, EagerOp))
