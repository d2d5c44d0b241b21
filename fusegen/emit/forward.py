"""The compiled forward: a program's steps as calls of its operators and of torch, in Python."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusegen import ops
from fusegen.emit import names, operators
from fusegen.emit.names import local
from fusegen.emit.operators import Operator
from fusegen.emit.predicate import Operand
from fusegen.interpret import bound_sizes
from fusegen.ir import ConstOp, DType
from fusegen.plan import runs
from fusegen.plan.runs import Run
from fusegen.plan.types import EagerStep, KernelStep, Program
from fusegen.plan.updates import added


def _updates(program: Program, by_path: Mapping[str, str], variable: Mapping[str, str]) -> tuple[set[str], list[str]]:
    """(nodes that are not computed: their buffers are added to in place, statements that write the buffers).

    Few launches: what kernels have not updated themselves is counted where it is, or written together.
    """
    graph = program.after
    in_place: set[str] = set()
    statements: list[str] = []
    counts: dict[int, list[str]] = {}
    copies: dict[DType, list[tuple[str, str]]] = {}
    done = {path for step in program.steps if isinstance(step, KernelStep) for path in step.updates}
    for path, name in graph.updates:
        if path in done:
            continue
        if addend := added(graph, path, name):
            in_place.add(name)
            counts.setdefault(addend, []).append(by_path[path])
        else:
            copies.setdefault(graph.node(name).type.dtype, []).append((by_path[path], variable[name]))
    for addend, counted in counts.items():
        several = f"_fusegen_torch._foreach_add_([{', '.join(counted)}], {addend})"
        statements.append(several if len(counted) > 1 else f"{counted[0]}.add_({addend})")
    for pairs in copies.values():
        if len(pairs) == 1:
            statements.append(f"{pairs[0][0]}.copy_({pairs[0][1]})")
        else:
            buffers, values = (", ".join(names) for names in zip(*pairs, strict=True))
            statements.append(f"_fusegen_torch._foreach_copy_([{buffers}], [{values}])")
    if done:  # which torch does not see
        written = ", ".join(by_path[path] for path, _ in graph.updates if path in done)
        statements += [
            "if not _fusegen_torch.compiler.is_compiling():",
            f"    _fusegen_torch.autograd.graph.increment_version([{written}])",
        ]
    return in_place, statements


@dataclass(frozen=True)
class Forward:
    """The operators of a program, and the statements of its compiled forward, which call them."""

    operators: tuple[Operator, ...]
    body: list[str]


def compiled_forward(program: Program, operands: Sequence[Operand]) -> Forward:
    """The forward of ``program``. ``operands``: the inputs, then the parameters, under their names in the checks."""
    graph = program.after
    nodes = graph.by_name
    by_path = {o.path: local(o.node.name) for o in operands if o.path}
    variable = {name: by_path.get(getattr(node.op, "path", ""), local(name)) for name, node in nodes.items()}
    in_place, updates = _updates(program, by_path, variable)
    steps = runs.grouped(program, in_place)
    found: dict[str, Operator] = {}
    lines, numbers = list[_Line](), itertools.count()
    device = f"{local(operands[0].node.name)}.device"
    for step in steps:
        if isinstance(step, EagerStep):
            text = names.python(step.expr, variable, graph)
            lines.append(_Line((variable[step.output],), text, names.comment(step.comment)))
            continue
        if isinstance(step, Run):
            call = operators.call_of_run(step, f"steps{next(numbers)}", graph, variable, device)
        else:
            call = operators.call_of_kernel(step, graph, device)
        found.setdefault(call.operator.name, call.operator)
        values = {name: variable[node] for name, node in call.nodes.items()} | call.integers
        text = f"ops[{list(found).index(call.operator.name)}]({call.operator.arguments(values)})"
        lines.append(_Line(tuple(variable[node] for node in call.results), text))
    named = {name for step in program.steps for name in step.inputs} | set(graph.results)
    constants = [
        f"{variable[name]} = {names.python(ops.torch_expr(node.op, ()), variable, graph)}"
        for name, node in nodes.items()
        if name in named and isinstance(node.op, ConstOp)
    ]
    results = ", ".join(variable[name] for name in graph.outputs)
    comma = "," if graph.tuple_output and len(graph.outputs) == 1 else ""
    after = [*updates, f"return {results}{comma}"]
    computing = _without_dead(lines, "\n".join(after))
    mentioned = set(re.findall(r"\w+", "\n".join(line for line in constants + computing if not line.startswith("#"))))
    inputs = [local(node.name) for node in graph.inputs]
    sizes = [
        f"{size} = {inputs[position]}.shape[{axis}]"
        for size, (position, axis) in bound_sizes(graph).items()
        if size in mentioned
    ]
    return Forward(tuple(found.values()), [*sizes, *constants, *computing, *after])


@dataclass(frozen=True)
class _Line:
    """``targets = text``."""

    targets: tuple[str, ...]
    text: str
    comment: str = ""


def _without_dead(lines: Sequence[_Line], after: str) -> list[str]:
    """The statements, each followed by the end of what is not read behind it: its memory is free for the next."""
    alive = set(re.findall(r"\w+", after))
    found: list[str] = []
    made = {target for line in lines for target in line.targets}
    for line in reversed(lines):
        read = set(re.findall(r"\w+", line.text))
        dead = sorted(made.intersection({*line.targets, *read}) - alive)
        if dead and found:
            found.append(f"del {', '.join(dead)}")
        found.append(f"{', '.join(line.targets)} = {line.text}")
        if line.comment:
            found.append(f"# {line.comment}")
        alive = (alive | read | set(dead)) - set(line.targets)
    return found[::-1]
