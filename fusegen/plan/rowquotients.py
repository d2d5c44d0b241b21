"""Quotients of a row's position by sizes of a call, for a kernel whose rows may be of a few elements."""

from __future__ import annotations

from dataclasses import dataclass, field

from fusegen.dims import Dim
from fusegen.plan.rowdraft import factor
from fusegen.plan.rowprogram import Divider, OutputArg, Phase, RowProgram, divider
from fusegen.plan.rows import RowLowering


@dataclass
class DividedLowering(RowLowering):
    """Divides the position of a row by sizes of a call without a division, as the template does it."""

    dividers: dict[str, Divider] = field(default_factory=dict)

    def coordinate(self, name: str, after: list[Dim], size: Dim | None) -> str:
        step = self.sizes.product(after)
        if name == "l" or isinstance(step, int):
            return super().coordinate(name, after, size)
        text = self._quotient(name, step)
        if size is None:
            return text
        return f"{text} - {self._quotient(name, self.sizes.product([*after, size]))} * {factor(self.text(size))}"

    def _quotient(self, name: str, divisor: Dim) -> str:
        return f"divide({name}, args.by_{divider(self.dividers, divisor).name}, args.row_count)"

    def assemble(self, phases: tuple[Phase, ...], outputs: tuple[OutputArg, ...]) -> RowProgram:
        return super().assemble(phases, outputs).replace(dividers=tuple(self.dividers.values()))
