"""A model class for an operator-graph description, which has parameters but no source.

Parameters are created in path order: ``torch.randn(shape) / sqrt(fan_in)`` with the fan-in the
product of all sizes but the first (1 for vectors). Buffers start at one, integer and truth-value
buffers at zero, so that ``torch.manual_seed(s); ModelNew()`` is reproducible.
"""

from __future__ import annotations

import keyword
import math
import textwrap

from fusegen.carry.model import REFERENCE, CarriedModel, ForwardParameter
from fusegen.errors import EmitError
from fusegen.ir import Graph, Node, ParamOp

_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})


def attribute_path(path: str, root: str = "self") -> str:
    """A Python expression for the parameter at a ``state_dict`` path."""
    text = root
    for part in path.split("."):
        plain = part.isidentifier() and not keyword.iskeyword(part)
        text = f"{text}.{part}" if plain else f"getattr({text}, {part!r})"
    return text


def _declaration(node: Node, op: ParamOp) -> list[str]:
    shape = tuple(node.type.shape)
    if any(not isinstance(size, int) for size in shape):
        raise EmitError(f"parameter {op.path!r} has no fixed shape", node=node.name)
    sizes = [int(size) for size in shape]
    owner, _, name = op.path.rpartition(".")
    module = attribute_path(owner) if owner else "self"
    dtype = f"dtype=_fusegen_torch.{node.type.dtype.value}"
    floating = node.type.dtype.value in _FLOATS
    if op.buffer or not floating:
        fill = "ones" if floating else "zeros"
        return [f"{module}.register_buffer({name!r}, _fusegen_torch.{fill}({sizes}, {dtype}))"]
    fan_in = math.prod(sizes[1:])
    value = f"_fusegen_torch.randn({sizes}, {dtype})"
    if fan_in > 1:
        value += f" / {fan_in} ** 0.5"
    return [f"{module}.register_parameter({name!r}, _fusegen_torch.nn.Parameter({value}))"]


def carry_graph(graph: Graph, reference_source: str) -> CarriedModel:
    """A class that declares the graph's parameters; ``reference_source`` is the body of its forward.

    The body may use ``self`` (see ``attribute_path``), the inputs ``x0, x1, ...`` and ``torch``.
    """
    params = sorted(((n.op.path, n, n.op) for n in graph.params if isinstance(n.op, ParamOp)), key=lambda p: p[0])
    lines = ["super().__init__()"]
    containers: set[str] = set()
    for path, node, op in params:
        parts = path.split(".")
        for depth in range(1, len(parts)):
            container = ".".join(parts[:depth])
            if container in containers:
                continue
            containers.add(container)
            owner, _, name = container.rpartition(".")
            module = attribute_path(owner) if owner else "self"
            lines.append(f"{module}.add_module({name!r}, _fusegen_torch.nn.Module())")
        lines += _declaration(node, op)
    inputs = [f"x{position}" for position in range(len(graph.inputs))]
    body = "def __init__(self):\n" + textwrap.indent("\n".join(lines), "    ")
    reference = textwrap.indent(textwrap.dedent(reference_source).strip("\n"), "    ")
    signature = ", ".join(["self", *inputs])
    body += f"\n\ndef {REFERENCE}({signature}):\n    torch = _fusegen_torch\n{reference}"
    return CarriedModel(
        class_name=graph.name,
        prelude="",
        class_text="class ModelNew(_fusegen_torch.nn.Module):\n\n" + textwrap.indent(body, "    "),
        forward=tuple(ForwardParameter(name=name) for name in inputs),
    )
