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
    ConstOp,
    DType,
    ExpandOp,
    Graph,
    InputOp,
    Node,
    PermuteOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    SoftmaxOp,
)
from fusegen.literals import hex_float
from fusegen.plan.sizes import Sizes
from fusegen.plan.types import Operand, OutputArg, Phase, Reduction, RowProgram, Statement, Store, TensorArg
from fusegen.pointwise import POINTWISE
from fusegen.printer import format_node
from fusegen.rowspace import AxisMap, RowSpace


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


@dataclass
class _Value:
    """A value on its way to text: where it is known (phase) and how often later phases read it."""

    name: str
    element: bool
    phase: int
    literal: str | None = None
    array: bool = False


@dataclass
class _Draft:
    """A statement before its operands are turned into text."""

    value: _Value
    template: str
    operands: tuple[_Value, ...]
    ctype: Literal["float", "bool"]
    comment: str


@dataclass
class _DraftReduction:
    value: _Value
    fn: Literal["sum", "max", "min", "prod"]
    operand: _Value
    comment: str


@dataclass
class RowLowering:
    """Lowers one region. ``args`` maps the body's inputs to kernel arguments."""

    body: Graph
    space: RowSpace
    args: dict[str, TensorArg]
    sizes: Sizes
    style: Style
    source: str
    drafts: list[_Draft | _DraftReduction] = field(default_factory=list)
    operands: dict[tuple[str, str], Operand] = field(default_factory=dict)
    values: dict[str, _Value] = field(default_factory=dict)
    helpers: set[str] = field(default_factory=set)
    special: int = 0

    # --- index arithmetic ---------------------------------------------------------------------

    def text(self, size: Dim) -> str:
        """C++ of a size over binding names."""
        return dims.cpp(self.sizes.local(size))

    def product(self, sizes: list[Dim]) -> str:
        return dims.cpp(self.sizes.product(sizes))

    def index(self, size_of: dict[int, Dim]) -> tuple[str, bool]:
        """C++ offset into a contiguous tensor whose axes are base axes, in the given order, of these sizes.

        Returns the text and whether it varies along the row.
        """
        order = list(size_of)
        terms: list[str] = []
        groups = (
            (self.style.outer, self.space.outer_axes),
            ("l", self.space.row_axes),
            ("inner", self.space.inner_axes),
        )
        done: set[int] = set()
        for position, axis in enumerate(order):
            if axis in done:
                continue
            name, group = next((name, group) for name, group in groups if axis in group)
            whole = [a for a in group if self.space.shape[a] != 1]
            if order[position : position + len(whole)] == whole:  # the whole group at once: its own coordinate
                done.update(whole)
                stride = self.product([size_of[a] for a in order[position + len(whole) :]])
                terms.append(name if stride == "1" else f"{name} * {_factor(stride)}")
                continue
            done.add(axis)
            after = self.product([self.space.shape[a] for a in group if a > axis])
            coordinate = name if after == "1" else f"{name} / {_factor(after)}"
            if any(self.space.shape[a] != 1 for a in group if a < axis):
                coordinate = f"{coordinate} % {_factor(self.text(self.space.shape[axis]))}"
            stride = self.product([size_of[a] for a in order[position + 1 :]])
            terms.append(f"({coordinate})" if stride == "1" else f"({coordinate}) * {_factor(stride)}")
        return " + ".join(terms) or "0", any(axis in self.space.row_axes for axis in order)

    # --- values -------------------------------------------------------------------------------

    def draft(self, template: str, *operands: _Value, element: bool, node: Node, comment: str | None = None) -> _Value:
        phase = max([0, *(v.phase + (element and not v.element) for v in operands if v.literal is None)])
        if not element or all(v.literal is not None for v in operands):
            phase = max([0, *(v.phase for v in operands)])
        value = _Value(f"t{len(self.drafts)}", element, phase)
        ctype: Literal["float", "bool"] = "bool" if node.type.dtype is DType.BOOL else "float"
        self.drafts.append(_Draft(value, template, operands, ctype, comment or format_node(node)))
        for operand in operands:
            operand.array |= operand.element and operand.phase < phase
        return value

    def reduce(self, fn: Literal["sum", "max", "min", "prod"], operand: _Value, comment: str) -> _Value:
        for known in self.drafts:
            if isinstance(known, _DraftReduction) and (known.fn, known.operand) == (fn, operand):
                return known.value
        value = _Value(f"r{len(self.drafts)}", False, operand.phase)
        self.drafts.append(_DraftReduction(value, fn, operand, comment))
        return value

    def operand(self, node: Node, axes: AxisMap) -> _Value:
        """A kernel argument read at the element (or row) that it is broadcast to; ``axes``: of the node."""
        root, by_name = node, self.body.by_name
        while isinstance(root.op, ReshapeOp):
            root = by_name[root.inputs[0]]
        arg = self.args[root.name]
        size_of = {
            base: size for size, base in zip(node.type.shape, axes, strict=True) if size != 1 and base is not None
        }
        index, per_element = self.index(size_of)
        key = (arg.name, index)
        if key not in self.operands:
            name = (
                f"v_{arg.name}"
                if all(k[0] != arg.name for k in self.operands)
                else f"v_{arg.name}_{len(self.operands)}"
            )
            self.operands[key] = Operand(
                name=name, arg=arg.name, index=index, per_element=per_element, comment=f"%{node.name}: {node.type}"
            )
        found = self.operands[key]
        style = self.style.element_operand if per_element else self.style.scalar
        return _Value(found.name, found.per_element, 0, literal=style.format(found.name))

    def constant(self, node: Node) -> _Value:
        assert isinstance(node.op, ConstOp)
        value = node.op.value
        text = f"static_cast<float>({self.text(value)})" if isinstance(value, str) else hex_float(value)
        return _Value(text, False, 0, literal=text)

    def resolve(self, node: Node, reader: Node, axes: AxisMap) -> _Value:
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

    # --- nodes --------------------------------------------------------------------------------

    def statement(self, node: Node, fn: str, operands: tuple[_Value, ...], element: bool) -> _Value:
        row = POINTWISE[fn]
        self.helpers.update(row.helpers)
        self.special += row.special
        return self.draft(row.cuda, *operands, element=element, node=node)

    def pointwise(self, node: Node, fn: str) -> None:
        axes, by_name = self.space.axes[node.name], self.body.by_name
        operands = tuple(self.resolve(by_name[name], node, axes) for name in node.inputs)
        self.values[node.name] = self.statement(node, fn, operands, self.space.is_element(node.name))

    def softmax(self, node: Node, log: bool) -> None:
        x = self.values[node.inputs[0]]
        comment = format_node(node)
        self.helpers.add("nan_max")
        peak = self.reduce("max", x, comment)
        shifted = self.draft("{0} - {1}", x, peak, element=True, node=node, comment="its exponent")
        power = self.draft("expf({0})", shifted, element=True, node=node, comment="its numerator")
        total = self.reduce("sum", power, "its denominator")
        self.special += 1
        if log:
            norm = self.draft("logf({0})", total, element=False, node=node, comment="log of its denominator")
            self.values[node.name] = self.draft("{0} - {1}", shifted, norm, element=True, node=node)
        else:
            norm = self.draft("1.0f / {0}", total, element=False, node=node, comment="one over its denominator")
            self.values[node.name] = self.draft("{0} * {1}", power, norm, element=True, node=node)

    def mean(self, x: _Value, node: Node, comment: str) -> _Value:
        length = _Value("", False, 0, literal=hex_float(float(self.space.length)))
        return self.draft("{0} / {1}", self.reduce("sum", x, comment), length, element=False, node=node)

    def reduction(self, node: Node, op: ReduceOp) -> None:
        x = self.values[node.inputs[0]]
        comment = format_node(node)
        if op.fn == "logsumexp":
            self.helpers.add("nan_max")
            self.special += 1
            peak = self.reduce("max", x, comment)
            finite = self.draft("(isinf({0}) ? 0.0f : {0})", peak, element=False, node=node, comment="its shift")
            power = self.draft("expf({0} - {1})", x, finite, element=True, node=node, comment="shifted exponential")
            total = self.reduce("sum", power, "its sum")
            self.values[node.name] = self.draft("logf({0}) + {1}", total, finite, element=False, node=node)
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

    def lower(self) -> None:
        """Fill ``drafts`` with every node of the body in order."""
        for node in self.body.nodes:
            if node.name == self.space.source:
                # Elements in registers from the start, so any phase may read them.
                self.values[node.name] = _Value(self.source, True, 0, array=True)
                continue
            if isinstance(node.op, InputOp) and node.name in self.space.axes:
                # A second tensor of rows: read once, into registers if a later phase needs it.
                loaded = self.operand(node, self.space.axes[node.name])
                self.values[node.name] = self.draft("{0}", loaded, element=True, node=node)
                continue
            if node.name not in self.space.axes:
                continue  # operands, scalars and the parts of a contraction, resolved where they are read
            match node.op:
                case PointwiseOp(fn=fn):
                    self.pointwise(node, fn)
                case SoftmaxOp(log=log):
                    self.softmax(node, log)
                case ReduceOp() as op:
                    self.reduction(node, op)
                case ReshapeOp() | PermuteOp() | ExpandOp():
                    self.values[node.name] = self.values[node.inputs[0]]

    # --- text ---------------------------------------------------------------------------------

    def reference(self, value: _Value) -> str:
        if value.literal is not None:
            return value.literal
        if value.element:
            return self.style.array.format(value.name) if value.array else value.name
        return self.style.scalar.format(value.name)

    def store(self, output: OutputArg) -> Store:
        node = self.body.node(self.body.outputs[0])
        axes = self.space.axes[node.name]
        size_of = {base: size for base, size in zip(axes, node.type.shape, strict=True) if base is not None}
        like_source = tuple(size_of) == tuple(a for a in self.space.axes[self.space.source] if a is not None)
        index, per_element = self.index(size_of)
        return Store(
            output=output.name,
            value=self.reference(self.values[node.name]),
            index=index,
            per_element=per_element,
            like_source=like_source,
        )

    def program(self, output: OutputArg) -> RowProgram:
        """The finished row program, storing the body's result in ``output``."""
        self.lower()
        result = self.values[self.body.outputs[0]]
        count = 1 + max([result.phase, *(draft.value.phase for draft in self.drafts)])
        if result.element:
            result.array = result.array or result.phase < count - 1
        phases: list[Phase] = []
        for number in range(count):
            elements: list[Statement] = []
            reductions: list[Reduction] = []
            scalars: list[Statement] = []
            loads: dict[str, None] = {}
            for draft in self.drafts:
                if draft.value.phase != number:
                    continue
                if isinstance(draft, _DraftReduction):
                    text = self.reference(draft.operand)
                    reductions.append(Reduction(name=draft.value.name, fn=draft.fn, value=text, comment=draft.comment))
                    continue
                expr = draft.template.format(*(self.reference(v) for v in draft.operands))
                statement = Statement(
                    name=draft.value.name, ctype=draft.ctype, expr=expr, comment=draft.comment, array=draft.value.array
                )
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
        store = self.store(output)
        moved = store.like_source and self.style.moves_rows
        texts = [statement.expr for phase in phases for statement in (*phase.elements, *phase.scalars)]
        texts += [operand.index for operand in self.operands.values()] + ([] if moved else [store.index])
        words = set(re.findall(r"\w+", " ".join(texts)))
        return RowProgram(
            length=self.space.length,
            source=self.source,
            operands=tuple(self.operands.values()),
            phases=tuple(phases),
            stores=(store,),
            sizes=tuple(sorted(b.name for b in self.sizes.bindings if b.name in words)),
            helpers=tuple(sorted(self.helpers)),
            special=self.special,
        )


def _factor(text: str) -> str:
    """``text`` ready to stand in a product."""
    return f"({text})" if any(symbol in text for symbol in "+-*/% ") else text
