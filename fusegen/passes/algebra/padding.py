"""Reductions move before padding, and so do the functions between: both meet what they may share a kernel with.

Poolings pad by themselves, alike on both sides.
"""

from __future__ import annotations

import math
from operator import add, sub

from fusegen import dims, interpret
from fusegen.ir import ConstOp, ConvOp, Graph, Node, PadOp, PointwiseOp, PoolOp, ReduceOp, ReshapeOp
from fusegen.passes.algebra.collapse import LINEAR, reduction
from fusegen.passes.algebra.pools import is_plain
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op


def _padding(m: Match) -> PadOp:
    assert isinstance(m["pad"].op, PadOp)
    return m["pad"].op


def _padded(pad: PadOp) -> set[int]:
    """The axes that have padding; negative padding would drop elements."""
    return {axis for axis, sides in enumerate(zip(pad.before, pad.after, strict=True)) if any(sides)}


def _grows(m: Match) -> bool:
    pad = _padding(m)
    return min(pad.before + pad.after) >= 0 and m.only_user("pad")


def _around_zeros(m: Match) -> str | None:
    return None if _padding(m).value == 0 and _grows(m) else ""


def _sum_before_padding(m: Match) -> Node:
    """Zeros add nothing to a sum; a mean counts them."""
    reduce, pad = reduction(m), _padding(m)
    counts = reduce.fn == "mean" and not _padded(pad).isdisjoint(reduce.axes)
    y = m.add(ReduceOp(fn="sum" if counts else reduce.fn, axes=reduce.axes, keepdim=True), m["x"])
    if counts:
        count = dims.product(m["pad"].type.shape[axis] for axis in reduce.axes)
        y = m.add(PointwiseOp(fn="div"), y, m.const(count))
    sides = (pad.before, pad.after)
    before, after = (tuple(0 if axis in reduce.axes else n for axis, n in enumerate(side)) for side in sides)
    if any((*before, *after)):
        y = m.add(PadOp(before=before, after=after), y)
    return m.add(ReshapeOp(shape=m.root.type.shape), y)


def _reduced_value(m: Match) -> float | None:
    """What a reduction makes of equal elements; None where that depends on a size that varies."""
    reduce, value = reduction(m), _padding(m).value
    count = dims.product(m["pad"].type.shape[axis] for axis in reduce.axes)
    match reduce.fn:
        case "mean" | "max" | "min":
            return value
        case "var":
            return 0.0
        case "sum" if isinstance(count, int) or value == 0:
            return value and value * int(count)
        case "prod" if value in (0, 1):
            return value
    return None


def _along_others(m: Match) -> str | None:
    pad = _padding(m)
    apart = _padded(pad).isdisjoint(reduction(m).axes) and _grows(m) and math.isfinite(pad.value)
    return None if apart and _reduced_value(m) is not None else ""


def _before_padding(m: Match) -> Node:
    value = _reduced_value(m)
    assert value is not None
    y = m.add(reduction(m).replace(keepdim=True), m["x"])
    return m.add(ReshapeOp(shape=m.root.type.shape), m.add(_padding(m).replace(value=value), y))


def _with_numbers(graph: Graph, node: Node, data: str) -> bool:
    """Whether ``node`` is a function of ``data``, an element at a time, and of numbers that are known now."""
    if not isinstance(node.op, PointwiseOp) or node.inputs.count(data) != 1:
        return False
    others = (graph.node(name).op for name in node.inputs if name != data)
    return all(isinstance(other, ConstOp) and isinstance(other.value, float) for other in others)


def _up_to_a_reduction(m: Match) -> str | None:
    """What follows is such functions alone, up to a reduction along axes that have no padding."""
    node, data = m.root, m["pad"]
    if not _grows(m) or node.type != data.type:
        return ""
    while _with_numbers(m.graph, node, data.name) and m.graph.has_one_reader(node.name):
        node, data = m.graph.node(m.graph.users[node.name][0]), node
    reduces = isinstance(node.op, ReduceOp) and _padded(_padding(m)).isdisjoint(node.op.axes)
    return None if data is not m["pad"] and reduces and math.isfinite(_value_of_function(m)) else ""


def _value_of_function(m: Match) -> float:
    """Of the padding's value."""
    assert isinstance(m.root.op, PointwiseOp)
    operands = (m.graph.node(name).op for name in m.root.inputs)
    numbers = [op.value if isinstance(op, ConstOp) else _padding(m).value for op in operands]
    return interpret.of_numbers(m.root.op, [float(number) for number in numbers])


def _function_before_padding(m: Match) -> Node:
    operands = (m["x"] if name == m["pad"].name else m.graph.node(name) for name in m.root.inputs)
    return m.add(_padding(m).replace(value=_value_of_function(m)), m.add(m.root.op, *operands))


def _pools_padding(m: Match) -> str | None:
    """As much on either side of the axes that are pooled, of what adds nothing, and no window of padding alone.

    Box means of a padded input that a convolution reads (``boxes.py``) stay as they are: its kernel knows them so.
    """
    pool, pad = m.root.op, _padding(m)
    assert isinstance(pool, PoolOp)
    if any(isinstance(m.graph.node(name).op, ConvOp) for name in m.graph.users[m.root.name]):
        return ""
    planes = m.root.type.rank - pool.rank
    adds_nothing = pad.value == (0 if pool.fn == "mean" else -math.inf)
    fits = all(2 * n <= kernel for n, kernel in zip(pad.before[planes:], pool.kernel, strict=True))
    alike = pad.before == pad.after and not any(pad.before[:planes])
    return None if adds_nothing and alike and fits and _grows(m) and is_plain(pool) else ""


def _pool_with_padding(m: Match) -> Node:
    pool, pad = m.root.op, _padding(m)
    assert isinstance(pool, PoolOp)
    return m.add(pool.replace(padding=pad.before[-pool.rank :], count_include_pad=True), m["x"])


# --- convolutions ------------------------------------------------------------------------------------


def _around_positions(m: Match) -> str | None:
    """Zeros, alike on both sides of every axis: what follows may collapse with the convolution."""
    conv, pad = m.root.op, _padding(m)
    assert isinstance(conv, ConvOp)
    alike = pad.before == pad.after and not any(pad.before[:2])
    return None if alike and not conv.transposed and pad.value == 0 and _grows(m) else ""


def convolve_with_padding(m: Match) -> Node:
    """The convolution of ``x`` that pads as ``pad`` does, unevenly where that does."""
    conv, pad = m.root.op, _padding(m)
    assert isinstance(conv, ConvOp)
    before, after = pad.before[2:], pad.after[2:]
    padding = tuple(map(add, conv.padding, before))
    behind = tuple(map(sub, map(add, conv.behind or (0,) * conv.rank, after), before))
    return m.add(conv.replace(padding=padding, behind=behind if any(behind) else ()), m["x"], m["w"])


_PAD = op(PadOp, anything("x"), name="pad")
_NUMBER = op(ConstOp)

RULES = (
    Rule(
        "conv(pad(x), w) = conv(x, w) that pads,  as many zeros on either side",
        op(ConvOp, _PAD, anything("w")),
        convolve_with_padding,
        Numerics.EXACT,
        _around_positions,
    ),
    *(
        Rule(
            f"{fn}_pool(pad(x)) = {fn}_pool(x) that pads,  padded with {value}",
            op(PoolOp, _PAD, fn=fn),
            _pool_with_padding,
            Numerics.EXACT,
            _pools_padding,
        )
        for fn, value in (("mean", "zeros"), ("max", "-inf"))
    ),
    Rule(
        "sum(pad(x)) = pad(sum(x)) along the other axes,  mean likewise,  padded with zeros",
        op(ReduceOp, _PAD, fn=LINEAR),
        _sum_before_padding,
        Numerics.REASSOCIATES,
        _around_zeros,
    ),
    Rule(
        "reduce(pad(x)) = pad(reduce(x)) over axes that are not padded",
        op(ReduceOp, _PAD),
        _before_padding,
        Numerics.REASSOCIATES,
        _along_others,
    ),
    *(
        Rule(
            f"{text} = pad of it,  a, b numbers,  up to a reduction over axes that are not padded",
            op(PointwiseOp, _PAD, *numbers, commutative=len(numbers) == 1),
            _function_before_padding,
            Numerics.REASSOCIATES,  # a function of a number is rounded once
            _up_to_a_reduction,
        )
        for text, numbers in (
            ("f(pad(x))", ()),
            ("f(pad(x), a)", (_NUMBER,)),
            ("f(pad(x), a, b)", (_NUMBER, _NUMBER)),
        )
    ),
)
