"""What a graph moves and computes, and how long that takes at the limits of a machine."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fusegen import dims, ops
from fusegen.costs import gemm, recurrence, tensor_gemm
from fusegen.costs.contractions import SPLIT
from fusegen.ir import (
    DEVICE_ONLY,
    ConstOp,
    ConvOp,
    GetItemOp,
    Graph,
    MatmulOp,
    Node,
    ParamOp,
    RegionOp,
    ReshapeOp,
    SliceOp,
)
from fusegen.machines import Machine, machine
from fusegen.plan.details import ContractionPlan, ConvApartPlan, GemmPlan, HopperConvPlan, RecurrencePlan
from fusegen.plan.types import EagerStep, KernelStep, Program, Step
from fusegen.spaces import poolrows
from fusegen.spaces.parts import NAMED, cut_up, parts_in


def is_result_of_kernel(graph: Graph, node: Node) -> bool:
    """True for one of several results of a region, which the region's node stands for."""
    return isinstance(node.op, GetItemOp) and isinstance(graph.node(node.inputs[0]).op, RegionOp)


def node_bytes(graph: Graph, node: Node) -> int:
    """Bytes that a node moves when it runs alone: operands read once, result written once."""
    if ops.is_leaf(node.op) or isinstance(node.op, (ReshapeOp, SliceOp)) or is_result_of_kernel(graph, node):
        return 0
    names = [name for name in dict.fromkeys(node.inputs) if not isinstance(graph.node(name).op, ConstOp)]
    operands, outputs = [graph.node(name) for name in names], [node]
    if isinstance(node.op, DEVICE_ONLY):
        operands = []
    if isinstance(node.op, NAMED):
        operands[0] = min(operands[0], node, key=lambda read: _size(graph, read))
    if isinstance(node.op, RegionOp):
        outputs = [node.op.body.node(name) for name in node.op.body.outputs]
        operands = _read_by(node.op, operands)
    return sum(_size(graph, operand) for operand in (*operands, *outputs))


def _read_by(region: RegionOp, operands: list[Node]) -> list[Node]:
    """What a kernel reads of its ``operands``: of rows' parts that are cut out of one, these alone."""
    body = region.body
    users = body.users  # of what fills and ranges alone read, the device
    pairs = [pair for pair in zip(operands, body.inputs, strict=True) if not _says_where(body, users[pair[1].name])]
    if len(pairs) < len(operands):
        return [operand for operand, _ in pairs]
    found = parts_in(body) if region.template.startswith("row") else {}
    apart = cut_up(body, found) - set(poolrows.rows(body).axes) if found else set()
    if not apart:
        return operands
    whole = [operand for operand, own in zip(operands, body.inputs, strict=True) if own.name not in apart]
    return [*whole, *(body.node(name) for name in found if name not in apart)]


def _read_of(graph: Graph, leaf: Node) -> int:
    """Bytes of ``leaf`` that a program reads: where elements of it are fetched alone, no more than those."""
    readers = [graph.node(name) for name in set(graph.users[leaf.name])]
    fetches = (r for r in readers if isinstance(r.op, NAMED))
    fetched = [r for r in fetches if r.inputs[0] == leaf.name and r.inputs[1] != leaf.name]
    if not readers or len(fetched) < len(readers):
        return _size(graph, leaf)
    return min(_size(graph, leaf), sum(_size(graph, reader) for reader in fetched))


def _says_where(body: Graph, users: tuple[str, ...]) -> bool:
    """Whether all that a value is read for is the device."""
    return bool(users) and all(isinstance(body.node(name).op, DEVICE_ONLY) for name in users)


def _size(graph: Graph, node: Node) -> int:
    return dims.numel(node.type.shape, graph.sizes) * node.type.dtype.bytes


def node_flops(graph: Graph, node: Node) -> int:
    """Additions, multiplications and the like; a region's are its body's."""
    if isinstance(node.op, RegionOp):
        return sum(node_flops(node.op.body, inner) for inner in node.op.body.nodes)
    return ops.flops(graph, node)


def graph_bytes(graph: Graph) -> int:
    """Bytes moved when every node runs alone."""
    return sum(node_bytes(graph, node) for node in graph.nodes)


def graph_flops(graph: Graph) -> int:
    return sum(node_flops(graph, node) for node in graph.nodes)


def _flop_rate(program: Program, step: Step, rates: Machine) -> float:
    """The rate of a step's arithmetic: TF32 or fp16 tensor cores for convolutions, split TF32 where eager is fp32."""
    if isinstance(step, KernelStep):
        if rates.wgmma and isinstance(step.plan.hopper, HopperConvPlan) and step.plan.hopper.in_halves:
            return rates.half_flops
        detail = step.plan.detail
        detail = detail.conv if isinstance(detail, ConvApartPlan) else detail
        if not isinstance(detail, ContractionPlan):
            return rates.flops
        return rates.tensor_flops / (SPLIT if detail.precise or detail.head == "matmul" else 1)
    return rates.tensor_flops if isinstance(program.after.node(step.output).op, ConvOp) else rates.flops


def step_seconds(program: Program, step: KernelStep | EagerStep) -> float:
    """Roofline time of one step at the traced sizes: the larger of its traffic and its arithmetic. Of products, and of
    recurrences, the expected time."""
    rates = machine(program.target)
    product = (step.plan.hopper or step.plan.detail) if isinstance(step, KernelStep) and rates.wgmma else None
    if isinstance(step, KernelStep) and isinstance(product, GemmPlan):
        region = program.after.node(step.plan.node).op
        assert isinstance(region, RegionOp)
        node = next(node for node in region.body.nodes if isinstance(node.op, MatmulOp))
        matrices, sizes = gemm.factors(region.body, node).traced(region.body)
        reduces = any(phase.reductions for phase in product.rows.phases)
        return tensor_gemm.seconds(*sizes, rates, matrices, reduces)
    if isinstance(step, KernelStep) and isinstance(step.plan.detail, RecurrencePlan):  # its steps wait for each other
        region = program.after.node(step.plan.node).op
        assert isinstance(region, RegionOp)
        return recurrence.seconds(region.body, step.plan.detail.tile, rates)
    return max(step.bytes / rates.bandwidth, step.flops / _flop_rate(program, step, rates)) + rates.launch


def predict(program: Program) -> float:
    """Roofline seconds of the whole program."""
    return sum(step_seconds(program, step) for step in program.steps)


def floor(program: Program) -> float:
    """Seconds below which no program for this model runs: inputs and parameters read, outputs written."""
    graph = program.before
    leaves: Iterable[Node] = (*graph.inputs, *(n for n in graph.nodes if isinstance(n.op, ParamOp)))
    moved = sum(_read_of(graph, node) for node in leaves) + sum(_size(graph, graph.node(o)) for o in graph.results)
    rates = machine(program.target)
    return math.fsum([moved / rates.bandwidth, rates.launch])
