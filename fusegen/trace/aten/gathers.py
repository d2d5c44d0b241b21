"""Importers of ops that fetch what a tensor of whole numbers names."""

from __future__ import annotations

from dataclasses import replace

from fusegen import dims
from fusegen.dims import Dim
from fusegen.ir import WIDE_INTEGERS, DType, GatherElementsOp, GatherOp, RangeOp, ReshapeOp, SliceOp
from fusegen.trace.aten.call import Call, Value, converted, pointwise, register
from fusegen.trace.aten.shapes import reshaped


def _neighbours(call: Call, index: Value, axis: int, size: Dim) -> SliceOp | None:
    """The part of ``axis`` that ``index`` names, if it is a range within the axis' size, which calls are held to."""
    op, operands = call.build.made_by(index)
    while isinstance(op, ReshapeOp):
        op, operands = call.build.made_by(operands[0])
    if not isinstance(op, RangeOp) or op.step < 1 or (isinstance(op.start, int) and op.start < 0):
        return None
    end = dims.add(op.start, dims.sub(dims.mul(op.length, op.step), op.step - 1))
    found = SliceOp(axis=axis, start=op.start, length=op.length, step=op.step)
    return found if call.build.at_least(size, end) else None


def _gathered(call: Call, x: Value, index: Value, axis: int, wraps: bool = False) -> Value | None:
    if index.type.dtype not in WIDE_INTEGERS or not x.type.rank:
        return None
    if part := _neighbours(call, index, axis, x.type.shape[axis]):
        return reshaped(call, call.build.add(part, x), call.result.shape)
    return call.build.add(GatherOp(axis=axis, wraps=wraps), x, index)


@register("embedding.default")
def _embedding(call: Call) -> Value | None:
    """What is padded, and how gradients are scaled, says nothing of the result."""
    return _gathered(call, call["weight"], call["indices"], 0)


@register("index_select.default")
def _index_select(call: Call) -> Value | None:
    x, index = call["self"], call["index"]
    return _gathered(call, x, index, call["dim"] % max(x.type.rank, 1)) if index.type.rank == 1 else None


def _is_every_place(call: Call, index: Value, size: Dim, axis: int, rank: int) -> bool:
    """Whether ``index``, one of several of ``rank`` axes together, is ``arange(size)`` along one of them."""
    op, operands = call.build.made_by(index)
    while isinstance(op, ReshapeOp):
        op, operands = call.build.made_by(operands[0])
    lies = tuple(size if own == axis else 1 for own in range(rank))
    along = (1,) * (rank - index.type.rank) + index.type.shape
    return isinstance(op, RangeOp) and (op.start, op.step, op.length) == (0, 1, size) and along == lies


def _in_every_place(call: Call, x: Value, first: int, indices: list[Value]) -> Value | None:
    """``x[arange(n)[:, None], arange(m), index]``: in every place of some axes, an element of the one behind them."""
    *places, index = indices
    rank, sizes = index.type.rank, x.type.shape[first : first + len(places)]
    every = all(_is_every_place(call, own, sizes[i], i, rank) for i, own in enumerate(places))
    if not every or rank != len(places) or index.type.dtype not in WIDE_INTEGERS or index.type.shape != sizes:
        return None
    ones = x.type.rank - first - rank
    index = call.build.add(ReshapeOp(shape=(*(1,) * first, *sizes, *(1,) * ones)), index)
    return reshaped(call, call.build.add(GatherElementsOp(axis=first + rank, wraps=True), x, index), call.result.shape)


def _in_joined_places(call: Call, x: Value, first: int, indices: list[Value]) -> Value | None:
    """``x[i, j]``: elements of an axis that joins those of ``i`` and ``j``.

    What lies outside an axis lies behind the joined one, too: it is refused, as torch does.
    """
    if not all(index.type.dtype in WIDE_INTEGERS for index in indices):
        return None
    joined, *others = (converted(call, index, DType.INT64) for index in indices)  # all elements may be many
    places = replace(call, results=(joined.type,))  # whole numbers, whatever is fetched
    length = x.type.shape[first]
    for axis, index in enumerate(others, first + 1):
        size = x.type.shape[axis]
        index = pointwise(
            places, "where", pointwise(places, "lt", index, 0), pointwise(places, "add", index, size), index
        )
        outside = pointwise(places, "or", pointwise(places, "lt", index, 0), pointwise(places, "ge", index, size))
        length = dims.mul(length, size)
        inside = pointwise(places, "add", pointwise(places, "mul", joined, size), index)
        joined = pointwise(places, "where", outside, length, inside)
    shape = (*x.type.shape[:first], length, *x.type.shape[first + len(indices) :])
    return call.build.add(GatherOp(axis=first, wraps=True), reshaped(call, x, shape), joined)


@register("index.Tensor")
def _index(call: Call) -> Value | None:
    """``x[:, index]``: one tensor of whole numbers, or several of axes in a row."""
    given = [(axis, index) for axis, index in enumerate(call["indices"]) if index is not None]
    indices = [index for _, index in given if isinstance(index, Value)]
    first = given[0][0]
    if len(indices) < len(given) or [axis for axis, _ in given] != list(range(first, first + len(given))):
        return None
    if len(indices) > 1:
        in_every_place = _in_every_place(call, call["self"], first, indices)
        return in_every_place or _in_joined_places(call, call["self"], first, indices)
    return _gathered(call, call["self"], indices[0], first, wraps=True)


@register("gather.default", "take_along_dim.default")
def _gather(call: Call) -> Value | None:
    """``torch.gather`` leaves out what lies behind the numbers' own sizes; ``take_along_dim`` spreads numbers."""
    x, axis = call["self"], call["dim"]
    index = call["index"] if "index" in call.args else call["indices"]
    if axis is None or index.type.rank != x.type.rank or not x.type.rank or index.type.dtype not in WIDE_INTEGERS:
        return None
    for own, (size, wanted) in enumerate(zip(x.type.shape, call.result.shape, strict=True)):
        if own == axis % x.type.rank or size == wanted:
            continue
        if not call.build.at_least(size, wanted):
            return None
        x = call.build.add(SliceOp(axis=own, start=0, length=wanted), x)
    return call.build.add(GatherElementsOp(axis=axis % x.type.rank), x, index)
