"""Plans elementwise work behind views: every element of the result fetched from where the views put it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from fusegen import dims, ops
from fusegen.dims import Dim
from fusegen.ir import (
    HALVES,
    INTEGERS,
    CatOp,
    ConstOp,
    DType,
    FillOp,
    InputOp,
    InterpolateOp,
    Node,
    PadOp,
    PointwiseOp,
    RangeOp,
    TriangleOp,
)
from fusegen.literals import hex_float, integer
from fusegen.plan.details import CountedDigit, JoinedPart, PointwisePlan, TurnedTile
from fusegen.plan.placed import WIDE, PlacedRows
from fusegen.plan.region import Region
from fusegen.plan.rowdraft import Style, Value
from fusegen.plan.rowprogram import Divider, Operand, OutputArg, RowProgram, Store, divider
from fusegen.plan.rowvalues import CTYPES
from fusegen.plan.types import KernelPlan
from fusegen.pointwise import ROUNDED
from fusegen.spaces import placement, viewspace
from fusegen.spaces.placement import Between, Digit, Joined, Place, Places
from fusegen.spaces.rowspace import RowSpace

LEAST_SIDE = 16
"""Neighbours of the result and of an operand, from which on a tile of them is worth turning."""
_LEAST_TURNED, _FEW = 1 << 18, 8
"""Elements of an operand that is worth it, and the part of the result's that it has at least."""
_MOST_TURNED = 2
"""Operands whose tiles fit the shared memory that every kernel may have."""
LONG_RUN = 256
"""Elements of a run whose end few warps cross."""


def _crossed(run: Dim) -> bool:
    """Whether an access may begin in one run and end in the next."""
    return dims.exact_quotient(run, WIDE) is None


def number(value: float, dtype: DType) -> str:
    """C++ of a number of a tensor of this type."""
    if dtype in INTEGERS:
        return integer(int(value))
    return str(bool(value)).lower() if dtype is DType.BOOL else hex_float(value)


def _implies(guard: str, other: str) -> bool:
    """Whether the conditions of ``other`` are the first ones of ``guard``."""
    return not other or guard == other or guard.startswith(f"{other} && ")


def _where(test: str, operand: Operand) -> Operand:
    """``operand``, read where ``test`` holds anyway."""
    if not _implies(operand.guard, test):
        return operand
    return operand.replace(guard=operand.guard.removeprefix(test).removeprefix(" && "))


@dataclass
class ViewLowering(PlacedRows):
    """Statements for one element of the result, element number ``index``."""

    found: dict[tuple[str, Places, str], Value] = field(default_factory=dict)
    digits: dict[str, Joined] = field(default_factory=dict)
    """Of the place of every operand that is read."""
    joins: dict[str, list[tuple[str, Value]]] = field(default_factory=dict)
    """By the name of what is joined: where its parts are, and what."""
    from_anywhere: ClassVar[bool] = True
    """The template's runs may begin anywhere in an operand."""

    # --- values ---------------------------------------------------------------------------------

    def load(self, node: Node, places: Places, guard: str) -> Value:
        arg, strides = self.args[node.name], placement.row_major(node.type.shape)
        self.guard = guard
        joined = self.joined(zip(places, strides, strict=True))
        index = self.offset(joined) or "0"
        for known in self.operands.values():  # of which there is one wherever there is one here
            if (known.arg, known.index) == (arg.name, index) and _implies(guard, known.guard):
                return Value(known.name, True, 0, literal=known.name)
        name = f"v{len(self.operands)}_{arg.name}"
        self.digits[name] = joined
        self.operands[arg.name, f"{guard} ? {index}"] = Operand(
            name=name,
            arg=arg.name,
            index=index,
            per_element=True,
            comment=f"%{node.name}: {node.type}",
            guard=guard,
            flag=node.type.dtype is DType.BOOL,
            integer=node.type.dtype in INTEGERS,
        )
        return Value(name, True, 0, literal=name)

    def element(self, name: str, places: Places, guard: str) -> Value:
        """The value of a node at ``places``, which exists where ``guard`` holds."""
        node, key = self.body.node(name), (name, places, guard)
        if key not in self.found:
            self.found[key] = self.compute(node, places, guard)
        return self.found[key]

    def statement(self, node: Node, fn: str, operands: tuple[Value, ...], element: bool) -> Value:
        """What an integer is made of is rounded as eager does, step by step: ATen multiplies by one over a number."""
        number = fn == "div" and isinstance(self.body.node(node.inputs[1]).op, ConstOp)
        text = "__fmul_rn({0}, 1.0f / {1})" if number else ROUNDED.get(fn)
        if text is None or node.name not in self.made_integers:
            return super().statement(node, fn, operands, element)
        return self.draft(text, *operands, element=element, node=node)

    @cached_property
    def made_integers(self) -> set[str]:
        """See ``ops.made_integers``."""
        return ops.made_integers(self.body)

    def numbered(self, node: Node, op: RangeOp, place: Place) -> Value:
        """A number of a range: its place there, which differs along runs as those do that conditions compare."""
        joined = self.joined([(place, 1)])
        self.tested.append(joined)
        text = f"static_cast<int64_t>({self.offset(joined) or '0'})"
        text += "" if op.step == 1 else f" * {integer(op.step)}"
        text += "" if op.start == 0 else f" + {self.text(op.start)}"
        text = text if op.dtype is DType.INT64 else f"static_cast<{CTYPES.get(op.dtype, 'float')}>({text})"
        return self.draft(text, element=True, node=node)

    def compute(self, node: Node, places: Places, guard: str) -> Value:
        if isinstance(node.op, InputOp):
            return self.load(node, places, guard)
        if isinstance(node.op, ConstOp):
            return self.constant(node)
        if isinstance(node.op, FillOp):
            text = number(node.op.value, node.type.dtype)
            return Value(text, False, 0, literal=text)
        if isinstance(node.op, RangeOp):
            return self.numbered(node, node.op, places[0])
        reads = placement.reads(node, [self.body.node(n) for n in node.inputs], places)
        self.guard = guard
        tests = [" && ".join(filter(None, map(self.inside, read.spans))) for read in reads]
        # A part of one element is the same one everywhere: what several such parts come from is computed once.
        single = [isinstance(node.op, CatOp) and not read.places[node.op.axis] for read in reads]
        values = tuple(
            self.element(read.name, read.places, guard if one else " && ".join(filter(None, (guard, test))))
            for read, test, one in zip(reads, tests, single, strict=True)
        )
        if isinstance(node.op, PointwiseOp):
            return self.statement(node, node.op.fn, values, True)
        if len(values) == 1 and not tests[0]:
            return values[0]
        if isinstance(node.op, InterpolateOp):
            axis = node.op.axis
            between = Between(places[axis], node.op, self.body.node(node.inputs[0]).type.shape[axis])
            return self.draft(self.shared(between), *values, element=True, node=node)
        if isinstance(node.op, (PadOp, TriangleOp)):
            text, asked = number(node.op.value if isinstance(node.op, PadOp) else 0.0, node.type.dtype), tests
        else:  # the last part is what is left
            text, asked = f"{{{len(values) - 1}}}", tests[:-1]
        for i, test in reversed(list(enumerate(asked))):
            text = f"{test} ? {{{i}}} : {text}"
        found = self.draft(f"({text})", *values, element=True, node=node)
        if len(values) > 1:
            self.joins[found.name] = list(zip(tests, values, strict=True))
        return found

    def lower(self) -> None:
        for name in self.body.outputs:
            places = placement.whole(self.body.node(name).type.shape)
            self.values[name] = self.element(name, places, "")

    def store(self, output: OutputArg) -> Store:
        value = self.reference(self.values[output.node])
        return Store(output=output.name, value=value, index="index", per_element=True, like_source=True)

    def joined_parts(self, rows: RowProgram) -> tuple[JoinedPart, ...]:
        """The parts of a result that is joined, where one of them is computed."""
        if len(self.body.outputs) > 1:
            return ()
        statements = {s.name: s.expr for phase in rows.phases for s in (*phase.elements, *phase.scalars)}
        known, found = {*statements, *(operand.name for operand in rows.operands)}, list[JoinedPart]()
        for test, value in self.joins.get(self.values[self.body.outputs[0]].name, ()):
            needed, pending = set[str](), [self.reference(value)]
            while pending:
                more = known.intersection(re.findall(r"\w+", pending.pop())) - needed
                needed |= more
                pending += [statements.get(name, "") for name in more]
            part = JoinedPart(
                test=test,
                value=self.reference(value),
                operands=tuple(_where(test, operand) for operand in rows.operands if operand.name in needed),
                statements=tuple(filter(needed.__contains__, statements)),
            )
            found.append(part)
        return tuple(found) if any(part.statements for part in found) else ()

    # --- runs -----------------------------------------------------------------------------------

    def run(self) -> Dim | None:
        """The length of runs of the result whose elements differ in how far along the run they are, and in no more."""
        last, fixed = [digit.size for digit in self.even], [digit for joined in self.tested for digit, _ in joined]
        pending = [digit for joined in self.digits.values() for digit, _ in joined]
        while pending:
            digit = pending.pop()
            if self.runs(digit):
                last.append(digit.size)
            elif self.from_anywhere and (moved := placement.sum_of(digit)):
                pending += [own for own, _ in self.joined(moved.terms)]
            else:
                fixed.append(digit)
        strides = set[Dim]()
        while fixed:
            digit = fixed.pop()
            if digit.of == self.along:
                strides.add(digit.stride)
            elif not isinstance(digit.of, str):
                fixed += [own for own, _ in self.joined(digit.of.terms)]
        lengths = {*last, *strides}
        run = min(lengths, key=lambda size: dims.numel((size,), self.body.sizes), default=1)
        whole = all(dims.exact_quotient(length, run) is not None for length in lengths)
        return run if whole and not (isinstance(run, int) and run < LONG_RUN and _crossed(run)) else None

    def steps(self) -> dict[str, str]:
        """By operand, C++ of the distance of neighbours in a run."""
        along = {
            name: [stride for digit, stride in self.moving(joined) if self.runs(digit)]
            for name, joined in self.digits.items()
        }
        return {name: " + ".join(map(self.text, strides)) or "0" for name, strides in along.items()}

    def line(self) -> Dim | None:
        """The length of lines of the result, between whose elements only the digits that go along them differ."""
        digits = self.of_index.values()
        lengths = {digit.size if digit.stride == 1 else digit.stride for digit in digits}
        line = min(lengths, key=lambda size: dims.numel((size,), self.body.sizes), default=1)
        whole = all(dims.exact_quotient(length, line) is not None for length in lengths)
        useful = len(digits) > 1 and any(digit.stride == 1 for digit in digits)
        return line if useful and whole and not (isinstance(line, int) and line % WIDE) else None

    # --- tiles ----------------------------------------------------------------------------------

    def moving(self, joined: Joined) -> Joined:
        """Digits of the result's number that an operand's offset moves with, and how far; none that is divided."""
        found: Joined = []
        for digit, stride in joined:
            if isinstance(digit.of, str):
                found.append((digit, stride))
            elif moved := placement.sum_of(digit):
                inner = self.moving(self.joined(moved.terms))
                found += [(own, dims.mul(stride, step)) for own, step in inner]
        return found

    def turned(self) -> tuple[Dim, Digit, tuple[str, ...]] | None:
        """(neighbours of the result, those of operands, operands): what is worth turning on chip, if anything is.

        Where the neighbours of an operand lie far apart in the result, every access would touch sectors that others
        want the rest of. Operands of few elements are in caches anyway.
        """
        sizes = self.body.sizes
        result = self.body.node(self.body.outputs[0]).type.shape
        least = max(_LEAST_TURNED, dims.numel(result, sizes) // _FEW)
        found: dict[tuple[Dim, Dim, Dim], list[str]] = {}
        digits: dict[str, Digit] = {}
        for operand in self.operands.values():
            node = next(node for node, arg in self.args.items() if arg.name == operand.arg)
            moving = self.moving(self.digits[operand.name])
            beside = [digit for digit, stride in moving if stride == 1]
            near = [digit for digit, _ in moving if self.runs(digit)]
            shape, dtype = self.body.node(node).type.shape, self.body.node(node).type.dtype
            if not beside or any(map(self.runs, beside)) or len(near) != 1 or dims.numel(shape, sizes) < least:
                continue
            digit = beside[0]
            if dtype not in (DType.FLOAT32, *HALVES) or dims.exact_quotient(digit.stride, near[0].size) is None:
                continue
            if min(dims.numel((size,), sizes) for size in (digit.size, near[0].size)) >= LEAST_SIDE:
                found.setdefault((near[0].size, digit.stride, digit.size), []).append(operand.name)
                digits[operand.name] = digit
        if not found:
            return None
        (near_size, _, _), names = max(found.items(), key=lambda item: len(item[1]))
        return near_size, digits[names[0]], tuple(names[:_MOST_TURNED])

    def counted(self, run: Dim | None) -> tuple[tuple[CountedDigit, ...], tuple[Divider, ...], str]:
        """The digits of the result's number that are positions, what they are divided by, and what by a ``run``."""
        names = {position.name for position in self.positions.values()}
        found, dividers = list[CountedDigit](), dict[str, Divider]()

        def named(size: Dim | None) -> str:
            return "" if size is None or isinstance(size, int) else divider(dividers, size).name

        for name, digit in self.of_index.items():
            if name in names:
                last = dims.mul(digit.stride, digit.size) == digit.total
                stride, size = self.sizes.local(digit.stride), None if last else self.sizes.local(digit.size)
                by, end = named(stride), named(size)
                found.append(CountedDigit(name=name, stride=stride, size=size, by=by, end=end))
        run_by = "" if run is None or not _crossed(run) else named(self.sizes.local(run))
        return tuple(found), tuple(dividers.values()), run_by

    def in_tile(self, digit: Digit, near: Dim, far: Digit) -> str | None:
        """C++ of a digit of ``from + f * step + n``, as far as it is one of ``n``, of ``f`` or of ``from`` alone."""
        reach, step = dims.mul(digit.stride, digit.size), dims.exact_quotient(digit.stride, far.stride)
        if dims.exact_quotient(near, reach) is not None:
            return self.portion("n", digit.stride, digit.size, near)
        if step is not None and dims.exact_quotient(far.size, dims.mul(step, digit.size)) is not None:
            return self.portion("f", step, digit.size, far.size)
        if step == 1 and dims.exact_quotient(digit.size, far.size) is not None:
            return self.portion("from", digit.stride, digit.size, digit.total) + " + f"
        between = dims.exact_quotient(digit.stride, near) is not None
        between = between and dims.exact_quotient(far.stride, reach) is not None
        if between or dims.exact_quotient(digit.stride, dims.mul(far.stride, far.size)) is not None:
            return self.portion("from", digit.stride, digit.size, digit.total)
        return None

    def tile(self, rows: RowProgram) -> TurnedTile | None:
        """What is turned, over binding names."""
        turned = self.turned()
        if turned is None:
            return None
        near, far, operands = turned
        texts = {name: self.in_tile(digit, near, far) for name, digit in self.of_index.items()}
        return TurnedTile(
            near=self.sizes.local(near),
            far=self.sizes.local(far.size),
            step=self.sizes.local(far.stride),
            positions=tuple(p.replace(expr=texts.get(p.name) or p.expr) for p in rows.positions),
            operands=operands,
        )


def plan(region: Region, name: str) -> KernelPlan:
    """The plan of a region that ``viewspace.takes``."""
    result = region.body.node(region.body.outputs[0])
    space = RowSpace(result.type.shape, result.name, (), {})
    lowering = ViewLowering(region.head, space, region.args, region.sizes, Style("{}", "{}", outer="index"), "index")
    rows = lowering.program(region.outputs)
    run = lowering.run()
    if run is not None:
        steps = lowering.steps()
        rows = rows.replace(operands=tuple(o.replace(step=steps[o.name]) for o in rows.operands))
    joined = () if run is None else lowering.joined_parts(rows)
    line = lowering.line() if run is None else None
    elements = dims.product(result.type.shape)
    shapes = [*(arg.type.shape for arg in region.args.values()), *viewspace.numbered(region.body)]
    counts = {dims.product(shape): shape for shape in shapes}
    more = [shape for count, shape in counts.items() if dims.exact_quotient(elements, count) is None]
    counted, dividers, run_by = lowering.counted(run)
    detail = PointwisePlan(
        elements=region.sizes.product(result.type.shape),
        vector_args=tuple(o.arg for o in rows.operands if o.index == "index" and not o.guard),
        reach=tuple(map(region.sizes.product, more)),
        run=None if run is None else region.sizes.local(run),
        long_run=LONG_RUN if run is not None and _crossed(run) else 0,
        run_by=run_by,
        line=None if line is None else region.sizes.local(line),
        counted=counted,
        dividers=dividers,
        joined=joined,
        tile=lowering.tile(rows),
        rows=rows,
    )
    return region.plan(f"{name}_pointwise", detail)
