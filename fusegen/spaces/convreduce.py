"""Reductions over all positions in the kernel of a convolution, whose own results are never written.

What is left of a tensor [samples, channels, positions...] is a value for every channel of every sample: its mean,
sum, maximum or minimum, and for a mean of a norm (``passes/moments.py``) mean, variance, and what rounding took from
the mean; or the logarithm of its sum of exponentials.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fusegen import dims, inference
from fusegen.costs import contractions, direct, hopper, library
from fusegen.ir import ConvOp, DType, Graph, Node, PointwiseOp, ReduceOp, ReshapeOp
from fusegen.machines import Machine
from fusegen.spaces import channels
from fusegen.spaces.rowspace import RowSpace, analyze
from fusegen.tuning import together_or_apart

PositionFn = Literal["mean", "sum", "max", "min", "logsumexp", "var", "rest"]
"""``rest``: the mean of the distances from the mean, which is what rounding took from it."""
Fold = Literal["sum", "max", "min"]
_FUNCTIONS: dict[str, PositionFn] = {fn: fn for fn in ("mean", "sum", "max", "min", "logsumexp", "var")}
_EXTREMES = ("max", "min")
LEAST_POSITIONS = 1024
"""Of a sample: each warp of each share of it leaves a state for every channel."""
_EPILOGUE, _MOMENTS, _EXPONENTIALS = 0.3, 0.45, 0.6
"""What sums, moments, or exponentials' sums add to a convolution on sm_90a, of the time in which its result is read."""
_PORTABLE = 0.8
"""The same for the portable kernel, of the time in which it writes its result."""

_FEW_OUTPUTS = 0.85
"""Share of the other kernels' expected time below which one of fewer outputs than an operand of the tensor cores is
worth it: for 96 channels to 3 it took 1.6 times what was expected."""


@dataclass(frozen=True)
class ConvReduce:
    """A region's parts: the convolution, its chain up to what is reduced, and what each result of the region is."""

    conv: Node
    before: Graph
    results: dict[str, PositionFn]
    space: RowSpace

    @property
    def epilogue(self) -> float:
        """What the reductions take, of the time in which the convolution's result is read."""
        if has_exponentials(self.results.values()):
            return _EXPONENTIALS
        return _MOMENTS if has_moments(self.results.values()) else _EPILOGUE * len(folds(self.results.values()))


def has_moments(functions: Iterable[PositionFn]) -> bool:
    """Whether more than sums is needed, and more than a maximum."""
    return not set(functions).isdisjoint(("var", "rest"))


def has_exponentials(functions: Iterable[PositionFn]) -> bool:
    """Whether it is the logarithm of a sum of exponentials that is asked for: then nothing else is."""
    return "logsumexp" in functions


def folds(functions: Iterable[PositionFn]) -> tuple[Fold, ...]:
    """What results are folded into, one by one, where that is enough: a mean is of a sum."""
    kinds = set(functions)
    if has_moments(kinds) or has_exponentials(kinds):
        return ()
    wanted: dict[Fold, bool] = {
        "sum": not kinds.isdisjoint(("mean", "sum")),
        "max": "max" in kinds,
        "min": "min" in kinds,
    }
    return tuple(fold for fold, needed in wanted.items() if needed)


def _is_view(node: Node, value: Node) -> bool:
    """Whether ``node`` is ``value`` with its channels in several axes, or in one."""
    ours, theirs = node.type.shape, value.type.shape
    positions = value.type.rank - 2
    same = ours[:1] == theirs[:1] and ours[-positions:] == theirs[-positions:]
    return isinstance(node.op, ReshapeOp) and node.type.rank > positions and same


def _is_over(node: Node, data: Node, positions: int) -> bool:
    """True for such a function over the last ``positions`` axes of ``data``."""
    axes = tuple(range(data.type.rank - positions, data.type.rank))
    return isinstance(node.op, ReduceOp) and node.op.fn in _FUNCTIONS and node.op.axes == axes


def many_positions(graph: Graph, conv: Node) -> bool:
    """Whether blocks may share a sample's positions; other reductions are for ``convsweep``."""
    return not direct.is_narrow(graph, conv) and dims.numel(conv.type.shape[2:], graph.sizes) >= LEAST_POSITIONS


def _reduced(graph: Graph, node: Node, conv: Node) -> str | None:
    """The value after ``conv`` that ``node`` reduces over all positions, or None."""
    if not isinstance(node.op, ReduceOp):
        return None
    data = graph.node(node.inputs[0])
    if not _is_over(node, data, conv.type.rank - 2) or not many_positions(graph, conv):
        return None
    if data.inputs and _is_view(data, conv) and graph.node(data.inputs[0]).type == conv.type:
        return data.inputs[0]
    return data.name if data.type == conv.type else None


def is_over_positions(graph: Graph, node: Node, conv: Node) -> bool:
    """True for a statistic of every channel of every sample of a value that is laid out as ``conv`` is."""
    return _reduced(graph, node, conv) is not None


def _readers(graph: Graph, value: Node) -> dict[str, PositionFn | None] | None:
    """What follows from ``value`` alone: reductions over its positions, and (None) what leads to them.

    None where something else reads it.
    """
    users, positions = graph.users, value.type.rank - 2
    found: dict[str, PositionFn | None] = {}
    alike, apart = [value], []
    for data in alike:
        for user in map(graph.node, dict.fromkeys(users[data.name])):
            if _is_over(user, data, positions):
                assert isinstance(user.op, ReduceOp)
                found[user.name] = _FUNCTIONS[user.op.fn]
            elif _is_view(user, value):
                found[user.name] = None
                alike.append(user)
            elif isinstance(user.op, PointwiseOp) and user.op.fn == "sub" and user.inputs[0] == data.name:
                apart.append((user, data))
            else:
                return None
    for distance, data in apart:
        mean = graph.node(distance.inputs[1])
        rest = [graph.node(name) for name in dict.fromkeys(users[distance.name])]
        own = mean.inputs == (data.name,) and found.get(mean.name) == "mean"
        aligned = mean.type.rank == data.type.rank  # else its axes meet other ones of the data
        if not own or not aligned or not all(_is_over(n, distance, positions) and n.op == mean.op for n in rest):
            return None
        found[distance.name] = None
        found |= dict.fromkeys((node.name for node in rest), "rest")
    kinds = {fn for fn in found.values() if fn}
    others = (
        kinds - {"logsumexp"}
        if has_exponentials(kinds)
        else kinds.intersection(_EXTREMES if has_moments(kinds) else ())
    )
    return None if others else found  # a state of moments, or of exponentials, is all that a kernel keeps


def members(graph: Graph, conv: Node, free: Iterable[str]) -> tuple[set[str], set[str]] | None:
    """(nodes, copied nodes) of a kernel that computes ``conv`` and the reductions of what follows it, or None."""
    available = set(free)
    led = channels.leading(graph, conv, available, lambda node: _reduced(graph, node, conv))
    found = led and _readers(graph, led[0])
    if not led or not found:
        return None
    _, inside, copies = led
    users = graph.users
    hidden = inside | {name for name, fn in found.items() if fn is None}
    known = inside | found.keys()
    if not found.keys() <= available or hidden & set(graph.results):
        return None
    if any(not known.issuperset(users[name]) for name in hidden):
        return None
    return known | copies, copies


def split(body: Graph) -> ConvReduce:
    """The parts of a region with a convolution and reductions over its positions. Raises ``NotFusable``."""
    (conv,) = (node for node in body.nodes if isinstance(node.op, ConvOp))
    name = next(name for name in (_reduced(body, node, conv) for node in body.nodes) if name)
    found = _readers(body, body.node(name)) or {}
    before = body.replace(nodes=tuple(node for node in body.nodes if node.name not in found), outputs=(name,))
    results = {output: fn for output in body.outputs if (fn := found.get(output))}
    return ConvReduce(conv, before, results, analyze(before))


def refusal(body: Graph, machine: Machine) -> str | None:
    """Why the reductions in ``body`` are no part of their convolution's kernel, or None. Raises ``NotFusable``."""
    parts = split(body)
    conv = parts.conv
    if conv.type.dtype is not DType.FLOAT32 or any(body.node(n).type.dtype is not DType.FLOAT32 for n in body.outputs):
        return f"it is {conv.type.dtype.value}, for which such a convolution has no kernel"
    if reason := contractions.refusal(parts.before, parts.space, machine):
        return reason
    result = 4 * dims.numel(conv.type.shape, body.sizes) / machine.bandwidth
    portable = contractions.portable_seconds(body, conv, False, machine, merge=False) + (_PORTABLE - 1) * result
    asynchronous = contractions.asynchronous_seconds(body, conv, machine)
    here = min(portable, asynchronous + (parts.epilogue - hopper.STORE) * result) + machine.launch
    apart = contractions.kernel_seconds(body, conv, False, machine) + result + machine.launch
    x, w = (body.node(name).type for name in conv.inputs[:2])
    assert isinstance(conv.op, ConvOp)
    if inference.group_channels(conv.op, x, w)[1] < contractions.LEAST_OUTPUTS:  # tensor cores mostly multiply zeros
        apart = min(_FEW_OUTPUTS * apart, library.seconds(body, conv, machine) + result + machine.launch)
    return together_or_apart(next(iter(parts.results)), here, apart)
