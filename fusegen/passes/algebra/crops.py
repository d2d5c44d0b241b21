"""A part of a convolution's positions: the convolution that pads less, and computes no others.

Eager computes them, and its precision goes by its own sizes: ``ConvOp.cropped`` keeps how many there are.
"""

from __future__ import annotations

from fusegen import dims, inference, windows
from fusegen.ir import ConvOp, Graph, Node, SliceOp
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op


def cropped(graph: Graph, part: SliceOp, conv: Node) -> ConvOp | None:
    """The convolution of ``part`` of its positions, or None where it would begin or end within the input."""
    op, at = conv.op, part.axis - 2
    if not isinstance(op, ConvOp) or at < 0 or len(conv.inputs) > 2 or op.enlarged:
        return None
    before = part.start
    behind = dims.sub(conv.type.shape[part.axis], dims.add(before, part.length))
    if part.step != 1 or not isinstance(before, int) or not isinstance(behind, int) or min(before, behind) < 0:
        return None
    x, w = (graph.node(name).type for name in conv.inputs)
    kernel = inference.kernel_size(w)
    found = list(op.cropped or ((0, 0),) * op.rank)
    found[at] = (found[at][0] + before, found[at][1] + behind)
    padding, more, less = list(op.padding), list(op.behind or (0,) * op.rank), list(op.output_padding)
    if op.transposed:
        padding[at] += before
        less[at] += before - behind
        reach = op.dilation[at] * (kernel[at] - 1)
        if padding[at] > reach or not 0 <= less[at] < max(op.stride[at], op.dilation[at]):
            return None
    else:
        padding[at] -= before * op.stride[at]
        more[at] += (before - behind) * op.stride[at]
        if padding[at] < 0 or padding[at] + more[at] < 0:
            return None
    made = op.replace(
        padding=tuple(padding),
        behind=tuple(more) if any(more) else (),
        output_padding=tuple(less),
        cropped=tuple(found),
    )
    return made if windows.output_size(made, kernel, at, x.shape[2 + at]) == part.length else None


def _crops(m: Match) -> str | None:
    assert isinstance(m.root.op, SliceOp)
    return None if m.only_user("conv") and cropped(m.graph, m.root.op, m["conv"]) else ""


def _with_less_padding(m: Match) -> Node:
    assert isinstance(m.root.op, SliceOp)
    found = cropped(m.graph, m.root.op, m["conv"])
    assert found is not None
    return m.add(found, m["x"], m["w"])


RULES = (
    Rule(
        "slice(conv(x, w)) = conv(x, w) that pads less,  of positions",
        op(SliceOp, op(ConvOp, anything("x"), anything("w"), name="conv")),
        _with_less_padding,
        Numerics.EXACT,
        _crops,
    ),
)
"""For ``layouts``: what collapses with a convolution counts on as many zeros on either side."""
