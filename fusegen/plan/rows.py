"""Lowers a region's nodes to a row program: statements, reductions and stores in phases.

A phase ends where a reduction's result is needed. softmax and logsumexp become their max, exp and
sum here; the formulas are those of ATen, so NaN and Inf come out as in eager.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from fusegen import dims
from fusegen.dims import Dim
from fusegen.ir import (
    ArgReduceOp,
    CatOp,
    ExpandOp,
    InputOp,
    Node,
    PermuteOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    ScanOp,
    SliceOp,
    SoftmaxOp,
    TriangleOp,
)
from fusegen.literals import hex_float
from fusegen.plan.rowdraft import Draft, DraftReduction, DraftScan, Value, total
from fusegen.plan.rowprogram import OutputArg, Phase, Reduction, RowProgram, Statement, Store
from fusegen.plan.rowsinking import sink
from fusegen.plan.rowvalues import RowValues
from fusegen.printer import format_node
from fusegen.spaces.parts import CUT, Part, indices


@dataclass
class RowLowering(RowValues):
    """Lowers one region."""

    moments: dict[str, tuple[Value, Value]] = field(default_factory=dict)
    """By the name of the data: its mean and variance over the row."""

    # --- nodes --------------------------------------------------------------------------------

    def pointwise(self, node: Node, fn: str) -> None:
        axes, by_name = self.space.axes[node.name], self.body.by_name
        operands = tuple(self.resolve(by_name[name], node, axes) for name in node.inputs)
        self.values[node.name] = self.statement(node, fn, operands, self.space.is_element(node.name))

    def softmax(self, node: Node, log: bool) -> None:
        x = self.values[node.inputs[0]]
        comment = format_node(node)
        self.helpers.add("nan_max")
        # Blocks that share a row agree on the denominator alone: each keeps its own peak as the shift.
        own = self.style.split and not log
        peak = self.reduce("max", x, comment, partial=own)
        if own:
            peak = self.draft("({0} == -INFINITY ? 0.0f : {0})", peak, element=False, node=node, comment="its shift")
        shifted = self.draft("{0} - {1}", x, peak, element=True, node=node, comment="its exponent")
        power = self.draft(f"{self.exp}({{0}})", shifted, element=True, node=node, comment="its numerator")
        total = self.reduce("sum", power, "its denominator", shift=peak if own else None)
        self.special += 1
        if log:
            norm = self.draft("logf({0})", total, element=False, node=node, comment="log of its denominator")
            self.values[node.name] = self.draft("{0} - {1}", shifted, norm, element=True, node=node)
        else:
            norm = self.draft("1.0f / {0}", total, element=False, node=node, comment="one over its denominator")
            self.values[node.name] = self.draft("{0} * {1}", power, norm, element=True, node=node)

    def mean(self, x: Value, node: Node, comment: str) -> Value:
        size = self.space.row_size
        text = hex_float(float(size)) if isinstance(size, int) else f"static_cast<float>({self.row_text()})"
        length = Value("", False, 0, literal=text)
        return self.draft("{0} / {1}", self.reduce("sum", x, comment), length, element=False, node=node)

    def beside_variance(self, mean: Node) -> bool:
        """Whether the variance of the same row is asked for, too."""
        readers = [self.body.node(name).op for name in self.body.users[mean.inputs[0]]]
        return any(isinstance(op, ReduceOp) and op.fn == "var" for op in readers)

    def refined(self, x: Value, node: Node) -> tuple[Value, Value]:
        """(mean, variance) of the row of ``node``'s operand, both corrected by what is left about a first mean.

        The sum of equal elements is rounded, so that mean may be off by units in the last place. What is left of each
        is exact then, and so is the mean of that: eager has the element for a mean and no variance, and so has this.
        """
        if node.inputs[0] not in self.moments:
            first = self.mean(x, node, "sum for the mean")
            left = self.draft("{0} - {1}", x, first, element=True, node=node, comment="distance from the mean")
            rest = self.mean(left, node, "sum for what rounding took from the mean")
            power = self.draft("{0} * {0}", left, element=True, node=node, comment="its square")
            squares = self.mean(power, node, "sum for the variance")
            mean = self.draft("{0} + (isnan({1}) ? 0.0f : {1})", first, rest, element=False, node=node, comment="mean")
            power = self.draft("{0} - {1} * {1}", squares, rest, element=False, node=node, comment="variance")
            power = self.draft("({0} < 0.0f ? 0.0f : {0})", power, element=False, node=node, comment="not negative")
            self.moments[node.inputs[0]] = mean, power
        return self.moments[node.inputs[0]]

    def row_text(self) -> str:
        """C++ of the elements per row."""
        return self.product([self.space.shape[axis] for axis in self.space.row_axes])

    def reduction(self, node: Node, op: ReduceOp) -> None:
        x = self.values[node.inputs[0]]
        comment = format_node(node)
        if op.fn == "logsumexp":
            self.helpers.add("nan_max")
            self.special += 1
            peak = self.reduce("max", x, comment)
            finite = self.draft("(isinf({0}) ? 0.0f : {0})", peak, element=False, node=node, comment="its shift")
            power = self.draft(
                f"{self.exp}({{0}} - {{1}})", x, finite, element=True, node=node, comment="shifted exponential"
            )
            total = self.reduce("sum", power, "its sum", shift=finite if self.style.parts else None)
            self.values[node.name] = self.draft("logf({0}) + {1}", total, finite, element=False, node=node)
        elif self.style.double and (op.fn == "var" or (op.fn == "mean" and self.beside_variance(node))):
            self.values[node.name] = self.refined(x, node)[op.fn == "var"]
        elif op.fn == "mean":
            self.values[node.name] = self.mean(x, node, comment)
        elif op.fn == "var":
            mean = self.mean(x, node, "sum for the mean")
            distance = self.draft("{0} - {1}", x, mean, element=True, node=node, comment="distance from the mean")
            power = self.draft("{0} * {0}", distance, element=True, node=node, comment="its square")
            self.values[node.name] = self.mean(power, node, comment)
        else:
            if op.fn in ("max", "min"):
                self.helpers.add(f"nan_{op.fn}")
            self.values[node.name] = self.reduce(op.fn, x, comment)

    def arg_reduction(self, node: Node, fn: Literal["argmax", "argmin"]) -> None:
        """Where in the row an extreme is: for templates that know the place of an element."""
        raise AssertionError(f"{node.name}: row_stream finds it")

    def scan(self, node: Node, op: ScanOp) -> None:
        operand = self.values[node.inputs[0]]
        value = Value(f"s{len(self.drafts)}", True, operand.phase + 1)
        self.drafts.append(DraftScan(value, op, operand, format_node(node)))
        self.values[node.name] = value

    def data(self, node: Node) -> Value:
        """A tensor of rows."""
        whole = not isinstance(node.op, CUT)
        if node.name == self.space.source and whole:  # elements in registers from the start, so any phase may read them
            return Value(self.source, True, 0, array=True)
        # Another one is read once, into registers if a later phase needs it.
        return self.draft("{0}", self.operand(node, self.space.axes[node.name]), element=True, node=node)

    def part(self, node: Node, op: SliceOp) -> None:
        """A slice of the row, for sums: zero elsewhere."""
        place = self.position_along(self.space.axes[node.name][op.axis])
        stop = dims.add(op.start, dims.mul(op.step, op.length))
        test = f"{place} >= {self.text(op.start)} && {place} < {self.text(stop)}"
        if op.step != 1:
            test += f" && ({place} - {self.text(op.start)}) % {op.step} == 0"
        x = self.values[node.inputs[0]]
        self.values[node.name] = self.draft(f"({test} ? {{0}} : 0.0f)", x, element=True, node=node)

    def triangle(self, node: Node, op: TriangleOp) -> None:
        """Zero on one side of a diagonal."""
        row, column = map(self.position_along, self.space.axes[node.name][-2:])
        test = f"{column} - {row} {'>=' if op.upper else '<='} {op.diagonal}"
        x = self.values[node.inputs[0]]
        self.values[node.name] = self.draft(f"({test} ? {{0}} : 0.0f)", x, element=x.element, node=node)

    def lower(self) -> None:
        """Fill ``drafts`` with every node of the body in order."""
        for node in self.body.nodes:
            if node.name in self.values:
                continue  # made of other data
            known = node.name in self.space.axes
            part = isinstance(node.op, CUT) and known and node.inputs[0] not in self.space.axes
            read = node.name == self.space.source and not isinstance(node.op, PointwiseOp)
            if read or part or (isinstance(node.op, InputOp) and known):
                self.values[node.name] = self.data(node)
                continue
            if not known:
                continue  # operands, scalars and the parts of a contraction, resolved where they are read
            match node.op:
                case PointwiseOp(fn=fn):
                    self.pointwise(node, fn)
                case SoftmaxOp(log=log):
                    self.softmax(node, log)
                case ReduceOp() as op:
                    self.reduction(node, op)
                case ArgReduceOp(fn=fn):
                    self.arg_reduction(node, fn)
                case ScanOp() as op:
                    self.scan(node, op)
                case SliceOp() as op:
                    self.part(node, op)
                case TriangleOp() as op:
                    self.triangle(node, op)
                case CatOp() | ReshapeOp() | PermuteOp() | ExpandOp():
                    self.values[node.name] = self.values[node.inputs[0]]

    # --- text ---------------------------------------------------------------------------------

    def store(self, output: OutputArg) -> Store:
        node = self.body.node(output.node)
        order = self.space.base_axes(node.name)
        like_source = order == self.space.base_axes(self.space.source)
        terms = self.terms(list(order))
        return Store(
            output=output.name,
            value=self.reference(self.values[node.name]),
            index=total(text for _, text in terms),
            per_element=any(name == "l" for name, _ in terms),
            like_source=like_source,
        )

    def stores(self, output: OutputArg) -> list[Store]:
        """Of a join, one for each of its parts, which rows come to."""
        joined = self.body.node(output.node)
        if not isinstance(joined.op, CatOp) or joined.name not in self.space.axes:
            return [self.store(output)]
        found, axis = list[Store](), joined.op.axis
        start: Dim = 0
        for part in map(self.body.node, joined.inputs):
            starts = tuple(start if own == axis else 0 for own in range(joined.type.rank))
            terms, _ = self.part_terms(part, Part(joined, starts), self.space.axes[part.name])
            index, value = total(text for _, text in terms), self.reference(self.values[part.name])
            found.append(Store(output=output.name, value=value, index=index, per_element=False))
            start = dims.add(start, part.type.shape[axis])
        return found

    def program(self, outputs: tuple[OutputArg, ...]) -> RowProgram:
        """The finished row program, storing the body's results in ``outputs``."""
        self.lower()
        results = [self.values[output.node] for output in outputs]
        count = 1 + max(value.phase for value in (*results, *(draft.value for draft in self.drafts)))
        for result in results:
            result.array |= result.element and result.literal is None and result.phase < count - 1
        return self.assemble(self.phases(count, results), outputs)

    def phases(self, count: int, results: list[Value]) -> tuple[Phase, ...]:
        """The drafts by phase, as text."""
        across = rf"\b({self.style.outer}|middle|inner)\b"
        along = {operand.name for operand in self.operands.values() if not re.search(across, operand.index)}
        sink(self.drafts, count, results, along)
        phases: list[Phase] = []
        for number in range(count):
            elements: list[Statement] = []
            reductions: list[Reduction] = []
            scalars: list[Statement] = []
            loads: dict[str, None] = {}
            for draft in self.drafts:
                if draft.value.phase != number or isinstance(draft, DraftScan):  # these have a lowering of their own
                    continue
                if isinstance(draft, DraftReduction):
                    reductions.append(
                        Reduction(
                            name=draft.value.name,
                            fn=draft.fn,
                            value=self.reference(draft.operand),
                            comment=draft.comment,
                            partial=draft.partial,
                            shift=draft.shift.name if draft.shift else None,
                        )
                    )
                    continue
                statement = self.text_of(draft).replace(array=draft.value.array)
                (elements if draft.value.element else scalars).append(statement)
                loads.update({v.name: None for v in draft.operands if v.literal is not None and v.element})
            phases.append(
                Phase(
                    loads=tuple(loads),
                    elements=tuple(elements),
                    reductions=tuple(reductions),
                    scalars=tuple(scalars),
                )
            )
        return tuple(phases)

    def text_of(self, draft: Draft) -> Statement:
        expr = draft.template.format(*map(self.reference, draft.operands))
        return Statement(name=draft.value.name, ctype=draft.ctype, expr=expr, comment=draft.comment)

    def assemble(self, phases: tuple[Phase, ...], outputs: tuple[OutputArg, ...]) -> RowProgram:
        stores = tuple(store for output in outputs for store in self.stores(output))
        texts = [statement.expr for phase in phases for statement in (*phase.elements, *phase.scalars)]
        texts += [operand.index for operand in self.operands.values()]
        texts += list(self.positions)
        texts += [store.index for store in stores if not (store.like_source and self.style.moves_rows)]
        words = set(re.findall(r"\w+", " ".join(texts)))
        return RowProgram(
            length=self.space.length,
            source=self.source,
            positions=tuple(self.positions.values()),
            operands=tuple(self.operands.values()),
            phases=phases,
            stores=stores,
            sizes=tuple(sorted(words.intersection(self.sizes.names))),
            indices=tuple(
                sorted(words.intersection(self.args[name].name for name in indices(self.body) & set(self.args)))
            ),
            helpers=tuple(sorted(self.helpers)),
            special=self.special,
        )
