"""Rows that are scanned: two passes over what a thread holds of a row, before and after its scans."""

from __future__ import annotations

from typing import ClassVar

from fusegen.plan.details import ScanPlan
from fusegen.plan.region import Region
from fusegen.plan.rowdraft import Draft, DraftScan, Style, Value
from fusegen.plan.rowprogram import Phase, Scan
from fusegen.plan.stream import MemoryLowering
from fusegen.plan.types import KernelPlan

_HELD = 48
"""Values of operands and scans in a thread's registers: a multiprocessor has room for 1,024 threads of 64. What is
computed before the scan and read after it is held, too: the compiler does not compute it again."""


class ScanLowering(MemoryLowering):
    """Operands and scans are kept for a thread's elements; what follows from them is computed where it is needed."""

    wide_flags: ClassVar[bool] = True

    def phases(self, count: int, results: list[Value]) -> tuple[Phase, ...]:
        scans = [draft for draft in self.drafts if isinstance(draft, DraftScan)]
        loads, elements = self.behind([draft.operand for draft in scans])
        before = Phase(
            loads=loads,
            elements=elements,
            scans=tuple(
                Scan(
                    name=draft.value.name,
                    fn=draft.op.fn,
                    reverse=draft.op.reverse,
                    exclusive=draft.op.exclusive,
                    value=self.reference(draft.operand),
                    comment=draft.comment,
                )
                for draft in scans
            ),
            scalars=tuple(self.text_of(d) for d in self.drafts if isinstance(d, Draft) and not d.value.element),
        )
        loads, elements = self.behind(results)
        return before, Phase(loads=loads, elements=elements)


def plan(region: Region, name: str) -> KernelPlan:
    """One operator for rows of any length; its launcher chooses, by length and number of rows, who shares a row."""
    space = region.space
    rows = region.lower(space, Style("{}", "{}", moves_rows=True), "v", ScanLowering)
    inner = region.product(space.inner_axes)
    before, after = rows.phases
    again = {statement.name for statement in before.elements} & {statement.name for statement in after.elements}
    held = max(len(before.loads), len(before.scans)) + len(after.loads) + bool(again)
    detail = ScanPlan(
        outer=region.product(space.outer_axes),
        length=region.product(space.row_axes),
        inner=inner,
        strided=inner != 1,
        items=next(items for items in (16, 8, 4) if items * held <= _HELD or items == 4),
        rows=rows,
    )
    return region.plan(f"{name}_scan", detail, workspace=True)
