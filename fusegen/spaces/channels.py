"""Statistics of a convolution's result, taken by the convolution's own kernel, which writes that result too.

They are those of every channel over samples and positions (batch norm), or of every sample, over positions and some
neighbouring channels (group, instance and layer norm, the means of a gate). Such a kernel has two parts. The *head* is
the convolution and what follows it element by element, up to the one tensor that is written. The *tail* is arithmetic
on values that each row of statistics has one of, and begins with that tensor's mean and variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

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
    SliceOp,
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
_OF_SAMPLE, _FINISH_SAMPLES = {False: 0.3, True: 0.45}, 12e-6
"""The same for statistics of every sample, without and with a variance,"""
_STATES = 0.29e-9
"""for what warps leave of each channel of a sample (7x7 of 2048, 200 samples: 139 us where a pass takes 47),"""
_SWEPT = 1.4
"""and the time of a kernel of their own, of that in which the result is read at full bandwidth (15 models, H200)."""


class Rows(NamedTuple):
    """Which results share their statistics: those of so many neighbouring channels, of one sample or of all."""

    channels: int
    of_sample: bool


def row_of(graph: Graph, node: Node, conv: Node) -> tuple[str, Rows] | None:
    """The value, laid out as ``conv`` is, that ``node`` reduces, and the rows, or None where it is none such.

    A value may be reduced as a view of it that splits or merges its axes behind the samples.
    """
    if not isinstance(node.op, ReduceOp) or not node.op.axes:
        return None
    data, axes = graph.node(node.inputs[0]), node.op.axes
    value = graph.node(data.inputs[0]) if isinstance(data.op, ReshapeOp) else data
    if value.type != conv.type:
        return None
    if data is value and axes == (0, *range(2, value.type.rank)):
        return value.name, Rows(1, of_sample=False)
    shape, channels, first = data.type.shape, conv.type.shape[1], axes[0]
    if first == 0 or axes != tuple(range(first, data.type.rank)) or shape[0] != conv.type.shape[0]:
        return None
    groups = dims.product(shape[1:first])
    if not isinstance(groups, int) or not isinstance(channels, int) or groups == 0 or channels % groups:
        return None
    return value.name, Rows(channels // groups, of_sample=True)


def statistic(graph: Graph, node: Node, conv: Node) -> tuple[str, Rows] | None:
    """The same for a mean or a variance."""
    return row_of(graph, node, conv) if isinstance(node.op, ReduceOp) and node.op.fn in _FUNCTIONS else None


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
    for node in graph.nodes[graph.place[conv.name] :]:
        value = reduced(node)
        if value in after:
            break
        if after.keys().isdisjoint(node.inputs) or node.name not in available:
            continue
        if isinstance(node.op, PointwiseOp) and node.type == conv.type:
            fixed: set[str] = set()
            if all(name in after or is_fixed(graph, name, fixed) for name in node.inputs):
                after[node.name] = fixed
    if value is None or value not in after:
        return None
    inside = {value}
    for name in reversed(after):
        if name in inside and name != conv.name:
            inside |= after.keys() & set(graph.node(name).inputs)
    return graph.node(value), inside, set[str]().union(*(after[name] for name in inside))


def _found(graph: Graph, nodes: Iterable[Node], conv: Node) -> dict[str, tuple[str, Rows]]:
    """The statistics among ``nodes``, each with its value and rows."""
    return {node.name: row for node in nodes if (row := statistic(graph, node, conv))}


def _readers(graph: Graph, value: Node) -> tuple[list[Node], list[str]]:
    """What reads ``value`` or a view of it, and these views."""
    users = graph.users
    readers = [graph.node(name) for name in dict.fromkeys(users[value.name])]
    views = [node.name for node in readers if isinstance(node.op, ReshapeOp)]
    of_views = [graph.node(user) for name in views for user in dict.fromkeys(users[name])]
    return [node for node in readers if node.name not in views] + of_views, views


def members(graph: Graph, conv: Node, free: Iterable[str]) -> tuple[set[str], set[str]] | None:
    """(nodes, copied nodes) of a kernel that computes ``conv`` and statistics of its result."""
    users, available = graph.users, set(free)
    found = leading(graph, conv, available, lambda node: (statistic(graph, node, conv) or (None,))[0])
    if found is None:
        return None
    value, inside, copies = found
    hidden = inside - {value.name}
    if hidden & set(graph.results) or any(not inside.issuperset(users[name]) for name in hidden):
        return None
    readers, views = _readers(graph, value)
    taken = _found(graph, (node for node in readers if node.name in available), conv)
    if not taken:
        return None
    first, rows = next(iter(taken.items()))
    known = {name for name, row in taken.items() if row == rows}
    if len(known) == len(readers) and not set(graph.results) & {value.name, *views}:
        return None
    copies |= {graph.node(name).inputs[0] for name in known} & set(views)
    count = dims.product(graph.node(first).type.shape)
    for node in graph.nodes[graph.place[conv.name] :]:
        if (
            node.name in available
            and isinstance(node.op, (PointwiseOp, ReshapeOp))
            and not known.isdisjoint(node.inputs)
        ):
            own: set[str] = set()
            alike = dims.product(node.type.shape) == count and node.type.dtype is DType.FLOAT32
            if alike and all(name in known or is_fixed(graph, name, own) for name in node.inputs):
                known.add(node.name)
                copies |= own
    return inside | known | copies, copies


def _statistics(body: Graph) -> tuple[str, Rows, list[Node]] | None:
    """The stored value, the rows of its statistics, and these, in the body of such a kernel."""
    conv = next((node for node in body.nodes if isinstance(node.op, ConvOp)), None)
    found = _found(body, body.nodes, conv) if conv else {}
    value, rows = next(iter(found.values()), ("", None))
    return (value, rows, [body.node(name) for name in found]) if rows and value in body.outputs else None


def rows(body: Graph) -> Rows | None:
    """The rows of the statistics in ``body``, if it is that of such a kernel."""
    found = _statistics(body)
    return found[1] if found else None


def split(body: Graph) -> tuple[Graph, Graph | None]:
    """(head, tail) of the body of a contraction's kernel. The tail's first inputs are the statistics."""
    statistics = _statistics(body)
    if statistics is None:
        return body, None
    value, _, found = statistics
    after = {node.name for node in found}
    for node in body.nodes:
        if after & set(node.inputs):
            after.add(node.name)
    nodes = tuple(node for node in body.nodes if node.name not in after)
    head = body.replace(nodes=nodes, outputs=(value,)).prune()
    given = [*found, *body.inputs]  # the inputs for the sizes that they have
    inputs = [node.replace(op=InputOp(position=i), inputs=()) for i, node in enumerate(given)]
    rest = [node for node in body.nodes if node not in given]
    outputs = tuple(name for name in body.outputs if name in after)
    return head, body.replace(nodes=(*inputs, *rest), outputs=outputs).prune()


def _meets(graph: Graph, value: Node, statistics: Iterable[str]) -> bool:
    """Whether ``statistics`` meet elements of ``value`` again by elementwise work alone."""
    users, pending, seen = graph.users, list(statistics), set[str]()
    size = dims.product(value.type.shape)
    while pending:
        for node in map(graph.node, users[pending.pop()]):
            if isinstance(node.op, PointwiseOp) and dims.product(node.type.shape) == size:
                return True
            if isinstance(node.op, (PointwiseOp, ReshapeOp)) and node.name not in seen:
                seen.add(node.name)
                pending.append(node.name)
    return False


def _apart(graph: Graph, value: Node, rows: Rows) -> bool:
    """Whether what follows the norm of ``value`` is another kernel than one that also finds its statistics."""
    users, pending, seen, found = graph.users, [value.name], set[str](), list[str]()
    size = dims.product(value.type.shape)
    while pending:
        for node in map(graph.node, users[pending.pop()]):
            if node.name in seen:
                continue
            seen.add(node.name)
            if isinstance(node.op, ReduceOp):
                row = row_of(graph, node, value)
                if row is None or row[1] != rows:
                    return True
                if row[0] == value.name:
                    if not statistic(graph, node, value):
                        return False  # who finds this one reads whole rows anyway
                    found.append(node.name)
            elif isinstance(node.op, (PoolOp, AdaptivePoolOp, SliceOp, SoftmaxOp)):
                return True
            elif isinstance(node.op, (PointwiseOp, ReshapeOp)) and dims.product(node.type.shape) == size:
                pending.append(node.name)
    return not _meets(graph, value, found)


def _seconds(graph: Graph, head: Graph, machine: Machine) -> tuple[float, float]:
    """What statistics of the result of ``head`` take in its convolution's epilogue, and apart."""
    value = graph.node(head.outputs[0])
    found = {name: row for name, (of, row) in _found(graph, graph.nodes, value).items() if of == value.name}
    rows = next(iter(found.values()))
    sizes = graph.shape(value.name)
    seconds = 4 * math.prod(sizes) / machine.bandwidth
    row_bytes = 4 * math.prod(sizes[2:]) * (rows.channels if rows.of_sample else sizes[0])
    apart = row_bytes > _KEPT_ROW or _apart(graph, value, rows)
    if not rows.of_sample:
        return _EPILOGUE * seconds + _FINISH, seconds if apart else 0.0
    variance = any(isinstance(op := graph.node(name).op, ReduceOp) and op.fn == "var" for name in found)
    here = _OF_SAMPLE[variance] * seconds + _STATES * sizes[0] * sizes[1] + _FINISH_SAMPLES
    return here, _SWEPT * seconds + machine.launch if apart else 0.0


def saved(graph: Graph, head: Graph, machine: Machine) -> float:
    """Seconds that statistics in the epilogue of ``head`` are expected to save."""
    here, alone = _seconds(graph, head, machine)
    return max(0.0, alone - here)


def pays(graph: Graph, head: Graph, machine: Machine, more: float) -> bool:
    """Whether statistics in the epilogue of ``head`` are expected to be faster than apart.

    ``more``: seconds that the kernel which finds them takes beyond the one that the convolution has otherwise.
    """
    here, alone = _seconds(graph, head, machine)
    answers = {"the convolution": (True, here + more), "a pass of their own": (False, alone)}
    return faster(f"statistics of {head.outputs[0]} by", answers)
