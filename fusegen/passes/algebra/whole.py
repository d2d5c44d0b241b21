"""Convolutions that are matrix products: of kernels that meet all of an image at once, one position of it, patches, or
windows of few channels.

A linear layer by another name, as networks end (a kernel as large as what is left of the image), gate channels (1x1
on a mean) or begin (a transposed convolution of a vector, kernels that lie side by side). The product is in full
float32 where the library's convolution is in TF32, and so the more precise one.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from fusegen import dims, inference, ops
from fusegen.costs import library, tensor_gemm
from fusegen.dims import Dim, Dims
from fusegen.ir import (
    AdaptivePoolOp,
    ConvOp,
    Graph,
    MatmulOp,
    Node,
    NormalizeOp,
    PadOp,
    PermuteOp,
    PointwiseOp,
    PoolOp,
    ReduceOp,
    ReshapeOp,
    SliceOp,
    SoftmaxOp,
    TapSumOp,
    UnfoldOp,
    WindowSumOp,
)
from fusegen.machines import DEFAULT_TARGET, machine
from fusegen.passes.algebra import boxes
from fusegen.passes.algebra.collapse import product_below
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op
from fusegen.verdict.tf32 import in_tf32


def _whole(m: Match) -> str | None:
    """Why the convolution is no product of samples with all weights of an output, or None."""
    conv, x = m.root.op, m["x"]
    assert isinstance(conv, ConvOp)
    kernel, image = inference.kernel_size(m["w"].type), x.type.shape[2:]
    met = kernel if not conv.transposed else (1,) * conv.rank
    dense = all(step == 1 or size == 1 for step, size in zip(conv.dilation, kernel, strict=True))
    if isinstance(x.op, WindowSumOp) or isinstance(m["w"].op, TapSumOp):
        return ""  # a kernel has those sums and their product
    if conv.groups != 1 or any((*conv.padding, *conv.behind, *conv.output_padding)) or not dense or image != tuple(met):
        return ""
    graph, rates = m.graph, machine(DEFAULT_TARGET)
    weights = 4 * dims.numel(m["w"].type.shape, graph.sizes) / rates.bandwidth
    product = max(ops.flops(graph, m.root) / rates.flops, weights) + rates.launch
    if product <= library.seconds(graph, m.root, rates):
        return None
    return "a product in full float32 is expected to take longer than the library's convolution"


def _product(m: Match) -> Node:
    conv, x, w = m.root.op, m["x"], m["w"]
    assert isinstance(conv, ConvOp)
    inputs: Dim = dims.product(x.type.shape[1:])
    left = m.add(ReshapeOp(shape=(x.type.shape[0], inputs)), x)
    matrix = (inputs, dims.product(w.type.shape[1:])) if conv.transposed else (w.type.shape[0], inputs)
    right = m.add(ReshapeOp(shape=matrix), w)
    product = m.add(MatmulOp(transposed=not conv.transposed, precise=conv.precise), left, right)
    return m.add(ReshapeOp(shape=m.root.type.shape), product)


# --- one channel of one tap ------------------------------------------------------------------------------


def _one_channel(m: Match) -> str | None:
    """Why the convolution is no weighted sum of the channels at a position, or None."""
    conv = m.root.op
    assert isinstance(conv, ConvOp)
    point = inference.is_pointwise(conv, inference.kernel_size(m["w"].type))
    inside = isinstance(m["x"].op, WindowSumOp) or isinstance(m["w"].op, TapSumOp)
    return None if point and conv.groups == 1 == m.root.type.shape[1] and not inside else ""


def _weighted_channels(m: Match) -> Node:
    """Rows of channels, in full float32: what is computed before and behind them is in their kernel."""
    x = m["x"]
    weights = m.add(ReshapeOp(shape=(1, x.type.shape[1], *(1,) * (x.type.rank - 2))), m["w"])
    return m.add(ReduceOp(fn="sum", axes=(1,), keepdim=True), m.add(PointwiseOp(fn="mul"), x, weights))


# --- kernels side by side ------------------------------------------------------------------------------

_MANY_TERMS = 128
"""Elements of a patch from which on a product of patches is faster wherever its results lie: 16x16 of three channels to
768 201 us as a convolution in full float32, 50 so; 8x8 to 256 81 and 34 (benchmarks/results/h200-patches.json)."""
_MOST_OF_RESULTS = 4
"""Elements of windows for each result, at most."""
_COLLAPSING = (ReduceOp, PoolOp, AdaptivePoolOp)


def _ends(graph: Graph, conv: Node) -> Iterator[tuple[Node, int | None]]:
    """What reads the results of ``conv``, by way of functions and views, and along which axis it has their channels."""
    pending: list[tuple[Node, int | None]] = [(conv, 1)]
    seen = set[tuple[str, int | None]]()
    while pending:
        node, axis = pending.pop()
        if (node.name, axis) in seen:
            continue
        seen.add((node.name, axis))
        for user in map(graph.node, graph.users[node.name]):
            own, shape = axis, user.type.shape
            if axis is not None and isinstance(user.op, PermuteOp):
                own = user.op.order.index(axis)
            elif axis is not None and isinstance(user.op, ReshapeOp):
                leads, trails = shape[: axis + 1] == node.type.shape[: axis + 1], shape[-1:] == node.type.shape[-1:]
                own = axis if leads else len(shape) - 1 if trails and axis == node.type.rank - 1 else None
            if isinstance(user.op, (PermuteOp, PointwiseOp, ReshapeOp)):
                pending.append((user, own))
            else:
                yield user, own


def _are_rows(node: Node, axis: int | None, graph: Graph) -> bool:
    """Whether ``node`` works along its operand's ``axis``, or that is the last one."""
    along = (
        node.op.axes if isinstance(node.op, NormalizeOp) else (node.op.axis,) if isinstance(node.op, SoftmaxOp) else ()
    )
    return axis is not None and (along == (axis,) or axis == graph.node(node.inputs[0]).type.rank - 1)


def _reads_in_place(m: Match) -> bool:
    """Whether a kernel in TF32 reads the input of the convolution as it lies: not of few channels."""
    conv = m.root.op
    assert isinstance(conv, ConvOp)
    channels, _ = inference.group_channels(conv, m["x"].type, m["w"].type)
    return not conv.precise and in_tf32(conv.transposed, channels)


def _side_by_side(m: Match) -> str | None:
    """Why the convolution is no product of patches that do not overlap, or None."""
    conv, graph = m.root.op, m.graph
    assert isinstance(conv, ConvOp)
    kernel = inference.kernel_size(m["w"].type)
    dense = all(step == 1 for step in conv.dilation)
    apart = conv.stride == kernel and dense and not any((*conv.padding, *conv.behind))
    if conv.transposed or conv.groups != 1 or not apart or prod(kernel) == 1:
        return ""
    if _reads_in_place(m) or conv.summed or isinstance(m["x"].op, WindowSumOp):
        return ""
    ends = list(_ends(graph, m.root))
    if any(isinstance(node.op, _COLLAPSING) for node, _ in ends):
        return "what follows may collapse with the convolution"
    terms = prod(graph.shape(m["w"].name)[1:])
    if terms >= _MANY_TERMS or (ends and all(_are_rows(node, axis, graph) for node, axis in ends)):
        return None
    return f"patches of {terms} elements, whose products are not read as rows"


def _overlapping(m: Match) -> str | None:
    """Why the convolution is no product of windows that overlap, which are written for it, or None."""
    conv, x, w, graph = m.root.op, m["x"], m["w"], m.graph
    assert isinstance(conv, ConvOp)
    sizes = tuple(dims.evaluate(size, graph.sizes) for size in w.type.shape)
    outputs, terms = sizes[0], prod(sizes[1:])
    apart = all(step >= size for step, size in zip(conv.stride, sizes[2:], strict=True))
    plain = conv.groups == 1 and not (conv.transposed or any(conv.behind) or conv.cropped or conv.summed)
    if not plain or apart or terms < _MANY_TERMS:
        return ""
    if _reads_in_place(m) or isinstance(x.op, WindowSumOp) or isinstance(w.op, TapSumOp):
        return ""
    if any(isinstance(node.op, _COLLAPSING) for node, _ in _ends(graph, m.root)):
        return "what follows may collapse with the convolution"
    if terms > _MOST_OF_RESULTS * outputs:
        return "its windows would take much more memory than its result"
    return _pays(m, outputs, terms)


def _pays(m: Match, outputs: int, terms: int) -> str | None:
    """None where writing windows of ``terms`` elements and multiplying them takes less time than the convolution."""
    graph, rates = m.graph, machine(DEFAULT_TARGET)
    rows = dims.numel(m.root.type.shape, graph.sizes) // outputs
    moved = 4 * (dims.numel(m["x"].type.shape, graph.sizes) + rows * terms) / rates.bandwidth + rates.launch
    product = moved + tensor_gemm.seconds(rows, terms, outputs, rates)
    return (
        None
        if product < boxes.product_seconds(graph, m.root, rates)
        else "its windows and their product are expected to take longer"
    )


def _windows(m: Match) -> Node:
    x, w, conv = m["x"], m["w"], m.root.op
    assert isinstance(conv, ConvOp)
    kernel, counts = inference.kernel_size(w.type), m.root.type.shape[2:]
    if any(conv.padding):
        x = m.add(PadOp(before=(0, 0, *conv.padding), after=(0, 0, *conv.padding)), x)
    for axis in reversed(range(conv.rank)):
        op = UnfoldOp(
            axis=2 + axis, count=counts[axis], size=kernel[axis], step=conv.stride[axis], dilation=conv.dilation[axis]
        )
        x = m.add(op, x)
    return _of_rows(m, x, counts)


def _of_rows(m: Match, x: Node, counts: Dims) -> Node:
    """The product of the weights with windows: ``x`` has a position and a tap for each axis of the image, in turns."""
    w, conv = m["w"], m.root.op
    assert isinstance(conv, ConvOp)
    places = range(2, 2 + 2 * conv.rank)
    turned = m.add(PermuteOp(order=(0, *places[::2], 1, *places[1::2])), x)
    terms = dims.product(w.type.shape[1:])
    rows = m.add(ReshapeOp(shape=(x.type.shape[0], *counts, terms)), turned)
    weights = m.add(ReshapeOp(shape=(w.type.shape[0], terms)), w)
    product = m.add(MatmulOp(transposed=True, precise=conv.precise), rows, weights)
    return m.add(PermuteOp(order=(0, conv.rank + 1, *range(1, conv.rank + 1))), product)


def _patches(m: Match) -> Node:
    x, w, conv = m["x"], m["w"], m.root.op
    assert isinstance(conv, ConvOp)
    kernel, counts = inference.kernel_size(w.type), m.root.type.shape[2:]
    for axis, (size, count) in enumerate(zip(kernel, counts, strict=True), 2):
        length = dims.product((count, size))
        if length != x.type.shape[axis]:  # what is left over takes part in nothing
            x = m.add(SliceOp(axis=axis, start=0, length=length), x)
    apart = tuple(size for pair in zip(counts, kernel, strict=True) for size in pair)
    return _of_rows(m, m.add(ReshapeOp(shape=(*x.type.shape[:2], *apart)), x), counts)


# --- what follows such a product, whose positions are one ---------------------------------------------


def _appended(m: Match) -> Node | None:
    """The operand that is a product, or follows from one, with axes of one element after its own."""
    for operand in map(m.graph.node, m.root.inputs):
        if isinstance(operand.op, ReshapeOp):
            own, shape = m.graph.node(operand.inputs[0]), operand.type.shape
            ones = shape[own.type.rank :]
            if ones and shape == (*own.type.shape, *(1,) * len(ones)) and product_below(m.graph, own):
                return operand
    return None


def _without_ones(m: Match) -> str | None:
    found = _appended(m)
    if found is None or found.type.shape != m.root.type.shape or not m.graph.has_one_reader(found.name):
        return ""
    own = m.graph.node(found.inputs[0]).type.rank
    others = [m.graph.node(name) for name in m.root.inputs if name != found.name]
    ones = found.type.rank - own
    fits = (node.type.rank == 0 or (node.type.rank >= ones and set(node.type.shape[-ones:]) == {1}) for node in others)
    return None if all(fits) else ""


def _before_ones(m: Match) -> Node:
    found = _appended(m)
    assert found is not None
    own = m.graph.node(found.inputs[0])
    ones = found.type.rank - own.type.rank

    def less(node: Node) -> Node:
        return m.add(ReshapeOp(shape=node.type.shape[:-ones]), node) if node.type.rank else node

    operands = [own if name == found.name else less(m.graph.node(name)) for name in m.root.inputs]
    return m.add(ReshapeOp(shape=m.root.type.shape), m.add(m.root.op, *operands))


RULES = (
    Rule(
        "conv(x, w) = matmul(x, w),  w as large as x;  transposed, of one position, likewise",
        op(ConvOp, anything("x"), anything("w")),
        _product,
        Numerics.REASSOCIATES,
        _whole,
    ),
    Rule(
        "conv(x, w) = sum of x w over the channels,  one tap, to one channel",
        op(ConvOp, anything("x"), anything("w")),
        _weighted_channels,
        Numerics.REASSOCIATES,
        _one_channel,
    ),
    Rule(
        "conv(x, w) = permute(matmul(patches of x, w)),  kernels that lie side by side",
        op(ConvOp, anything("x"), anything("w")),
        _patches,
        Numerics.REASSOCIATES,
        _side_by_side,
    ),
    Rule(
        "conv(x, w) = permute(matmul(windows of x, w)),  of few channels and many taps",
        op(ConvOp, anything("x"), anything("w")),
        _windows,
        Numerics.REASSOCIATES,
        _overlapping,
    ),
    Rule(
        "f(reshape(x), c) = reshape(f(x, c)),  the reshape adds axes of one element to a product",
        op(PointwiseOp),
        _before_ones,
        Numerics.EXACT,
        _without_ones,
    ),
)
