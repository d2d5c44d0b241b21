"""A reduction along some of the positions' axes of a convolution, whose own results are never written.

A block computes all positions along these axes, box after box, into the same running results; what is left of a
tensor [samples, channels, positions...] is finished in place, reductions over the channels included. Positions along
the other axes are shared by blocks, so there must be enough of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fusegen import dims
from fusegen.costs import contractions, direct, library, sweeps
from fusegen.ir import ConvOp, DType, Graph, Node, PointwiseOp, ReduceOp, ReshapeOp, SoftmaxOp
from fusegen.machines import Machine
from fusegen.spaces import channels, convreduce
from fusegen.spaces.convpool import check_operands, unfit
from fusegen.spaces.poolspace import CHANNELS, along_channels, around, over_channels
from fusegen.spaces.rowspace import NotFusable, RowSpace
from fusegen.tuning import together_or_apart

SweptFn = Literal["max", "min", "mean", "sum", "prod"]
_FUNCTIONS: dict[str, SweptFn] = {fn: fn for fn in ("max", "min", "mean", "sum", "prod")}
_APART = 1.1
"""Times over what is expected of them that a convolution and a kernel which reads its result take (13 models, H200)."""
_FOLLOWING = (PointwiseOp, ReshapeOp, ReduceOp, SoftmaxOp)


@dataclass(frozen=True)
class ConvSweep:
    """A region's parts: the convolution with the chain up to the reduction, and the chain after it.

    Both chains run along the channels; ``before_space`` is over the convolution's result, ``after_space`` over the
    reduction's, which is an input of ``after``. Where groups are narrow, ``before`` may begin before the convolution.
    """

    conv: Node
    reduction: Node
    before: Graph
    after: Graph
    before_space: RowSpace
    after_space: RowSpace

    @property
    def swept(self) -> tuple[bool, bool, bool]:
        """Which axes (z, y, x) the reduction runs along."""
        op, rank = self.reduction.op, self.conv.type.rank
        assert isinstance(op, ReduceOp)
        return rank - 3 in op.axes, rank - 2 in op.axes, rank - 1 in op.axes

    @property
    def fn(self) -> SweptFn:
        assert isinstance(self.reduction.op, ReduceOp)
        return _FUNCTIONS[self.reduction.op.fn]

    @property
    def whole(self) -> bool:
        """Whether a block needs all channels of its positions."""
        return contractions.reduces(self.after)


def _reduced(graph: Graph, node: Node, conv: Node) -> str | None:
    """The value after ``conv`` that ``node`` reduces along positions' axes, or None."""
    if not isinstance(node.op, ReduceOp) or node.op.fn not in _FUNCTIONS or min(node.op.axes, default=0) <= CHANNELS:
        return None
    if convreduce.is_over_positions(graph, node, conv):
        return None  # blocks share them
    data = graph.node(node.inputs[0])
    return data.name if data.type == conv.type else None


def reduction(graph: Graph, conv: Node) -> Node | None:
    """The first such node."""
    return next((node for node in graph.nodes if _reduced(graph, node, conv)), None)


def members(graph: Graph, conv: Node, free: Iterable[str]) -> tuple[set[str], set[str], list[str]] | None:
    """(nodes, copied nodes, further ones that may join in this order) of a kernel for ``conv`` up to its reduction."""
    available = set(free)
    led = channels.leading(graph, conv, available, lambda node: _reduced(graph, node, conv))
    if led is None:
        return None
    value, inside, copies = led
    users = graph.users
    last = next(node for node in graph.nodes if _reduced(graph, node, conv) == value.name)
    known = inside | {last.name}
    if last.name not in available or inside & set(graph.results):
        return None
    if any(not known.issuperset(users[name]) for name in inside):
        return None
    after: dict[str, None] = {}
    for node in graph.nodes:
        follows = any(name == last.name or name in after for name in node.inputs)
        if follows and node.name in available and isinstance(node.op, _FOLLOWING):
            after[node.name] = None
    return known | copies, copies, list(after)


def split(body: Graph) -> ConvSweep:
    """The parts of a region with a convolution and a reduction along its positions. Raises ``NotFusable``."""
    (conv,) = (node for node in body.nodes if isinstance(node.op, ConvOp))
    last = reduction(body, conv)
    assert last is not None
    before, after = around(body, last)
    if any(isinstance(node.op, ConvOp) for node in after.nodes):
        raise NotFusable("its convolution is not the one that it reduces")
    if direct.is_narrow(body, conv):
        return ConvSweep(conv, last, before, after, direct.split(before).after_space, over_channels(after, last.name))
    if any(name not in body.by_name or body.node(name).op.kind != "input" for name in conv.inputs):
        raise NotFusable(f"an operand of {conv.name} is computed before it")
    before_space = along_channels(before, conv.name)
    check_operands(before, before_space)
    return ConvSweep(conv, last, before, after, before_space, over_channels(after, last.name))


def refusal(body: Graph, machine: Machine) -> str | None:
    """Why the reduction in ``body`` is no part of its convolution's kernel, or None. Raises ``NotFusable``."""
    parts = split(body)
    conv = parts.conv
    assert isinstance(conv.op, ConvOp)
    if any(body.node(name).type.dtype is not DType.FLOAT32 for name in body.outputs):
        return "its result is no float32 tensor"
    if len(body.outputs) > 1:
        return "it is read outside the kernel too"
    left, result = (4 * dims.numel(node.type.shape, body.sizes) / machine.bandwidth for node in (parts.reduction, conv))
    alone = library.seconds(body, conv, machine)
    if direct.takes(parts.before, conv):
        alone = min(alone, direct.seconds(parts.before, conv, machine))
    if direct.is_narrow(body, conv):
        return _narrow_refusal(body, parts, machine, alone + result + machine.launch)
    if parts.whole and conv.op.groups > 1:
        return "a reduction over the channels of several groups"
    if reason := unfit(body, conv, parts.reduction, whole=parts.whole, swept=parts.swept):
        return reason
    if int(conv.type.shape[1]) < contractions.LEAST_OUTPUTS * conv.op.groups:
        return f"groups of fewer than {contractions.LEAST_OUTPUTS} output channels would mostly multiply zeros"
    here = sweeps.seconds(body, conv, parts.before, parts.swept, parts.whole, machine) + left
    alone = min(alone, contractions.kernel_seconds(body, conv, False, machine))
    apart = _APART * (alone + result + left + machine.launch)
    return together_or_apart(parts.reduction.name, here, apart)


def _narrow_refusal(body: Graph, parts: ConvSweep, machine: Machine, apart: float) -> str | None:
    """The same for groups too narrow for tensor cores, whose threads share all positions of a sample."""
    present = (False,) * (5 - parts.conv.type.rank) + (True,) * (parts.conv.type.rank - 2)
    if parts.whole or parts.swept != present:
        return "blocks of so narrow groups have all positions of their channels, and no others"
    if dims.numel(parts.conv.type.shape, body.sizes) == 0:
        return "it is empty"
    if reason := direct.repeated(body, direct.split(parts.before), machine):
        return reason
    return together_or_apart(parts.reduction.name, direct.reduced_seconds(body, parts.conv, machine), apart)
