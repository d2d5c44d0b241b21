"""Buffers that a kernel updates by itself: running statistics over those that it read, and counts of calls.

Torch would launch a copy for the ones and an addition for the others after the kernel, each as long as a small kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fusegen import dims
from fusegen.ir import DType, EagerOp, Frozen, GetItemOp, Graph, Node, ParamOp, PointwiseOp, RegionOp, ReshapeOp
from fusegen.plan.details import ContractionPlan, RowReducePlan, RowStreamPlan
from fusegen.plan.rowprogram import Count, Store, TensorArg
from fusegen.plan.types import KernelPlan


class Updates(Frozen):
    """What a region's kernel may update, by position, so that regions which are alike compare equal."""

    written: tuple[tuple[int, int], ...] = ()
    """(result, operand): the buffer that holds the operand gets the result."""
    counted: tuple[int, ...] = ()
    """What is added to each of ``counters``."""


class Found(Frozen):
    """The updates of a region, and whose they are."""

    updates: Updates = Updates()
    counters: tuple[Node, ...] = ()
    """The buffers that are counted up."""


def added(graph: Graph, path: str, name: str) -> int | None:
    """What the update ``name`` of the buffer ``path`` adds to it, where that is all it is: an integer in one place."""
    node = graph.node(name)
    step = re.fullmatch(r"\{0\}, (-?\d+)", node.op.arguments) if isinstance(node.op, EagerOp) else None
    if step is None or getattr(node.op, "target", "") != "aten.add.Tensor":
        return None
    own = [getattr(graph.node(operand).op, "path", None) for operand in node.inputs] == [path]
    return int(step[1]) if own and not graph.users[name] and graph.results.count(name) == 1 else None


def _elementwise(body: Graph, operand: str, result: str) -> bool:
    """Whether all that ``operand`` leads to is ``result``, each element to the one in its place."""
    size, reached = dims.numel(body.shape(operand), body.sizes), {operand}
    for node in body.nodes:
        if not reached.isdisjoint(node.inputs):
            reached.add(node.name)
            same = isinstance(node.op, (PointwiseOp, ReshapeOp)) and dims.numel(node.type.shape, body.sizes) == size
            if not same or (node.name in body.outputs and node.name != result):
                return False
    return result in reached


def _written(graph: Graph, path: str, name: str) -> tuple[str, tuple[int, int]] | None:
    """The region that computes the next value of the buffer ``path`` from its last and has no other use for either."""
    node, users = graph.node(name), graph.users
    if not isinstance(node.op, GetItemOp) or users[name] or graph.results.count(name) != 1:
        return None
    region = graph.node(node.inputs[0])
    buffers = [n.name for n in graph.params if isinstance(n.op, ParamOp) and n.op.path == path]
    if not isinstance(region.op, RegionOp) or len(buffers) != 1:
        return None
    (buffer,) = buffers
    if users[buffer] != (region.name,) or buffer in graph.results:
        return None
    place, body = region.inputs.index(buffer), region.op.body
    same = graph.node(buffer).type == node.type and node.type.dtype is DType.FLOAT32
    if not same or not _elementwise(body, body.inputs[place].name, body.outputs[node.op.index]):
        return None
    return region.name, (node.op.index, place)


def find(graph: Graph) -> dict[str, Found]:
    """By region: the buffers whose last value it alone reads, and the counts kept beside them."""
    written: dict[str, dict[int, int]] = {}
    homes: dict[str, str] = {}
    for path, name in graph.updates:
        if found := _written(graph, path, name):
            home, (result, operand) = found
            written.setdefault(home, {})[result] = operand
            homes.setdefault(path.rpartition(".")[0], home)
    counters: dict[str, list[tuple[Node, int]]] = {}
    for path, name in graph.updates:
        addend, region = added(graph, path, name), homes.get(path.rpartition(".")[0])
        if addend is None or region is None:
            continue
        counter = graph.node(graph.node(name).inputs[0])
        only = len(graph.users[counter.name]) == 1 and counter.name not in graph.results
        if only and counter.type.dtype is DType.INT64 and not counter.type.shape:
            counters.setdefault(region, []).append((counter, addend))
    return {
        region: Found(
            updates=Updates(
                written=tuple(sorted(pairs.items())),
                counted=tuple(addend for _, addend in counters.get(region, ())),
            ),
            counters=tuple(counter for counter, _ in counters.get(region, ())),
        )
        for region, pairs in written.items()
    }


def _row_stores(plan: KernelPlan) -> Iterator[Store]:
    """Stores of values that a row or a channel has one of: one thread reads what it needs for them and writes them."""
    match plan.detail:
        case RowReducePlan(rows=rows) | RowStreamPlan(rows=rows):
            yield from (store for store in rows.stores if not store.per_element)
        case ContractionPlan(statistics=statistics) if statistics is not None:
            yield from statistics.rows.stores


def updating(plan: KernelPlan, updates: Updates) -> KernelPlan:
    """``plan`` with the updates that its kernel can make by itself: all of a region's, or none."""
    by_row = {store.output for store in _row_stores(plan)}
    into = {f"y{result}": plan.args[operand].name for result, operand in updates.written}
    if not into or not by_row.issuperset(into) or len(into) == len(plan.outputs):
        return plan
    counts = tuple(Count(arg=f"n{i}", addend=addend) for i, addend in enumerate(updates.counted))
    outputs = tuple(output.replace(into=into.get(output.name, "")) for output in plan.outputs)
    return plan.replace(outputs=outputs, counts=counts)


def with_counters(plan: KernelPlan, counters: tuple[Node, ...]) -> KernelPlan:
    """``plan`` with the arguments that its counts are kept in."""
    if not plan.counts:
        return plan
    own = (TensorArg(name=c.arg, node=n.name, type=n.type) for c, n in zip(plan.counts, counters, strict=True))
    return plan.replace(args=(*plan.args, *own))
