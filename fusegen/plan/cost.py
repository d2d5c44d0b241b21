"""What a graph moves and computes, and how long that takes at the limits of a machine."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fusegen import dims, ops
from fusegen.errors import TargetError
from fusegen.ir import ConstOp, ConvOp, Graph, Node, ParamOp, RegionOp, ReshapeOp
from fusegen.plan.types import EagerStep, KernelStep, Program, Step


@dataclass(frozen=True)
class Machine:
    """Rates that a well-written kernel reaches (not datasheet peaks), per second; seconds per launch.

    sm_90: measured on an H200 (streaming read, cuBLAS TF32, fp32 multiply-add); others scaled by
    the vendor's datasheets.
    """

    bandwidth: float
    flops: float
    tensor_flops: float
    launch: float


MACHINES: dict[str, Machine] = {
    "sm_90": Machine(bandwidth=4.35e12, flops=51e12, tensor_flops=417e12, launch=2.5e-6),
    "sm_80": Machine(bandwidth=1.75e12, flops=17e12, tensor_flops=130e12, launch=2.5e-6),
}


def machine(target: str) -> Machine:
    """The rates of a target. Raises ``TargetError`` for one without a table entry."""
    found = MACHINES.get(target)
    if found is None:
        raise TargetError(f"unknown target {target!r}", hint=f"known targets: {', '.join(MACHINES)}")
    return found


def node_bytes(graph: Graph, node: Node) -> int:
    """Bytes that a node moves when it runs alone: operands read once, result written once."""
    if ops.is_leaf(node.op) or isinstance(node.op, ReshapeOp):
        return 0
    names = [name for name in dict.fromkeys(node.inputs) if not isinstance(graph.node(name).op, ConstOp)]
    return sum(_size(graph, graph.node(name)) for name in names) + _size(graph, node)


def _size(graph: Graph, node: Node) -> int:
    return dims.numel(node.type.shape, graph.sizes) * node.type.dtype.bytes


def node_flops(graph: Graph, node: Node) -> int:
    """Additions, multiplications and the like; a region's are its body's."""
    if isinstance(node.op, RegionOp):
        return sum(node_flops(node.op.body, inner) for inner in node.op.body.nodes)
    shapes = [graph.shape(name) for name in node.inputs]
    return ops.ROWS[node.op.kind].flops(node.op, shapes, graph.shape(node.name))


def graph_bytes(graph: Graph) -> int:
    """Bytes moved when every node runs alone."""
    return sum(node_bytes(graph, node) for node in graph.nodes)


def graph_flops(graph: Graph) -> int:
    return sum(node_flops(graph, node) for node in graph.nodes)


def _has_tensor_work(program: Program, step: Step) -> bool:
    if isinstance(step, EagerStep):
        return isinstance(program.after.node(step.output).op, ConvOp)
    return False


def step_seconds(program: Program, step: KernelStep | EagerStep) -> float:
    """Roofline time of one step at the traced sizes: the larger of its traffic and its arithmetic."""
    rates = machine(program.target)
    rate = rates.tensor_flops if _has_tensor_work(program, step) else rates.flops
    return max(step.bytes / rates.bandwidth, step.flops / rate) + rates.launch


def predict(program: Program) -> float:
    """Roofline seconds of the whole program."""
    return sum(step_seconds(program, step) for step in program.steps)


def floor(program: Program) -> float:
    """Seconds below which no program for this model runs: inputs and parameters read, outputs written."""
    graph = program.before
    leaves: Iterable[Node] = (*graph.inputs, *(n for n in graph.nodes if isinstance(n.op, ParamOp)))
    moved = sum(_size(graph, node) for node in leaves) + sum(_size(graph, graph.node(o)) for o in graph.results)
    rates = machine(program.target)
    return math.fsum([moved / rates.bandwidth, rates.launch])
