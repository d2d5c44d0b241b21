"""Kernels that write into the tensor their results are joined in, which torch would copy.

``%a = k0(...); %b = k1(...); %y = cat(%a, %b, axis=1)``  ->  ``%y = empty; k0(..., %y from 0); k1(..., %y from a's)``
"""

from __future__ import annotations

from itertools import accumulate

from fusegen import dims
from fusegen.interpret import bound_sizes
from fusegen.ir import CatOp, DType, Graph, Node
from fusegen.plan import runs
from fusegen.plan.details import ContractionPlan, HopperConvPlan
from fusegen.plan.types import EagerStep, KernelPlan, KernelStep, Part, Program, Step

_LEAST_RANK = 3
"""Of what convolutions compute."""


def _may_write_a_part(plan: KernelPlan) -> bool:
    """Whether a kernel stores its one result channel by channel, as a convolution's, and reads nothing alike."""
    details = [detail for detail in (plan.detail, plan.hopper) if detail]
    for detail in details:
        if not isinstance(detail, (ContractionPlan, HopperConvPlan)) or detail.statistics or detail.reduced:
            return False
        rows = detail.rows
        pooled = detail.sweep if isinstance(detail, ContractionPlan) else detail.window
        own = [store.per_element and store.like_source for store in rows.stores]
        if pooled or own != [True] or any(operand.per_element and operand.index != "l" for operand in rows.operands):
            return False
    heads = {detail.head for detail in details if isinstance(detail, ContractionPlan)}
    one = len(plan.outputs) == 1 and not plan.written and not plan.parts
    return one and "matmul" not in heads


def _parts(graph: Graph, join: Node, made: dict[str, KernelStep]) -> dict[str, Part] | None:
    """Where each of the joined results is written, if kernels ``made`` all of them for that alone."""
    shapes = [graph.node(name).type.shape for name in join.inputs]
    if len(set(join.inputs)) < len(join.inputs) or any(not isinstance(shape[1], int) for shape in shapes):
        return None
    for name in join.inputs:
        step = made.get(name)
        alone = graph.users[name] == (join.name,) and name not in graph.results
        if step is None or not alone or not _may_write_a_part(step.plan):
            return None
    firsts = accumulate((int(shape[1]) for shape in shapes[:-1]), initial=0)
    return {name: Part(whole=join.name, first=first) for name, first in zip(join.inputs, firsts, strict=True)}


def _memory(join: Node, step: EagerStep, like: str) -> EagerStep:
    """The step that allocates what is joined. ``like``: a node on the same device."""
    shape, dtype = join.type.shape, join.type.dtype.value
    texts = ", ".join(map(str, shape))
    return step.replace(
        expr=f"torch.empty(({texts}), dtype=torch.{dtype}, device=v_{like}.device)",
        native=f"allocate({{{', '.join(map(dims.cpp, shape))}}}, aoti_torch_dtype_{dtype}(), at.device)",
        inputs=(like,),
        written_later=True,
        comment=f"{step.comment}, each of which is written in its place",
        reason="memory that kernels write",
        bytes=0,
        flops=0,
    )


def _as_parts(program: Program, run: runs.Run) -> dict[int, tuple[KernelStep, Part]]:
    """By identity of steps of ``run``, the same writing a part, and which."""
    graph, shown = program.after, bound_sizes(program.after).keys()
    made = {step.outputs[0]: step for step in run.steps if isinstance(step, KernelStep) and len(step.outputs) == 1}
    found: dict[int, tuple[KernelStep, Part]] = {}
    for step in run.steps:
        join = graph.node(step.output) if isinstance(step, EagerStep) else None
        if join is None or not isinstance(join.op, CatOp) or join.op.axis != 1 or join.type.rank < _LEAST_RANK:
            continue
        if join.type.dtype is not DType.FLOAT32 or not shown >= set(dims.symbols(join.type.shape)):
            continue
        for name, part in (_parts(graph, join, made) or {}).items():
            found[id(made[name])] = _of_part(made[name], part), part
    return found


def _of_part(step: KernelStep, part: Part) -> KernelStep:
    plan = step.plan
    outputs = (plan.outputs[0].replace(part=True),)
    return step.replace(plan=plan.replace(name=f"{plan.name}_part", outputs=outputs), outputs=(), part=part)


def write_in_place(program: Program) -> Program:
    """``program`` without copies of what kernels of a run compute to be joined along the channels."""
    found: dict[int, tuple[KernelStep, Part]] = {}
    for run in runs.grouped(program):
        if isinstance(run, runs.Run):
            found |= _as_parts(program, run)
    if not found:
        return program
    wholes = {part.whole for _, part in found.values()}
    joins = {step.output: step for step in program.steps if isinstance(step, EagerStep) and step.output in wholes}
    pending, steps = dict(joins), list[Step]()
    for step in program.steps:
        if id(step) in found:
            own, part = found[id(step)]
            if join := pending.pop(part.whole, None):
                steps.append(_memory(program.after.node(part.whole), join, own.inputs[0]))
            steps.append(own)
        elif not (isinstance(step, EagerStep) and step.output in joins):
            steps.append(step)
    moved, flops = sum(step.bytes for step in steps), sum(step.flops for step in steps)
    return program.replace(steps=tuple(steps), bytes_after=moved, flops_after=flops)
