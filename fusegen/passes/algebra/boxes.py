"""A mean pooling of a convolution as a convolution of box means, with the taps that it had.

Against the kernel averaged over windows (``pools``) there are fewer products, one for each tap of a result, and the
means of the input are needed at the places only that some tap meets. The kernel that computes both never writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from fusegen import dims, inference, ops
from fusegen.costs import boxes, contractions, direct, library
from fusegen.costs.tiling import TooLarge
from fusegen.errors import GraphError
from fusegen.ir import ConvOp, DType, Graph, InputOp, Node, PadOp, PoolOp, TensorType
from fusegen.machines import DEFAULT_TARGET, Machine, machine
from fusegen.passes.algebra.collapse import READ_ELSEWHERE, is_summed
from fusegen.passes.algebra.pools import CONV, is_plain, merged_conv, merged_taps
from fusegen.passes.rewrite import Match, Numerics, Rule, op
from fusegen.spaces.rowspace import NotFusable
from fusegen.tuning import faster


def _ops(m: Match) -> tuple[PoolOp, ConvOp]:
    pool, conv = m.root.op, m["conv"].op
    assert isinstance(pool, PoolOp)
    assert isinstance(conv, ConvOp)
    return pool, conv


def _box_means(m: Match) -> Node:
    """Means of the padded input over boxes of the pooling's size, at every place."""
    pool, conv = _ops(m)
    x = m["x"]
    if any(conv.padding):
        around = (0, 0, *conv.padding)
        x = m.add(PadOp(before=around, after=around), x)
    size = tuple(dims.add(length, 1 - n) for length, n in zip(x.type.shape[2:], pool.kernel, strict=True))
    return m.add(pool.replace(stride=(1,) * pool.rank, size=size), x)


def _over_boxes(m: Match) -> ConvOp:
    pool, conv = _ops(m)
    return merged_conv(m, pool, conv).replace(padding=(0,) * conv.rank)


def _convolve_boxes(m: Match) -> Node:
    return m.add(_over_boxes(m), _box_means(m), m["w"])


def _result(m: Match) -> TensorType | None:
    """The type of the convolution of box means, or None where it has none."""
    pool, conv = _ops(m)
    lengths = zip(m["x"].type.shape[2:], pool.kernel, conv.padding, strict=True)
    size = tuple(dims.add(length, 2 * p + 1 - n) for length, n, p in lengths)
    means = m["x"].type.replace(shape=(*m["x"].type.shape[:2], *size))
    try:
        return ops.infer(_over_boxes(m), (means, m["w"].type), m.root.type)
    except GraphError:
        return None


def _computes(m: Match) -> str | None:
    pool, conv = _ops(m)
    if pool.rank != conv.rank or m["x"].type.dtype is not DType.FLOAT32 or isinstance(m["x"].op, PoolOp):
        return ""
    if not is_plain(pool):
        return "windows that reach over the edge hold zeros in place of further results"
    if conv.transposed or set(conv.stride) != {1}:
        return "" if conv.transposed else f"its stride of {conv.stride} leaves gaps in the boxes"
    if set(pool.stride) == {1} or set(pool.size) == {1}:
        return ""
    if not m.only_user("conv"):
        return READ_ELSEWHERE
    if is_summed(m.graph, m.root):
        return "the sum above it goes inward"
    if reason := boxes.unfit(conv, m["w"], pool):
        return reason
    if _result(m) != m.root.type:
        return "the sizes do not agree for every input size"
    return _pays(m, machine(DEFAULT_TARGET))


def _pays(m: Match, rates: Machine) -> str | None:
    """None when box means are expected to be faster than an averaged kernel, or than the pooling of all results."""
    pool, conv = _ops(m)
    here = boxes.seconds(m.graph, m["x"], m["w"], conv, pool, m.root, rates)
    other, label = _merged_seconds(m, rates), "an averaged kernel"
    if other == inf:
        label = "all results"
        other = all_results_seconds(m.graph, m["conv"], rates)
    reason = f"{here * 1e6:.0f} us with box means, {other * 1e6:.0f} us with {label}"
    return faster(f"{m.root.name} from", {"box means": (None, here), label: (reason, other)})


def product_seconds(graph: Graph, conv: Node, rates: Machine) -> float:
    """Of a convolution by a kernel or by the library, whichever is faster."""
    try:
        kernel = direct.seconds(graph, conv, rates) if direct.takes(graph, conv) else inf
        if not direct.is_narrow(graph, conv):
            kernel = min(kernel, contractions.kernel_seconds(graph, conv, False, rates))
    except (NotFusable, TooLarge):
        kernel = inf
    return min(kernel, library.seconds(graph, conv, rates))


def lone_seconds(graph: Graph, conv: Node, x: Node, w: Node, rates: Machine) -> float:
    """``product_seconds`` of a convolution of ``x`` and ``w``, which need not be those of ``graph``, as inputs."""
    x, w = (operand.replace(op=InputOp(position=i), inputs=()) for i, operand in enumerate((x, w)))
    return product_seconds(graph.replace(nodes=(x, w, conv), outputs=(conv.name,), updates=()), conv, rates)


def built_seconds(m: Match, build: Callable[[Match], Node], rates: Machine) -> float:
    """``product_seconds`` of the one convolution among what ``build`` makes in place of the match."""
    trial = Match(m.graph, m.root, m.captures)
    build(trial)
    (product,) = (node for node in trial.built if isinstance(node.op, ConvOp))
    by_name = {**m.graph.by_name, **{node.name: node for node in trial.built}}
    x, w = (by_name[name] for name in product.inputs)
    return lone_seconds(m.graph, product, x, w, rates)


def all_results_seconds(graph: Graph, conv: Node, rates: Machine) -> float:
    """Of a convolution, and of reading all of its results in a kernel of its own."""
    read = 4 * dims.numel(conv.type.shape, graph.sizes) / rates.bandwidth
    return product_seconds(graph, conv, rates) + read + rates.launch


def _merged_seconds(m: Match, rates: Machine) -> float:
    """Of the convolution with the averaged kernel, which two launches make; infinite where there is none."""
    pool, conv = _ops(m)
    if merged_taps(m) is not None:
        return inf
    x, w = m["x"], m["w"]
    kernel = tuple(k + n - 1 for k, n in zip(inference.kernel_size(w.type), pool.kernel, strict=True))
    w = w.replace(type=w.type.replace(shape=(*w.type.shape[:2], *kernel)))
    product = m.root.replace(op=merged_conv(m, pool, conv), inputs=(x.name, w.name))
    try:
        return lone_seconds(m.graph, product, x, w, rates) + 2 * rates.launch
    except GraphError:
        return inf


RULES = (
    Rule(
        "mean_pool(conv(x, w)) = conv(box means of x, w) of the pooling's stride",
        op(PoolOp, CONV, fn="mean"),
        _convolve_boxes,
        Numerics.REASSOCIATES,
        _computes,
    ),
)
