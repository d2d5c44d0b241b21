"""Importers of matrix products, and of what is made of them (einsum, tensordot) or is called one (cross)."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters

from fusegen import dims
from fusegen.dims import Dim
from fusegen.ir import AttentionOp, DType, MatmulOp, PermuteOp, ReduceOp, ResampleOp, ReshapeOp
from fusegen.trace.aten.call import Call, Value, pointwise, register


@register("linear.default")
def _linear(call: Call) -> Value | None:
    x, w, b = call["input"], call["weight"], call["bias"]
    if w.type.rank != 2:
        return None
    return call.build.add(MatmulOp(transposed=True), x, w, *([b] if b is not None else []))


@register("mm.default", "bmm.default", "matmul.default")
def _matmul(call: Call) -> Value | None:
    """A vector is a matrix of one row before others, of one column after them."""
    a, b = call["self"], call["mat2" if "mat2" in call.args else "other"]
    if 1 not in (a.type.rank, b.type.rank):
        return _product(call, a, b)
    row = call.build.add(ReshapeOp(shape=(1, *a.type.shape)), a) if a.type.rank == 1 else a
    column = call.build.add(ReshapeOp(shape=(*b.type.shape, 1)), b) if b.type.rank == 1 else b
    product = _product(call, row, column)
    return product and call.build.add(ReshapeOp(shape=call.result.shape), product)


def _product(call: Call, a: Value, b: Value) -> Value | None:
    """One matrix before many: as ATen does, columns of all of those times its rows, and turned."""
    rank = b.type.rank
    if min(a.type.rank, rank) > 2 and a.type.shape[:-2] != b.type.shape[:-2]:
        return _spread_product(call, a, b)
    if a.type.rank != 2 or rank <= 2:
        return call.build.add(MatmulOp(), a, b)
    swap = PermuteOp(order=(*range(rank - 2), rank - 1, rank - 2))
    return call.build.add(swap, call.build.add(MatmulOp(transposed=True), call.build.add(swap, b), a))


@register("scaled_dot_product_attention.default")
def _attention(call: Call) -> Value | None:
    """Without dropout, and with as many heads of keys as of queries."""
    query, key, value, mask = (call[name] for name in ("query", "key", "value", "attn_mask"))
    inputs = query.type.shape[-1]
    if not isinstance(inputs, int) or query.type.dtype is not DType.FLOAT32 or call["enable_gqa"]:
        return None
    if call["dropout_p"] != 0.0 or len({v.type.rank for v in (query, key, value)}) > 1:
        return None
    scale = float(inputs) ** -0.5 if call["scale"] is None else float(call["scale"])
    op = AttentionOp(scale=scale, causal=call["is_causal"])
    return call.build.add(op, query, key, value, *([] if mask is None else [mask]))


@register("addmm.default", "baddbmm.default")
def _addmm(call: Call) -> Value | None:
    a, b = (call[name] for name in (("mat1", "mat2") if "mat1" in call.args else ("batch1", "batch2")))
    return _added(call, call.build.add(MatmulOp(), a, b))


@register("addbmm.default")
def _addbmm(call: Call) -> Value | None:
    """The sum of products of matrices is one product of them side by side."""
    product = _contracted(call, ["byk", "bkz"], [call["batch1"], call["batch2"]], "yz")
    return product and _added(call, product)


def _added(call: Call, product: Value) -> Value:
    """``beta`` times the call's own tensor, and ``alpha`` times the product."""
    bias: Value = call["self"]
    if call["alpha"] != 1:
        product = pointwise(call, "mul", product, call["alpha"])
    if call["beta"] == 0:
        return product
    if call["beta"] != 1:
        bias = pointwise(call, "mul", bias, call["beta"])
    return pointwise(call, "add", product, bias)


def _arranged(call: Call, value: Value, letters: str, wanted: str) -> Value:
    """``value``, whose axes are ``letters``, with its axes as ``wanted``."""
    order = tuple(letters.index(letter) for letter in wanted)
    return value if letters == wanted else call.build.add(PermuteOp(order=order), value)


def _one_product(call: Call, names: list[str], tensors: Sequence[Value], result: str) -> Value | None:
    """A product of two factors that contracts one axis, the last of the result being an axis of one factor alone."""
    if len(names) != 2 or not result:
        return None
    (w, weight), (x, data) = sorted(zip(names, tensors, strict=True), key=lambda pair: result[-1] not in pair[0])
    contracted = [letter for letter in x if letter in w and letter not in result]
    shared = "".join(letter for letter in result if letter in x and letter in w)
    if len(contracted) != 1 or any(data.type.shape[x.index(a)] != weight.type.shape[w.index(a)] for a in {*x} & {*w}):
        return None
    k, n = contracted[0], result[-1]
    batched = not shared or (result.startswith(shared) and len(result) == len(shared) + 2)
    if n in x or not batched or {*w} != {*shared, k, n} or {*x} != {*result[:-1], k} or len(x) < 2:
        return None
    transposed = w == shared + n + k
    weight = weight if transposed else _arranged(call, weight, w, shared + k + n)
    return call.build.add(MatmulOp(transposed=transposed), _arranged(call, data, x, result[:-1] + k), weight)


def _pair(call: Call, first: tuple[str, Value], second: tuple[str, Value], kept: set[str]) -> tuple[str, Value]:
    """The product of two factors, summed over the letters that are not ``kept``: [batch, rows, columns] of them."""

    def alone(name: str, value: Value, other: str) -> tuple[str, Value]:
        gone = tuple(axis for axis, letter in enumerate(name) if letter not in other and letter not in kept)
        left = "".join(letter for axis, letter in enumerate(name) if axis not in gone)
        return left, call.build.add(ReduceOp(fn="sum", axes=gone, keepdim=False), value) if gone else value

    (a, x), (b, y) = alone(*first, second[0]), alone(*second, first[0])
    size: dict[str, Dim] = {**dict(zip(a, x.type.shape, strict=True)), **dict(zip(b, y.type.shape, strict=True))}
    batch = "".join(letter for letter in a if letter in b and letter in kept)
    inner = "".join(letter for letter in a if letter in b and letter not in kept)
    rows, columns = ("".join(letter for letter in n if letter not in batch + inner) for n in (a, b))
    x, y = _arranged(call, x, a, batch + rows + inner), _arranged(call, y, b, batch + inner + columns)

    def shaped(value: Value, *groups: str) -> Value:
        shape = tuple(dims.product(size[letter] for letter in group) for group in groups)
        return call.build.add(ReshapeOp(shape=shape), value)

    if inner:
        product = call.build.add(MatmulOp(), shaped(x, batch, rows, inner), shaped(y, batch, inner, columns))
        return batch + rows + columns, shaped(product, *batch, *rows, *columns)
    x = shaped(x, *batch, *rows, *[""] * len(columns))
    return batch + rows + columns, pointwise(call, "mul", x, shaped(y, *batch, *[""] * len(rows), *columns))


def _pairs(path: Sequence[int] | None, count: int) -> list[tuple[int, int]]:
    """The factors that are multiplied one after the other, by their places; a product comes after those that are left.

    ``path`` has them where torch found opt_einsum; without it, they are taken from the left.
    """
    if path:
        return list(zip(path[::2], path[1::2], strict=True))
    return [(0, 1), *((last, 0) for last in range(count - 2, 0, -1))]


_BATCH = "abcdefghij"
"""Letters for the axes before those of a matrix."""


def _spread_product(call: Call, a: Value, b: Value) -> Value | None:
    """Matrices that are broadcast: an axis that one factor lacks is one of the other's rows or columns."""
    count = max(a.type.rank, b.type.rank) - 2
    if count > len(_BATCH):
        return None
    batch = _BATCH[:count]

    def named(value: Value, matrix: str) -> tuple[str, Value]:
        letters = batch[count + 2 - value.type.rank :] + matrix
        axes = [(letter, size) for letter, size in zip(letters, value.type.shape, strict=True)]
        kept = [(letter, size) for letter, size in axes if size != 1 or letter in matrix]
        shape = tuple(size for _, size in kept)
        view = value if len(kept) == len(axes) else call.build.add(ReshapeOp(shape=shape), value)
        return "".join(letter for letter, _ in kept), view

    (left, x), (right, y) = named(a, "yk"), named(b, "kz")
    result = "".join(letter for letter in batch if letter in left + right) + "yz"
    product, shape = _contracted(call, [left, right], [x, y], result), call.result.shape
    if product is None or product.type.shape == shape:
        return product
    return call.build.add(ReshapeOp(shape=shape), product)


@register("einsum.default")
def _einsum(call: Call) -> Value | None:
    terms, arrow, result = call["equation"].replace(" ", "").partition("->")
    names = terms.split(",")
    if not arrow or any(not n.isalpha() or len(set(n)) < len(n) for n in (*names, *([result] if result else []))):
        return None
    return _contracted(call, names, call["tensors"], result)


@register("tensordot.default")
def _tensordot(call: Call) -> Value | None:
    """A letter for each axis; those that are summed have one together."""
    a, b = call["self"], call["other"]
    if a.type.rank + b.type.rank > len(ascii_letters):
        return None
    left, right = list(ascii_letters[: a.type.rank]), list(ascii_letters[a.type.rank :][: b.type.rank])
    for i, j in zip(call["dims_self"], call["dims_other"], strict=True):
        right[j] = left[i]
    kept = [[letter for letter in side if letter not in other] for side, other in ((left, right), (right, left))]
    return _contracted(call, ["".join(left), "".join(right)], [a, b], "".join(kept[0] + kept[1]))


@register("cross.default", "linalg_cross.default")
def _cross(call: Call) -> Value | None:
    """Of three elements along an axis, each is the next two's: a1 b2 - a2 b1."""
    a, b, rank = call["self"], call["other"], call["self"].type.rank
    if a.type.dtype is not DType.FLOAT32 or b.type.dtype is not DType.FLOAT32 or rank != b.type.rank:
        return None
    axis = (
        next((i for i, size in enumerate(a.type.shape) if size == 3), 0) if call["dim"] is None else call["dim"] % rank
    )
    if a.type.shape[axis] != 3 or b.type.shape[axis] != 3:
        return None

    def moved(x: Value, places: int) -> Value:
        return call.build.add(ResampleOp(axis=axis, start=places, length=3, edge="wrap"), x)

    products = (pointwise(call, "mul", moved(a, i), moved(b, 3 - i)) for i in (1, 2))
    return pointwise(call, "sub", *products)


def _contracted(call: Call, names: list[str], operands: Sequence[Value], result: str) -> Value | None:
    """One product where it is one, else pairs of factors, as ATen computes it; None where sizes are broadcast."""
    if (value := _one_product(call, names, operands, result)) is not None:
        return value
    sizes: dict[str, Dim] = {}
    for name, value in zip(names, operands, strict=True):
        if any(sizes.setdefault(letter, size) != size for letter, size in zip(name, value.type.shape, strict=True)):
            return None
    if len(names) == 1:
        return None
    left = list(zip(names, operands, strict=True))
    for i, j in _pairs(call.args.get("path"), len(left)):
        pair = left[i], left[j]
        left = [factor for k, factor in enumerate(left) if k not in (i, j)]
        left.append(_pair(call, *pair, set("".join([result, *(name for name, _ in left)]))))
    ((name, value),) = left
    return _arranged(call, value, name, result)
