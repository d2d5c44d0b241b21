"""Attention: two matrix products, the first one's results being the factors of the second's sums.

``scores = query key^T``, elementwise work, maybe a softmax over the keys; ``result = weights value``. Both products
have the numbers of ``viewproduct``: a matrix, a row and a column of it, and ``k``, the term of a sum. A column of the
scores is a term of the second product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fusegen.dims import Dim, Dims
from fusegen.ir import (
    AttentionOp,
    ConstOp,
    DType,
    FillOp,
    Graph,
    InputOp,
    MatmulOp,
    Node,
    Op,
    PermuteOp,
    PointwiseOp,
    ReshapeOp,
    SoftmaxOp,
    TensorType,
    TriangleOp,
)
from fusegen.spaces import placement, viewspace
from fusegen.spaces.placement import Places
from fusegen.spaces.rowspace import NotFusable
from fusegen.spaces.viewproduct import COLUMN, MATRIX, ROW, TERM, check_alone, digits, following, heads

MOST_READS = 4
"""Operands that an element of a factor may come from: every block of rows reads keys and values again."""
MOST_WIDE = 256
"""Terms of a score, and columns of a result: a block has those of its rows on chip."""


@dataclass(frozen=True)
class Attention:
    """``scores`` and ``head``: the two products. Factors are wanted at their places."""

    body: Graph
    """With torch's own attention in its parts."""
    safe: bool
    """A row without a key is zero; else it is no number."""
    scores: Node
    head: Node
    softmax: Node | None
    weighed: Node
    """What the softmax reads; without one, the factor of the second product."""
    query: Node
    key: Node
    value: Node
    query_places: Places
    key_places: Places
    value_places: Places
    weighed_places: Places
    result: Places
    after: frozenset[str]
    """The second product and what follows it."""
    matrices: Dims
    rows: Dim
    keys: Dim
    inputs: int
    outputs: int


def takes(body: Graph) -> bool:
    """True for two products, or attention as torch has it, with elementwise work, views and at most one softmax."""
    rest = (InputOp, ConstOp, PointwiseOp, SoftmaxOp, MatmulOp, AttentionOp, *viewspace.VIEWS)
    count = {kind: sum(isinstance(node.op, kind) for node in body.nodes) for kind in (SoftmaxOp, AttentionOp)}
    products = len(heads(body)) + 2 * count[AttentionOp]
    return products == 2 and sum(count.values()) <= 1 and all(isinstance(node.op, rest) for node in body.nodes)


def _in_parts(body: Graph) -> Graph:
    """%a = attention(%q, %k, %v, %m)  ->  %a = matmul(softmax(scale matmul(%q, %k^T) + %m), %v)."""
    nodes: list[Node] = []
    for node in body.nodes:
        if not isinstance(node.op, AttentionOp):
            nodes.append(node)
            continue
        query, key, value, *masks = map(body.node, node.inputs)
        scores = query.type.replace(shape=(*query.type.shape[:-1], key.type.shape[-2]))

        def add(stem: str, op: Op, *inputs: Node, type_: TensorType = scores, of: Node = node) -> Node:
            names = tuple(own.name for own in inputs)
            nodes.append(of.replace(name=f"{of.name}_{stem}", op=op, inputs=names, type=type_))
            return nodes[-1]

        one = scores.replace(shape=())
        found = add("scores", MatmulOp(transposed=True), query, key)
        found = add("scaled", PointwiseOp(fn="mul"), found, add("scale", ConstOp(value=node.op.scale), type_=one))
        none = add("none", ConstOp(value=-math.inf), type_=one)
        if node.op.causal:
            flags = scores.replace(dtype=DType.BOOL, shape=scores.shape[-2:])
            fill = add("all", FillOp(value=1.0, shape=flags.shape, dtype=DType.BOOL), query, type_=flags)
            counts = add("counts", TriangleOp(upper=False), fill, type_=flags)
            found = add("causal", PointwiseOp(fn="where"), counts, found, none)
        for mask in masks:  # torch adds truth values too: zero or minus infinity
            if mask.type.dtype is DType.BOOL:
                zero = add("zero", ConstOp(value=0.0), type_=one)
                bias = mask.type.replace(dtype=scores.dtype)
                mask = add("bias", PointwiseOp(fn="where"), mask, zero, none, type_=bias)
            found = add("masked", PointwiseOp(fn="add"), found, mask)
        found = add("softmax", SoftmaxOp(axis=node.type.rank - 1), found)
        nodes.append(node.replace(op=MatmulOp(), inputs=(found.name, value.name)))
    return body.replace(nodes=tuple(nodes))


def _sides(body: Graph, product: Node) -> tuple[Node, Node, bool, bool]:
    """Both factors of a product, and whether the terms of its sums are along the last axis of each."""
    assert isinstance(product.op, MatmulOp)
    left, right = (body.node(name) for name in product.inputs)
    return left, right, not product.op.left_transposed, product.op.transposed


def split(body: Graph) -> Attention:
    """The two products of ``body``, with the places of their factors' elements and of the result.

    Raises ``NotFusable``.
    """
    safe = not heads(body)
    body = _in_parts(body)
    scores, head = heads(body)
    query, key, query_last, key_last = _sides(body, scores)
    *lead, rows, keys = scores.type.shape
    of_matrices = placement.whole(tuple(lead), MATRIX)
    row, column = placement.position(ROW, rows), placement.position(COLUMN, keys)
    known = following(body, {scores.name: (*of_matrices, row, column)}, until=head, kept=(SoftmaxOp,))
    softmax = _softmax(body, known, column)

    left, right, left_last, right_last = _sides(body, head)
    flipped = right.name in known
    weights, value = (right, left) if flipped else (left, right)
    weights_last, value_last = (right_last, left_last) if flipped else (left_last, right_last)
    if weights.name not in known or value.name in known:
        raise NotFusable("its products do not follow from one another")
    of_head = placement.whole(head.type.shape[:-2], MATRIX)
    wanted = (*of_head, row, column) if weights_last else (*of_head, column, row)
    if digits(known[weights.name], body) != digits(wanted, body):
        raise NotFusable(f"{head.name} adds up along other elements than {scores.name} has in a row")

    def factor(node: Node, matrices: Places, side: str, last: bool) -> tuple[Places, Dim]:
        shape = node.type.shape[-2:]
        terms, others = shape if not last else shape[::-1]
        k, place = placement.position(TERM, terms), placement.position(side, others)
        of_node = matrices if node.type.rank > 2 else ()
        return (*of_node, *((place, k) if last else (k, place))), others

    query_places, _ = factor(query, of_matrices, ROW, query_last)
    key_places, _ = factor(key, of_matrices, COLUMN, key_last)
    value_places, outputs = factor(value, of_head, COLUMN, value_last)
    inputs = query.type.shape[-1 if query_last else -2]
    if not isinstance(inputs, int) or not isinstance(outputs, int) or max(inputs, outputs) > MOST_WIDE:
        raise NotFusable(
            f"scores of {inputs} terms, results of {outputs} columns: up to {MOST_WIDE} of each are on chip"
        )
    feature = placement.position(COLUMN, outputs)
    result = (*of_head, feature, row) if flipped else (*of_head, row, feature)
    after = following(body, {head.name: result})
    if body.outputs[0] not in after:
        raise NotFusable("its result does not follow from both products")
    weighed = body.node(softmax.inputs[0]) if softmax else weights
    return Attention(
        body=body,
        safe=safe,
        scores=scores,
        head=head,
        softmax=softmax,
        weighed=weighed,
        query=query,
        key=key,
        value=value,
        query_places=query_places,
        key_places=key_places,
        value_places=value_places,
        weighed_places=known[weighed.name],
        result=after[body.outputs[0]],
        after=frozenset(after),
        matrices=tuple(lead),
        rows=rows,
        keys=keys,
        inputs=inputs,
        outputs=outputs,
    )


def _softmax(body: Graph, known: dict[str, Places], column: placement.Place) -> Node | None:
    """The softmax over the keys among what follows from the scores, which views alone follow. Raises ``NotFusable``."""
    softmax: Node | None = None
    for node in body.nodes:
        if node.name not in known:
            continue
        if isinstance(node.op, SoftmaxOp):
            if node.op.log or digits((known[node.name][node.op.axis],), body) != digits((column,), body):
                raise NotFusable(f"{node.name} is no softmax over the keys")
            softmax = node
        elif softmax and not isinstance(node.op, (ReshapeOp, PermuteOp)):
            raise NotFusable(f"{node.name} needs the softmax, which is known at the end")
    return softmax


def check(body: Graph) -> Attention:
    """The attention of ``body``. Raises ``NotFusable`` where no kernel has all of it."""
    check_alone(body)
    found = split(body)
    factors = [(found.query, found.query_places), (found.key, found.key_places), (found.value, found.value_places)]
    for factor, places in factors:
        if (loads := placement.loads(found.body, factor.name, places)) > MOST_READS:
            raise NotFusable(f"an element of {factor.name} may come from {loads} places")
    return found


_SMOOTH = {"exp", "gelu", "gelu_tanh", "leaky_relu", "relu", "sigmoid", "silu", "softplus", "square", "tanh"}
_KEEPS_NAN = {"abs", "add", "div", "maximum", "minimum", "mul", "neg", "sub"} | _SMOOTH
"""Functions of a NaN, whatever else they are of, that are NaN."""


def is_masked(found: Attention) -> bool:
    """Whether a score that is NaN stays NaN but where it does not count: by a condition that is not of scores."""
    path = {found.scores.name}
    masked = False
    for node in found.body.nodes:
        sources = [i for i, name in enumerate(node.inputs) if name in path]
        if not sources or node is found.head:
            continue
        path.add(node.name)
        if node is found.softmax:
            break
        if isinstance(node.op, PointwiseOp) and node.op.fn == "where" and 0 not in sources:
            masked = True
        elif isinstance(node.op, PointwiseOp) and node.op.fn not in _KEEPS_NAN:
            return False
        masked |= isinstance(node.op, TriangleOp)
    return masked
