"""Rewrites that remove work without touching a value: identities of shapes, of 1, of size-1 axes."""

from __future__ import annotations

import ctypes
import math
import operator

from fusegen import dims, inference
from fusegen.dims import Dim, Dims
from fusegen.ir import (
    CatOp,
    ConstOp,
    DType,
    ExpandOp,
    FillOp,
    Graph,
    MatmulOp,
    Node,
    NormalizeOp,
    PermuteOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    SliceOp,
    SoftmaxOp,
)
from fusegen.passes.rewrite import Match, Numerics, Outcome, Rule, anything, op, rewrite

VIEWS = (ExpandOp, PermuteOp, ReshapeOp, SliceOp)


def _same_type(m: Match) -> str | None:
    return None if m["x"].type == m.root.type else ""


def _operand(m: Match) -> Node:
    return m["x"]


def _merge_permutes(m: Match) -> Node:
    outer, inner = m.root.op, m["inner"].op
    assert isinstance(outer, PermuteOp)
    assert isinstance(inner, PermuteOp)
    return m.add(PermuteOp(order=tuple(inner.order[axis] for axis in outer.order)), m["x"])


def _is_identity_order(m: Match) -> str | None:
    assert isinstance(m.root.op, PermuteOp)
    return None if m.root.op.order == tuple(range(m.root.type.rank)) else ""


def _unit_axes(m: Match) -> tuple[int, ...]:
    assert isinstance(m.root.op, (NormalizeOp, ReduceOp))
    x = m.graph.node(m.root.inputs[0])
    return tuple(axis for axis in m.root.op.axes if x.type.shape[axis] == 1)


def _normalize_others(m: Match) -> Node:
    norm, unit = m.root.op, _unit_axes(m)
    assert isinstance(norm, NormalizeOp)
    operands = map(m.graph.node, m.root.inputs)
    return m.add(norm.replace(axes=tuple(axis for axis in norm.axes if axis not in unit)), *operands)


def _has_others(m: Match) -> str | None:
    assert isinstance(m.root.op, NormalizeOp)
    return None if 0 < len(_unit_axes(m)) < len(m.root.op.axes) else ""


def _drop_unit_axes(m: Match) -> Node:
    reduce = m.root.op
    assert isinstance(reduce, ReduceOp)
    rest = tuple(axis for axis in reduce.axes if axis not in _unit_axes(m))
    if rest:
        kept = m.add(ReduceOp(fn=reduce.fn, axes=rest, keepdim=True), m["x"])
    else:  # the variance of one value is 0, and NaN for NaN and Inf
        kept = m.add(PointwiseOp(fn="sub"), m["x"], m["x"]) if reduce.fn == "var" else m["x"]
    return m.add(ReshapeOp(shape=m.root.type.shape), kept)


def _softmax_of_one(m: Match) -> Node:
    softmax = m.root.op
    assert isinstance(softmax, SoftmaxOp)
    zero = m.add(PointwiseOp(fn="sub"), m["x"], m["x"])  # NaN for NaN and Inf, as eager
    return zero if softmax.log else m.add(PointwiseOp(fn="add"), zero, m.const(1.0))


def _softmax_axis_is_one(m: Match) -> str | None:
    assert isinstance(m.root.op, SoftmaxOp)
    return None if m["x"].type.shape[m.root.op.axis] == 1 else ""


def transpose(rank: int) -> PermuteOp:
    """A transpose of the last two axes."""
    return PermuteOp(order=(*range(rank - 2), rank - 1, rank - 2))


def swaps_last_axes(permute: Node) -> str | None:
    """A guard: None for such a transpose."""
    return None if permute.op == transpose(permute.type.rank) else ""


def _absorb_transpose(m: Match) -> Node:
    assert isinstance(m.root.op, MatmulOp)
    return m.add(m.root.op.replace(transposed=not m.root.op.transposed), m["a"], m["w"])


def _spread_operand(m: Match) -> tuple[int, Node] | None:
    """The first operand that is spread out for nothing: its place, and what it spreads."""
    operands = [m.graph.node(name) for name in m.root.inputs]
    for place, operand in enumerate(operands):
        others = operands[:place] + operands[place + 1 :]
        source = m.graph.node(operand.inputs[0]) if isinstance(operand.op, ExpandOp) else operand
        if isinstance(operand.op, FillOp):  # numbers are floats: beside integers they would make floats of these
            data = any(not isinstance(other.op, (FillOp, ConstOp)) for other in others)
            data = data and operand.type.dtype is DType.FLOAT32
            shape: Dims = ()
        else:
            data, shape = isinstance(operand.op, ExpandOp), source.type.shape
        same = operand.type.dtype is m.root.type.dtype
        if data and same and inference.broadcast([shape, *(other.type.shape for other in others)]) == m.root.type.shape:
            return place, source
    return None


def _drop_spread(m: Match) -> Node:
    found = _spread_operand(m)
    assert found is not None
    place, source = found
    operands = [m.graph.node(name) for name in m.root.inputs]
    operands[place] = m.const(source.op.value) if isinstance(source.op, FillOp) else source
    return m.add(m.root.op, *operands)


_OF_NUMBERS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}
"""Functions of float32 numbers that are right when computed as doubles and rounded."""


def _float32(value: float) -> float:
    return ctypes.c_float(value).value


def _of_fills(m: Match) -> tuple[Node, float] | None:
    """One of the constant tensors that the root is made of, with numbers alone, and what it is everywhere."""
    assert isinstance(m.root.op, PointwiseOp)
    operands = [m.graph.node(name) for name in m.root.inputs]
    fills = [node for node in operands if isinstance(node.op, FillOp)]
    values = [node.op.value for node in operands if isinstance(node.op, (FillOp, ConstOp))]
    function = _OF_NUMBERS.get(m.root.op.fn)
    alike = all(node.type.dtype is DType.FLOAT32 for node in (m.root, *operands))
    numbers = [_float32(value) for value in values if isinstance(value, float)]
    plain = all(node.op.times == 1.0 for node in operands if isinstance(node.op, ConstOp))
    if not fills or function is None or not alike or not plain or len(numbers) < len(operands):
        return None
    value = function(*(value for value in values if isinstance(value, float)))
    # Doubles, whose roundings are none to the proof, where rounding them alone comes to what eager does.
    return (fills[0], value) if _float32(value) == _float32(function(*numbers)) else None


def _spread_fill(m: Match) -> Node:
    fill = m["x"].op
    assert isinstance(fill, FillOp)
    return _filled(m, m["x"], fill.value)


def _fill_of_fills(m: Match) -> Node:
    found = _of_fills(m)
    assert found is not None
    return _filled(m, *found)


def _filled(m: Match, fill: Node, value: float) -> Node:
    """The root, which has this value everywhere, by way of ``fill``, which says on what device it is."""
    assert isinstance(fill.op, FillOp)
    operands = map(m.graph.node, fill.inputs)
    return m.add(fill.op.replace(value=value, shape=m.root.type.shape), *operands)


def _softmax_of_fill(m: Match) -> str | None:
    softmax, fill = m.root.op, m["x"].op
    assert isinstance(softmax, SoftmaxOp)
    assert isinstance(fill, FillOp)
    size = m.root.type.shape[softmax.axis]
    finite = isinstance(size, int) and 0 < size <= 2**24 and math.isfinite(_float32(fill.value))
    return None if finite and not softmax.log and m.root.type.dtype is DType.FLOAT32 else ""


def _equal_shares(m: Match) -> Node:
    softmax = m.root.op
    assert isinstance(softmax, SoftmaxOp)
    size = m.root.type.shape[softmax.axis]
    assert isinstance(size, int)
    return _filled(m, m["x"], 1.0 / size)


def _moves_only_ones(m: Match) -> str | None:
    """A product takes a transpose as it is, and eager's result is a view."""
    permute = m.root.op
    assert isinstance(permute, PermuteOp)
    moved = [axis for axis in permute.order if m["x"].type.shape[axis] != 1]
    readers = map(m.graph.node, m.graph.users[m.root.name])
    plain = not any(isinstance(reader.op, MatmulOp) for reader in readers) and m.root.name not in m.graph.results
    return None if plain and moved == sorted(moved) else ""


def _own_part(m: Match) -> tuple[Node, Dim] | None:
    """The operand of a concatenation that a slice of it lies in, and where that operand's part begins."""
    part, cat = m.root.op, m["cat"]
    assert isinstance(part, SliceOp)
    assert isinstance(cat.op, CatOp)
    if part.axis != cat.op.axis:
        return None
    begin: Dim = part.start
    for operand in map(m.graph.node, cat.inputs):
        size = operand.type.shape[part.axis]
        if isinstance(begin, int) and begin >= 0:
            last = dims.add(begin, dims.mul(part.step, dims.sub(part.length, 1)))
            left = dims.sub(size, dims.add(last, 1))
            if isinstance(left, int) and left >= 0:
                return operand, begin
        begin = dims.sub(begin, size)
    return None


def _part_of_operand(m: Match) -> Node:
    found = _own_part(m)
    assert found is not None
    assert isinstance(m.root.op, SliceOp)
    operand, begin = found
    return operand if operand.type == m.root.type else m.add(m.root.op.replace(start=begin), operand)


def is_only_read(m: Match) -> str | None:
    """Unless the model returns it, or a view of it: eager's result is a tensor of its own, which may be written to."""
    users, by_name, pending = m.graph.users, m.graph.by_name, [m.root.name]
    while pending:
        name = pending.pop()
        if name in m.graph.results:
            return "a result of the model is no operand of it"
        pending += [user for user in users[name] if isinstance(by_name[user].op, VIEWS)]
    return None


def _is_one(m: Match) -> str | None:
    assert isinstance(m["c"].op, ConstOp)
    return None if m["c"].op.value == 1.0 and m["x"].type == m.root.type else ""


RULES = (
    Rule("reshape(x, shape of x) = x", op(ReshapeOp, anything("x")), _operand, Numerics.EXACT, _same_type),
    Rule("expand(x, shape of x) = x", op(ExpandOp, anything("x")), _operand, Numerics.EXACT, _same_type),
    Rule("permute(x, 0..n-1) = x", op(PermuteOp, anything("x")), _operand, Numerics.EXACT, _is_identity_order),
    Rule(
        "reshape(reshape(x)) = reshape(x)",
        op(ReshapeOp, op(ReshapeOp, anything("x"))),
        lambda m: m.add(m.root.op, m["x"]),
        Numerics.EXACT,
    ),
    Rule(
        "permute(permute(x)) = permute(x)",
        op(PermuteOp, op(PermuteOp, anything("x"), name="inner")),
        _merge_permutes,
        Numerics.EXACT,
    ),
    Rule(
        "reduce(x) over size-1 axes = reshape(x)",
        op(ReduceOp, anything("x")),
        _drop_unit_axes,
        Numerics.EXACT,
        lambda m: None if _unit_axes(m) else "",
    ),
    Rule(
        "normalize(x) over size-1 axes too = normalize(x) over the others",
        op(NormalizeOp),
        _normalize_others,
        Numerics.EXACT,
        _has_others,
    ),
    Rule(
        "softmax(x) over a size-1 axis = x - x + 1",
        op(SoftmaxOp, anything("x")),
        _softmax_of_one,
        Numerics.EXACT,
        _softmax_axis_is_one,
    ),
    Rule(
        "matmul(a, transpose(w)) = matmul(a, w) with w's axes swapped",
        op(MatmulOp, anything("a"), op(PermuteOp, anything("w"), name="b")),
        _absorb_transpose,
        Numerics.EXACT,
        lambda m: swaps_last_axes(m["b"]),
    ),
    Rule(
        "f(x, expand(c)) = f(x, c)",
        op(PointwiseOp),
        _drop_spread,
        Numerics.EXACT,
        lambda m: None if _spread_operand(m) else "",
    ),
    Rule(
        "slice(cat(x, y)) = slice(x),  where it lies in x",
        op(SliceOp, op(CatOp, name="cat")),
        _part_of_operand,
        Numerics.EXACT,
        lambda m: None if _own_part(m) else "",
    ),
    Rule("cat(x) = x", op(CatOp, anything("x")), _operand, Numerics.EXACT, is_only_read),
    Rule(
        "expand(fill) = fill",
        op(ExpandOp, op(FillOp, name="x")),
        _spread_fill,
        Numerics.EXACT,
    ),
    Rule(
        "f(fill, fill) = fill,  numbers likewise",
        op(PointwiseOp),
        _fill_of_fills,
        Numerics.EXACT,
        lambda m: None if _of_fills(m) else "",
    ),
    Rule(
        "softmax(fill) = fill of one over its length",
        op(SoftmaxOp, op(FillOp, name="x")),
        _equal_shares,
        Numerics.EXACT,  # ones over their exact sum
        _softmax_of_fill,
    ),
    Rule(
        "permute(x) = reshape(x),  where only axes of one element change places",
        op(PermuteOp, anything("x")),
        lambda m: m.add(ReshapeOp(shape=m.root.type.shape), m["x"]),
        Numerics.EXACT,
        _moves_only_ones,
    ),
    Rule(
        "x * 1 = x",
        op(PointwiseOp, anything("x"), op(ConstOp, name="c"), fn="mul", commutative=True),
        _operand,
        Numerics.EXACT,
        _is_one,
    ),
    Rule(
        "x / 1 = x", op(PointwiseOp, anything("x"), op(ConstOp, name="c"), fn="div"), _operand, Numerics.EXACT, _is_one
    ),
)


def run(graph: Graph) -> Outcome:
    """%y = reduce.sum(%x: [n, 1, 1, 1], axes=(2, 3))  ->  %y = reshape(%x)."""
    return rewrite(graph, RULES)
