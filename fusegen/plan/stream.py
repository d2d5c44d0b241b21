"""Rows that no block's registers hold: every phase is a pass over the row, from memory or shared memory.

Element values are not kept from one pass to the next but computed again. Statistics that would take two
passes are reductions of their own: the variance, and the maximum with the sum of exponentials.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from fusegen import dims
from fusegen.dims import Dim
from fusegen.ir import Node, PointwiseOp, ReduceOp
from fusegen.plan.details import HeldRows, RowStreamPlan
from fusegen.plan.region import Region
from fusegen.plan.rowdraft import Draft, DraftReduction, Reduced, Style, Value, factor
from fusegen.plan.rowprogram import Divider, OutputArg, Phase, Reduction, RowProgram, Statement, Weighted, divider
from fusegen.plan.rows import RowLowering
from fusegen.plan.types import KernelPlan
from fusegen.printer import format_node
from fusegen.spaces.exponentials import is_only_weighed, shifted, weighed

_Pair = Literal["var", "exponentials", "argmax", "argmin"]
_ALONE, _ALONE_TWICE = 4, 8
"""Elements of a row for each of a warp's threads, and of a row that is summed up more than once (a variance, a sum of
exponentials) to be stored as a few numbers: what a row takes beside its elements each of its threads does (variances of
rows of 126 and 127: 37 and 46 us with 16 threads, 47 and 53 with 32). More threads share a row of more than"""
_EACH, _THREADS = 16, 512
"""16 elements for each of a warp, up to 512 of them."""
_MOST = 32
"""Elements that a thread holds, in accesses of several, of all operands."""
_SUMMED = 8
"""Those that are on their way where a row is read once; of two rows at least."""
_RUN = 2048
"""Elements of a run, as traced, below which single ones are less work than accesses of 16 bytes that its ends cut."""
_MANY_ROWS = 512
"""Fewer rows are given a block each, or a cluster."""


class MemoryLowering(RowLowering):
    """Phases read the elements that they need from memory, or from where the template keeps operands."""

    def data(self, node: Node) -> Value:
        return self.operand(node, self.space.axes[node.name])

    def vector(self, order: list[int], index: str) -> Literal["", "source", "row"]:
        if tuple(order) == self.space.base_axes(self.space.source):
            return "source"
        return "row" if index == "l" else ""

    def behind(self, needed: list[Value]) -> tuple[tuple[str, ...], tuple[Statement, ...]]:
        """Names of operands, and element statements, that the values ``needed`` follow from: of whichever phase."""
        needed, elements = list(needed), list[Draft]()
        for draft in reversed(self.drafts):
            if isinstance(draft, Draft) and draft.value.element and any(draft.value is value for value in needed):
                elements.insert(0, draft)
                needed += draft.operands
        loads = dict.fromkeys(value.name for value in needed if value.element and value.literal is not None)
        return tuple(loads), tuple(map(self.text_of, elements))


@dataclass
class StreamLowering(MemoryLowering):
    """Statements of an element refer to plain names, those of a row to members of ``row``."""

    dividers: dict[str, Divider] = field(default_factory=dict)

    # --- index arithmetic ---------------------------------------------------------------------

    def quotient(self, divisor: Dim) -> str:
        """The position along the row over ``divisor``, by name: a division costs more than an element."""
        return divider(self.dividers, divisor).name

    def coordinate(self, name: str, after: list[Dim], size: Dim | None) -> str:
        if name != "l":
            return super().coordinate(name, after, size)
        step = self.sizes.product(after)
        text = "l" if step == 1 else self.quotient(step)
        if size is None:
            return text
        return f"({text} - {self.quotient(self.sizes.product([*after, size]))} * {factor(self.text(size))})"

    # --- values -------------------------------------------------------------------------------

    def part_vector(self, terms: list[tuple[str, str]]) -> Literal["", "part"]:
        """Neighbours, along the row or of neighbouring rows, are neighbours, and a row's all as far apart."""
        shape, space = self.space.shape, self.space
        middle, inner = (self.sizes.product(shape[a] for a in axes) for axes in (space.middle_axes, space.inner_axes))
        along, beside = ([text for name, text in terms if name == wanted] for wanted in ("l", "inner"))
        if middle != 1 or len(along) != 1:
            return ""
        plain = along == ["l"] if inner == 1 else beside == ["inner"] and along[0].startswith("l * ")
        return "part" if plain else ""

    def exponentials(self, x: Value, comment: str) -> tuple[Value, Value]:
        """(maximum, sum of the exponentials of what is left) of the row."""
        self.helpers.add("nan_max")
        self.special += 1
        return self.pair("exponentials", x, comment)

    def reduce(
        self, fn: Reduced, operand: Value, comment: str, *, partial: bool = False, shift: Value | None = None
    ) -> Value:
        """One sweep finds the maximum and the sum of the exponentials of what is left, whichever is asked for first."""
        of_row = (draft for draft in self.drafts if isinstance(draft, DraftReduction) and draft.operand is operand)
        peak = next((draft for draft in of_row if draft.fn in ("max", "exponentials")), None)
        if peak is None or fn not in ("max", "exponentials"):
            return super().reduce(fn, operand, comment, partial=partial, shift=shift)
        if fn == "exponentials":
            peak.fn = fn
        return peak.value

    def arg_reduction(self, node: Node, fn: Literal["argmax", "argmin"]) -> None:
        self.helpers |= {f"is_{fn}", f"later_{fn}", f"nan_{fn.removeprefix('arg')}"}
        x = self.values[node.inputs[0]]
        self.values[node.name] = self.pair(fn, x, format_node(node))[1]

    def drafted(self, fn: _Pair, x: Value, comment: str) -> DraftReduction:
        """A reduction with several results."""
        first = self.reduce(fn, x, comment)
        draft = next(d for d in self.drafts if d.value is first)
        assert isinstance(draft, DraftReduction)
        return draft

    def pair(self, fn: _Pair, x: Value, comment: str) -> tuple[Value, Value]:
        """Two results of one reduction."""
        draft = self.drafted(fn, x, comment)
        draft.second = draft.second or Value(f"{draft.value.name}s", False, draft.value.phase)
        return draft.value, draft.second

    def variance(self, x: Value, comment: str) -> tuple[Value, Value]:
        """(variance, mean) of the row."""
        return self.pair("var", x, comment)

    def lost(self, node: Node, comment: str) -> Value:
        """What rounding took from the mean of the row ``node``."""
        x = self.values[node.name]
        self.variance(x, comment)  # its sweep knows the mean to more digits
        draft = self.drafted("var", x, comment)
        draft.rest = draft.rest or Value(f"{draft.value.name}_lost", False, draft.value.phase)
        return draft.rest

    def centered(self, node: Node) -> Node | None:
        """``x`` where ``node`` is ``x - mean(x)`` and all that is asked for is the mean of that."""
        by_name, readers = self.body.by_name, [self.body.node(name).op for name in self.body.users[node.name]]
        if not isinstance(node.op, PointwiseOp) or node.op.fn != "sub" or node.name in self.body.outputs:
            return None
        x, mean = (by_name[name] for name in node.inputs)
        means = [op for op in (mean.op, *readers) if isinstance(op, ReduceOp) and op.fn == "mean"]
        alike = len(means) == len(readers) + 1 and all(op.axes == means[0].axes for op in means)
        return x if alike and mean.inputs == (x.name,) else None

    def pointwise(self, node: Node, fn: str) -> None:
        if self.centered(node) is None and weighed(self.body, node) is None:
            super().pointwise(node, fn)

    def weighted(self, product: Node, softmax: Node, factor: Node, comment: str) -> tuple[Value, Value]:
        """(sum of the exponentials, of them times the other factor) of a softmax that is only weighed and added up."""
        x = self.values[softmax.inputs[0]]
        _, total = self.exponentials(x, format_node(softmax))
        draft = self.drafted("exponentials", x, comment)
        result = Value(f"{draft.value.name}w{len(draft.weighted)}", False, draft.value.phase)
        draft.weighted.append((result, self.resolve(factor, product, self.space.axes[product.name])))
        return total, result

    def softmax(self, node: Node, log: bool) -> None:
        if is_only_weighed(self.body, node):
            return
        x = self.values[node.inputs[0]]
        peak, total = self.exponentials(x, format_node(node))
        shifted = self.draft("{0} - {1}", x, peak, element=True, node=node, comment="its exponent")
        if log:
            norm = self.draft("logf({0})", total, element=False, node=node, comment="log of its denominator")
            self.values[node.name] = self.draft("{0} - {1}", shifted, norm, element=True, node=node)
        else:
            norm = self.draft("1.0f / {0}", total, element=False, node=node, comment="one over its denominator")
            self.values[node.name] = self.draft("expf({0}) * {1}", shifted, norm, element=True, node=node)

    def reduction(self, node: Node, op: ReduceOp) -> None:
        if (source := self.centered(self.body.node(node.inputs[0]))) is not None:
            self.values[node.name] = self.lost(source, format_node(node))
            return
        product = self.body.node(node.inputs[0])
        if (factors := weighed(self.body, product)) is not None:
            total, part = self.weighted(product, *factors, format_node(node))
            self.values[node.name] = self.draft("{0} / {1}", part, total, element=False, node=node)
            return
        x = self.values[node.inputs[0]]
        if op.fn == "logsumexp":
            peak, total = self.exponentials(x, format_node(node))
            template = "(isinf({0}) ? {0} : logf({1}) + {0})"
            self.values[node.name] = self.draft(template, peak, total, element=False, node=node)
        elif op.fn == "var":
            self.values[node.name] = self.variance(x, format_node(node))[0]
        elif op.fn == "mean" and self.has_state(node):
            self.values[node.name] = self.variance(x, format_node(node))[1]
        elif (left := shifted(self.body, node)) is not None:
            peak, total = self.exponentials(self.values[left.name], format_node(node))
            nothing = "({0} == -INFINITY ? NAN : {1})"  # as exp(-INFINITY - -INFINITY) has it
            self.values[node.name] = self.draft(nothing, peak, total, element=False, node=node)
        else:
            super().reduction(node, op)

    def has_state(self, mean: Node) -> bool:
        """Whether the row's variance, or what its mean is rounded by, is asked for besides ``mean``."""
        return any(
            (isinstance(node.op, ReduceOp) and node.op.fn == "var" and node.inputs == mean.inputs)
            or (mean.name in node.inputs and self.centered(node) is not None)
            for node in self.body.nodes
        )

    # --- phases -------------------------------------------------------------------------------

    def phases(self, count: int, results: list[Value]) -> tuple[Phase, ...]:
        return tuple(self.phase(number, results if number == count - 1 else []) for number in range(count))

    def phase(self, number: int, results: list[Value]) -> Phase:
        """What a pass computes: the element values that its reductions and stores need, however early they are."""
        mine = [draft for draft in self.drafts if draft.value.phase == number]
        reductions = [draft for draft in mine if isinstance(draft, DraftReduction)]
        needed = [draft.operand for draft in reductions] + [value for value in results if value.element]
        needed += [value for draft in reductions for _, value in draft.weighted]
        loads, elements = self.behind(needed)
        scalars = [draft for draft in mine if isinstance(draft, Draft) and not draft.value.element]
        return Phase(
            loads=loads,
            elements=elements,
            reductions=tuple(
                Reduction(
                    name=draft.value.name,
                    fn=draft.fn,
                    value=self.reference(draft.operand),
                    comment=draft.comment,
                    second=draft.second.name if draft.second else "",
                    rest=draft.rest.name if draft.rest else "",
                    weighted=tuple(
                        Weighted(name=found.name, value=self.reference(value)) for found, value in draft.weighted
                    ),
                )
                for draft in reductions
            ),
            scalars=tuple(map(self.text_of, scalars)),
        )

    def assemble(self, phases: tuple[Phase, ...], outputs: tuple[OutputArg, ...]) -> RowProgram:
        rows = super().assemble(phases, outputs)
        texts = [operand.index for operand in rows.operands if operand.per_element and not operand.vector]
        texts += [store.index for store in rows.stores if store.per_element and not store.like_source]
        texts += [statement.expr for phase in phases for statement in phase.elements]
        words = set(re.findall(r"\w+", " ".join(texts)))  # what the template reads at offsets of its own
        return rows.replace(dividers=tuple(d for d in self.dividers.values() if d.name in words))


def _held(
    count: int, length: int, operands: int, kept: bool, stored: bool, twice: bool, apart: tuple[Dim, ...] = ()
) -> HeldRows | None:
    """How ``count`` contiguous rows of ``length`` elements, both as traced, are held in registers, if they are.

    ``operands`` have as many elements; they are ``kept`` for another pass, and results as many are ``stored``. A thread
    sums its elements up ``twice``, or more often. Accesses are whole ones of what is ``apart``, too.

    Neighbouring threads read neighbouring accesses, so that a warp's are whole lines, and have several on their way.
    (sm_90; maxima of rows of 32 and 126, sums of 62, norms of 64: 25, 24, 24 and 37 us; 29, 35, 38 and 46 where few
    threads read a row alone.)
    Where ``count`` is no more than blocks, nothing is decided here, so that kernels stay alike.
    """
    if count < _MANY_ROWS or not operands:
        return None
    sizes = [length, *(size for size in apart if isinstance(size, int))]
    vec = next(v for v in (4, 2, 1) if all(size % v == 0 for size in sizes))
    parts, alone = 1, _ALONE_TWICE if twice and not stored else _ALONE
    while parts < _THREADS and parts * (alone if parts < 32 else _EACH) < length:
        parts *= 2
    slots = -(-length // (vec * parts))
    if not kept and (parts > 32 or slots * vec > _SUMMED):
        return None
    if operands * slots * vec > (_MOST if vec > 1 else _EACH):
        return None
    return HeldRows(vec=vec, parts=parts, slots=slots, rows=1 if stored else max(2, _SUMMED // (slots * vec)))


def plan(region: Region, name: str, double: bool) -> KernelPlan:
    """One operator for rows of any length; its launcher chooses, by length and number of rows, how it runs.

    ``double``: what it computes is rounded once, at the store; sums and means alone are.
    """
    space = region.space
    style = Style("{}", "row.{}[i]", moves_rows=True, double=double)
    rows = region.lower(space, style, "v", StreamLowering)
    middle = region.product(space.middle_axes)
    split = 0 if middle == 1 else space.middle_axes[0]  # an only channel leaves runs of a row side by side
    before = tuple(axis for axis in space.row_axes if axis < split)
    run = tuple(axis for axis in space.row_axes if axis >= split)
    lengths = tuple(space.shape[axis] for axis in run)
    inner = region.product(space.inner_axes)
    first, *later = (phase.loads for phase in rows.phases if phase.loads)
    again = {name for loads in later for name in loads}.intersection(first)  # the first sweep fills shared memory
    runs = [operand for operand in rows.operands if operand.vector in ("source", "part")]
    kept = tuple(operand.name for operand in runs if operand.name in again)
    apart = tuple(dict.fromkeys(size for operand in runs for size in operand.apart or ()))
    stored = any(store.per_element for store in rows.stores)
    twice = any(found.fn in ("var", "exponentials") for phase in rows.phases for found in phase.reductions)
    contiguous = inner == middle == 1 and not region.pooled and not double
    detail = RowStreamPlan(
        outer=region.product(space.outer_axes),
        before=region.product(before),
        middle=middle,
        run=region.product(run),
        inner=inner,
        strided=inner != 1,
        abreast=space.abreast(region.body.sizes),
        kept=kept,
        unroll=(8, 4),
        alone=middle != 1 and inner == 1 and dims.numel(lengths, region.body.sizes) < _RUN,
        apart=tuple(size for size in apart if not isinstance(size, int) or size % 4),
        held=_held(*space.traced(region.body.sizes), len(runs), bool(kept), stored, twice, apart)
        if contiguous
        else None,
        double=double,
        rows=rows,
    )
    return region.plan(f"{name}_row_stream", detail, workspace=True)
