"""Places of elements as text: what views make of the number of an element, and the conditions that they put."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal

from fusegen import dims
from fusegen.dims import Dim
from fusegen.literals import hex_float
from fusegen.plan.rowdraft import factor, fetched_place, fetching
from fusegen.plan.rowprogram import Position
from fusegen.plan.rows import RowLowering
from fusegen.spaces import placement
from fusegen.spaces.parts import root_of
from fusegen.spaces.placement import Between, Digit, Joined, Moved, Named, Place, Span

WIDE = 4
"""Elements of the accesses that runs are for, at least."""


@dataclass
class PlacedRows(RowLowering):
    """Positions and conditions of the element number ``index``."""

    of_index: dict[str, Digit] = field(default_factory=dict)
    """Digits of the result's number that have names."""
    tested: list[Joined] = field(default_factory=list)
    """Digits of the places that conditions compare."""
    even: list[Digit] = field(default_factory=list)
    """Those along runs, of which conditions hold for whole accesses or for none of them."""
    along: str = placement.NUMBER
    """The number that neighbours of a run differ in."""
    pointer: ClassVar[str] = "{}"
    """The template's name for an operand."""
    guard: str = ""
    """Where what is being lowered exists."""

    # --- positions ------------------------------------------------------------------------------

    def named(self, letter: str, text: str, ctype: Literal["Index", "float"] = "Index") -> str:
        """``text`` as a position of its own, if it is more than a word."""
        if text.isidentifier() or text.isdigit():
            return text
        name = f"{letter}{sum(position.name.startswith(letter) for position in self.positions.values())}"
        return self.positions.setdefault(text, Position(name=name, expr=text, ctype=ctype)).name

    def portion(self, whole: str, stride: Dim, size: Dim, total: Dim) -> str:
        """C++ of ``whole / stride % size``, where ``whole`` is below ``total``."""
        text = whole if stride == 1 else f"{whole} / {factor(self.text(stride))}"
        return text if dims.mul(stride, size) == total else f"{text} % {factor(self.text(size))}"

    def digit(self, digit: Digit) -> str:
        """C++ of one digit."""
        whole = digit.of if isinstance(digit.of, str) else self.followed(digit.of)
        name = self.named("i", self.portion(whole, digit.stride, digit.size, digit.total))
        if isinstance(digit.of, str):
            self.of_index[name] = digit
        return name

    def followed(self, of: Moved | Between | Named) -> str:
        """A position that follows from others."""
        if isinstance(of, Named):
            return self.fetched_number(of)
        return self.neighbour(of) if isinstance(of, Between) else self.moved(of)

    def fetched_number(self, named: Named) -> str:
        """The place that an element of an index names; no matter what, where there is no such element."""
        self.helpers.add(fetching(named.op))
        arg = self.args[root_of(self.body.node(named.index), self.body.by_name).name]
        place = self.offset(self.joined(named.terms)) or "0"
        text = fetched_place(self.pointer.format(arg.name), place, self.text(named.size), named.op)
        text = f"static_cast<Index>({text})"
        return self.named("j", f"{self.guard} ? {text} : 0" if self.guard else text)

    def moved(self, moved: Moved) -> str:
        if not moved.linear:
            return self.held(moved)
        ahead = self.offset(self.joined((place, step) for place, step in moved.terms if step > 0))
        back = self.offset(self.joined((place, -step) for place, step in moved.terms if step < 0))
        start = "" if moved.start == 0 else self.text(moved.start)
        text = " + ".join(filter(None, (ahead, start))).replace("+ -", "- ") or "0"
        return self.named("j", f"{text} - {factor(back)}" if back else text)

    def held(self, moved: Moved) -> str:
        """A position that is divided, or taken from the edge where it is outside."""
        assert moved.edge
        at, size = self.moved(replace(moved, divisor=1, edge=None)), factor(self.text(moved.size))
        if moved.divisor != 1:
            at = self.named("j", f"({at} < 0 ? -1 : {at} / {moved.divisor})")  # of what is held, -1 says enough
        outside = {
            "hold": ("0", f"{size} - 1"),
            "mirror": (f"-{at}", f"2 * {size} - 2 - {at}"),
            "wrap": (f"{at} + {size}", f"{at} - {size}"),
        }
        before, behind = outside[moved.edge]
        return self.named("j", f"{at} < 0 ? {before} : {at} < {size} ? {at} : {behind}")

    def spacing(self, between: Between) -> str:
        """C++ of how far the places of an interpolation's neighbouring elements lie apart."""
        op, size, length = between.op, between.size, between.op.length
        if op.scale is not None:
            return hex_float(1 / op.scale)
        if op.align_corners:
            if length == 1:
                return hex_float(0.0)
            size, length = dims.sub(size, 1), dims.sub(length, 1)
        elif isinstance(ratio := dims.exact_quotient(length, size), int):
            size, length = 1, ratio
        if isinstance(size, int) and isinstance(length, int):
            return hex_float(size / length)
        text = f"static_cast<float>({self.text(size)}) / static_cast<float>({self.text(length)})"
        if op.align_corners and not isinstance(length, int):
            text = f"{self.text(length)} > 0 ? {text} : 0.0f"
        return self.named("s", text, "float")

    def between(self, between: Between) -> str:
        """The place in the operand of an interpolation, as ATen rounds it."""
        spacing, place = self.spacing(between), self.offset(self.joined([(between.place, 1)])) or "0"
        if between.op.align_corners or between.op.mode == "nearest":
            return self.named("s", f"{spacing} * static_cast<float>({place})", "float")
        return self.named("s", f"fmaxf(fmaf({spacing}, static_cast<float>({place}) + 0.5f, -0.5f), 0.0f)", "float")

    def neighbour(self, between: Between) -> str:
        """The position of an element beside such a place: there always is one, so nothing waits for a condition."""
        last = self.text(dims.sub(between.size, 1))
        if between.behind:
            first = self.neighbour(replace(between, behind=False))
            return self.named("j", f"{first} < {last} ? {first} + 1 : {last}")
        at = self.named("j", f"static_cast<Index>({self.between(between)})")
        at = self.named("j", f"{at} < {last} ? {at} : {last}")
        if between.op.mode == "nearest" and between.op.scale is not None and between.may_stay:
            place = self.offset(self.joined([(between.place, 1)])) or "0"
            at = self.named("j", f"{self.stays(between)} ? {place} : {at}")
        return at

    def stays(self, between: Between) -> str:
        return f"{self.text(between.size)} == {self.text(between.op.length)}"

    def shared(self, between: Between) -> str:
        """C++ of the sum of both neighbours' shares, over those: as ATen adds them up."""
        first = self.neighbour(between)
        second = self.named("s", f"{self.between(between)} - static_cast<float>({first})", "float")
        text = f"{self.named('s', f'1.0f - {second}', 'float')} * {{0}} + {second} * {{1}}"
        return f"{self.stays(between)} ? {{0}} : {text}" if between.may_stay else text

    def joined(self, places: Iterable[tuple[Place, Dim]]) -> Joined:
        return placement.joined(places, self.body.sizes)

    def offset(self, joined: Joined) -> str:
        """C++ of the sum of digits times strides."""
        terms = [
            self.digit(d) if stride == 1 else f"{self.digit(d)} * {factor(self.text(stride))}"
            for d, stride in reversed(joined)
        ]
        return " + ".join(terms)

    # --- conditions -----------------------------------------------------------------------------

    def runs(self, digit: Digit) -> bool:
        """True for the digit that goes from one element to the next."""
        return digit.of == self.along and digit.stride == 1

    def inside(self, span: Span) -> str:
        parts = [self.joined([(span.place, 1)]), self.joined([(span.less, 1)])]
        if (digit := self.met_whole(span)) is not None:
            self.even.append(digit)
        else:
            self.tested += parts
        place, less = map(self.offset, parts)
        place = factor(f"{place or 0} - {factor(less)}" if less else place or "0")
        bounds = [] if span.start is None else [f"{place} >= {self.text(span.start)}"]
        bounds += [] if span.stop is None else [f"{place} < {self.text(span.stop)}"]
        return " && ".join(bounds)

    @cached_property
    def widest(self) -> int:
        """Elements of the widest accesses that runs may have."""
        types = [*(arg.type for arg in self.args.values()), *(self.body.node(name).type for name in self.body.outputs)]
        return max(WIDE, 16 // max(type_.dtype.bytes for type_ in types))

    def met_whole(self, span: Span) -> Digit | None:
        """The digit along runs of which whole accesses lie inside ``span``, or outside, if it is bounded so."""
        bounds, place = [bound for bound in (span.start, span.stop) if bound is not None], span.place
        while not span.less and len(joined := self.joined([(place, 1)])) == 1 and joined[0][1] == 1:
            digit = joined[0][0]
            if self.runs(digit):
                return digit if all(dims.exact_quotient(bound, self.widest) is not None for bound in bounds) else None
            moved = placement.sum_of(digit)
            if moved is None or len(moved.terms) > 1 or moved.terms[0][1] != 1:
                return None
            bounds, place = [dims.sub(bound, moved.start) for bound in bounds], moved.terms[0][0]
        return None
