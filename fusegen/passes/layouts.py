"""Operands as they are stored: a transposed view of a product's operand, or of its result, is a property of the
product, and zeros around a convolution's input, or fewer of them for a part of its positions, are one of the
convolution.
"""

from __future__ import annotations

from fusegen import dims
from fusegen.ir import ConvOp, ExpandOp, Graph, MatmulOp, Node, PadOp, PermuteOp, ReshapeOp
from fusegen.passes.algebra import crops
from fusegen.passes.algebra.padding import convolve_with_padding
from fusegen.passes.rewrite import Match, Numerics, Outcome, Rule, anything, op, rewrite
from fusegen.passes.simplify import swaps_last_axes


def _left_as_stored(m: Match) -> Node:
    assert isinstance(m.root.op, MatmulOp)
    return m.add(m.root.op.replace(left_transposed=not m.root.op.left_transposed), m["x"], m["w"])


def _transposed_product(m: Match) -> Node:
    assert isinstance(m["y"].op, MatmulOp)
    op = m["y"].op
    swapped = op.replace(transposed=not op.left_transposed, left_transposed=not op.transposed)
    return m.add(swapped, m["w"], m["x"])


def _batches_of_both(m: Match) -> str | None:
    """A weight stays on the right, where a product with one has its kernels."""
    if m["x"].type.rank != m["w"].type.rank or m["x"].type.rank < 3:
        return "one of the factors is a matrix for every batch"
    return swaps_last_axes(m.root) if m.only_user("y") else "the product is read elsewhere"


def _zeros_around(m: Match) -> str | None:
    conv, pad = m.root.op, m["pad"].op
    assert isinstance(conv, ConvOp)
    assert isinstance(pad, PadOp)
    if conv.transposed or any((*pad.before[:2], *pad.after[:2])) or min(pad.before + pad.after) < 0:
        return ""
    return None if pad.value == 0 else f"it is padded with {pad.value}"


_FEW = 4
"""A copy of the weights for each matrix takes this part of the time at most that a copy of what they multiply takes."""


def _rows_brought_together(m: Match) -> str | None:
    """Rows that share a weight, of several axes, are moved beside each other, and back after the product."""
    x, w, front, back = m["x"].type, m["w"].type, m["front"].op, m.root.op
    assert isinstance(front, PermuteOp)
    assert isinstance(back, PermuteOp)
    count = w.rank - 2
    first, rest = front.order[:count], front.order[count:]
    inverse = tuple(front.order.index(axis) for axis in range(x.rank))
    lead = [x.shape[axis] for axis in first]
    rows = [x.shape[axis] for axis in rest[:-1]]
    merged, split = (*lead, dims.product(rows), x.shape[-1]), (*lead, *rows, m.root.type.shape[-1])
    moved = (
        count > 0
        and list(first) == sorted(first)
        and list(rest) == sorted(rest)
        and rest[-2:] == (x.rank - 2, x.rank - 1)
    )
    if not moved or back.order != inverse or (m["merged"].type.shape, m["split"].type.shape) != (merged, split):
        return ""
    product = m["y"].op
    assert isinstance(product, MatmulOp)
    if product.left_transposed or not all(m.only_user(name) for name in ("y", "split", "merged", "front")):
        return "the product, or what it is of, is read elsewhere"
    sizes = m.graph.sizes
    copies = dims.numel((*x.shape[:-2], *w.shape[-2:]), sizes)
    return None if _FEW * copies <= dims.numel(x.shape, sizes) else "copies of the weights are not few"


def _with_copies(m: Match) -> Node:
    x, w, front = m["x"], m["w"], m["front"].op
    assert isinstance(front, PermuteOp)
    own = front.order[: w.type.rank - 2]
    shape = [x.type.shape[axis] if axis in own else 1 for axis in range(x.type.rank - 2)]
    matrix = w.type.shape[-2:]
    copies = m.add(ExpandOp(shape=(*x.type.shape[:-2], *matrix)), m.add(ReshapeOp(shape=(*shape, *matrix)), w))
    return m.add(m["y"].op, x, copies)


RULES = (
    *crops.RULES,
    Rule(
        "permute(matmul(permute(x), w)) = matmul(x, copies of w),  these few",
        op(
            PermuteOp,
            op(
                ReshapeOp,
                op(
                    MatmulOp,
                    op(ReshapeOp, op(PermuteOp, anything("x"), name="front"), name="merged"),
                    anything("w"),
                    name="y",
                ),
                name="split",
            ),
        ),
        _with_copies,
        Numerics.EXACT,
        _rows_brought_together,
    ),
    Rule(
        "conv(pad(x), w) = conv(x, w) that pads",
        op(ConvOp, op(PadOp, anything("x"), name="pad"), anything("w")),
        convolve_with_padding,
        Numerics.EXACT,
        _zeros_around,
    ),
    Rule(
        "matmul(transpose(x), w) = matmul(x, w) with x's axes swapped",
        op(MatmulOp, op(PermuteOp, anything("x"), name="a"), anything("w")),
        _left_as_stored,
        Numerics.EXACT,
        lambda m: swaps_last_axes(m["a"]),
    ),
    Rule(
        "transpose(matmul(x, w)) = matmul(transpose(w), transpose(x))",
        op(PermuteOp, op(MatmulOp, anything("x"), anything("w"), name="y")),
        _transposed_product,
        Numerics.EXACT,
        _batches_of_both,
    ),
)


def run(graph: Graph) -> Outcome:
    """Before -> after.

    %t = permute(%x, (1, 0)); %y = matmul(%t, %w)  ->  %y = matmul(%x, %w, left_transposed)
    %y = matmul(%x, %w); %t = permute(%y, (0, 2, 1))  ->  %t = matmul(%w, %x, transposed, left_transposed)
    %t = permute(%x, (1, 0, 2, 3)); %y = permute(matmul(%t, %w), (1, 0, 2, 3))  ->  %y = matmul(%x, expand(%w))
    %p = pad(%x, before=(0, 0, 2), ...); %y = conv1d(%p, %w)  ->  %y = conv1d(%x, %w, padding=(2,), behind=(-2,))
    %y = conv1d(%x, %w, padding=(2,)); %s = slice(%y, start=0, ...)  ->  %s = conv1d(%x, %w, padding=(2,), behind=(-2,))
    """
    return rewrite(graph, RULES)
