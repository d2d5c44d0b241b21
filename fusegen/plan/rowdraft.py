"""A row program before its text: values, what makes them, and how templates refer to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from fusegen.dims import Dim
from fusegen.ir import GatherElementsOp, GatherOp, ScanOp
from fusegen.plan.rowprogram import CType

Reduced = Literal["sum", "max", "min", "prod", "var", "exponentials", "argmax", "argmin"]


@dataclass(frozen=True)
class Style:
    """How a template writes references to a value called ``{}``.

    ``array``: an element value kept in registers; ``scalar``: a value of the row;
    ``element_operand``: an operand read per element; ``outer``: the template's name for the position
    along the axes before the row.
    """

    array: str
    scalar: str
    element_operand: str = "{}"
    outer: str = "outer"
    moves_rows: bool = False
    """The template itself stores a result that is laid out like the source."""
    parts: bool = False
    """Parts of a row are reduced apart, each with a shift of its own exponentials."""
    quick: bool = False
    """Elements carry the error of tensor cores already: the special-function unit is exact enough for exponentials."""
    split: bool = False
    """Several blocks share a row."""
    double: bool = False
    """Values are doubles; a mean beside a variance is corrected by the mean of what is left."""


@dataclass
class Value:
    """A value on its way to text: where it is known (phase) and how often later phases read it."""

    name: str
    element: bool
    phase: int
    literal: str | None = None
    array: bool = False


@dataclass
class Draft:
    """A statement before its operands are turned into text."""

    value: Value
    template: str
    operands: tuple[Value, ...]
    ctype: CType
    comment: str


@dataclass
class DraftReduction:
    value: Value
    fn: Reduced
    operand: Value
    comment: str
    second: Value | None = None
    rest: Value | None = None
    weighted: list[tuple[Value, Value]] = field(default_factory=list)
    """Sums of exponentials, and what each exponential is multiplied by."""
    partial: bool = False
    shift: Value | None = None

    @property
    def key(self) -> tuple[str, Value, bool, Value | None]:
        return self.fn, self.operand, self.partial, self.shift


@dataclass
class DraftScan:
    """``value`` is an element value of the phase after its operand's."""

    value: Value
    op: ScanOp
    operand: Value
    comment: str


def indexed(letter: str, length: Dim) -> str:
    """A ``Style.array`` of the elements of a row of ``length``: an only one is its row's value, outside of loops."""
    return "{}[0]" if length == 1 else f"{{}}[{letter}]"


def total(terms: Iterable[str]) -> str:
    """The sum of ``terms``."""
    return " + ".join(terms) or "0"


def factor(text: str) -> str:
    """``text`` ready to stand in a product."""
    return f"({text})" if any(symbol in text for symbol in "+-*/% ") else text


def fetching(op: GatherOp | GatherElementsOp) -> str:
    """The device function that knows what numbers name to ``op``, and refuses others (templates/_math.cu.j2)."""
    return "named_unless" if isinstance(op, GatherElementsOp) and op.ignored is not None else "named_place"


def fetched_place(pointer: str, offset: str, size: str, op: GatherOp | GatherElementsOp) -> str:
    """C++ of the place along an axis of ``size`` that a number names to ``op``."""
    if isinstance(op, GatherElementsOp) and op.ignored is not None:
        return f"{fetching(op)}({pointer} + {offset}, {size}, {op.ignored})"
    return f"{fetching(op)}<{str(op.wraps).lower()}>({pointer} + {offset}, {size})"
