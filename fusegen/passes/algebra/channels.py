"""A sum or mean over the channels of a convolution is a convolution to one channel, by the sum of the weights."""

from __future__ import annotations

from collections.abc import Collection

from fusegen import dims
from fusegen.costs import hopper
from fusegen.ir import ConvOp, Graph, Node, PermuteOp, PointwiseOp, ReduceOp, ReshapeOp
from fusegen.machines import DEFAULT_TARGET, machine
from fusegen.passes.algebra import axes as along
from fusegen.passes.algebra import samples
from fusegen.passes.algebra.boxes import lone_seconds, product_seconds
from fusegen.passes.algebra.collapse import LINEAR, conv_below, product_below, reduction, spatial_first, unsummable
from fusegen.passes.algebra.pools import CONV
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op

_CLEARLY = 0.7
"""Of a block's 16 channels one is used, and such kernels took up to half as long again as expected."""


def _one_channel(conv: ConvOp) -> ConvOp:
    """Rounded to TF32, sums of weights would carry an error that the direct form averages out."""
    return conv.replace(groups=1, precise=True, summed=True)


def obstacle(graph: Graph, conv: Node) -> str | None:
    """Why the channels of a convolution are not summed before it, or None; empty where nothing could be gained."""
    reason = unsummable(graph, conv, 1)
    return _pays(graph, conv) if reason is None else reason


def _pays(graph: Graph, conv: Node) -> str | None:
    """None when a convolution to one channel is expected to take less time than one to all, which stores no result."""
    assert isinstance(conv.op, ConvOp)
    rates = machine(DEFAULT_TARGET)
    x, w = map(graph.node, conv.inputs)
    channels = (x.type.shape[1], 1) if conv.op.transposed else (1, x.type.shape[1])
    w = w.replace(type=w.type.replace(shape=(*channels, *w.type.shape[2:])))
    result = conv.type.replace(shape=(conv.type.shape[0], 1, *conv.type.shape[2:]))
    product = conv.replace(op=_one_channel(conv.op), type=result)
    here = lone_seconds(graph, product, x, w, rates) + rates.launch  # the sum of the weights
    stored = hopper.STORE * 4 * dims.numel(conv.type.shape, graph.sizes) / rates.bandwidth
    direct = product_seconds(graph, conv, rates) - stored
    return None if here < _CLEARLY * direct else f"{here * 1e6:.0f} us to one channel, {direct * 1e6:.0f} us to all"


def collapses(graph: Graph, x: Node, axes: Collection[int]) -> bool:
    """Whether a product or convolution lies under ``x``, of which a sum over ``axes`` needs less than all."""
    if isinstance(x.op, PermuteOp) and graph.has_one_reader(x.name):
        return collapses(graph, graph.node(x.inputs[0]), {x.op.order[axis] for axis in axes})
    conv, spatial = conv_below(graph, x), spatial_first(graph, x)
    if product_below(graph, x) or (spatial is not None and set(spatial) <= set(axes)):
        return True
    if conv is None:
        return False
    if (0 in axes and samples.obstacle(graph, conv) is None) or (1 in axes and obstacle(graph, conv) is None):
        return True
    return along.obstacle(graph, conv, tuple(sorted(axes))) is None


def _over_channels(m: Match) -> str | None:
    axes = reduction(m).axes
    spatial = spatial_first(m.graph, m["conv"])
    if 1 not in axes or (spatial is not None and set(spatial) <= set(axes)):
        return ""
    return obstacle(m.graph, m["conv"])


def _sum_channels(m: Match) -> Node:
    reduce, conv, w = reduction(m), m["conv"].op, m["w"]
    assert isinstance(conv, ConvOp)
    first, second, *kernel = w.type.shape
    if conv.transposed:
        weights = m.add(ReduceOp(fn=reduce.fn, axes=(1,), keepdim=True), w)
    elif conv.groups == 1:
        weights = m.add(ReduceOp(fn=reduce.fn, axes=(0,), keepdim=True), w)
    else:
        outputs = dims.floordiv(first, conv.groups)
        grouped = m.add(ReshapeOp(shape=(conv.groups, outputs, second, *kernel)), w)
        summed = m.add(ReduceOp(fn=reduce.fn, axes=(1,), keepdim=False), grouped)
        weights = m.add(ReshapeOp(shape=(1, dims.mul(conv.groups, second), *kernel)), summed)
    if reduce.fn == "mean" and conv.groups > 1:  # that of a group, so far
        weights = m.add(PointwiseOp(fn="div"), weights, m.const(conv.groups))
    y = m.add(_one_channel(conv), m["x"], weights)
    if rest := tuple(axis for axis in reduce.axes if axis != 1):
        y = m.add(ReduceOp(fn=reduce.fn, axes=rest, keepdim=True), y)
    return m.add(ReshapeOp(shape=m.root.type.shape), y)


def _varies_along(c: Node, like: Node, axis: int) -> bool:
    """True when ``c``, broadcast to ``like``, has a value for every place along ``axis``, and along no other."""
    offset = like.type.rank - c.type.rank
    return [(at + offset, size) for at, size in enumerate(c.type.shape) if size != 1] == [(axis, like.type.shape[axis])]


def _channel_factor(m: Match) -> str | None:
    conv = m["conv"]
    assert isinstance(conv.op, ConvOp)
    if not m.only_user("inner") or not _varies_along(m["c"], conv, 1) or (conv.op.transposed and conv.op.groups > 1):
        return ""
    return _over_channels(m)


def _scale_channels(m: Match) -> Node:
    conv, inner, w = m["conv"].op, m["inner"].op, m["w"]
    assert isinstance(conv, ConvOp)
    place = [1] * w.type.rank
    shape = (*place[: int(conv.transposed)], m["conv"].type.shape[1], *place[int(conv.transposed) + 1 :])
    weights = m.add(inner, w, m.add(ReshapeOp(shape=shape), m["c"]))
    return m.add(reduction(m), m.add(conv, m["x"], weights))


def _scaled_sum(m: Match) -> str | None:
    """The factor is one of the channels or features below, where it goes; the term is small."""
    x, c, inner = m["x"], m["c"], m["inner"]
    if x.type.shape != m["scaled"].type.shape or not (m.only_user("inner") and m.only_user("scaled")):
        return ""
    axis = 1 if conv_below(m.graph, x) is not None else x.type.rank - 1
    small = 2 * dims.numel(m["b"].type.shape, m.graph.sizes) <= dims.numel(inner.type.shape, m.graph.sizes)
    if axis not in reduction(m).axes or not small or not _varies_along(c, inner, axis):
        return ""
    return None if collapses(m.graph, x, reduction(m).axes) else ""


def _distribute(m: Match) -> Node:
    parts = [m.add(m["scaled"].op, part, m["c"]) for part in (m["x"], m["b"])]
    return m.add(reduction(m), m.add(m["inner"].op, *parts))


def _distributing(fn: str, sign: str, term: str, plus: str) -> Rule:
    inner = op(PointwiseOp, anything("x"), anything("b"), name="inner", fn=term, commutative=term == "add")
    scaled = op(PointwiseOp, inner, anything("c"), name="scaled", fn=fn, commutative=fn == "mul")
    return Rule(
        f"sum((x {plus} b) {sign} c) = sum(x {sign} c {plus} b {sign} c),  mean likewise,  x a product,  b smaller",
        op(ReduceOp, scaled, fn=LINEAR),
        _distribute,
        Numerics.REASSOCIATES,
        _scaled_sum,
    )


RULES = (
    *(
        _distributing(fn, sign, term, plus)
        for fn, sign in (("mul", "*"), ("div", "/"))
        for term, plus in (("add", "+"), ("sub", "-"))
    ),
    *(
        Rule(
            f"sum over channels of conv(x, w) {sign} c = sum over channels of conv(x, w {sign} c),  mean likewise",
            op(
                ReduceOp,
                op(PointwiseOp, CONV, anything("c"), name="inner", fn=fn, commutative=fn == "mul"),
                fn=LINEAR,
            ),
            _scale_channels,
            Numerics.REASSOCIATES,
            _channel_factor,
        )
        for fn, sign in (("mul", "*"), ("div", "/"))
    ),
    Rule(
        "sum over channels of conv(x, w) = conv(x, sum over outputs of w),  mean likewise",
        op(ReduceOp, CONV, fn=LINEAR),
        _sum_channels,
        Numerics.REASSOCIATES,
        _over_channels,
    ),
)
