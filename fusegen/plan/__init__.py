"""From the fused graph to a ``Program``: which steps run, in which order, and what each costs."""

from __future__ import annotations

from fusegen import ops
from fusegen.ir import EagerOp, GetItemOp, Graph, Node, RegionOp, RuleApplied, RuleRefused
from fusegen.passes import recurrent
from fusegen.passes.fuse import FUSION
from fusegen.plan import cost, joined, native, strided, updates
from fusegen.plan.inline import inline
from fusegen.plan.sharing import Kernels
from fusegen.plan.sizes import Unplanned
from fusegen.plan.types import EagerStep, KernelPlan, KernelStep, Program, Step
from fusegen.printer import format_node
from fusegen.spaces import viewspace
from fusegen.verify import verify

_ALONE = {
    "getitem": "one result of the op above",
    "fill": "one number throughout",
    "range": "numbers that torch writes",
    "cat": "joined by torch",
    "flip": "copied by torch",
    "resample": "copied by torch",
    "interpolate": "interpolated by torch",
    "gather": "fetched by torch",
    "triangle": "copied by torch",
    **dict.fromkeys(("reshape", "permute", "slice", "expand", "unfold"), "a view"),
}
"""What torch does of ops that no fusion was tried of."""
_LIBRARY = {"conv": "the library's convolution", "matmul": "the library's matrix product"}


def _eager_reason(node: Node, refusals: tuple[RuleRefused, ...]) -> str:
    if isinstance(node.op, EagerOp):
        return node.op.reason
    asked = (FUSION, recurrent.IDENTITY)
    found = next((r.reason for r in refusals if r.node == node.name and r.identity in asked), None)
    if library := _LIBRARY.get(node.op.kind):
        return f"{library}: {found}" if found else library
    return found or _ALONE.get(node.op.kind, "what it is part of has no kernel after all")


def make_program(
    before: Graph,
    after: Graph,
    *,
    rewrites: tuple[RuleApplied, ...],
    refusals: tuple[RuleRefused, ...],
    target: str,
    evaluation: bool,
) -> Program:
    """The program of a fused graph: a kernel per region, a torch call for every other op."""
    after, kernels, unplanned = _planned(after)
    plans = kernels.by_region()
    refusals += unplanned
    steps: list[Step] = []
    views, unread = strided.collapse(after)
    counted = {n.name for name, plan in plans.items() if plan.counts for n in kernels.updated(name).counters}
    for node in after.nodes:
        if ops.is_leaf(node.op) or cost.is_result_of_kernel(after, node) or counted.intersection(node.inputs):
            continue
        if node.name in unread:
            continue
        if view := views.get(node.name):
            comment = f"{format_node(node)}, of %{view.root} by strides"
            steps.append(
                EagerStep(
                    expr=view.torch,
                    native=view.native,
                    view=True,
                    inputs=(view.root,),
                    output=node.name,
                    comment=comment,
                    reason="a view of views",
                    bytes=0,
                    flops=0,
                )
            )
            continue
        moved, flops = cost.node_bytes(after, node), cost.node_flops(after, node)
        if isinstance(node.op, RegionOp):
            steps.append(_kernel_step(after, node, plans[node.name], kernels, moved, flops))
            continue
        operands = [_operand(after, name) for name in node.inputs]
        if node.inputs and all(_is_const(after, name) for name in node.inputs):
            operands[0] = _as_tensor(after, node.inputs[0], operands[0])
        copied = viewspace.is_copied(node, after)
        in_glue = not copied and not any(_is_const(after, name) for name in node.inputs)
        steps.append(
            EagerStep(
                expr=ops.torch_expr(node.op, operands) + (".contiguous()" if copied else ""),
                native=native.expression(node.op, operands) if in_glue else "",
                view=native.is_view(node.op),
                inputs=tuple(dict.fromkeys(n for n in node.inputs if not _is_const(after, n))),
                output=node.name,
                comment=format_node(node),
                reason="a copy: eager's result lies row by row" if copied else _eager_reason(node, refusals),
                bytes=moved,
                flops=flops,
            )
        )
    program = Program(
        before=before,
        after=after,
        steps=tuple(steps),
        rewrites=rewrites,
        refusals=refusals,
        bytes_before=cost.graph_bytes(before),
        flops_before=cost.graph_flops(before),
        bytes_after=sum(step.bytes for step in steps),
        flops_after=sum(step.flops for step in steps),
        target=target,
        evaluation=evaluation,
    )
    return joined.write_in_place(program)


def _kernel_step(graph: Graph, region: Node, plan: KernelPlan, kernels: Kernels, moved: int, flops: int) -> KernelStep:
    outputs, found = _results(graph, region), kernels.updated(region.name)
    counters = found.counters if plan.counts else ()
    written = {output for output, arg in zip(outputs, plan.outputs, strict=True) if arg.into}
    buffers = {name for node in counters for name in graph.users[node.name]} | written
    return KernelStep(
        plan=plan,
        inputs=(*region.inputs, *(node.name for node in counters)),
        outputs=tuple(name for name in outputs if name not in written),
        given=kernels.given(region.name, plan),
        updates=tuple(path for path, name in graph.updates if name in buffers),
        bytes=moved,
        flops=flops,
    )


def _planned(graph: Graph) -> tuple[Graph, Kernels, tuple[RuleRefused, ...]]:
    """The plans of all regions; ``graph`` with regions without one taken apart again, and why."""
    kernels, refused = Kernels(), list[RuleRefused]()
    found = updates.find(graph)
    for node in graph.nodes:
        if not isinstance(node.op, RegionOp):
            continue
        try:
            kernels.add(graph, node, found.get(node.name, updates.Found()))
        except Unplanned as error:
            graph = inline(graph, node)
            refused.append(RuleRefused(identity=FUSION, node=node.name, reason=str(error)))
    if refused:
        verify(graph)
    return graph, kernels, tuple(refused)


def _results(graph: Graph, region: Node) -> tuple[str, ...]:
    """The nodes that hold a kernel's results, in order."""
    assert isinstance(region.op, RegionOp)
    if len(region.op.body.outputs) == 1:
        return (region.name,)
    found = {n.op.index: n.name for n in graph.nodes if isinstance(n.op, GetItemOp) and region.name in n.inputs}
    return tuple(found[index] for index in range(len(region.op.body.outputs)))


def _as_tensor(graph: Graph, name: str, text: str) -> str:
    """A scalar where torch must compute with tensors: a kernel may read what comes of it."""
    like, dtype = graph.inputs[0].name, graph.node(name).type.dtype.value
    return f"torch.full([], {text}, dtype=torch.{dtype}, device=v_{like}.device)"


def _is_const(graph: Graph, name: str) -> bool:
    return graph.node(name).op.kind == "const"


def _operand(graph: Graph, name: str) -> str:
    """How an eager expression names a value: by its node, or a scalar by its own text."""
    node = graph.node(name)
    return ops.torch_expr(node.op, ()) if _is_const(graph, name) else f"v_{name}"
