"""A sum or mean over the samples of a convolution is the convolution of one sample, their sum."""

from __future__ import annotations

from fusegen import dims
from fusegen.ir import ConvOp, DType, Graph, InputOp, Node, ReduceOp, ReshapeOp, WindowSumOp
from fusegen.machines import DEFAULT_TARGET, machine
from fusegen.passes.algebra.boxes import product_seconds
from fusegen.passes.algebra.collapse import LINEAR, constant_along, conv_below, reduction, spatial_first
from fusegen.passes.algebra.pools import CONV
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op


def _of_one(conv: ConvOp) -> ConvOp:
    """Rounded to TF32, a sum of samples would carry an error that the direct form averages out."""
    return conv.replace(precise=True)


def obstacle(graph: Graph, conv: Node) -> str | None:
    """Why the samples of a convolution are not summed before it, or None; empty where nothing could be gained."""
    assert isinstance(conv.op, ConvOp)
    if conv.type.shape[0] == 1 or len(conv.inputs) != 2 or isinstance(graph.node(conv.inputs[0]).op, WindowSumOp):
        return ""
    if not graph.has_one_reader(conv.name):
        return "the convolution's output is read elsewhere too, so it must be computed anyway"
    if conv.type.dtype is not DType.FLOAT32:
        return f"{conv.type.dtype.value} sums would lose accuracy"
    return _pays(graph, conv)


def _pays(graph: Graph, conv: Node) -> str | None:
    """None when a kernel of sums and the convolution of one sample are expected to take less time than that of all.

    A kernel of sums follows the convolution of all: none has several samples' results at one place.
    """
    assert isinstance(conv.op, ConvOp)
    rates = machine(DEFAULT_TARGET)
    x, w = (graph.node(name).replace(op=InputOp(position=i), inputs=()) for i, name in enumerate(conv.inputs))
    sample, result = (t.replace(shape=(1, *t.shape[1:])) for t in (x.type, conv.type))
    product = conv.replace(op=_of_one(conv.op), type=result)
    alone = graph.replace(nodes=(x.replace(type=sample), w, product), outputs=(product.name,), updates=())
    read, written = (4 * dims.numel(n.type.shape, graph.sizes) / rates.bandwidth for n in (x, conv))
    here = read + product_seconds(alone, product, rates) + rates.launch  # of what sums over other axes too
    direct = product_seconds(graph, conv, rates) + written
    return None if here < direct else f"{here * 1e6:.0f} us of their sum, {direct * 1e6:.0f} us of all"


def _samples_before_positions(m: Match, x: Node) -> bool:
    """Whether the sum is one over samples, and not over all positions of a convolution that collapses."""
    axes, spatial = reduction(m).axes, spatial_first(m.graph, x)
    return 0 in axes and not (spatial is not None and set(spatial) <= set(axes))


def _over_samples(m: Match) -> str | None:
    return obstacle(m.graph, m["conv"]) if _samples_before_positions(m, m["conv"]) else ""


def _sum_samples(m: Match) -> Node:
    reduce, conv = reduction(m), m["conv"].op
    assert isinstance(conv, ConvOp)
    y = m.add(_of_one(conv), m.add(ReduceOp(fn=reduce.fn, axes=(0,), keepdim=True), m["x"]), m["w"])
    if rest := reduce.axes[1:]:
        y = m.add(ReduceOp(fn=reduce.fn, axes=rest, keepdim=True), y)
    return m.add(ReshapeOp(shape=m.root.type.shape), y)


def _samples_and_more(m: Match) -> str | None:
    """Below is a convolution, through what does not vary along the samples: what varies along others stays there."""
    x = m["x"]
    conv = conv_below(m.graph, x)
    if conv is None or conv is x or len(reduction(m).axes) == 1 or not _samples_before_positions(m, x):
        return ""
    while x is not conv:
        operands = [m.graph.node(name) for name in x.inputs]
        on = next(i for i, operand in enumerate(operands) if operand.type.shape == conv.type.shape)
        if not all(constant_along(c, x, (0,)) for c in (*operands[:on], *operands[on + 1 :])):
            return ""
        x = operands[on]
    return None if obstacle(m.graph, conv) is None else ""


def _samples_first(m: Match) -> Node:
    fn, (_, *rest) = reduction(m).fn, reduction(m).axes
    y = m.add(ReduceOp(fn=fn, axes=(0,), keepdim=True), m["x"])
    return m.add(ReshapeOp(shape=m.root.type.shape), m.add(ReduceOp(fn=fn, axes=tuple(rest), keepdim=True), y))


RULES = (
    Rule(
        "sum over samples and more = sum over the rest of the sum over samples,  mean likewise,  above a convolution",
        op(ReduceOp, anything("x"), fn=LINEAR),
        _samples_first,
        Numerics.REASSOCIATES,
        _samples_and_more,
    ),
    Rule(
        "sum over samples of conv(x, w) = conv(sum over samples of x, w),  mean likewise",
        op(ReduceOp, CONV, fn=LINEAR),
        _sum_samples,
        Numerics.REASSOCIATES,
        _over_samples,
    ),
)
