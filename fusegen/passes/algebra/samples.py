"""A sum or mean over the samples of a convolution is the convolution of one sample, their sum."""

from __future__ import annotations

from fusegen import dims
from fusegen.ir import ConvOp, Graph, Node, ReduceOp, ReshapeOp
from fusegen.machines import DEFAULT_TARGET, machine
from fusegen.passes.algebra.boxes import lone_seconds, product_seconds
from fusegen.passes.algebra.collapse import LINEAR, conv_below, in_two_steps, reduction, spatial_first, unsummable
from fusegen.passes.algebra.pools import CONV
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op


def _of_one(conv: ConvOp) -> ConvOp:
    """Rounded to TF32, a sum of samples would carry an error that the direct form averages out."""
    return conv.replace(precise=True, summed=False)


def obstacle(graph: Graph, conv: Node) -> str | None:
    """Why the samples of a convolution are not summed before it, or None; empty where nothing could be gained."""
    reason = unsummable(graph, conv, 0)
    return _pays(graph, conv) if reason is None else reason


def _pays(graph: Graph, conv: Node) -> str | None:
    """None when a kernel of sums and the convolution of one sample are expected to take less time than that of all.

    A kernel of sums follows the convolution of all: none has several samples' results at one place.
    """
    assert isinstance(conv.op, ConvOp)
    rates = machine(DEFAULT_TARGET)
    x, w = map(graph.node, conv.inputs)
    sample, result = (t.replace(shape=(1, *t.shape[1:])) for t in (x.type, conv.type))
    product = conv.replace(op=_of_one(conv.op), type=result)
    read, written = (4 * dims.numel(n.type.shape, graph.sizes) / rates.bandwidth for n in (x, conv))
    here = (
        read + lone_seconds(graph, product, x.replace(type=sample), w, rates) + rates.launch
    )  # of what sums over other axes too
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
    conv = conv_below(m.graph, x, (0,))
    if conv is None or conv is x or len(reduction(m).axes) == 1 or not _samples_before_positions(m, x):
        return ""
    return None if obstacle(m.graph, conv) is None else ""


RULES = (
    Rule(
        "sum over samples and more = sum over the rest of the sum over samples,  mean likewise,  above a convolution",
        op(ReduceOp, anything("x"), fn=LINEAR),
        lambda m: in_two_steps(m, (0,)),
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
