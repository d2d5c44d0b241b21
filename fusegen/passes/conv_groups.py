"""The groups that begin at a convolution or at sums over its axes, before others grow: what its kernel takes beside it.

A norm's kernel would take statistics, and a row's kernel a maximum, once the convolution had written its result.
"""

from __future__ import annotations

from fusegen.costs import boxes, contractions, direct
from fusegen.ir import AxisTapSumOp, AxisWindowSumOp, DType, Graph, MatmulOp, Node, PointwiseOp, ReshapeOp
from fusegen.machines import Machine
from fusegen.passes.groups import Group, Grouping
from fusegen.spaces import channels, convreduce, convsweep
from fusegen.spaces.parts import indices
from fusegen.spaces.rowspace import NotFusable, analyze


def unreadable(body: Graph, beside: str = "") -> str | None:
    """Why an operand of ``body`` is none for a kernel other than a pointwise one, or None: they read float32.

    Kernels of rows, whose data is ``beside``, read truth values and places of elements too. Products of 16-bit
    operands have kernels that read each operand as it is.
    """
    if any(isinstance(node.op, MatmulOp) and node.type.dtype is not DType.FLOAT32 for node in body.nodes):
        return None
    places = indices(body) if beside else ()
    for x in body.inputs:
        flag = beside and x.name != beside and (x.type.dtype is DType.BOOL or x.name in places)
        if x.type.dtype is not DType.FLOAT32 and not flag:
            return f"{x.name} is {x.type.dtype.value}, which such kernels do not read"
    return None


def with_statistics(grouping: Grouping, conv: Node, free: set[str], machine: Machine) -> Group | None:
    """The region of a convolution that also finds what a norm after it needs of every channel."""
    found = channels.members(grouping.graph, conv, free)
    if found is None:
        return None
    group = Group(*map(frozenset, found))
    body, _ = grouping.body(group)
    head, _ = channels.split(body)
    saved = channels.saved(grouping.graph, head, machine)
    try:
        if unreadable(body) or contractions.statistics_refusal(head, analyze(head), machine, saved):
            return None
    except NotFusable:
        return None
    more = contractions.bound_seconds(head, conv.name, machine)
    alone, _ = grouping.body(Group(frozenset({conv.name})))
    own = alone.node(conv.name)
    if direct.takes(alone, own):
        general = contractions.kernel_seconds(alone, own, False, machine)
        more += max(0.0, general - direct.seconds(alone, own, machine))
    return group if channels.pays(grouping.graph, head, machine, more) else None


def reduced(grouping: Grouping, conv: Node, free: set[str], refused: dict[str, str], machine: Machine) -> Group | None:
    """The region of a convolution that reduces its results over all positions instead of writing them."""
    found = convreduce.members(grouping.graph, conv, free)
    if found is None:
        return None
    group = Group(*map(frozenset, found))
    body, _ = grouping.body(group)
    try:
        reason = unreadable(body) or convreduce.refusal(body, machine)
    except NotFusable as error:
        reason = str(error)
    if reason:
        refused[conv.name] = f"with {body.outputs[0]}: {reason}"
    return None if reason else group


def _prologue(grouping: Grouping, conv: Node, free: set[str], machine: Machine) -> set[str]:
    """Elementwise work on the input of a convolution of narrow groups, whose kernel computes it as it reads."""
    found: set[str] = set()
    if not direct.is_narrow(grouping.graph, conv):
        return found
    for node in reversed(grouping.graph.nodes):
        readers = set(grouping.users[node.name])
        alone = readers and readers <= found | {conv.name} and node.name not in grouping.results
        if alone and node.name in free and isinstance(node.op, (PointwiseOp, ReshapeOp)):
            found.add(node.name)
    body, _ = grouping.body(Group(frozenset(found | {conv.name})))
    try:
        return set() if unreadable(body) or direct.repeated(body, direct.split(body), machine) else found
    except NotFusable:
        return set()


def swept(grouping: Grouping, conv: Node, free: set[str], refused: dict[str, str], machine: Machine) -> Group | None:
    """The region of a convolution up to a reduction along some of its positions' axes, and as much more as can be."""
    found = convsweep.members(grouping.graph, conv, free)
    if found is None:
        return None
    members, copies, following = found
    first = group = Group(frozenset(members), frozenset(copies)).plus(_prologue(grouping, conv, free, machine))
    best = None
    for more in (None, *following):
        group = group.plus({more}) if more else group
        body, _ = grouping.body(group)
        try:
            reason = unreadable(body) or convsweep.refusal(body, machine)
        except NotFusable as error:
            reason = str(error)
        if reason is None and not grouping.is_cyclic(group):
            best = group
        elif reason and group is first:
            refused[conv.name] = f"with {body.outputs[0]}: {reason}"
    return best


def axis_sums(grouping: Grouping, node: Node, free: set[str]) -> Group:
    """The region of sums over an axis: of a convolution's input, and of its weights beside them where that can be."""
    group, op = Group(frozenset({node.name})), node.op
    for other in grouping.graph.nodes:
        if not isinstance(op, AxisWindowSumOp) or not isinstance(other.op, AxisTapSumOp) or other.name not in free:
            continue
        same = (op.conv, op.kernel, op.axis) == (other.op.conv, other.op.kernel, other.op.axis)
        if same and not grouping.is_cyclic(both := group.plus({other.name})):
            return both
    return group


def over_boxes(grouping: Grouping, conv: Node, free: set[str]) -> Group | None:
    """The region of a convolution of box means."""
    found = boxes.members(grouping.graph, conv, free)
    if found is None:
        return None
    group = Group(*map(frozenset, found))
    try:
        boxes.split(body := grouping.body(group)[0])
    except NotFusable:
        return None
    return None if unreadable(body) else group
