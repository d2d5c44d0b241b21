"""A mean or sum over all positions in the epilogue of a convolution, whose own results are never written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fusegen import channels, contractions, dims, hopper
from fusegen.ir import ConvOp, DType, Graph, Node, ReduceOp
from fusegen.machines import Machine
from fusegen.rowspace import RowSpace, analyze
from fusegen.tuning import faster

LEAST_POSITIONS = 1024
"""Of a sample: each warp of each share of it leaves a sum for every channel."""
_EPILOGUE = 0.3
"""What the sums add to a convolution, of the time in which its result is read."""


@dataclass(frozen=True)
class ConvReduce:
    """A region's parts: the convolution, its reduction, and the chain of the convolution up to there."""

    conv: Node
    reduce: Node
    before: Graph
    space: RowSpace

    @property
    def fn(self) -> Literal["mean", "sum"]:
        assert isinstance(self.reduce.op, ReduceOp)
        return "mean" if self.reduce.op.fn == "mean" else "sum"


def is_over_positions(node: Node, rank: int) -> bool:
    """True for a mean or sum of every channel of every sample of a value [samples, channels, positions...]."""
    return isinstance(node.op, ReduceOp) and node.op.fn in ("mean", "sum") and node.op.axes == tuple(range(2, rank))


def members(graph: Graph, conv: Node, free: Iterable[str]) -> tuple[set[str], set[str]] | None:
    """(nodes, copied nodes) of a kernel that computes ``conv`` and the reduction of what follows it, or None."""
    found = channels.leading(graph, conv, set(free), is_over_positions)
    if found is None:
        return None
    reduce, inside, copies = found
    users = graph.users()
    if inside & set(graph.results) or any(not (inside | {reduce.name}).issuperset(users[name]) for name in inside):
        return None
    return inside | {reduce.name} | copies, copies


def split(body: Graph) -> ConvReduce:
    """The parts of a region with a convolution and a reduction over its positions. Raises ``NotFusable``."""
    (conv,) = (node for node in body.nodes if isinstance(node.op, ConvOp))
    (reduce,) = (node for node in body.nodes if is_over_positions(node, conv.type.rank))
    before = body.replace(nodes=tuple(node for node in body.nodes if node is not reduce), outputs=reduce.inputs)
    return ConvReduce(conv, reduce, before, analyze(before))


def refusal(body: Graph, machine: Machine) -> str | None:
    """Why the reduction in ``body`` is no part of its convolution's kernel, or None. Raises ``NotFusable``."""
    parts = split(body)
    conv = parts.conv
    if conv.type.dtype is not DType.FLOAT32 or parts.reduce.type.dtype is not DType.FLOAT32:
        return f"it is {conv.type.dtype.value}, for which such a convolution has no kernel"
    if not machine.wgmma:
        return "only the kernel for sm_90a reduces what it computes"
    if reason := contractions.hopper_refusal(body, conv) or contractions.refusal(parts.before, parts.space, machine):
        return reason
    if dims.numel(conv.type.shape[2:], body.sizes) < LEAST_POSITIONS:
        return f"samples of fewer than {LEAST_POSITIONS} positions"
    result = 4 * dims.numel(conv.type.shape, body.sizes) / machine.bandwidth
    precise = not contractions.allows_tf32(body, conv)
    here = hopper.conv_seconds(body, conv, machine, precise) + (_EPILOGUE - hopper.STORE) * result + machine.launch
    apart = contractions.kernel_seconds(body, conv, False, machine) + result + machine.launch
    reason = f"with the convolution expected to take {here * 1e6:.0f} us, apart {apart * 1e6:.0f} us"
    answers = {"the convolution's kernel": (None, here), "a kernel of its own": (reason, apart)}
    return faster(f"{parts.reduce.name} in", answers)
