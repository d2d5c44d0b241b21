"""Convolutions that are matrix products: of kernels that meet all of an image at once, or one position of it.

A linear layer by another name, as networks end (a kernel as large as what is left of the image), gate channels (1x1
on a mean) or begin (a transposed convolution of a vector). The product is in full float32 where the library's
convolution is in TF32, and so the more precise one.
"""

from __future__ import annotations

from fusegen import dims, inference, ops
from fusegen.costs import library
from fusegen.dims import Dim
from fusegen.ir import ConvOp, MatmulOp, Node, PointwiseOp, ReshapeOp, TapSumOp, WindowSumOp
from fusegen.machines import DEFAULT_TARGET, machine
from fusegen.passes.algebra.collapse import product_below
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op


def _whole(m: Match) -> str | None:
    """Why the convolution is no product of samples with all weights of an output, or None."""
    conv, x = m.root.op, m["x"]
    assert isinstance(conv, ConvOp)
    kernel, image = inference.kernel_size(m["w"].type), x.type.shape[2:]
    met = kernel if not conv.transposed else (1,) * conv.rank
    dense = all(step == 1 or size == 1 for step, size in zip(conv.dilation, kernel, strict=True))
    if isinstance(x.op, WindowSumOp) or isinstance(m["w"].op, TapSumOp):
        return ""  # a kernel has those sums and their product
    if conv.groups != 1 or any(conv.padding) or any(conv.output_padding) or not dense or image != tuple(met):
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
        "f(reshape(x), c) = reshape(f(x, c)),  the reshape adds axes of one element to a product",
        op(PointwiseOp),
        _before_ones,
        Numerics.EXACT,
        _without_ones,
    ),
)
