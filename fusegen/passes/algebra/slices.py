"""A part of a convolution or matrix product: the rest is never computed.

A slice moves before what follows the product element by element, or along other axes, and then takes a part of the
weights, of the samples or of the rows. Every value that is left is computed as it was. A part of a parameter is a view.
"""

from __future__ import annotations

from fusegen import dims
from fusegen.costs.precision import allows_tf32
from fusegen.ir import (
    ConvOp,
    Graph,
    MatmulOp,
    Node,
    ParamOp,
    PermuteOp,
    PointwiseOp,
    PoolOp,
    ReduceOp,
    ReshapeOp,
    SliceOp,
)
from fusegen.passes.algebra.channels import collapses
from fusegen.passes.algebra.collapse import LINEAR, constant_along, reduction
from fusegen.passes.algebra.crops import cropped
from fusegen.passes.rewrite import Match, Numerics, Pattern, Rule, anything, op

_OF_PART = (PointwiseOp, SliceOp)
SMALL = 4
"""How many times larger a result is than an operand of which a part may be copied for it."""


def _slice(m: Match) -> SliceOp:
    assert isinstance(m.root.op, SliceOp)
    return m.root.op


def _operand_axes(graph: Graph, node: Node, axis: int) -> dict[int, int] | None:
    """Of which operands, by number, and along which of their axes a part gives the part of ``node`` along ``axis``."""
    operands, rank = [graph.node(name).type for name in node.inputs], node.type.rank
    match node.op:
        case PointwiseOp():
            places = {number: axis - rank + type_.rank for number, type_ in enumerate(operands)}
            return {number: at for number, at in places.items() if at >= 0 and operands[number].shape[at] != 1}
        case ReduceOp(axes=reduced, keepdim=keepdim):
            left = [at for at in range(operands[0].rank) if keepdim or at not in reduced]
            return {0: left[axis]} if left[axis] not in reduced else None
        case ReshapeOp(shape=shape):
            (before,), size = [type_.shape for type_ in operands], (dims.product(shape[:axis]), shape[axis])
            same = [at for at in range(len(before)) if (dims.product(before[:at]), before[at]) == size]
            return {0: same[0]} if same and shape[axis] != 1 else None
        case PermuteOp(order=order):
            return {0: order[axis]}
        case PoolOp():
            return {0: axis} if axis < rank - node.op.rank else None
        case ConvOp(groups=1, transposed=transposed) if len(operands) == 2 and axis < 2:
            return {1: int(transposed)} if axis == 1 else {0: 0}
        case MatmulOp() if len(operands) == 2:
            w = operands[1]
            if axis == rank - 1:
                return {1: w.rank - 2 if node.op.transposed else w.rank - 1}
            if axis == rank - 2:
                return {0: rank - 1 if node.op.left_transposed else rank - 2}
            return {0: axis} if w.rank == 2 else {0: axis, 1: axis}
    return None


def _is_cheap(graph: Graph, part: SliceOp, axis: int, operand: Node, result: Node) -> bool:
    """True when a part of an operand is a view that lies like a tensor of its own, or a small copy."""
    if axis == 0 and part.step == 1:
        return True
    return SMALL * dims.numel(operand.type.shape, graph.sizes) <= dims.numel(result.type.shape, graph.sizes)


def _reaches_a_product(m: Match) -> str | None:
    """None when only the slice reads what it would move before, down to products that shrink or to a parameter."""
    graph, part, seen = m.graph, _slice(m), {m.root.name}
    position = {name: number for number, name in enumerate(graph.by_name)}
    pending = {m["x"].name: part.axis}
    while pending:
        node = graph.node(max(pending, key=position.__getitem__))
        axis = pending.pop(node.name)
        if isinstance(node.op, ParamOp):
            continue
        own = part.replace(axis=axis)
        users = [user for user in map(graph.node, graph.users[node.name]) if user.op != own]
        if any(user.name not in seen for user in users) or node.name in graph.results:
            return ""
        seen.add(node.name)
        if isinstance(node.op, ConvOp) and axis > 1:
            if node is m["x"] or cropped(graph, own, node) is None:
                return ""
            continue
        operands, axes = [graph.node(name) for name in node.inputs], _operand_axes(graph, node, axis)
        dear = {i for i, at in (axes or {}).items() if not _is_cheap(graph, part, at, operands[i], node)}
        if not axes:
            return ""
        if isinstance(node.op, (ConvOp, MatmulOp)):
            reason = "" if dear else _keeps_its_class(graph, node)
            if reason is not None:
                return reason
            continue
        main = max(range(len(operands)), key=lambda i: dims.numel(operands[i].type.shape, graph.sizes))
        if main not in axes:
            return ""
        pending |= {operands[i].name: axes[i] for i in {main} | dear}
    return None


def _stays(graph: Graph, part: Node) -> bool:
    """Whether the rules that take a part of a product's operands leave ``part`` where it is."""
    return _reaches_a_product(Match(graph, part, {"x": graph.node(part.inputs[0])})) is not None


def _keeps_its_class(graph: Graph, node: Node) -> str | None:
    rounded = isinstance(node.op, ConvOp) and allows_tf32(graph, node)
    return "cuDNN decides by all of its sizes whether the convolution runs in TF32" if rounded else None


def part_of_operands(m: Match) -> Node:
    part, operands = _slice(m), [m.graph.node(name) for name in m["x"].inputs]
    axes = _operand_axes(m.graph, m["x"], part.axis)
    assert axes
    parts = {operands[i].name: m.add(part.replace(axis=at), operands[i]) for i, at in axes.items()}
    inner = m["x"].op
    if isinstance(inner, ReshapeOp):
        inner = ReshapeOp(shape=m.root.type.shape)
    return m.add(inner, *(parts[o.name] if i in axes else o for i, o in enumerate(operands)))


def _part_of_sums(m: Match) -> str | None:
    """A part that cannot be taken of the weights is one of the sums, where these need no product."""
    part = m["part"]
    assert isinstance(part.op, SliceOp)
    if part.op.axis in reduction(m).axes or not m.only_user("part"):
        return ""
    return None if _stays(m.graph, part) and collapses(m.graph, m["x"], reduction(m).axes) else ""


def _sums_first(m: Match) -> Node:
    sums = m.add(reduction(m).replace(keepdim=True), m["x"])
    return m.add(ReshapeOp(shape=m.root.type.shape), m.add(m["part"].op, sums))


def _chain_of_a_part(m: Match) -> list[Node]:
    """What leads from a part to the sum of its elements' functions, the sum's operand first and the part last."""
    chain = [m["y"]]
    while isinstance(chain[-1].op, PointwiseOp):
        varying = [m.graph.node(name) for name in chain[-1].inputs if isinstance(m.graph.node(name).op, _OF_PART)]
        if len(varying) != 1:
            return []
        chain += varying
    return chain


def _most_is_summed(m: Match) -> str | None:
    """None where a sum counts most of what the part is taken of, which nothing else reads on the way."""
    *functions, part = _chain_of_a_part(m) or [m["y"]]
    if not functions or not isinstance(part.op, SliceOp) or part.op.axis not in reduction(m).axes:
        return ""
    axis, users, own = part.op.axis, m.graph.users, {node.name for node in (*functions, part)}
    if any(len(set(users[name])) > 1 or name in m.graph.results for name in own):
        return ""
    others = {name for node in functions for name in node.inputs} - own
    if any(not constant_along(m.graph.node(name), part, (axis,)) for name in others):
        return "an operand is along the part alone"
    if any(node.type.rank != part.type.rank for node in functions) or (reduction(m).fn == "mean" and _count(m) is None):
        return ""
    whole = m.graph.node(part.inputs[0])
    if not _stays(m.graph, part) or (axis, part.op.step) == (0, 1):  # a view of what lies in one piece
        return ""
    few = 2 * dims.numel(part.type.shape, m.graph.sizes) < dims.numel(whole.type.shape, m.graph.sizes)
    return "less than half of it is summed" if few else None


def _count(m: Match) -> int | None:
    """Elements of each sum, where that is one number."""
    count = dims.product(m["y"].type.shape[axis] for axis in reduction(m).axes)
    return count if isinstance(count, int) else None


def _part_of_functions(m: Match) -> Node:
    *functions, part = _chain_of_a_part(m)
    value, last = m.graph.node(part.inputs[0]), part
    for node in reversed(functions):
        operands = (value if name == last.name else m.graph.node(name) for name in node.inputs)
        value, last = m.add(node.op, *operands), node
    total = m.add(reduction(m).replace(fn="sum"), m.add(part.op, value))
    if reduction(m).fn == "sum":
        return total
    count = _count(m)
    assert count is not None
    return m.add(PointwiseOp(fn="div"), total, m.const(count))


def _rule(identity: str, inner: Pattern) -> Rule:
    return Rule(identity, op(SliceOp, inner), part_of_operands, Numerics.EXACT, _reaches_a_product)


RULES = (
    _rule("slice(f(x, y)) = f(slice(x), slice(y)),  f elementwise,  above a product", op(PointwiseOp, name="x")),
    _rule("slice(reduce(x)) = reduce(slice(x)) over other axes,  above a product", op(ReduceOp, name="x")),
    _rule("slice(reshape(x)) = reshape(slice(x)) along an axis of both,  above a product", op(ReshapeOp, name="x")),
    _rule("slice(permute(x)) = permute(slice(x)),  above a product", op(PermuteOp, name="x")),
    _rule("slice(pool(x)) = pool(slice(x)) over other axes,  above a product", op(PoolOp, name="x")),
    _rule("slice(conv(x, w)) = conv(x, slice(w)) of channels,  conv(slice(x), w) of samples", op(ConvOp, name="x")),
    _rule(
        "slice(matmul(x, w)) = matmul(x, slice(w)) of features,  matmul(slice(x), w) of rows", op(MatmulOp, name="x")
    ),
    Rule(
        "sum(slice(x)) = slice(sum(x)) over other axes,  mean likewise,  above a product that stays whole",
        op(ReduceOp, op(SliceOp, anything("x"), name="part"), fn=LINEAR),
        _sums_first,
        Numerics.REASSOCIATES,
        _part_of_sums,
    ),
    Rule(
        "sum(f(slice(x))) = sum(slice(f(x))),  f elementwise,  where most of x is summed",
        op(ReduceOp, op(PointwiseOp, name="y"), fn=LINEAR),
        _part_of_functions,
        Numerics.REASSOCIATES,
        _most_is_summed,
    ),
)
