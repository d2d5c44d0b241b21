"""Importers of ops that move elements and compute nothing."""

from __future__ import annotations

from functools import partial

from fusegen import dims
from fusegen.dims import Dim, Dims
from fusegen.ir import CatOp, ExpandOp, FlipOp, PermuteOp, ResampleOp, ReshapeOp, SliceOp
from fusegen.trace.aten.call import IMPORTERS, Call, Value, axes_of, pointwise, register


def reshaped(call: Call, x: Value, shape: Dims) -> Value:
    """``x`` with the shape ``shape``; itself, where it has that."""
    return x if x.type.shape == shape else call.build.add(ReshapeOp(shape=shape), x)


@register(
    "view.default",
    "reshape.default",
    "_unsafe_view.default",
    "flatten.using_ints",
    "squeeze.default",
    "squeeze.dim",
    "squeeze.dims",
    "unsqueeze.default",
    "unflatten.int",
    "view_as.default",
    "reshape_as.default",
    "ravel.default",
    "atleast_1d.default",
)
def _reshape(call: Call) -> Value | None:
    return reshaped(call, call["self"], call.result.shape)


def _permuted(call: Call, order: list[int]) -> Value:
    return call.build.add(PermuteOp(order=tuple(order)), call["self"])


@register("permute.default")
def _permute(call: Call) -> Value | None:
    return _permuted(call, [axis % call["self"].type.rank for axis in call["dims"]])


def _swapped(call: Call, x: Value, first: int, second: int) -> Value:
    order = list(range(x.type.rank))
    order[first], order[second] = order[second], order[first]
    return call.build.add(PermuteOp(order=tuple(order)), x)


@register("transpose.int", "swapaxes.default", "swapdims.default")
def _transpose(call: Call) -> Value | None:
    rank = call["self"].type.rank
    names = [name for name in call.args if name not in ("self", "fn")]
    return _swapped(call, call["self"], *(call[name] % rank for name in names))


@register("t.default", "numpy_T.default", "mT.default", "adjoint.default")
def _swap_last(call: Call) -> Value | None:
    order = list(range(call["self"].type.rank))
    return _permuted(call, [*order[:-2], *order[:-3:-1]] if len(order) > 1 else order)


@register("movedim.int", "moveaxis.int", "movedim.intlist", "moveaxis.intlist")
def _movedim(call: Call) -> Value | None:
    rank = call["self"].type.rank
    source, target = (
        [axis % rank for axis in (value if isinstance(value, list) else [value])]
        for value in (call["source"], call["destination"])
    )
    left = iter([axis for axis in range(rank) if axis not in source])
    place = dict(zip(target, source, strict=True))
    return _permuted(call, [place[axis] if axis in place else next(left) for axis in range(rank)])


@register("expand.default", "expand_as.default", "broadcast_to.default")
def _expand(call: Call) -> Value | None:
    return call.build.add(ExpandOp(shape=call.result.shape), call.build.as_tensor(call["self"]))


@register("copy.default", "fill.Tensor")
def _copy(call: Call) -> Value | None:
    """What is written over all of a tensor, element by element or one for all."""
    source = call.build.as_tensor(call["src" if "src" in call.args else "value"])
    if source.type.dtype is not call.result.dtype:
        return None
    same = source.type.shape == call.result.shape
    return source if same else call.build.add(ExpandOp(shape=call.result.shape), source)


def spread_apart(call: Call, x: Value, apart: Dims, spread: Dims) -> Value:
    """Copies side by side: along axes that ``apart`` gives size 1, and ``spread`` the number of copies."""
    return reshaped(call, call.build.add(ExpandOp(shape=spread), reshaped(call, x, apart)), call.result.shape)


@register("repeat.default", "tile.default")
def _repeat(call: Call) -> Value | None:
    """Each axis is spread along a new one before it."""
    x, repeats = call["self"], list(call["repeats" if "repeats" in call.args else "dims"])
    shape = [1] * (len(repeats) - x.type.rank) + list(x.type.shape)
    repeats = [1] * (len(shape) - len(repeats)) + repeats
    apart = tuple(d for size in shape for d in (1, size))
    spread = tuple(d for count, size in zip(repeats, shape, strict=True) for d in (count, size))
    return spread_apart(call, x, apart, spread)


@register("repeat_interleave.self_int")
def _repeat_interleave(call: Call) -> Value | None:
    """Each element is spread along a new axis after its own; without an axis, of all elements in a row."""
    x, count = call["self"], call["repeats"]
    if call["dim"] is None:
        x = reshaped(call, x, (dims.product(x.type.shape),))
    if x.type.rank == 0:
        return None
    axis = (call["dim"] or 0) % x.type.rank
    before, after = x.type.shape[: axis + 1], x.type.shape[axis + 1 :]
    return spread_apart(call, x, (*before, 1, *after), (*before, count, *after))


def _reordered(call: Call, apart: Dims, order: tuple[int, ...]) -> Value:
    """The axes that ``apart`` makes of the operand's, in another order, and joined again."""
    return reshaped(
        call, call.build.add(PermuteOp(order=order), reshaped(call, call["self"], apart)), call.result.shape
    )


@register("pixel_shuffle.default")
def _pixel_shuffle(call: Call) -> Value | None:
    x, factor, first = call["self"], call["upscale_factor"], call["self"].type.rank - 3
    lead, (channels, height, width) = x.type.shape[:-3], x.type.shape[-3:]
    groups = dims.floordiv(channels, factor * factor)
    order = (*range(first), first, first + 3, first + 1, first + 4, first + 2)
    return _reordered(call, (*lead, groups, factor, factor, height, width), order)


@register("pixel_unshuffle.default")
def _pixel_unshuffle(call: Call) -> Value | None:
    x, factor, first = call["self"], call["downscale_factor"], call["self"].type.rank - 3
    lead, (channels, height, width) = x.type.shape[:-3], x.type.shape[-3:]
    rows, columns = (dims.floordiv(size, factor) for size in (height, width))
    order = (*range(first), first, first + 2, first + 4, first + 1, first + 3)
    return _reordered(call, (*lead, channels, rows, factor, columns, factor), order)


@register("channel_shuffle.default", "native_channel_shuffle.default")
def _channel_shuffle(call: Call) -> Value | None:
    x, groups = call["self"], call["groups"]
    batch, channels, *rest = x.type.shape
    order = (0, 2, 1, *range(3, x.type.rank + 1))
    return _reordered(call, (batch, groups, dims.floordiv(channels, groups), *rest), order)


@register(
    "clone.default",
    "contiguous.default",
    "alias.default",
    "detach.default",
    "lift_fresh_copy.default",
    "lift.default",
    "positive.default",
)
def _same(call: Call) -> Value | None:
    value: Value = call["self"]
    return value


# --- parts and joins ----------------------------------------------------------------------------


def _part(call: Call, x: Value, axis: int, start: Dim, length: Dim, step: int = 1) -> Value:
    if length == x.type.shape[axis] and step == 1:
        return x
    call.build.at_least(length, 0)  # torch's part is empty where it would end before it begins
    return call.build.add(SliceOp(axis=axis, start=start, length=length, step=step), x)


def _from_start(call: Call, x: Value, axis: int, position: Dim) -> Dim:
    """A position counted from the front, and not outside the axis."""
    size = x.type.shape[axis]
    for numerator in dims.numerators(position):
        call.build.at_least(numerator, 0)
    if not call.build.at_least(position, 0):
        return dims.add(size, position) if call.build.at_least(size, dims.mul(-1, position)) else 0
    if isinstance(position, int):  # what is past a number is the traced length
        return position
    return position if call.build.at_least(size, position) else size


def _start(call: Call, x: Value, axis: int) -> Dim:
    """Where a slice begins."""
    start = _from_start(call, x, axis, 0 if call["start"] is None else call["start"])
    if isinstance(call["end"], str):  # the traced length is of where it lies now
        _from_start(call, x, axis, call["end"])
    return start


@register("slice.Tensor")
def _slice(call: Call) -> Value | None:
    x = call["self"]
    axis = call["dim"] % x.type.rank
    return _part(call, x, axis, _start(call, x, axis), call.result.shape[axis], call["step"])


@register("narrow.default")
def _narrow(call: Call) -> Value | None:
    x = call["self"]
    axis = call["dim"] % x.type.rank
    return _part(call, x, axis, _from_start(call, x, axis, call["start"]), call["length"])


@register("select.int")
def _select(call: Call) -> Value | None:
    x = call["self"]
    axis = call["dim"] % x.type.rank
    part = _part(call, x, axis, _from_start(call, x, axis, call["index"]), 1)
    return reshaped(call, part, call.result.shape)


def _with_part(call: Call, x: Value, axis: int, start: Dim, part: Value) -> Value:
    """``x`` with ``part`` along ``axis``: what is before it, it, and what is after."""
    end = dims.add(start, part.type.shape[axis])
    before, after = ((0, start), (end, dims.sub(x.type.shape[axis], end)))
    pieces = [_part(call, x, axis, *before), part, _part(call, x, axis, *after)]
    pieces = [piece for piece in pieces if piece.type.shape[axis] != 0]
    return call.build.add(CatOp(axis=axis), *pieces) if len(pieces) > 1 else part


@register("slice_scatter.default")
def _slice_scatter(call: Call) -> Value | None:
    """Of every ``step``-th element: a part of an axis of so many, behind the one that is left."""
    x, source, step = call["self"], call["src"], call["step"]
    if source.type.dtype is not x.type.dtype:
        return None
    axis = call["dim"] % x.type.rank
    start = _start(call, x, axis)
    if step == 1:
        return _with_part(call, x, axis, start, source)
    size, count = x.type.shape[axis], source.type.shape[axis]
    if not isinstance(size, int) or not isinstance(start, int) or start >= step or size != step * count:
        return None
    outer, inner = x.type.shape[:axis], x.type.shape[axis + 1 :]
    apart = reshaped(call, x, (*outer, count, step, *inner))
    joined = _with_part(call, apart, axis + 1, start, reshaped(call, source, (*outer, count, 1, *inner)))
    return reshaped(call, joined, x.type.shape)


@register("select_scatter.default")
def _select_scatter(call: Call) -> Value | None:
    x, source = call["self"], call["src"]
    if source.type.dtype is not x.type.dtype:
        return None
    axis = call["dim"] % x.type.rank
    shape = (*x.type.shape[:axis], 1, *x.type.shape[axis + 1 :])
    return _with_part(call, x, axis, _from_start(call, x, axis, call["index"]), reshaped(call, source, shape))


def _split(call: Call, remove_axis: bool) -> tuple[Value, ...] | None:
    """Consecutive parts along one axis, of the sizes that the trace found."""
    x = call["self"]
    axis = call["dim"] % x.type.rank
    parts: list[Value] = []
    start: Dim = 0
    for result in call.results:
        length = 1 if remove_axis else result.shape[axis]
        parts.append(reshaped(call, _part(call, x, axis, start, length), result.shape))
        start = dims.add(start, length)
    return tuple(parts)


for _overload in ("split.Tensor", "split_with_sizes.default", "split.sizes", "chunk.default", "tensor_split.sections"):
    IMPORTERS[_overload] = partial(_split, remove_axis=False)
IMPORTERS["unbind.int"] = partial(_split, remove_axis=True)


@register("roll.default")
def _roll(call: Call) -> Value | None:
    """Every element from where it was."""
    x: Value = call["self"]
    axes = call["dims"]
    if not axes:
        return None
    for shift, axis in zip(call["shifts"], (axis % x.type.rank for axis in axes), strict=True):
        size = x.type.shape[axis]
        if not isinstance(shift, int) or not (isinstance(size, int) or call.build.at_least(size, abs(shift))):
            return None
        shift = shift % size if size and isinstance(size, int) else shift
        if shift:
            x = call.build.add(ResampleOp(axis=axis, start=-shift, length=size, edge="wrap"), x)
    return x


@register("flip.default", "fliplr.default", "flipud.default")
def _flip(call: Call) -> Value | None:
    x: Value = call["self"]
    axes = call.args.get("dims", [int(call["fn"] == "fliplr")])
    return call.build.add(FlipOp(axes=axes_of(axes, x.type.rank)), x) if axes else x


@register("rot90.default")
def _quarter_turns(call: Call) -> Value | None:
    """From one axis towards another: elements along one or both are turned about, and by odd numbers both swapped."""
    x: Value = call["self"]
    turns, (first, second) = call["k"] % 4, (axis % x.type.rank for axis in call["dims"])
    if turns:
        axes = axes_of({1: second, 2: [first, second], 3: first}[turns], x.type.rank)
        x = call.build.add(FlipOp(axes=axes), x)
    return _swapped(call, x, first, second) if turns % 2 else x


@register("glu.default")
def _glu(call: Call) -> Value | None:
    x = call["self"]
    axis = call["dim"] % x.type.rank
    length = call.result.shape[axis]
    value, gate = (_part(call, x, axis, start, length) for start in (0, length))
    return pointwise(call, "mul", value, pointwise(call, "sigmoid", gate))


@register("cat.default", "concat.default", "concatenate.default")
def _cat(call: Call) -> Value | None:
    parts = [part for part in call["tensors"] if part.type.shape != (0,)]  # an old spelling of nothing
    return call.build.add(CatOp(axis=call["dim"] % parts[0].type.rank), *parts) if parts else None


@register("hstack.default", "vstack.default")
def _stack_rows(call: Call) -> Value | None:
    axis = 0 if call["fn"] == "vstack" else 1
    if any(part.type.rank < 2 for part in call["tensors"]):
        return None
    return call.build.add(CatOp(axis=axis), *call["tensors"])


@register("stack.default")
def _stack(call: Call) -> Value | None:
    axis = call["dim"] % call.result.rank
    parts = []
    for part in call["tensors"]:
        shape = (*part.type.shape[:axis], 1, *part.type.shape[axis:])
        parts.append(reshaped(call, part, shape))
    return call.build.add(CatOp(axis=axis), *parts)
