"""Statistics over samples and positions of every channel of a convolution, taken by the convolution's own kernel.

Such a kernel has two parts. The *head* is the convolution and what follows it element by element, up to
the one tensor that is written. The *tail* is arithmetic on values that each channel has one of, and
begins with that tensor's mean and variance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fusegen import dims, ops
from fusegen.ir import (
    AdaptivePoolOp,
    ConvOp,
    DType,
    Graph,
    InputOp,
    Node,
    PointwiseOp,
    PoolOp,
    ReduceOp,
    ReshapeOp,
    SoftmaxOp,
)
from fusegen.machines import Machine
from fusegen.tuning import faster

_FUNCTIONS = ("mean", "var")
_KEPT_ROW = 8 * (72 << 10)
"""Bytes of a channel that a kernel of its own reads once, by a cluster of blocks (``row_stream.cu.j2``)."""
_EPILOGUE = 0.2
"""What they add to a convolution, of the time in which its result is read,"""
_FINISH = 14e-6
"""and by themselves, the joining of its blocks' states included (5 to 91 us of ten models, 12 to 19 of fifteen 1x1)."""


def is_over_channels(node: Node, rank: int) -> bool:
    """True for a statistic of every channel of a value [samples, channels, positions...]."""
    return isinstance(node.op, ReduceOp) and node.op.fn in _FUNCTIONS and node.op.axes == (0, *range(2, rank))


def is_fixed(graph: Graph, name: str, found: set[str]) -> bool:
    """Whether a value follows from parameters and scalars alone; ``found`` gains what computes it."""
    node = graph.node(name)
    if isinstance(node.op, InputOp) or not (ops.is_leaf(node.op) or isinstance(node.op, (PointwiseOp, ReshapeOp))):
        return False
    own: set[str] = set() if ops.is_leaf(node.op) else {name}
    if not all(is_fixed(graph, operand, own) for operand in node.inputs):
        return False
    found |= own
    return True


def leading(
    graph: Graph, conv: Node, available: set[str], reduced: Callable[[Node], str | None]
) -> tuple[Node, set[str], set[str]] | None:
    """The first value after ``conv`` that is reduced, what leads to it, and what of that follows from parameters.

    ``reduced``: what a node is a statistic of, or None.
    """
    after: dict[str, set[str]] = {conv.name: set()}
    value = None
    for node in graph.nodes:
        value = reduced(node)
        if value in after:
            break
        if node.name in available and isinstance(node.op, PointwiseOp) and node.type == conv.type:
            fixed: set[str] = set()
            data = [name for name in node.inputs if name in after]
            if data and all(name in after or is_fixed(graph, name, fixed) for name in node.inputs):
                after[node.name] = fixed
    if value is None or value not in after:
        return None
    inside = {value}
    for node in reversed(graph.nodes):
        if node.name in inside and node is not conv:
            inside |= after.keys() & set(node.inputs)
    return graph.node(value), inside, set[str]().union(*(after[name] for name in inside))


def members(graph: Graph, conv: Node, free: Iterable[str]) -> tuple[set[str], set[str]] | None:
    """(nodes, copied nodes) of a kernel that computes ``conv`` and what a norm after it needs of every channel."""
    users, available = graph.users(), set(free)
    rank = conv.type.rank
    found = leading(graph, conv, available, lambda node: node.inputs[0] if is_over_channels(node, rank) else None)
    if found is None:
        return None
    value, inside, copies = found
    hidden = inside - {value.name}
    if hidden & set(graph.results) or any(not inside.issuperset(users[name]) for name in hidden):
        return None
    readers = [graph.node(name) for name in dict.fromkeys(users[value.name])]
    known = {node.name for node in readers if is_over_channels(node, value.type.rank) and node.name in available}
    if len(known) == len(readers) or not known:
        return None
    for node in graph.nodes:
        if node.name in available and isinstance(node.op, (PointwiseOp, ReshapeOp)) and known & set(node.inputs):
            own: set[str] = set()
            alike = dims.product(node.type.shape) == conv.type.shape[1] and node.type.dtype is DType.FLOAT32
            if alike and all(name in known or is_fixed(graph, name, own) for name in node.inputs):
                known.add(node.name)
                copies |= own
    return inside | known | copies, copies


def split(body: Graph) -> tuple[Graph, Graph | None]:
    """(head, tail) of the body of a contraction's kernel. The tail's first inputs are the statistics."""
    conv = next((node for node in body.nodes if isinstance(node.op, ConvOp)), None)
    found = [n for n in body.nodes if conv is not None and is_over_channels(n, conv.type.rank)]
    if not found:
        return body, None
    after = {node.name for node in found}
    for node in body.nodes:
        if after & set(node.inputs):
            after.add(node.name)
    nodes = tuple(node for node in body.nodes if node.name not in after)
    head = body.replace(nodes=nodes, outputs=found[0].inputs).prune()
    given = [*found, *body.inputs]  # the inputs for the sizes that they have
    inputs = [node.replace(op=InputOp(position=i), inputs=()) for i, node in enumerate(given)]
    rest = [node for node in body.nodes if node not in given]
    outputs = tuple(name for name in body.outputs if name in after)
    return head, body.replace(nodes=(*inputs, *rest), outputs=outputs).prune()


def _apart(graph: Graph, value: Node) -> bool:
    """Whether what follows the norm of ``value`` is another kernel than one that also finds its statistics."""
    users, pending, seen = graph.users(), [value.name], set[str]()
    axes = (0, *range(2, value.type.rank))
    while pending:
        for name in users[pending.pop()]:
            node = graph.node(name)
            if name in seen or is_over_channels(node, value.type.rank) or node.type.rank != value.type.rank:
                continue
            seen.add(name)
            if isinstance(node.op, (PoolOp, AdaptivePoolOp, SoftmaxOp)) or (
                isinstance(node.op, ReduceOp) and node.op.axes != axes
            ):
                return True
            if isinstance(node.op, PointwiseOp):
                pending.append(name)
    return False


def _seconds(graph: Graph, value: Node, machine: Machine) -> tuple[float, float]:
    """What statistics of ``value`` take in the epilogue of its convolution, and apart."""
    elements = dims.numel(value.type.shape, graph.sizes)
    seconds = 4 * elements / machine.bandwidth
    row = 4 * elements / dims.numel(value.type.shape[1:2], graph.sizes)
    alone = seconds if row > _KEPT_ROW or _apart(graph, value) else 0.0
    return _EPILOGUE * seconds + _FINISH, alone


def saved(graph: Graph, head: Graph, machine: Machine) -> float:
    """Seconds that statistics in the epilogue of ``head`` are expected to save."""
    here, alone = _seconds(graph, graph.node(head.outputs[0]), machine)
    return max(0.0, alone - here)


def pays(graph: Graph, head: Graph, machine: Machine) -> bool:
    """Whether statistics in the epilogue of ``head`` are expected to be faster than apart."""
    value = graph.node(head.outputs[0])
    here, alone = _seconds(graph, value, machine)
    answers = {"the convolution": (True, here), "a pass of their own": (False, alone)}
    return faster(f"statistics of {value.name} by", answers)
