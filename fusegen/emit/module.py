"""The emitter's entry: a program and where it came from, in; the generated module's text, out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fusegen.carry import CarriedModel, attribute_path, carry_graph, carry_model
from fusegen.emit.render import render
from fusegen.emit.structure import snapshot_modules
from fusegen.errors import EmitError
from fusegen.interpret import python_lines, size_lines
from fusegen.ir import AxisTapSumOp, AxisWindowSumOp, Graph, TapSumOp, WindowSumOp
from fusegen.plan.types import Program

if TYPE_CHECKING:
    from fusegen.trace import TracedModel


def reference_source(graph: Graph) -> str:
    """The body of a forward that computes ``graph`` op by op with torch."""
    for node in graph.nodes:
        if isinstance(node.op, (WindowSumOp, TapSumOp, AxisWindowSumOp, AxisTapSumOp)):
            raise EmitError("a graph description may not use the compiler's own ops", node=node.name)
    lines = python_lines(graph, param=attribute_path)
    lines = [*size_lines(graph, "\n".join(lines)), *lines]
    lines += [f"{attribute_path(path)}.copy_(v_{name})" for path, name in graph.updates]
    results = ", ".join(f"v_{name}" for name in graph.outputs)
    return "\n".join([*lines, f"return {results}" + ("," if graph.tuple_output and len(graph.outputs) == 1 else "")])


def instance_of(carried: CarriedModel) -> nn.Module:
    """An instance of a carried class that takes no arguments, without data."""
    scope: dict[str, Any] = {"_fusegen_torch": torch}
    exec(compile(f"{carried.prelude}\n{carried.class_text}", "<generated>", "exec", dont_inherit=True), scope)
    with torch.device("meta"):
        instance: nn.Module = scope["ModelNew"]()
    return instance


def emit_module(program: Program, traced: TracedModel | Graph, source_text: str | None, title: str = "Model") -> str:
    """The generated module of a traced model file, or (without source) of an operator-graph description.

    ``title`` names the file, in the module's comment and in errors.
    Raises ``EmitError`` when the model's source cannot be carried.
    """
    if isinstance(traced, Graph) or source_text is None:
        carried = carry_graph(program.before, reference_source(program.before))
        return render(program, carried, snapshot_modules(instance_of(carried)), title=title)
    carried = carry_model(source_text, type(traced.model).__name__, title, traced.held)
    forward = tuple(
        parameter.replace(given=repr(traced.literals[i])) if i in traced.literals else parameter
        for i, parameter in enumerate(carried.forward)
    )
    carried = carried.replace(forward=forward)
    modules = snapshot_modules(traced.model)
    return render(program, carried, modules, mode_dependent=traced.mode_dependent, title=title, results=traced.results)
