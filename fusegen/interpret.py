"""Runs any graph with torch, in any dtype: the oracle that passes are held to.

A graph is printed as a Python function, one line per node, and executed. The same text serves as
the reference forward of a module generated from an operator-graph description.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from fusegen import dims, ir, ops, recurrent, windows
from fusegen.ir import Graph, ParamOp, RegionOp


def bound_sizes(graph: Graph) -> dict[str, tuple[int, int]]:
    """Size symbol -> (input position, axis) of the input axis that has exactly that size."""
    found: dict[str, tuple[int, int]] = {}
    for position, node in enumerate(graph.inputs):
        for axis, size in enumerate(node.type.shape):
            if isinstance(size, str) and size.isidentifier():
                found.setdefault(size, (position, axis))
    return found


def python_lines(graph: Graph, param: Callable[[str], str] = lambda path: f"params[{path!r}]") -> list[str]:
    """Statements that compute every node of ``graph`` as ``v_<name>``.

    They read the inputs ``x0, x1, ...`` and the sizes that ``size_lines`` defines.
    """
    lines = []
    numbers = {node.name for node in graph.nodes if isinstance(node.op, ir.ConstOp)}
    for node in graph.nodes:
        operands = [f"v_{name}" for name in node.inputs]
        if isinstance(node.op, ir.PointwiseOp) and numbers.issuperset(node.inputs):  # torch's functions take tensors
            wide = "int64" if graph.node(node.inputs[-1]).type.dtype in ir.INTEGERS else "float64"
            operands = [f"torch.tensor({operand}, dtype=torch.{wide})" for operand in operands]
        elif isinstance(node.op, ir.PointwiseOp) and node.op.fn in ("maximum", "minimum") and node.inputs[0] in numbers:
            operands.reverse()  # torch bounds a tensor by a number, not the other way around
        match node.op:
            case ParamOp(path=path):
                text = param(path)
            case RegionOp():
                text = f"region_{node.name}(({', '.join(operands)},), {{}}, sizes)"
                text += "[0]" if len(node.op.body.outputs) == 1 else ""
            case op:
                text = ops.torch_expr(op, operands)
        lines.append(f"v_{node.name} = {text}")
    return lines


def size_lines(graph: Graph, text: str) -> list[str]:
    """Statements that read the size symbols mentioned in ``text`` off the inputs."""
    lines = []
    for size, (position, axis) in bound_sizes(graph).items():
        if re.search(rf"\b{size}\b", text):
            lines.append(f"{size} = x{position}.shape[{axis}]")
    return lines


_Function: TypeAlias = Callable[
    [Sequence[torch.Tensor], Mapping[str, torch.Tensor], Mapping[str, int]], tuple[torch.Tensor, ...]
]


def _compile(graph: Graph, wide: bool) -> _Function:
    scope: dict[str, Any] = {"torch": torch, "windows": windows, "recurrent": recurrent}
    own = ("ConvOp", "WindowSumOp", "TapSumOp", "AxisWindowSumOp", "AxisTapSumOp", "RecurrenceOp")
    scope.update({name: getattr(ir, name) for name in own})
    scope.update({f"region_{n.name}": _compile(n.op.body, wide) for n in graph.nodes if isinstance(n.op, RegionOp)})
    lines = python_lines(graph)
    if wide:
        lines = [line.replace("torch.float32", "torch.float64").replace("complex64", "complex128") for line in lines]
    body = [f"{size} = sizes[{size!r}]" for size in graph.sizes if re.search(rf"\b{size}\b", "\n".join(lines))]
    body += [f"x{i} = inputs[{i}]" for i in range(len(graph.inputs))]
    body += lines
    body.append(f"return ({''.join(f'v_{name}, ' for name in graph.results)})")
    exec("def function(inputs, params, sizes):\n" + "\n".join("    " + line for line in body), scope)
    function: _Function = scope["function"]
    return function


def run(
    graph: Graph,
    inputs: Sequence[torch.Tensor],
    params: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int] | None = None,
    wide: bool = False,
) -> tuple[torch.Tensor, ...]:
    """The values of ``graph.results``: outputs, then buffer updates.

    ``inputs`` by position, ``params`` by state_dict path; arithmetic is in their dtype. ``sizes``: of
    symbols, where no input axis has exactly that size. ``wide``, or a float64 among the data: what becomes float32 in
    the graph becomes float64.
    """
    wide = wide or any(value.dtype in (torch.float64, torch.complex128) for value in (*inputs, *params.values()))
    found = {size: inputs[position].shape[axis] for size, (position, axis) in bound_sizes(graph).items()}
    results = _compile(graph, wide)(inputs, params, {**found, **(sizes or {})})
    return tuple(r if torch.is_tensor(r) else torch.tensor(r, dtype=torch.float64) for r in results)  # of a constant


def real_parts(values: torch.Tensor) -> torch.Tensor:
    """Real and imaginary parts of complex ``values`` along one more axis; of others, themselves."""
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


def of_numbers(op: ir.PointwiseOp, numbers: Sequence[float]) -> float:
    """The function of numbers, in float64."""
    names = [f"x{i}" for i in range(len(numbers))]
    type_ = ir.TensorType(dtype=ir.DType.FLOAT64, shape=())
    inputs = (ir.Node(name=name, op=ir.InputOp(position=i), type=type_) for i, name in enumerate(names))
    graph = Graph(nodes=(*inputs, ir.Node(name="y", op=op, inputs=tuple(names), type=type_)), outputs=("y",))
    return float(run(graph, [torch.tensor(number, dtype=torch.float64) for number in numbers], {})[0])


_DROPS_OUT = ("dropout", "dropout_p", "train")
"""Arguments of attention and of recurrent layers: where one is zero or false, they draw no random numbers."""


def is_random(op: ir.Op) -> bool:
    """True when ``op`` draws from torch's generator."""
    if not isinstance(op, ir.EagerOp):
        return False
    found: Any = torch.ops
    for part in op.target.split("."):
        found = getattr(found, part, None)
    if torch.Tag.nondeterministic_seeded not in getattr(found, "tags", ()):
        return False
    operands = ["None"] * op.arguments.count("{")
    call = ast.parse(f"f({op.arguments.format(*operands)})", mode="eval").body
    assert isinstance(call, ast.Call)
    schema = found._schema.arguments
    given = {argument.name: value for argument, value in zip(schema, call.args, strict=False)}
    given |= {word.arg: word.value for word in call.keywords if word.arg}
    values = {argument.name: argument.default_value for argument in schema}
    values |= {name: value.value if isinstance(value, ast.Constant) else None for name, value in given.items()}
    return not any(values.get(name) == 0 for name in _DROPS_OUT)


class _Operand:
    """Stands for a tensor among the arguments of an eager op."""

    def __init__(self, place: int):
        self.place, self.device = place, "device"

    def __repr__(self) -> str:
        return f"operand {self.place}"


def evaluated(op: ir.Op, sizes: Mapping[str, int]) -> tuple[object, ...]:
    """What ``op`` does at ``sizes``, as values that compare equal where it does the same."""

    def value(name: str, field: Any) -> object:
        match field:
            case (*items,) if name in ("shape", "size"):
                return tuple(dims.evaluate(d, sizes) for d in items)
            case str() if name == "value":
                return float(dims.evaluate(field, sizes))
            case str() | int() if name in ("start", "length", "count"):
                return dims.evaluate(field, sizes)
            case str() if name == "arguments":
                operands = [_Operand(i) for i in range(field.count("{"))]
                text = field.format(*(f"operands[{i}]" for i in range(len(operands))))
                scope = {"torch": torch, "operands": operands, **sizes}
                return repr(eval(f"(lambda *args, **kwargs: (args, kwargs))({text})", scope))
            case (*items,) if name == "results":
                return tuple((t.dtype, *(dims.evaluate(d, sizes) for d in t.shape)) for t in items)
        return field

    return tuple(value(name, getattr(op, name)) for name in type(op).model_fields)


def input_shapes(graph: Graph, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The shape of every input at the given sizes."""
    return [tuple(dims.evaluate(d, sizes) for d in node.type.shape) for node in graph.inputs]
