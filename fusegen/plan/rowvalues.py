"""Values of a row program: what nodes read, and the statements and reductions that they draft."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from fusegen.ir import INTEGERS, ConstOp, DType, Node, PointwiseOp
from fusegen.literals import hex_float, integer
from fusegen.plan.rowdraft import Draft, DraftReduction, DraftScan, Reduced, Value, fetching, total
from fusegen.plan.rowindex import RowIndices
from fusegen.plan.rowprogram import CType, Operand, Position
from fusegen.pointwise import DOUBLE, POINTWISE, QUICK
from fusegen.printer import format_node
from fusegen.spaces.parts import named, part_of, root_of
from fusegen.spaces.rowspace import AxisMap

CTYPES: dict[DType, CType] = {DType.BOOL: "bool", DType.INT64: "int64_t", DType.INT32: "int32_t"}
"""Of statements that are no floats."""


@dataclass
class RowValues(RowIndices):
    """Drafts statements over the operands of one region."""

    drafts: list[Draft | DraftReduction | DraftScan] = field(default_factory=list)
    positions: dict[str, Position] = field(default_factory=dict)
    """By their text."""
    operands: dict[tuple[str, str], Operand] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    helpers: set[str] = field(default_factory=set)
    special: int = 0
    wide_flags: ClassVar[bool] = False
    """The template reads runs of truth values, too."""

    def draft(self, template: str, *operands: Value, element: bool, node: Node, comment: str | None = None) -> Value:
        phase = max([0, *(v.phase + (element and not v.element) for v in operands if v.literal is None)])
        if not element or all(v.literal is not None for v in operands):
            phase = max([0, *(v.phase for v in operands)])
        value = Value(f"t{len(self.drafts)}", element, phase)
        self.drafts.append(
            Draft(value, template, operands, CTYPES.get(node.type.dtype, "float"), comment or format_node(node))
        )
        for operand in operands:
            operand.array |= operand.element and operand.phase < phase
        return value

    def reduce(
        self, fn: Reduced, operand: Value, comment: str, *, partial: bool = False, shift: Value | None = None
    ) -> Value:
        for known in self.drafts:
            if isinstance(known, DraftReduction) and known.key == (fn, operand, partial, shift):
                return known.value
        value = Value(f"r{len(self.drafts)}", False, operand.phase)
        self.drafts.append(DraftReduction(value, fn, operand, comment, partial=partial, shift=shift))
        return value

    @property
    def exp(self) -> str:
        return "quick_exp" if self.style.quick else "expf"

    def operand(self, node: Node, axes: AxisMap) -> Value:
        """A kernel argument read at the element (or row) that it is broadcast to; ``axes``: of the node."""
        by_name = self.body.by_name
        if (found := named(node, by_name)) is not node:
            own = (bases for bases, size in zip(axes, node.type.shape, strict=True) if size != 1)
            node, axes = found, tuple(() if size == 1 else next(own) for size in found.type.shape)
        part = part_of(node, by_name)
        arg = self.args[root_of(part.whole if part else node, by_name).name]
        if part and part.named:
            self.helpers.add(fetching(part.named.op))
        order = self.axes_of(node, axes)
        terms, apart = self.part_terms(node, part, axes) if part else (self.terms(order), None)
        index = total(text for _, text in terms)
        per_element = any(name == "l" for name, _ in terms)
        key = (arg.name, index)
        if key not in self.operands:
            flag = node.type.dtype is DType.BOOL
            vector = self.part_vector(terms) if part else self.vector(order, index)
            name = (
                f"v_{arg.name}"
                if all(k[0] != arg.name for k in self.operands)
                else f"v_{arg.name}_{len(self.operands)}"
            )
            self.operands[key] = Operand(
                name=name,
                arg=arg.name,
                index=index,
                per_element=per_element,
                fixed=total(text for name, text in terms if name != "l"),
                along=total(text for name, text in terms if name == "l"),
                by_outer=self.by_outer(order),
                by_column=self.by_column(order),
                comment=f"%{node.name}: {node.type}",
                vector=vector if self.wide_flags or not flag else "",
                apart=apart,
                step=self.step(order),
                flag=flag,
            )
        operand = self.operands[key]
        style = self.style.element_operand if per_element else self.style.scalar
        return Value(operand.name, operand.per_element, 0, literal=style.format(operand.name))

    def vector(self, order: list[int], index: str) -> Literal["", "source", "row"]:
        """How the template reads an operand with these base axes."""
        return ""

    def part_vector(self, terms: list[tuple[str, str]]) -> Literal["", "part"]:
        """The same for a part of one, whose offset has these terms."""
        return ""

    def step(self, order: list[int]) -> str:
        """The distance of neighbours along the last axis in an operand with these axes, where the template asks."""
        return ""

    def constant(self, node: Node) -> Value:
        assert isinstance(node.op, ConstOp)
        value, times = node.op.value, node.op.times
        if node.type.dtype in INTEGERS:
            ctype = CTYPES[node.type.dtype]
            text = f"static_cast<{ctype}>({self.text(value)})" if isinstance(value, str) else integer(int(value))
            return Value(text, False, 0, literal=text)
        text = f"static_cast<float>({self.text(value)})" if isinstance(value, str) else hex_float(value)
        text = text if times == 1 else f"({hex_float(times)} * {text})"
        return Value(text, False, 0, literal=text)

    def resolve(self, node: Node, reader: Node, axes: AxisMap) -> Value:
        """The value of an operand node as ``reader``, mapped to ``axes``, reads it."""
        if node.name in self.values:
            return self.values[node.name]
        if isinstance(node.op, ConstOp):
            return self.constant(node)
        own = axes[reader.type.rank - node.type.rank :]
        if not isinstance(node.op, PointwiseOp):
            return self.operand(node, own)
        operands = tuple(self.resolve(self.body.node(name), node, own) for name in node.inputs)
        return self.statement(node, node.op.fn, operands, any(value.element for value in operands))

    def statement(self, node: Node, fn: str, operands: tuple[Value, ...], element: bool) -> Value:
        row = POINTWISE[fn]
        self.helpers.update(row.helpers)
        self.special += row.special
        text = QUICK.get(fn, row.cuda) if self.style.quick and element else row.cuda
        text = DOUBLE[fn] if self.style.double else text
        if self.body.node(node.inputs[-1]).type.dtype in INTEGERS:
            text = row.integer
            if not any(value.element for value in operands):  # literals and places alone would be narrower
                first = operands[0]
                operands = (replace(first, literal=f"static_cast<int64_t>({self.reference(first)})"), *operands[1:])
        return self.draft(text, *operands, element=element, node=node)

    def reference(self, value: Value) -> str:
        if value.literal is not None:
            return value.literal
        if value.element:
            return self.style.array.format(value.name) if value.array else value.name
        return self.style.scalar.format(value.name)
