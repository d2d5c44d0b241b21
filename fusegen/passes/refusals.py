"""Why no kernel computes a group of nodes: what its template's iteration space, and the cost model, say."""

from __future__ import annotations

from fusegen import dims
from fusegen.costs import before_products, contractions, direct, repeated, viewproduct
from fusegen.ir import INTEGERS, ArgReduceOp, CatOp, DType, Graph
from fusegen.machines import Machine
from fusegen.passes.conv_groups import unreadable
from fusegen.passes.groups import Group, Grouping
from fusegen.passes.templates import template_of
from fusegen.spaces import convpool, poolrows, poolspace, prologue, scanspace, viewspace
from fusegen.spaces.parts import indices
from fusegen.spaces.rowspace import NotFusable, analyze

_SHARED = "it is read outside the kernel too"
_WITH_INTEGERS = ("pointwise", "reduce_views", "gemm_views", "attention")
"""Templates whose elements are statements of their own."""
_JOINS = ("pointwise", "row_reduce", "row_stream", "reduce_views", "contraction", "window_sum", "conv_direct")
"""Templates that store a result in several places."""
OTHER = "what it reduces over positions is no elementwise work after the convolution alone"
"""Where a convolution has not been taken by a kernel that reduces it, and nothing says why."""


def _computes_integers(body: Graph) -> bool:
    """Whether integers are more than the numbers of elements, found or fetched."""
    places = indices(body)
    return any(
        node.type.dtype in INTEGERS and not isinstance(node.op, ArgReduceOp) and node.name not in places
        for node in body.nodes
    )


def few_results(body: Graph, machine: Machine) -> bool:
    """Whether writing all results takes no longer than a launch."""
    types = [body.node(name).type for name in body.outputs]
    written = sum(dims.numel(type_.shape, body.sizes) * type_.dtype.bytes for type_ in types)
    return written < machine.launch * machine.bandwidth


def refusal(grouping: Grouping, group: Group, machine: Machine) -> str | None:
    """Why no kernel computes ``group``, or None."""
    body, _ = grouping.body(group)
    if any(0 in node.type.shape for node in body.nodes):
        return "it is empty"
    try:
        if viewspace.takes(body):
            return viewspace.refusal(body, few_results(body, machine)) or repeated.refusal(body, machine)
        if any(isinstance(body.node(name).op, viewspace.STRIDED) for name in body.outputs):
            return "a kernel stores its results in its own order"
        template = template_of(body)
        if template not in _WITH_INTEGERS and _computes_integers(body):
            return "kernels of elementwise work alone compute with integers"
        rows = template.startswith("row") or template == "scan"
        if template != "row_stream" and any(isinstance(node.op, ArgReduceOp) for node in body.nodes):
            return "kernels of rows alone find where an extreme is"
        if template not in _JOINS and any(isinstance(body.node(name).op, CatOp) for name in body.outputs):
            return "its kernel stores a result in one place"
        if template == "gemm_views":
            return viewproduct.refusal(body, machine)
        if template == "reduce_views":
            return repeated.refusal(body, machine)
        if template != "pointwise" and not rows and (reason := unreadable(body)):
            return reason
        if template == "pool":
            poolspace.split(body)
            return None if len(body.outputs) == 1 else _SHARED
        if template == "conv_direct":
            return direct.refusal(body, machine) if len(body.outputs) == 1 else _SHARED
        if template == "conv_pool":
            return convpool.refusal(body, machine) if len(body.outputs) == 1 else _SHARED
        if template in ("conv_boxes", "conv_sweep", "conv_reduce"):
            return OTHER
        if template == "scan":
            scanspace.check(body)
        before = None
        if template == "contraction":
            before, body = prologue.split(body)
        pooled = rows and poolrows.takes(body)
        space = poolrows.rows(body) if pooled or template.startswith("row") else analyze(body)
        if before and (reason := before_products.refusal(before, body, space, machine)):
            return reason
    except NotFusable as error:
        return str(error)
    if rows and (reason := unreadable(body, "" if pooled else space.source)):
        return reason
    results = [body.node(name) for name in body.outputs if not isinstance(body.node(name).op, ArgReduceOp)]
    if rows and any(result.type.dtype is not DType.FLOAT32 for result in results):
        return "its result is no float32 tensor"
    if template == "row_stream" and any(map(space.is_scattered, body.outputs)):
        return "rows that no registers hold are stored in another order than they are read"
    if pooled and (reason := poolrows.refusal(body, machine)):
        return reason
    if template == "contraction" and (reason := contractions.refusal(body, space, machine)):
        return reason
    return _SHARED if template in ("contraction", "window_sum") and len(body.outputs) > 1 else None
