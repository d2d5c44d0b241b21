"""Layers of recurrent networks."""

from __future__ import annotations

from typing import Literal

from fusegen.costs.recurrence import RecurrenceTile
from fusegen.dims import Dim
from fusegen.ir import GATES, Cell, Frozen


class RecurrencePlan(Frozen):
    """A layer through time, of one or two directions, in plain fp32; operands by their names in the launcher."""

    template: Literal["recurrence"] = "recurrence"
    cell: Cell
    hidden: int
    """Units of a direction."""
    directions: int
    batch_first: bool
    length: Dim
    """Steps."""
    samples: Dim
    tile: RecurrenceTile
    first: tuple[str, ...]
    """The first h, and c; none: zeros."""
    sums: tuple[str, ...]
    """By direction: what comes of the inputs, the weights of states, and their biases, or none."""
    weights: tuple[str, ...]
    biases: tuple[str, ...]
    outputs: str | None
    """The states of every step, and an LSTM's last cells, as far as they are results."""
    cells: str | None

    @property
    def gates(self) -> int:
        return GATES[self.cell]
