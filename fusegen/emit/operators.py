"""What the compiled forward calls: an operator for each kernel, or for a run of steps."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusegen import dims
from fusegen.emit.names import comment, local, python
from fusegen.interpret import bound_sizes
from fusegen.ir import Graph, TensorType
from fusegen.plan import runs
from fusegen.plan.details import ContractionPlan, ConvApartPlan, ConvBoxesPlan, DirectConvPlan
from fusegen.plan.runs import Run
from fusegen.plan.types import EagerStep, KernelPlan, KernelStep, Step


@dataclass(frozen=True)
class Argument:
    """A tensor that an operator reads, or also writes."""

    name: str
    type: TensorType
    written: bool
    given: str
    """C++ text of the tensor that is handed over: ``name`` is the same row by row."""


@dataclass(frozen=True)
class Operator:
    """An operator of the glue: tensors and integers in, ``results`` tensors out.

    Of a run it takes lists, since torch's operators have at most 64 arguments.
    """

    name: str
    operands: tuple[Argument, ...]
    integers: tuple[str, ...]
    results: int
    lines: tuple[str, ...]
    """C++ statements over the names of operands and integers."""
    returned: str
    shapes: tuple[str, ...] = ()
    """Of a run, Python statements over the same names that compute the results' shapes."""
    replayed: bool = False
    """True when it is called as a graph where it can be."""
    elements: int = 0
    """Of the tensors whose sizes calls may change, as traced."""

    @property
    def calls_torch(self) -> bool:
        """True when it calls operators of torch."""
        return "aten(" in " ".join(self.lines)

    @property
    def lists(self) -> dict[str, tuple[str, ...]]:
        """The names in each list that the operator of a run takes."""
        found = {
            "read": tuple(operand.name for operand in self.operands if not operand.written),
            "written": tuple(operand.name for operand in self.operands if operand.written),
            "integers": self.integers,
        }
        return {name: names for name, names in found.items() if names} if self.shapes else {}

    @property
    def tensor_lists(self) -> int:
        """How many of the lists have tensors."""
        return len(self.lists.keys() - {"integers"})

    @property
    def unknown(self) -> tuple[int, ...]:
        """The positions, among the tensors of all lists, of those whose sizes calls may change."""
        in_order = sorted(self.operands, key=lambda operand: operand.written)
        return tuple(i for i, operand in enumerate(in_order) if _varies(operand.type))

    @property
    def parameters(self) -> list[str]:
        """Its parameters in C++."""
        if self.shapes:
            return [f"const {'Ints' if name == 'integers' else 'Tensors'}& {name}" for name in self.lists]
        return [f"const Tensor& {o.given}" for o in self.operands] + [f"int64_t {name}" for name in self.integers]

    @property
    def result_type(self) -> str:
        """The C++ type of what it returns."""
        return tensors(self.results)

    @property
    def schema(self) -> str:
        """Its schema for torch's dispatcher."""
        kinds = {"read": "Tensor[]", "written": "Tensor(a!)[]", "integers": "int[]"}
        given = [f"{kinds[name]} {name}" for name in self.lists]
        if not self.shapes:
            marks = [f"(a{i}!)" if operand.written else "" for i, operand in enumerate(self.operands)]
            given = [f"Tensor{mark} {operand.name}" for mark, operand in zip(marks, self.operands, strict=True)]
            given += [f"int {name}" for name in self.integers]
        result = "Tensor" if self.results == 1 else f"({', '.join(['Tensor'] * self.results)})"
        return f"{self.name}({', '.join(given)}) -> {result}"

    def arguments(self, values: Mapping[str, str]) -> str:
        """The arguments of a call in Python, by the ``values`` of its operands and integers."""
        if self.shapes:
            return ", ".join(f"[{', '.join(values[name] for name in names)}]" for names in self.lists.values())
        return ", ".join(values[name] for name in (*(operand.name for operand in self.operands), *self.integers))


@dataclass(frozen=True)
class Call:
    """A call of an operator: what its operands (nodes) and integers (Python text) are."""

    operator: Operator
    nodes: dict[str, str]
    integers: dict[str, str]
    results: tuple[str, ...]


def _varies(type_: TensorType) -> bool:
    return any(isinstance(size, str) for size in type_.shape)


def tensors(count: int) -> str:
    """The C++ type of so many results."""
    if count == 0:
        return "void"
    return "Tensor" if count == 1 else f"std::tuple<{', '.join(['Tensor'] * count)}>"


def of_kernel(plan: KernelPlan) -> Operator:
    """The operator of one kernel."""
    operands = (Argument(arg.name, arg.type, arg.name in plan.written, f"{arg.name}_given") for arg in plan.args)
    call = f"run_{plan.name}({', '.join([*(arg.name for arg in plan.args), *plan.scalars, 'at'])})"
    kept = bool(plan.written)  # copies of operands are given back first
    return Operator(
        name=plan.name,
        operands=tuple(operands),
        integers=plan.scalars,
        results=len(plan.results),
        lines=(f"const auto results = {call};",) if kept else (),
        returned="results" if kept else call,
    )


def call_of_kernel(step: KernelStep, graph: Graph, device: str) -> Call:
    """A step as a call of its kernel's operator. ``device``: Python text that tells where it runs."""
    operator = of_kernel(step.plan)
    integers = zip(operator.integers, (*step.given, *tf32(step, graph, device)), strict=True)
    nodes = zip((operand.name for operand in operator.operands), step.inputs, strict=True)
    return Call(operator, dict(nodes), dict(integers), step.outputs)


def call_of_run(run: Run, name: str, graph: Graph, variable: Mapping[str, str], device: str) -> Call:
    """A run of steps as a call of an operator of its own. Nodes that have one ``variable`` are one operand."""
    body = _Body(run, graph, variable, device)
    for step in run.steps:
        if isinstance(step, KernelStep):
            body.kernel(step)
        else:
            body.library(step)
        body.release(step)
    results = [body.values[node] for node in run.results]
    places = {True: itertools.count(), False: itertools.count()}
    operands = []
    for operand, node in body.operands.items():
        written = operand in body.written
        given = f"{'written' if written else 'read'}[{next(places[written])}]"
        operands.append(Argument(operand, graph.node(node).type, written, given))
    operator = Operator(
        name=name,
        operands=tuple(operands),
        integers=tuple(body.integers.values()),
        results=len(results),
        lines=tuple(body.lines),
        returned=results[0] if len(results) == 1 else f"{{{', '.join(results)}}}",
        shapes=(*body.shapes, f"return {', '.join(results)}"),
        replayed=run.replayed,
        elements=sum(dims.numel(o.type.shape, graph.sizes) for o in operands if _varies(o.type)),
    )
    return Call(operator, body.operands, {integer: text for text, integer in body.integers.items()}, run.results)


class _Body:
    """The statements of a run: operands ``a0, ...``, values ``t0, ...``."""

    def __init__(self, run: Run, graph: Graph, variable: Mapping[str, str], device: str):
        self.run, self.graph, self.variable, self.device = run, graph, variable, device
        self.values: dict[str, str] = {}
        self.operands: dict[str, str] = {}
        self.integers: dict[str, str] = {}
        self.written: set[str] = set()
        self.lines: list[str] = []
        self.shapes: list[str] = []
        self._by_variable: dict[str, str] = {}
        self._made: dict[str, str] = {}
        self._read_by_kernels = {n for step in run.steps if isinstance(step, KernelStep) for n in step.inputs}
        self._last = {node: step for step in run.steps for node in (*runs.outputs(step), *step.inputs)}

    def kernel(self, step: KernelStep) -> None:
        targets, operands = self._begin(step)
        given = dict(zip((arg.name for arg in step.plan.args), operands, strict=True))
        self.written |= {given[arg] for arg in step.plan.written}
        asked = tf32(step, self.graph, self.device)
        flags = [text if text.isdigit() else self._integer(text, f"tf32_{len(self.integers)}") for text in asked]
        place = [self.values[step.part.whole], str(step.part.first)] if step.part else []
        call = ", ".join([*operands, *map(dims.cpp, step.given), *flags, *place, "at"])
        self.lines.append(_assigned(targets, f"run_{step.plan.name}({call})"))
        if targets:
            call = ", ".join([*operands, *step.given, *flags])
            self.shapes.append(f"{', '.join(targets)} = _fusegen_fake_{step.plan.name}({call})")

    def library(self, step: EagerStep) -> None:
        (target,), _ = self._begin(step)
        needed = step.output in self._read_by_kernels or step.output in self.run.results
        by_rows = needed and not step.written_later
        value = re.sub(r"\bv_(\w+)", lambda found: self.values[found[1]], step.native)
        self.lines.append(f"// {comment(step.comment)}")
        self.lines.append(_assigned((target,), f"row_major({value})" if by_rows else value))
        text = python(step.expr, self.values, self.graph)
        self.shapes.append(f"{target} = {text}{'.contiguous()' if by_rows else ''}")

    def release(self, step: Step) -> None:
        """Frees what no later step reads."""
        touched = dict.fromkeys((*step.inputs, *runs.outputs(step)))
        kept = set(self.run.results)
        gone = [self._made[n] for n in touched if n in self._made and n not in kept and self._last[n] is step]
        if gone and step is not self.run.steps[-1]:
            self.lines.append(f"release({', '.join(gone)});")

    def _begin(self, step: Step) -> tuple[list[str], list[str]]:
        """Names for what a step computes and reads."""
        for node in step.inputs:
            if node not in self.values:
                self.values[node] = self._by_variable.setdefault(self.variable[node], f"a{len(self._by_variable)}")
                self.operands.setdefault(self.values[node], node)
        for symbol in runs.symbols(step):
            self._integer(symbol, symbol)
        for node in runs.outputs(step):
            self.values[node] = self._made[node] = f"t{len(self._made)}"
        return [self.values[node] for node in runs.outputs(step)], [self.values[node] for node in step.inputs]

    def _integer(self, text: str, name: str) -> str:
        return self.integers.setdefault(text, name)


def _assigned(targets: Sequence[str], value: str) -> str:
    if not targets:
        return f"{value};"
    return f"Tensor {targets[0]} = {value};" if len(targets) == 1 else f"auto [{', '.join(targets)}] = {value};"


def _shape(node: str, graph: Graph) -> str:
    """The shape of a node as Python text: from the sizes of the inputs, where these tell it."""
    shape = graph.node(node).type.shape
    if not bound_sizes(graph).keys() >= set(dims.symbols(shape)):
        return f"{local(node)}.shape"
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def tf32(step: KernelStep, graph: Graph, device: str) -> list[str]:
    """The argument that says whether a kernel may compute in TF32, as Python text, where it has one."""
    plan = step.plan
    if plan.tf32 is None:
        return []
    if plan.tf32 == "never":
        return ["0"]
    detail = plan.detail.conv if isinstance(plan.detail, ConvApartPlan) else plan.detail
    if not isinstance(detail, (ContractionPlan, ConvBoxesPlan, DirectConvPlan)) or plan.tf32 != "conv":
        return [f"_fusegen_tf32_{plan.tf32}()"]
    if detail.precise:
        return ["0"]
    known = detail.axes[-detail.rank :] if isinstance(detail, DirectConvPlan) else detail.axes
    axes = [axis.eager for axis in known if axis.eager]
    transposed = detail.transposed if isinstance(detail, DirectConvPlan) else detail.head == "conv_transpose"
    stride, padding, dilation, output_padding = (
        tuple(getattr(axis, name) for axis in axes) for name in ("stride", "padding", "dilation", "output_padding")
    )
    around = ""
    if any(axis.around != 2 * axis.padding for axis in axes):  # eager's convolution is of the padded input
        around = f", around={tuple(axis.around for axis in axes)}"
        padding = (0,) * len(axes)
    if any(axis.enlarged for axis in axes):
        around += f", enlarged={tuple(axis.enlarged for axis in axes)}"
        transposed = False
    structure = (stride, padding, dilation, transposed, output_padding, detail.groups)
    nodes = dict(zip((arg.name for arg in plan.args), step.inputs, strict=True))
    shapes = (_shape(nodes[name], graph) for name in (detail.source, detail.weight))
    return [f'_fusegen_rounds("{plan.name}", {device}, {", ".join([*shapes, *map(str, structure)])}{around})']
