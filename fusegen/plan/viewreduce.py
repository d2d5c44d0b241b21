"""Plans reductions of what is computed as it is read, from behind views."""

from __future__ import annotations

from dataclasses import dataclass, field

from fusegen import dims
from fusegen.dims import Dim
from fusegen.plan.details import ViewReducePlan
from fusegen.plan.region import Region
from fusegen.plan.rowdraft import factor
from fusegen.plan.rowprogram import Divider, Reduction, divider
from fusegen.plan.types import KernelPlan
from fusegen.plan.viewproduct import ElementLowering
from fusegen.printer import format_node
from fusegen.spaces import viewreduce, viewspace
from fusegen.spaces.placement import Places
from fusegen.spaces.viewproduct import ROW, TERM
from fusegen.spaces.viewreduce import ViewReduction


@dataclass
class _Lowering(ElementLowering):
    """Divides by sizes of the call without a division, which costs more than an element."""

    dividers: dict[str, Divider] = field(default_factory=dict)

    def quotient(self, whole: str, divisor: Dim) -> str:
        """C++ of ``whole / divisor``, over binding names."""
        if isinstance(divisor, int):
            return whole if divisor == 1 else f"{whole} / {divisor}"
        return f"args.by_{divider(self.dividers, divisor).name}.of({whole})"

    def portion(self, whole: str, stride: Dim, size: Dim, total: Dim) -> str:
        text = self.quotient(whole, self.sizes.local(stride))
        if dims.mul(stride, size) == total:
            return text
        if isinstance(size, int):
            return f"{text} % {size}"
        return f"{text} - {self.quotient(whole, self.sizes.product((stride, size)))} * {factor(self.text(size))}"


_WORTH = 4
"""Elements side by side for each result that is stored by itself."""


def _arranged(region: Region) -> ViewReduction:
    """The reductions, of rows in the order in which most of their elements are neighbours."""
    body = region.body
    found = plain = viewreduce.check(body)
    head = plain.heads[0]
    wanted = dict.fromkeys((head.inputs[0] for head in plain.heads), plain.places)
    most = _WORTH * dims.numel(head.type.shape, body.sizes)

    def beside(arranged: ViewReduction) -> tuple[int, int]:
        lowering = _Lowering.of(region, body, dict.fromkeys(wanted, arranged.places), {})
        lowering.along = TERM
        lowering.program(tuple(region.outputs[0].replace(node=node) for node in wanted))
        along = lowering.neighbours(ROW)
        return along[ROW], along[TERM]

    rows, terms = beside(plain)
    most += max(rows, terms)
    for axis in range(body.node(head.inputs[0]).type.rank):
        if axis not in viewreduce.op_of(head).axes:
            arranged = viewreduce.check(body, axis)
            if (beside_it := beside(arranged)[0]) > most:
                found, most = arranged, beside_it
    return found


def plan(region: Region, name: str) -> KernelPlan:
    """One launch for what is reduced, the reductions, and what follows from a row."""
    body, sizes = region.body, region.sizes
    found = _arranged(region)
    dividers: dict[str, Divider] = {}

    def lowering(wanted: dict[str, Places], given: dict[str, str]) -> _Lowering:
        started = _Lowering.of(region, body, wanted, given)
        started.dividers, started.along = dividers, TERM
        return started

    wanted = {head.inputs[0]: found.places for head in found.heads}
    before = lowering(wanted, {})
    elements = before.program(tuple(region.outputs[0].replace(node=node) for node in wanted))
    values = {node: store.value for node, store in zip(wanted, elements.stores, strict=True)}
    reductions, given = list[Reduction](), dict[str, str]()
    for i, head in enumerate(found.heads):
        fn = viewreduce.op_of(head).fn
        given[head.name] = f"(r{i} / static_cast<float>(args.length))" if fn == "mean" else f"r{i}"
        value, comment = values[head.inputs[0]], format_node(head)
        reductions.append(Reduction(name=f"r{i}", fn="sum" if fn == "mean" else fn, value=value, comment=comment))
    run = before.run()
    if run is not None:
        steps = before.steps()
        elements = elements.replace(operands=tuple(o.replace(step=steps[o.name]) for o in elements.operands))
    counts = {arg.name: sizes.product(arg.type.shape) for arg in region.args.values()}
    stored = [*body.inputs, *map(body.node, body.outputs)]
    shapes = [*(node.type.shape for node in stored), *viewspace.numbered(body)]
    detail = ViewReducePlan(
        lines=sizes.product(found.rows),
        length=sizes.product(found.length),
        run=None if run is None else sizes.local(run),
        strided=before.lanes(ROW) == "side",
        elements=elements.replace(stores=()),
        reductions=tuple(reductions),
        rows=lowering(found.results, given).program(region.outputs),
        dividers=tuple(dividers.values()),
        counts=tuple(dict.fromkeys((o.arg, counts[o.arg]) for o in elements.operands if o.guard)),
        reach=tuple(dict.fromkeys(map(sizes.product, (*shapes, (*found.rows, *found.length))))),
    )
    return region.plan(f"{name}_reduce_views", detail, counters=detail.counters, workspace=True)
