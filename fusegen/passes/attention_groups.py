"""The groups of attention, before others grow: two products, what is between them, and the views around them."""

from __future__ import annotations

from fusegen import dims, ops
from fusegen.costs import attention as costs
from fusegen.ir import AttentionOp, ConstOp, MatmulOp, Node, PermuteOp, PointwiseOp, ReshapeOp, SoftmaxOp, TriangleOp
from fusegen.machines import Machine
from fusegen.passes.groups import Group, Grouping
from fusegen.spaces import viewspace
from fusegen.spaces.rowspace import NotFusable

_FOLLOWS = (PointwiseOp, SoftmaxOp, TriangleOp, ReshapeOp, PermuteOp)
"""What may be between the products."""
_ENDS = (PointwiseOp, ReshapeOp, PermuteOp)
"""What may be after them."""


def _path(grouping: Grouping, head: Node, free: set[str]) -> set[str] | None:
    """The product whose results are factors of ``head``, and what is between them; None where there is none."""
    for weights in head.inputs[:2]:
        between, pending, first = set[str](), [weights], set[str]()
        while pending:
            node = grouping.by_name[pending.pop()]
            if node.name not in free or node.name in between:
                continue
            if isinstance(node.op, MatmulOp):
                first.add(node.name)
            elif isinstance(node.op, _FOLLOWS):
                between.add(node.name)
                pending += node.inputs
        scores = [grouping.by_name[name] for name in first if _follows(grouping, name, weights, between)]
        if len(scores) == 1 and scores[0].name not in head.inputs:
            found = {scores[0].name, head.name}
            return found | {name for name in between if _follows(grouping, scores[0].name, name, between)}
    return None


def _follows(grouping: Grouping, first: str, last: str, between: set[str]) -> bool:
    """Whether ``last`` is made of ``first`` by way of nodes ``between`` them that keep its elements apart."""
    size = dims.numel(grouping.by_name[first].type.shape, grouping.graph.sizes)
    pending, seen = [last], set[str]()
    while pending:
        name = pending.pop()
        if name == first:
            return True
        whole = dims.numel(grouping.by_name[name].type.shape, grouping.graph.sizes) == size
        if name in between and name not in seen and whole:
            seen.add(name)
            pending += grouping.by_name[name].inputs
    return False


def _is_cheap(grouping: Grouping, node: Node) -> bool:
    """Whether to compute ``node`` again wherever it is read: views, and arithmetic on one tensor and numbers."""
    if isinstance(node.op, viewspace.VIEWS):
        return True
    data = [name for name in node.inputs if not isinstance(grouping.by_name[name].op, ConstOp)]
    return isinstance(node.op, PointwiseOp) and len(data) == 1 and not ops.function_flops(grouping.graph, node)


def _before(grouping: Grouping, group: Group, free: set[str]) -> set[str]:
    """What the kernel of ``group`` can as well compute as it reads its operands."""
    found, pending = set[str](), [name for member in group.members for name in grouping.by_name[member].inputs]
    while pending:
        node = grouping.by_name[pending.pop()]
        if node.name in free and node.name not in group.members | found and _is_cheap(grouping, node):
            found.add(node.name)
            pending += node.inputs
    return found


def attended(grouping: Grouping, head: Node, free: set[str], refused: dict[str, str], machine: Machine) -> Group | None:
    """The region of a product whose factors come from another one, and what follows it, if one kernel computes it."""
    if head.name not in free:
        return None
    members = {head.name} if isinstance(head.op, AttentionOp) else _path(grouping, head, free)
    if members is None:
        return None
    group = Group(frozenset(members))
    best, reason = None, None
    last = head.name
    while reason is None:
        with_views = group.plus(_before(grouping, group, free), copied=True)
        body, _ = grouping.body(with_views)
        try:
            reason = costs.refusal(body, machine)
        except NotFusable as error:
            reason = str(error)
        if reason is None and grouping.is_cyclic(with_views):
            reason = "what reads it outside the kernel comes before the kernel"
        if reason is None:
            best = with_views
        elif last == head.name:
            refused[head.name] = f"with its factors' product: {reason}"
        following = set(grouping.users[last])
        last = next(iter(following), "")
        if len(following) != 1 or last not in free or not isinstance(grouping.by_name[last].op, _ENDS):
            break
        group = group.plus({last})
    return best
