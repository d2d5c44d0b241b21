"""Converts a functionalised torch.export program into a ``Graph``."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument

from fusegen.dims import Dim
from fusegen.errors import GraphError, TraceError, UnsupportedOpError
from fusegen.ir import (
    CatOp,
    ConstOp,
    DType,
    EagerOp,
    GetItemOp,
    Graph,
    InputOp,
    Op,
    ParamOp,
    PermuteOp,
    ReshapeOp,
    TensorType,
)
from fusegen.literals import python_float
from fusegen.pointwise import BY_ATEN
from fusegen.trace import complexes
from fusegen.trace.asked import Pairs, alike, conditions, name_sizes
from fusegen.trace.aten import IMPORTERS, Call, Imported, Value, pointwise
from fusegen.trace.counts import kept_as_floats
from fusegen.trace.draft import Draft
from fusegen.trace.whole import aten_name
from fusegen.verify import verify

_MOST_RUNS = 16
"""Runs of equal numbers in a constant that forward makes: each is a tensor of its own, and they are joined."""


class _Size(str):
    """The text of a size expression, to tell it from a string argument."""


def _has_size(values: Iterable[Any]) -> bool:
    """Whether a size expression is among ``values``, or in a list among them."""
    return any(isinstance(v, _Size) or (isinstance(v, (list, tuple)) and _has_size(v)) for v in values)


def _size(dim: Dim) -> int | _Size:
    return dim if isinstance(dim, int) else _Size(dim)


def _laid_out(value: torch.Tensor) -> list[int] | None:
    """The order of axes in which a dense tensor's elements follow each other; None where that is row by row."""

    def number(size: Any) -> int:
        return size if isinstance(size, int) else int(size.node.hint or 0)

    shape, strides = [[number(n) for n in values] for values in (value.shape, value.stride())]
    order = sorted(range(len(shape)), key=lambda axis: strides[axis], reverse=True)
    step = 1
    for axis in reversed(order):
        if strides[axis] != step or shape[axis] < 2:
            return None
        step *= shape[axis]
    return None if order == sorted(order) else order


class _Converter(Draft):
    """Walks the fx graph once; ``env`` maps fx nodes to values."""

    def __init__(self, program: ExportedProgram, model: nn.Module, path: Path, equal: Pairs = ()):
        super().__init__(path)
        self.program, self.name, self.equal = program, type(model).__name__, equal
        self.env: dict[fx.Node, Value] = {}
        self.results: dict[fx.Node, tuple[Value | None, ...]] = {}
        self.counts = kept_as_floats(program.graph)

    def result(self, value: torch.Tensor, node: fx.Node) -> TensorType:
        """The type of a result of ``node``; counts that end in floats are floats."""
        found = self.type_of(value, node.name)
        return found.replace(dtype=DType.FLOAT32) if node in self.counts else found

    def argument(self, value: Any) -> Any:
        """An fx argument with values for nodes and ``Dim`` for symbolic integers."""
        if isinstance(value, fx.Node):
            found = value.meta.get("val")
            if isinstance(found, torch.SymFloat):
                if found.node.expr.free_symbols <= self.renames.keys():
                    raise self.unsaid(found.node.expr)
                raise TraceError(
                    "forward computes with a number that depends on tensor values",
                    node=value.name,
                    source=self.source(),
                    hint="keep it a tensor: leave out .item()",
                )
            return _size(self.dim(found)) if isinstance(found, torch.SymInt) else self.env[value]
        if isinstance(value, (list, tuple)):
            return type(value)(self.argument(item) for item in value)
        return value

    def arguments(self, node: fx.Node) -> dict[str, Any]:
        """Arguments by schema name, defaults included."""
        schema = node.target._schema  # type: ignore[union-attr]
        named = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        named.update({a.name: self.argument(v) for a, v in zip(schema.arguments, node.args, strict=False)})
        named.update({name: self.argument(value) for name, value in node.kwargs.items()})
        return named

    def eager(self, node: fx.Node) -> Value:
        """Leave the op to torch: its arguments as text, tensors as numbered holes."""
        operands: list[Value] = []

        def text(value: Any) -> str:
            match value:
                case Value():
                    operands.append(self.as_tensor(value))
                    return f"{{{len(operands) - 1}}}"
                case list() | tuple():
                    return f"[{', '.join(map(text, value))}]"
                case torch.dtype() | torch.memory_format() | torch.layout():
                    return str(value)
                case torch.device():  # tracing has one device: the inputs'
                    if not self.inputs:
                        raise UnsupportedOpError(
                            f"{node.target} needs a device and there is no input", node=node.name, source=self.source()
                        )
                    return f"{text(self.inputs[0])}.device"
                case _Size():
                    return str(value)
                case float():
                    return python_float(value)
                case complex():
                    return f"complex({python_float(value.real)}, {python_float(value.imag)})"
                case None | bool() | int() | str():
                    return repr(value).replace("{", "{{").replace("}", "}}")
            raise UnsupportedOpError(
                f"{node.target} has an argument of type {type(value).__name__}", node=node.name, source=self.source()
            )

        parts = [text(self.argument(value)) for value in node.args]
        parts += [f"{name}={text(self.argument(value))}" for name, value in node.kwargs.items()]
        found = node.meta["val"]
        many = isinstance(found, (list, tuple))
        results = tuple(self.result(v, node) for v in (found if many else [found]) if v is not None)
        target = aten_name(str(node.target))
        op = EagerOp(target=target, arguments=", ".join(parts), results=results, tuple_result=many)
        value = self.emit(node.name, op, tuple(operands), results[0])
        order = None if many else _laid_out(found)
        if order is None or not results[0].dtype.value.startswith("float"):
            return value
        # What torch lays out in another order of axes is read as it lies.
        rows = results[0].replace(shape=tuple(results[0].shape[axis] for axis in order))
        turned = EagerOp(
            target="aten.permute.default", arguments=f"{{0}}, {order}", results=(rows,), tuple_result=False
        )
        lying = self.emit(f"{node.name}_lying", turned, (value,), rows)
        return self.add(PermuteOp(order=tuple(order.index(axis) for axis in range(len(order)))), lying)

    def call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            producer, index = node.args
            assert isinstance(producer, fx.Node)
            if producer in self.results:
                chosen = self.results[producer][index]  # type: ignore[index]
                assert chosen is not None
                self.env[node] = chosen
                return
            source = self.env[producer]
            op = self.nodes[source.name].op
            if isinstance(op, EagerOp):
                assert isinstance(index, int)
                source = self.emit(node.name, GetItemOp(index=index), (source,), op.results[index])
            self.env[node] = source
            return
        found = node.meta.get("val")
        if found is None or isinstance(found, (torch.SymInt, int, torch.SymBool, torch.SymFloat)):
            return  # size arithmetic and assertions on it: users read the size expression itself
        if not isinstance(node.target, torch._ops.OpOverload):
            raise UnsupportedOpError(f"{node.target} is not an ATen op", node=node.name, source=self.source())
        if complexes.is_complex(node):
            self.env[node] = self.of_complexes(node)
            return
        value = self.imported(node)
        if isinstance(value, tuple):
            self.results[node] = value
        else:
            self.env[node] = value if value is not None else self.eager(node)

    def of_complexes(self, node: fx.Node) -> Value:
        """A call of complex numbers. What is torch's is there beside the parts, and goes where nothing reads it."""
        overload, named = aten_name(str(node.target)).removeprefix("aten."), self.arguments(node)
        if same := complexes.unchanged(overload, named):
            return same
        before = dict(self.nodes), dict(self.conditions), dict(self.parts)
        found = None
        if isinstance(node.meta["val"], torch.Tensor):
            try:
                found = complexes.in_parts(self, overload, named, self.result(node.meta["val"], node))
            except GraphError:
                self.nodes, self.conditions, self.parts = before
        if isinstance(found, Value):
            return found
        value = self.eager(node)
        if found is not None:
            self.parts[value.name] = found
        return value

    def imported(self, node: fx.Node) -> Imported:
        """The IR form of an ATen call, or None: this op, or these arguments, are left to torch.

        A tuple for an op of several results, None in it where nothing reads the result.
        """
        overload = aten_name(str(node.target)).removeprefix("aten.")
        found = node.meta["val"]
        many = isinstance(found, (list, tuple))
        if many and overload not in IMPORTERS:
            return None
        results = tuple(self.result(v, node) for v in (found if many else [found]))
        read = {int(str(user.args[1])) for user in node.users} if many else {0}
        named = self.arguments(node)
        named["fn"] = overload.split(".")[0]
        call = Call(self, named, results)
        before = dict(self.nodes), dict(self.updates), dict(self.conditions)
        value: Imported
        try:
            if overload in IMPORTERS:
                value = IMPORTERS[overload](call)
            elif overload in BY_ATEN and not node.kwargs:
                value = pointwise(call, BY_ATEN[overload], *(self.argument(a) for a in node.args))
            else:
                return None
        except GraphError:
            value = None
        except (TypeError, ValueError):
            if not _has_size(named.values()):
                raise
            value = None  # a size where the IR has a number: torch computes both
        values = dict(enumerate(value if isinstance(value, tuple) else (value,)))
        if any((found := values.get(i)) is None or found.type != results[i] for i in read):
            self.nodes, self.updates, self.conditions = before
            return None
        return value

    def constant(self, node: fx.Node, path: str) -> Value:
        """A tensor that forward makes of numbers, of its own element type: one number, or runs of a few, joined."""
        self.current = next(iter(node.users), node)  # the line that makes it
        tensor, type_ = self.program.constants[path], self.type_of(node.meta["val"], node.name)
        known = tensor.numel() <= 4096 and not isinstance(tensor, FakeTensor)
        numbers = tensor.flatten().tolist() if known else []
        if not all(isinstance(number, (bool, int, float)) for number in numbers):  # of a transform's tensor
            raise self.refused(path, "take derivatives outside forward, or write them out")
        runs = [(number, len(list(run))) for number, run in itertools.groupby(numbers)]
        if not 1 <= len(runs) <= _MOST_RUNS:
            raise self.refused(path)
        plain = type_.dtype is DType.FLOAT32 or self.first_input(type_.dtype) is not None
        if tensor.dim() == 0 and isinstance(numbers[0], float) and plain:
            return self.emit(node.name, ConstOp(value=numbers[0]), (), type_)
        if len(runs) == 1:
            return self.full(node.name, numbers[0], type_)
        parts = [self.full(node.name, number, type_.replace(shape=(count,))) for number, count in runs]
        row = self.emit(node.name, CatOp(axis=0), tuple(parts), type_)
        return row if tensor.dim() == 1 else self.emit(node.name, ReshapeOp(shape=type_.shape), (row,), type_)

    def placeholder(self, node: fx.Node, inputs: list[fx.Node]) -> None:
        spec = next(s for s in self.program.graph_signature.input_specs if s.arg.name == node.name)
        value = node.meta["val"]
        if spec.kind is InputKind.USER_INPUT:
            op: Op = InputOp(position=inputs.index(node))
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            op = ParamOp(path=str(spec.target), buffer=spec.kind is InputKind.BUFFER)
        else:
            self.env[node] = self.constant(node, str(spec.target))
            return
        self.env[node] = self.emit(node.name, op, (), self.type_of(value, node.name))
        if isinstance(op, InputOp):
            self.inputs.append(self.env[node])

    def run(self) -> Graph:
        signature = self.program.graph_signature
        placeholders = [n for n in self.program.graph.nodes if n.op == "placeholder"]
        user = {s.arg.name for s in signature.input_specs if s.kind is InputKind.USER_INPUT}
        placeholders = [n for n in placeholders if isinstance(n.meta["val"], torch.Tensor)]  # numbers are in the graph
        inputs = [n for n in placeholders if n.name in user]
        constants = {s.arg.name for s in signature.input_specs if s.kind is InputKind.CONSTANT_TENSOR}
        self.renames, self.sizes = name_sizes(inputs)
        self.conditions = conditions(inputs, self.renames, self.sizes, self.equal)
        for node in sorted(placeholders, key=lambda n: n.name in constants):  # what constants are like comes first
            self.current = node
            self.placeholder(node, inputs)
        for node in self.program.graph.nodes:
            self.current = node
            if node.op == "call_function":
                self.call(node)
        by_name = {node.name: node for node in self.program.graph.nodes}
        outputs: list[str] = []
        strided: list[int] = []
        updates: list[tuple[str, str]] = list(self.updates.items())
        for spec in signature.output_specs:
            if not isinstance(spec.arg, TensorArgument):  # see results.py
                continue
            produced = by_name.get(spec.arg.name)
            if produced is None or produced not in self.env:
                raise TraceError("an output of forward is not a tensor", hint="return tensors only")
            value = self.as_tensor(self.env[produced])
            if spec.kind is OutputKind.USER_OUTPUT:
                strided += [] if produced.meta["val"].is_contiguous() else [len(outputs)]
                outputs.append(value.name)
            elif spec.kind is OutputKind.BUFFER_MUTATION:
                op = self.nodes[value.name].op
                if not isinstance(op, ParamOp) or op.path != spec.target:  # else it stays what it is
                    updates.append((str(spec.target), value.name))
            else:
                raise TraceError(f"forward writes to its input ({spec.target})", hint="clone the input first")
        structure = self.program.call_spec.out_spec
        nested = structure is not None and structure.type is not None
        graph = Graph(
            name=self.name,
            nodes=tuple(self.nodes.values()),
            outputs=tuple(outputs),
            strided=tuple(strided),
            tuple_output=nested,
            updates=tuple(updates),
            sizes=self.sizes,
            constraints=tuple(self.conditions),
        ).prune()
        verify(graph)
        return graph


def known(target: str) -> bool:
    """True when some calls of the ATen op ``target`` have a form in the IR."""
    overload = target.removeprefix("aten.")
    return overload in IMPORTERS or overload in BY_ATEN


def convert(program: ExportedProgram, model: nn.Module, path: Path) -> Graph:
    """The graph of an exported program. Raises ``TraceError`` or ``UnsupportedOpError`` with the source line."""
    graph = _Converter(program, model, path).run()
    if equal := alike(graph):
        again = _Converter(program, model, path, equal).run()
        return min(graph, again, key=_left_to_torch)
    return graph


def _left_to_torch(graph: Graph) -> int:
    return sum(isinstance(node.op, EagerOp) for node in graph.nodes)
