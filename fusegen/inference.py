"""The type that every structural op computes from the types of its operands."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from fusegen import dims, windows
from fusegen.dims import Dim, Dims
from fusegen.errors import GraphError
from fusegen.ir import (
    GATES,
    INTEGERS,
    WIDE_INTEGERS,
    AdaptivePoolOp,
    ArgReduceOp,
    AttentionOp,
    AxisTapSumOp,
    AxisWindowSumOp,
    CatOp,
    ConstOp,
    ConvOp,
    DType,
    ExpandOp,
    FlipOp,
    GatherElementsOp,
    GatherOp,
    GetItemOp,
    InterpolateOp,
    MatmulOp,
    NormalizeOp,
    PadOp,
    PermuteOp,
    PointwiseOp,
    PoolOp,
    RangeOp,
    RecurrenceOp,
    RecurrentOp,
    ReduceOp,
    RegionOp,
    ResampleOp,
    ReshapeOp,
    ScanOp,
    SliceOp,
    SoftmaxOp,
    TapSumOp,
    TensorType,
    TriangleOp,
    UnfoldOp,
    WindowSumOp,
)
from fusegen.pointwise import POINTWISE

Types = tuple[TensorType, ...]


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


def infer_const(op: ConstOp, types: Types, declared: TensorType) -> TensorType:
    if not isinstance(op.value, str) and isinstance(op.value, int) is not (declared.dtype in INTEGERS):
        raise GraphError(f"a number {op.value!r} of {declared.dtype.value}")
    if declared.dtype in INTEGERS and op.times != 1:
        raise GraphError(f"{op.times} times an integer")
    return declared.replace(shape=())


def infer_range(op: RangeOp, types: Types, declared: TensorType) -> TensorType:
    if op.step == 0 or op.dtype not in (DType.FLOAT32, *WIDE_INTEGERS):
        raise GraphError(f"numbers of {op.dtype.value}, {op.step} apart")
    return TensorType(dtype=op.dtype, shape=(op.length,))


def infer_pointwise(op: PointwiseOp, types: Types, declared: TensorType) -> TensorType:
    row = POINTWISE.get(op.fn)
    if row is None:
        raise GraphError(f"unknown elementwise function {op.fn!r}; known: {', '.join(sorted(POINTWISE))}")
    if len(types) != row.arity:
        raise GraphError(f"{op.fn} takes {row.arity} operands, not {len(types)}")
    values = types[1:] if op.fn == "where" else types
    dtypes = {t.dtype for t in values}
    if len(dtypes) > 1:
        raise GraphError(f"{op.fn} mixes {sorted(d.value for d in dtypes)}")
    (computed,) = dtypes
    if not row.cuda and computed not in INTEGERS:
        raise GraphError(f"{op.fn} of {computed.value}: it is a function of integers")
    dtype = row.converts or (DType.BOOL if row.boolean else computed)
    return TensorType(dtype=dtype, shape=broadcast([t.shape for t in types]))


def infer_reduce(op: ReduceOp, types: Types, declared: TensorType) -> TensorType:
    _check_axes(op.axes, types[0].rank)
    return TensorType(dtype=types[0].dtype, shape=reduced_shape(types[0].shape, op.axes, op.keepdim))


def infer_arg_reduce(op: ArgReduceOp, types: Types, declared: TensorType) -> TensorType:
    _check_axes((op.axis,), types[0].rank)
    return TensorType(dtype=DType.INT64, shape=reduced_shape(types[0].shape, (op.axis,), op.keepdim))


def infer_along(op: SoftmaxOp | ScanOp, types: Types, declared: TensorType) -> TensorType:
    _check_axes((op.axis,), types[0].rank)
    return types[0]


def infer_flip(op: FlipOp, types: Types, declared: TensorType) -> TensorType:
    _check_axes(op.axes, types[0].rank)
    return types[0]


def infer_resample(op: ResampleOp, types: Types, declared: TensorType) -> TensorType:
    _check_axes((op.axis,), types[0].rank)
    if op.step < 1 or op.divisor < 1 or (op.divisor > 1 and op.edge != "hold"):
        raise GraphError(f"a step of {op.step} / {op.divisor} with edges that {op.edge}")
    shape = list(types[0].shape)
    shape[op.axis] = op.length
    return types[0].replace(shape=tuple(shape))


def infer_interpolate(op: InterpolateOp, types: Types, declared: TensorType) -> TensorType:
    _check_axes((op.axis,), types[0].rank)
    if op.align_corners and (op.mode == "nearest" or op.scale is not None):
        raise GraphError("corners are aligned by the sizes alone, and of linear interpolation")
    if op.scale is not None and not op.scale > 0:
        raise GraphError(f"a scale of {op.scale}")
    shape = list(types[0].shape)
    shape[op.axis] = op.length
    return types[0].replace(shape=tuple(shape))


def _check_positions(axis: int, x: TensorType, index: TensorType) -> None:
    _check_axes((axis,), x.rank)
    if index.dtype not in WIDE_INTEGERS:
        raise GraphError(f"positions of type {index.dtype.value}")


def infer_gather(op: GatherOp, types: Types, declared: TensorType) -> TensorType:
    x, index = types
    _check_positions(op.axis, x, index)
    return x.replace(shape=(*x.shape[: op.axis], *index.shape, *x.shape[op.axis + 1 :]))


def infer_gather_elements(op: GatherElementsOp, types: Types, declared: TensorType) -> TensorType:
    x, index = types
    _check_positions(op.axis, x, index)
    beside = zip(x.shape, index.shape, strict=False)
    if index.rank != x.rank or any(n not in (1, size) for own, (size, n) in enumerate(beside) if own != op.axis):
        raise GraphError(f"positions of {index} for elements of {x}")
    return x.replace(shape=(*x.shape[: op.axis], index.shape[op.axis], *x.shape[op.axis + 1 :]))


def infer_unfold(op: UnfoldOp, types: Types, declared: TensorType) -> TensorType:
    _check_axes((op.axis,), types[0].rank)
    if min(op.size, op.step, op.dilation) < 1:
        raise GraphError(f"windows of {op.size} elements, {op.dilation} apart, every {op.step}")
    shape = types[0].shape
    rest = dims.sub(shape[op.axis], op.dilation * (op.size - 1) + 1)
    if isinstance(rest, int) and op.count != (found := rest // op.step + 1 if rest >= 0 else 0):
        raise GraphError(f"{found} windows lie inside, not {op.count}")
    return types[0].replace(shape=(*shape[: op.axis], op.count, op.size, *shape[op.axis + 1 :]))


def infer_normalize(op: NormalizeOp, types: Types, declared: TensorType) -> TensorType:
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


def is_line(op: ConvOp, kernel: tuple[int, ...]) -> bool:
    """Whether positions may lie along one axis, however many."""
    return op.rank > 1 and is_pointwise(op, kernel)


def is_pointwise(op: ConvOp, kernel: tuple[int, ...]) -> bool:
    """Whether a result is of one position of the input, the same."""
    return prod((*kernel, *op.stride)) == 1 and not any((*op.padding, *op.output_padding, *op.behind))


def infer_conv(op: ConvOp, types: Types, declared: TensorType) -> TensorType:
    x, w = types[0], types[1]
    _, outputs = conv_channels(op, x, w)
    if op.behind and (op.transposed or len(op.behind) != op.rank):
        raise GraphError(f"zeros behind the input, {op.behind}, are those of a convolution's {op.rank} axes")
    if len(types) > 2 and types[2].shape != (outputs,):
        raise GraphError(f"bias is {types[2]}, not [{outputs}]")
    spatial = (windows.output_size(op, kernel_size(w), axis, x.shape[2 + axis]) for axis in range(op.rank))
    return TensorType(dtype=x.dtype, shape=(x.shape[0], outputs, *spatial))


def infer_matmul(op: MatmulOp, types: Types, declared: TensorType) -> TensorType:
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


def infer_reshape(op: ReshapeOp, types: Types, declared: TensorType) -> TensorType:
    if dims.product(types[0].shape) != dims.product(op.shape):
        raise GraphError(f"cannot reshape {types[0]} to {op.shape}")
    return TensorType(dtype=types[0].dtype, shape=op.shape)


def infer_permute(op: PermuteOp, types: Types, declared: TensorType) -> TensorType:
    if sorted(op.order) != list(range(types[0].rank)):
        raise GraphError(f"{op.order} is not an order of {types[0].rank} axes")
    return TensorType(dtype=types[0].dtype, shape=tuple(types[0].shape[axis] for axis in op.order))


def infer_expand(op: ExpandOp, types: Types, declared: TensorType) -> TensorType:
    if broadcast([types[0].shape, op.shape]) != op.shape:
        raise GraphError(f"cannot expand {types[0]} to {op.shape}")
    return TensorType(dtype=types[0].dtype, shape=op.shape)


def infer_slice(op: SliceOp, types: Types, declared: TensorType) -> TensorType:
    _check_axes((op.axis,), types[0].rank)
    size, shape = types[0].shape[op.axis], list(types[0].shape)
    if all(isinstance(value, int) for value in (size, op.start, op.length)):
        last = int(op.start) + (int(op.length) - 1) * op.step
        if int(op.start) < 0 or last >= int(size):
            raise GraphError(f"elements {op.start} to {last} of an axis of {size}")
    shape[op.axis] = op.length
    return types[0].replace(shape=tuple(shape))


def infer_cat(op: CatOp, types: Types, declared: TensorType) -> TensorType:
    _check_axes((op.axis,), types[0].rank)
    total: Dim = 0
    for part in types:
        others = [part.shape[: op.axis], part.shape[op.axis + 1 :]]
        if part.dtype != types[0].dtype or others != [types[0].shape[: op.axis], types[0].shape[op.axis + 1 :]]:
            raise GraphError(f"cannot join {types[0]} and {part} along axis {op.axis}")
        total = dims.add(total, part.shape[op.axis])
    return types[0].replace(shape=(*types[0].shape[: op.axis], total, *types[0].shape[op.axis + 1 :]))


def infer_pad(op: PadOp, types: Types, declared: TensorType) -> TensorType:
    if not len(op.before) == len(op.after) == types[0].rank or min((*op.before, *op.after), default=0) < 0:
        raise GraphError(f"cannot pad {types[0]} by {op.before} and {op.after}")
    sizes = zip(types[0].shape, op.before, op.after, strict=True)
    return types[0].replace(shape=tuple(dims.add(size, before + after) for size, before, after in sizes))


def infer_attention(op: AttentionOp, types: Types, declared: TensorType) -> TensorType:
    query, key, value = types[:3]
    lead = query.shape[:-2]
    alike = all(other.shape[:-2] == lead and other.dtype == query.dtype for other in (key, value))
    if not alike or key.shape[-1] != query.shape[-1] or value.shape[-2] != key.shape[-2]:
        raise GraphError(f"no attention of {query}, {key} and {value}")
    return query.replace(shape=(*query.shape[:-1], value.shape[-1]))


def infer_recurrent(op: RecurrentOp, types: Types, declared: TensorType) -> TensorType:
    x, first = types[0], types[1]
    count = op.layers * op.directions * (4 if op.bias else 2)
    if x.rank != 3 or first.rank != 3 or len(types) != 1 + op.states + count:
        raise GraphError(f"no recurrent network of {x} and {first} with {len(types) - 1 - op.states} weights")
    return x.replace(shape=(*x.shape[:2], dims.mul(first.shape[2], op.directions)))


def infer_recurrence(op: RecurrenceOp, types: Types, declared: TensorType) -> TensorType:
    x, weight, _ = op.direction(types, 0)
    wide, units = weight.shape
    if x.rank != 3 or x.shape[2] != wide or wide != dims.mul(units, GATES[op.cell]):
        raise GraphError(f"no {op.cell} layer of {x} and {weight}")
    if len(types) != op.states + op.directions * (3 if op.bias else 2):
        raise GraphError(f"{len(types)} operands of a recurrent layer")
    samples = x.shape[0 if op.batch_first else 1]
    state = (op.directions, samples, units)
    if any(first.shape != state for first in types[: op.states]):
        raise GraphError(f"first states {types[0]} of {state}")
    return x.replace(shape=state if op.result == "cells" else (*x.shape[:2], dims.mul(units, op.directions)))


def infer_triangle(op: TriangleOp, types: Types, declared: TensorType) -> TensorType:
    if types[0].rank < 2:
        raise GraphError(f"{types[0]} is no matrix")
    return types[0]


def pool_size(op: PoolOp, axis: int, size: int) -> int:
    """The result's length on one pooled axis (torch documentation of MaxPool2d, AvgPool2d)."""
    spare = size + 2 * op.padding[axis] - op.dilation[axis] * (op.kernel[axis] - 1) - 1
    count = (-(-spare // op.stride[axis]) if op.ceil else spare // op.stride[axis]) + 1
    begins_inside = (count - 1) * op.stride[axis] < size + op.padding[axis]
    return count if begins_inside or not op.ceil else count - 1


def infer_pool(op: PoolOp | AdaptivePoolOp, types: Types, declared: TensorType) -> TensorType:
    kept = types[0].rank - op.rank
    if kept not in (1, 2) or len(op.size) != op.rank:
        raise GraphError(f"cannot pool {op.rank} axes of {types[0]}")
    if isinstance(op, PoolOp):
        for axis, size in enumerate(types[0].shape[kept:]):
            if isinstance(size, int) and pool_size(op, axis, size) != op.size[axis]:
                raise GraphError(f"pooling makes {pool_size(op, axis, size)} of {size} elements, not {op.size[axis]}")
    return types[0].replace(shape=(*types[0].shape[:kept], *op.size))


def infer_window_sum(op: WindowSumOp, types: Types, declared: TensorType) -> TensorType:
    batch, channels = types[0].shape[:2]
    return TensorType(dtype=types[0].dtype, shape=(batch, channels, windows.window_count(op.conv, op.kernel)))


def infer_tap_sum(op: TapSumOp, types: Types, declared: TensorType) -> TensorType:
    first, second = int(types[0].shape[0]), int(types[0].shape[1])
    groups, count = op.conv.groups, windows.window_count(op.conv, op.kernel)
    shape = (second * groups, first // groups, count) if op.conv.transposed else (first, second, count)
    return TensorType(dtype=types[0].dtype, shape=shape)


def _without(shape: Dims, axis: int) -> Dims:
    """The spatial sizes of ``shape`` but the one of ``axis``."""
    return (*shape[2 : 2 + axis], *shape[3 + axis :])


def infer_axis_window_sum(op: AxisWindowSumOp, types: Types, declared: TensorType) -> TensorType:
    batch, channels, *_ = types[0].shape
    count = len(windows.axis_taps(op.conv, op.kernel, op.axis).windows)
    return types[0].replace(shape=(batch, dims.mul(channels, count), *_without(types[0].shape, op.axis)))


def infer_axis_tap_sum(op: AxisTapSumOp, types: Types, declared: TensorType) -> TensorType:
    first, second = int(types[0].shape[0]), int(types[0].shape[1])
    count = len(windows.axis_taps(op.conv, op.kernel, op.axis).windows)
    channels = (first * count, second) if op.conv.transposed else (first, second * count)
    return types[0].replace(shape=(*channels, *_without(types[0].shape, op.axis)))


def infer_getitem(op: GetItemOp, types: Types, declared: TensorType) -> TensorType:
    return declared  # the eager op's node carries the list; trace checked it


def infer_region(op: RegionOp, types: Types, declared: TensorType) -> TensorType:
    expected = tuple(node.type for node in op.body.inputs)
    if types != expected:
        raise GraphError(f"region takes {', '.join(map(str, expected))}, not {', '.join(map(str, types))}")
    return op.body.node(op.body.outputs[0]).type


def infer_declared(op: Any, types: Types, declared: TensorType) -> TensorType:
    return declared
