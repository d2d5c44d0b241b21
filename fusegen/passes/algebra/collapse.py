"""A mean or sum of a convolution over its spatial axes never needs the convolution.

Every rule holds for all inputs and parameters. Sums are reassociated, so results agree in real
arithmetic and differ from eager's in rounding only.
"""

from __future__ import annotations

import math
from typing import Literal

from fusegen import dims, inference, ops, windows
from fusegen.ir import (
    ConvOp,
    DType,
    Graph,
    InputOp,
    MatmulOp,
    Node,
    NormalizeOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    ScanOp,
    SoftmaxOp,
    TapSumOp,
    WindowSumOp,
)
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op

MAX_WINDOWS = 64
"""Distinct boxes that a kernel keeps sums for."""

LINEAR = ("sum", "mean")
TERMS_AND_FACTORS = ("add", "sub", "mul", "div", "neg")
"""Elementwise functions that sums pass through."""
READ_ELSEWHERE = "the convolution's output is read elsewhere too, so it must be computed anyway"
_ALONG_ROWS = (NormalizeOp, ReduceOp, ScanOp, SoftmaxOp)


def reduction(m: Match) -> ReduceOp:
    assert isinstance(m.root.op, ReduceOp)
    return m.root.op


def constant_along(node: Node, like: Node, axes: tuple[int, ...]) -> bool:
    """True when ``node``, broadcast to ``like``, does not vary along ``axes`` of ``like``."""
    offset = like.type.rank - node.type.rank
    return all(axis < offset or node.type.shape[axis - offset] == 1 for axis in axes)


def _constant_operand(m: Match) -> str | None:
    """The inner op's ``x`` has the full shape and its ``c`` is constant along the reduced axes."""
    full = m["x"].type.shape == m["inner"].type.shape
    if not full or not constant_along(m["c"], m["inner"], reduction(m).axes):
        return ""
    return None if m.only_user("inner") else f"{m['inner'].name} is read elsewhere, so it is computed anyway"


def aligned(m: Match) -> Node:
    """``c`` shaped to broadcast against the reduction's result: reduced axes dropped unless kept."""
    reduce, c = reduction(m), m["c"]
    if reduce.keepdim or c.type.rank == 0:
        return c
    offset = m["inner"].type.rank - c.type.rank
    axes = tuple(axis - offset for axis in reduce.axes if axis >= offset)
    shape = inference.reduced_shape(c.type.shape, axes, keepdim=False)
    return m.add(ReshapeOp(shape=shape), c) if shape != c.type.shape else c


def _inner_scaled(m: Match) -> Node:
    inner = m["inner"].op
    assert isinstance(inner, PointwiseOp)
    return m.add(inner, m.add(reduction(m), m["x"]), aligned(m))


def _inner_negated(m: Match) -> Node:
    return m.add(PointwiseOp(fn="neg"), m.add(reduction(m), m["x"]))


def _inner_shifted(m: Match) -> Node:
    inner, reduce, shift = m["inner"].op, reduction(m), aligned(m)
    assert isinstance(inner, PointwiseOp)
    if reduce.fn == "sum":
        count = dims.product(m["inner"].type.shape[axis] for axis in reduce.axes)
        shift = m.add(PointwiseOp(fn="mul"), shift, m.const(count))
    return m.add(inner, m.add(reduce, m["x"]), shift)


def _merged_axes(m: Match) -> tuple[int, ...]:
    inner, rank = m["inner"].op, m["x"].type.rank
    assert isinstance(inner, ReduceOp)
    left = list(range(rank)) if inner.keepdim else [axis for axis in range(rank) if axis not in inner.axes]
    return tuple(sorted({*inner.axes, *(left[axis] for axis in reduction(m).axes)}))


def _merge_reductions(m: Match, fn: Literal["sum"] | None = None) -> Node:
    merged = m.add(ReduceOp(fn=fn or reduction(m).fn, axes=_merged_axes(m), keepdim=True), m["x"])
    return m.add(ReshapeOp(shape=m.root.type.shape), merged)


def _same_reduction(m: Match) -> str | None:
    inner = m["inner"].op
    assert isinstance(inner, ReduceOp)
    split = inner.axes in (features_first(m.graph, m["x"]), spatial_first(m.graph, m["x"]))  # they come apart again
    return None if inner.fn == reduction(m).fn and not split and m.only_user("inner") else ""


def _above(graph: Graph, node: Node, through: tuple[type, ...] = ()) -> list[Node]:
    """``node`` and what it follows from; ``through``: by such ops alone."""
    found = {node.name: node}
    for other in reversed(graph.nodes):
        if other.name in found and (not through or isinstance(other.op, through)):
            found |= {name: graph.node(name) for name in other.inputs}
    return list(found.values())


def _in_two_kernels(m: Match) -> bool:
    """Whether the inner reduction shares a kernel with what its data follows from, which one over more axes would not.

    That is what runs along rows of data, a product that reduces its features, a convolution its channels or positions.
    """
    chain = _above(m.graph, m["x"], (PointwiseOp, ReshapeOp))
    rows = (node for node in chain if isinstance(node.op, _ALONG_ROWS))
    if any(isinstance(above.op, InputOp) for node in rows for above in _above(m.graph, node)):
        return True
    heads = [node.op for node in chain if isinstance(node.op, (ConvOp, MatmulOp))]
    return any(isinstance(head, MatmulOp) or min(_merged_axes(m)) < 2 for head in heads)


def _sum_and_mean(m: Match) -> str | None:
    inner = m["inner"].op
    assert isinstance(inner, ReduceOp)
    apart = inner.fn != reduction(m).fn and m.only_user("inner")
    return None if apart and not _in_two_kernels(m) else ""


def _merge_sum_and_mean(m: Match) -> Node:
    """Divided at last, so that no elements are zero for the sum and NaN for the mean, as in two steps."""
    outer, inner = reduction(m), m["inner"].op
    assert isinstance(inner, ReduceOp)
    averaged, axes = (m["inner"], outer.axes) if outer.fn == "mean" else (m["x"], inner.axes)
    count = m.const(dims.product(averaged.type.shape[axis] for axis in axes))
    return m.add(PointwiseOp(fn="div"), _merge_reductions(m, "sum"), count)


def _same_extreme(m: Match) -> str | None:
    inner = m["inner"].op
    assert isinstance(inner, ReduceOp)
    same = inner.fn == reduction(m).fn and m.only_user("inner")
    return None if same and not _in_two_kernels(m) else ""


def conv_below(graph: Graph, node: Node, axes: tuple[int, ...] = ()) -> Node | None:
    """The convolution under ``node`` through additions and scalings that nothing else reads, if there is one.

    Other operands do not vary along ``axes``.
    """
    by_name, users = graph.by_name, graph.users
    while isinstance(node.op, PointwiseOp) and node.op.fn in TERMS_AND_FACTORS:
        operands = [by_name[name] for name in node.inputs]
        data = next((i for i, operand in enumerate(operands) if operand.type.shape == node.type.shape), None)
        if len(users[node.name]) > 1 or data is None:
            return None
        below = operands.pop(data)
        if axes and not all(constant_along(operand, node, axes) for operand in operands):
            return None
        node = below
    return node if isinstance(node.op, ConvOp) else None


def is_summed(graph: Graph, node: Node, ends: tuple[type, ...] = (ReduceOp,), through: tuple[type, ...] = ()) -> bool:
    """True when a sum or mean is all that becomes of ``node``, through terms, factors and such ops: it goes inward.

    ``ends``: the ops that a sum or mean may be.
    """
    users = graph.users
    while len(users[node.name]) == 1 and node.name not in graph.results:
        node = graph.node(users[node.name][0])
        if isinstance(node.op, ends):
            return getattr(node.op, "fn", None) in LINEAR
        passes = isinstance(node.op, PointwiseOp) and node.op.fn in TERMS_AND_FACTORS
        if not passes and not isinstance(node.op, through):
            return False
    return False


def unsummable(graph: Graph, conv: Node, axis: int) -> str | None:
    """Why a sum of a convolution along samples (0) or channels (1) cannot go before it, or None.

    Empty where nothing could be gained.
    """
    if conv.type.shape[axis] == 1 or len(conv.inputs) != 2 or isinstance(graph.node(conv.inputs[0]).op, WindowSumOp):
        return ""
    if not graph.has_one_reader(conv.name):
        return READ_ELSEWHERE
    if conv.type.dtype is not DType.FLOAT32:
        return f"{conv.type.dtype.value} sums would lose accuracy"
    return None


def largest_operand(graph: Graph, node: Node) -> Node:
    """Of most elements at the traced sizes, the first of equal ones: the data that ``node`` works on."""
    return max(map(graph.node, node.inputs), key=lambda n: dims.numel(n.type.shape, graph.sizes))


def product_below(graph: Graph, node: Node) -> bool:
    """True when a matrix product lies under ``node`` through what sums pass through, all of it read here alone."""
    users = graph.users
    while len(users[node.name]) == 1 and node.name not in graph.results:
        if isinstance(node.op, PointwiseOp) and node.op.fn not in TERMS_AND_FACTORS:
            return False
        if not isinstance(node.op, (PointwiseOp, ReshapeOp)):
            return isinstance(node.op, MatmulOp)
        node = largest_operand(graph, node)
    return False


def features_first(graph: Graph, x: Node) -> tuple[int, ...] | None:
    """The axis along which ``x`` is summed before any other: the features of a product."""
    below = isinstance(x.op, (MatmulOp, PointwiseOp)) and product_below(graph, x)
    return (x.type.rank - 1,) if below else None


def spatial_first(graph: Graph, x: Node) -> tuple[int, ...] | None:
    """The axes along which ``x`` is summed before any other: the spatial ones of a convolution that collapses."""
    conv = conv_below(graph, x)
    if conv is None or _collapse_obstacle(graph, conv) is not None:
        return None  # a spatial mean that would not collapse is better left in one reduction
    return tuple(range(2, x.type.rank))


def _more_than_spatial(m: Match) -> str | None:
    axes = spatial_first(m.graph, m["x"])
    return None if axes is not None and set(axes) < set(reduction(m).axes) else ""


def in_two_steps(m: Match, first: tuple[int, ...]) -> Node:
    """A reduction over axes ``first`` and more, as one over the others of one over these."""
    reduce = reduction(m)
    inner = m.add(ReduceOp(fn=reduce.fn, axes=first, keepdim=True), m["x"])
    rest = tuple(axis for axis in reduce.axes if axis not in first)
    return m.add(ReshapeOp(shape=m.root.type.shape), m.add(ReduceOp(fn=reduce.fn, axes=rest, keepdim=True), inner))


def positions_first(m: Match) -> Node:
    """A reduction over the spatial axes and more: over these first."""
    return in_two_steps(m, tuple(range(2, m["x"].type.rank)))


def _collapse(m: Match) -> Node:
    reduce, conv, x, w = reduction(m), m["conv"].op, m["x"], m["w"]
    assert isinstance(conv, ConvOp)
    kernel = inference.kernel_size(w.type)
    sums = m.add(WindowSumOp(conv=conv, kernel=kernel, mean=reduce.fn == "mean"), x)
    weights = m.add(TapSumOp(conv=conv, kernel=kernel), w)
    zero, one = (0,), (1,)
    contraction = ConvOp(
        transposed=False, stride=one, padding=zero, dilation=one, output_padding=zero, groups=conv.groups
    )
    return m.add(ReshapeOp(shape=m.root.type.shape), m.add(contraction, sums, weights))


def _takes_means(m: Match) -> str | None:
    """A result is of one position of a product, which collapses in its turn."""
    conv = m["conv"]
    assert isinstance(conv.op, ConvOp)
    spatial = tuple(range(2, 2 + conv.op.rank))
    single = inference.is_pointwise(conv.op, inference.kernel_size(m["w"].type)) and conv.op.groups == 1
    below = conv_below(m.graph, m["x"])
    if not single or reduction(m).axes != spatial or not m.only_user("conv") or below is None:
        return ""
    return None if _collapse_obstacle(m.graph, below) is None else ""


def _of_means(m: Match) -> Node:
    x, w = m["x"], m["w"]
    means = m.add(reduction(m).replace(keepdim=False), x)
    weights = m.add(ReshapeOp(shape=w.type.shape[:2]), w)
    transposed = isinstance(m["conv"].op, ConvOp) and not m["conv"].op.transposed
    return m.add(
        ReshapeOp(shape=m.root.type.shape), m.add(MatmulOp(transposed=transposed, precise=True), means, weights)
    )


def _can_collapse(m: Match) -> str | None:
    reduce, conv = reduction(m), m["conv"].op
    assert isinstance(conv, ConvOp)
    if isinstance(m.graph.node(m["conv"].inputs[0]).op, WindowSumOp):
        return ""
    spatial = tuple(range(2, 2 + conv.rank))
    if not set(reduce.axes) <= set(spatial):
        return "the reduction also runs over batch or channels"
    if reduce.axes != spatial:
        return ""  # one axis at a time, in `axes`
    return _collapse_obstacle(m.graph, m["conv"])


def _collapse_obstacle(graph: Graph, conv: Node) -> str | None:
    """Why a convolution cannot collapse under a mean over all its spatial axes, or None."""
    if not graph.has_one_reader(conv.name):
        return READ_ELSEWHERE
    return not_worth_window_sums(graph, conv)


def not_worth_window_sums(graph: Graph, conv: Node) -> str | None:
    """Why a mean over all spatial axes of a convolution is not made of sums of windows of its input, or None."""
    assert isinstance(conv.op, ConvOp)
    x, w = (graph.node(name) for name in conv.inputs[:2])
    if x.type.dtype is not DType.FLOAT32:
        return f"window sums are float32 only, not {x.type.dtype.value}"
    kernel = inference.kernel_size(w.type)
    count = windows.window_count(conv.op, kernel)
    if count > MAX_WINDOWS:
        return f"{count} distinct tap windows; a kernel keeps at most {MAX_WINDOWS}"
    return _pays(graph, conv, count)


def _pays(graph: Graph, conv: Node, count: int) -> str | None:
    """None when the window sums and their contraction take fewer operations than the convolution."""
    x, w = (graph.shape(name) for name in conv.inputs[:2])
    direct = ops.flops(graph, conv)
    collapsed = math.prod(x) * max(1, count // 4) + x[0] * x[1] * math.prod(w[1:])
    return None if collapsed < direct else f"{collapsed} operations collapsed, {direct} direct"


_CONV = op(ConvOp, anything("x"), anything("w"), name="conv")

RULES = (
    Rule(
        "mean(x + c) = mean(x) + c,  sum(x + c) = sum(x) + count c,  c constant along the axes",
        op(
            ReduceOp,
            op(PointwiseOp, anything("x"), anything("c"), name="inner", fn="add", commutative=True),
            fn=LINEAR,
        ),
        _inner_shifted,
        Numerics.REASSOCIATES,
        _constant_operand,
    ),
    Rule(
        "mean(x - c) = mean(x) - c,  sum(x - c) = sum(x) - count c,  c constant along the axes",
        op(ReduceOp, op(PointwiseOp, anything("x"), anything("c"), name="inner", fn="sub"), fn=LINEAR),
        _inner_shifted,
        Numerics.REASSOCIATES,
        _constant_operand,
    ),
    Rule(
        "mean(x c) = mean(x) c,  sum(x c) = sum(x) c,  c constant along the axes",
        op(
            ReduceOp,
            op(PointwiseOp, anything("x"), anything("c"), name="inner", fn="mul", commutative=True),
            fn=LINEAR,
        ),
        _inner_scaled,
        Numerics.REASSOCIATES,
        _constant_operand,
    ),
    Rule(
        "mean(x / c) = mean(x) / c,  sum(x / c) = sum(x) / c,  c constant along the axes",
        op(ReduceOp, op(PointwiseOp, anything("x"), anything("c"), name="inner", fn="div"), fn=LINEAR),
        _inner_scaled,
        Numerics.REASSOCIATES,
        _constant_operand,
    ),
    Rule(
        "mean(-x) = -mean(x),  sum(-x) = -sum(x)",
        op(ReduceOp, op(PointwiseOp, anything("x"), fn="neg"), fn=LINEAR),
        _inner_negated,
        Numerics.REASSOCIATES,
    ),
    Rule(
        "mean(mean(x)) = mean(x) over both sets of axes,  sum(sum(x)) likewise",
        op(ReduceOp, op(ReduceOp, anything("x"), name="inner", fn=LINEAR), fn=LINEAR),
        _merge_reductions,
        Numerics.REASSOCIATES,
        _same_reduction,
    ),
    Rule(
        "mean(sum(x)) = sum(x) over both sets of axes / count,  count the elements of the mean,  sum(mean(x)) likewise",
        op(ReduceOp, op(ReduceOp, anything("x"), name="inner", fn=LINEAR), fn=LINEAR),
        _merge_sum_and_mean,
        Numerics.REASSOCIATES,
        _sum_and_mean,
    ),
    Rule(
        "max(max(x)) = max(x) over both sets of axes,  min(min(x)) likewise",
        op(ReduceOp, op(ReduceOp, anything("x"), name="inner", fn=("max", "min")), fn=("max", "min")),
        _merge_reductions,
        Numerics.EXACT,
        _same_extreme,
    ),
    Rule(
        "mean over spatial and other axes = mean over the others of the spatial mean,  sum likewise",
        op(ReduceOp, anything("x"), fn=LINEAR),
        positions_first,
        Numerics.REASSOCIATES,
        _more_than_spatial,
    ),
    Rule(
        "mean(conv(x, w)) over all spatial axes = matmul(mean(x), w),  one tap,  x a product,  sum likewise",
        op(ReduceOp, _CONV, fn=LINEAR),
        _of_means,
        Numerics.REASSOCIATES,
        _takes_means,
    ),
    Rule(
        "mean(conv(x, w)) over all spatial axes = taps-summed w times window means of x,  sum likewise",
        op(ReduceOp, _CONV, fn=LINEAR),
        _collapse,
        Numerics.REASSOCIATES,
        _can_collapse,
    ),
)
