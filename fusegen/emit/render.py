"""Renders a program as one Python module. Decides nothing: the program and the carried class say it all."""

from __future__ import annotations

import functools
import itertools
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2.ext import Extension

from fusegen import dims
from fusegen.carry import CarriedModel, ForwardParameter, reword
from fusegen.carry.clean import escape_words
from fusegen.emit import kernels, operators
from fusegen.emit.forward import compiled_forward
from fusegen.emit.header import header_lines
from fusegen.emit.names import local
from fusegen.emit.predicate import FLOATS, Operand, covered, differentiable, is_literal, is_watched, parameter_operands
from fusegen.emit.rules import check_rules
from fusegen.emit.structure import ModuleSnapshot
from fusegen.errors import EmitError
from fusegen.interpret import is_random
from fusegen.ir import Graph, ParamOp
from fusegen.literals import hex_float
from fusegen.plan.types import EagerStep, KernelPlan, Program
from fusegen.trace.results import Constant, Size, is_named, is_record
from fusegen.trace.unseen import HOOKS


def fake_results(plan: KernelPlan) -> str:
    """What the shape function returns: empty tensors of the outputs' shapes, over binding names."""
    texts = []
    for output in plan.results:
        shape = ", ".join(map(str, output.shape))
        texts.append(f"{plan.args[0].name}.new_empty([{shape}], dtype=_fusegen_torch.{output.dtype.value})")
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


class LineStatements(Extension):
    """``//% for x in y`` on a line of its own. Unlike Jinja's own line statements, blank lines after it stay."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        return re.sub(r"^[ \t]*//%(.*)$", r"/*%\1 %*/", source, flags=re.MULTILINE)


@functools.cache
def environment() -> jinja2.Environment:
    """The template environment: delimiters that do not collide with CUDA, no undefined names."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("fusegen", "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        extensions=[LineStatements],
        variable_start_string="${",
        variable_end_string="}",
        block_start_string="/*%",
        block_end_string="%*/",
        comment_start_string="/*#",
        comment_end_string="#*/",
    )
    env.filters.update(
        c_type=kernels.c_type,
        cpp=dims.cpp,
        parameters=kernels.parameters,
        arguments=kernels.arguments,
        forwarded=kernels.forwarded,
        part_arguments=kernels.part_arguments,
        size_parameters=kernels.size_parameters,
        size_arguments=kernels.size_arguments,
        output_sizes=kernels.output_sizes,
        result_type=lambda plan: operators.tensors(len(plan.results)),
        braced=lambda text, several: f"{{{text}}}" if several else text,
        sizes_text=kernels.sizes_text,
        widest_bytes=kernels.widest_bytes,
        widened=kernels.widened,
        absent=kernels.absent,
        element_type=kernels.element_type,
        narrowed=kernels.narrowed,
        fake_results=fake_results,
        mentioned=kernels.mentioned,
        row_text=kernels.row_text,
        in_double=kernels.in_double,
        hex_float=hex_float,
        reword=reword,
        wrapped=lambda value, before, after: f"{before}{value}{after}",
    )
    return env


def _structure(results: Any, names: Mapping[str, str]) -> str:
    """``results`` as Python text, with results in place of their numbers. ``names``: of what the module carries.

    Raises ``EmitError`` for a tuple whose class the module lacks.
    """
    if isinstance(results, int):
        return f"_fusegen_results[{results}]"
    if isinstance(results, Constant):
        return results.text
    if isinstance(results, Size):  # operands begin with the inputs
        return re.sub(r"\bx(\d+)_(\d+)\b", r"_fusegen_found[\1].shape[\2]", str(results.dim))
    if isinstance(results, dict):
        items = ", ".join(f"{key!r}: {_structure(value, names)}" for key, value in results.items())
        ordered = isinstance(results, OrderedDict)
        return f"_fusegen_collections.OrderedDict({{{items}}})" if ordered else f"{{{items}}}"
    parts = ", ".join(_structure(value, names) for value in results)
    if is_named(results):
        return f"_fusegen_torch.return_types.{type(results).__name__}(({parts},))"
    if is_record(results):
        kind = type(results).__name__
        if kind not in names:
            raise EmitError(
                f"forward returns a {kind}, which is no class of the model's file", hint="return a plain tuple"
            )
        return f"{names[kind]}({parts})"
    if isinstance(results, list):
        return f"[{parts}]"
    return f"({parts},)" if len(results) == 1 else f"({parts})"


def _paths_behind_outputs(graph: Graph) -> set[str]:
    """The parameters and buffers that some output depends on: updates of the others have no part in a gradient."""
    live = set(graph.outputs)
    for node in reversed(graph.nodes):
        if node.name in live:
            live |= set(node.inputs)
    return {node.op.path for node in graph.params if isinstance(node.op, ParamOp) and node.name in live}


def _split_parameters(carried: CarriedModel, count: int) -> tuple[list[str], list[ForwardParameter]]:
    """(expressions of the tensor inputs in ``forward``, its other parameters).

    ``*args`` are the inputs that have no parameter of their own, and another parameter: there may be more in a call.
    """
    plain = [p for p in _positional(carried) if p.given is None]
    if len(plain) >= count:
        return [p.name for p in plain[:count]], [p for p in carried.forward if p not in plain[:count]]
    names, missing = [p.name for p in plain], count - len(plain)
    for parameter in carried.forward:
        if parameter.kind == "args":
            names += [f"{parameter.name}[{i}]" for i in range(missing)]
            return names, [p for p in carried.forward if p not in plain]
    raise EmitError(
        f"forward takes {len(plain)} positional parameters, the graph has {count} inputs",
        hint="give every input a parameter of its own in forward",
    )


def _forward_values(carried: CarriedModel, names: Sequence[str], others: Sequence[ForwardParameter]) -> str:
    """What ``forward`` passes on to the checks. Of ``*args`` as many as there are inputs, or None; then the rest."""
    own = [name for name in names if name.isidentifier()]
    values = [p.name for p in others]
    if rest := len(names) - len(own):
        (args,) = (p.name for p in others if p.kind == "args")
        own.append(f"*({args}[:{rest}] + (None,) * ({rest} - len({args})))")
        values[values.index(args)] = f"len({args}) != {rest}"
    return ", ".join([carried.self_name, *own, *values])


def _positional(carried: CarriedModel) -> list[ForwardParameter]:
    return [p for p in carried.forward if p.kind in ("positional", "positional_only")]


def _recomputed(carried: CarriedModel, count: int) -> str:
    """The arguments of the reference for ``inputs``, its tensors."""
    parameters = _positional(carried)
    if all(p.given is None for p in parameters):
        return "*inputs"
    tensors = iter(range(count))
    found = [p.given if p.given is not None else next(tensors, None) for p in parameters]
    known = found[: found.index(None)] if None in found else found
    rest = [f"*inputs[{i}:]" for i in itertools.islice(tensors, 1)]  # of *args
    return ", ".join([*(value if isinstance(value, str) else f"inputs[{value}]" for value in known), *rest])


def _prelude(carried: CarriedModel) -> str:
    """The carried statements, without the imports that every generated module has."""
    lines = carried.prelude.splitlines()
    return "\n".join(line for line in lines if line != "import torch as _fusegen_torch").strip("\n")


def _parameter_text(parameter: ForwardParameter) -> str:
    """A default that is no plain value is one object, which the checks can recognise."""
    if parameter.default is None or is_literal(parameter.default):
        return str(parameter)
    return f"{parameter.name}=_fusegen_DEFAULTS[{parameter.name!r}]"


def _forward_signature(carried: CarriedModel) -> str:
    parts = [carried.self_name]
    kinds = [p.kind for p in carried.forward]
    for index, parameter in enumerate(carried.forward):
        if parameter.kind == "keyword_only" and "keyword_only" not in kinds[:index] and "args" not in kinds:
            parts.append("*")
        parts.append(_parameter_text(parameter))
        if parameter.kind == "positional_only" and "positional_only" not in kinds[index + 1 :]:
            parts.append("/")
    return ", ".join(parts)


def _reference_call(carried: CarriedModel) -> str:
    forms = {"keyword_only": "{0}={0}", "args": "*{0}", "kwargs": "**{0}"}
    return ", ".join(forms.get(p.kind, "{0}").format(p.name) for p in carried.forward)


def render(
    program: Program,
    carried: CarriedModel,
    modules: Sequence[ModuleSnapshot],
    *,
    mode_dependent: bool = False,
    title: str = "Model",
    results: Any = None,
) -> str:
    """The whole generated module. Raises ``EmitError``; the result obeys every emission rule.

    ``modules``: ``snapshot_modules`` of the traced instance. ``mode_dependent``: the graph holds only
    for the training flags in those snapshots. ``results``: lists, tuples and dicts with the number of a result in the
    place of each, where forward returns more than a tensor or a tuple of tensors.
    """
    env = environment()
    plans = program.kernels
    graph = program.after
    inputs = [Operand(f"x{i}", node) for i, node in enumerate(graph.inputs)]
    updated = [path for path, _ in graph.updates]
    params = parameter_operands((graph, program.before), updated)
    operands = [*inputs, *params]
    names, others = _split_parameters(carried, len(inputs))
    extra = [(f"a{i}", p) for i, p in enumerate(others)]
    random = any(is_random(node.op) for node in program.before.nodes)
    watched = bool(plans) and is_watched(inputs, params, modules, graph, carried)
    checks = covered(graph, inputs, params, names, extra, modules, carried, mode_dependent, random, watched)
    named = {name for step in program.steps for name in step.inputs} | set(graph.results)
    read = {getattr(n.op, "path", None) for n in graph.params if n.name in named} | set(updated)
    fused = [o for o in operands if o.path is None or o.path in read]
    reaching = _paths_behind_outputs(program.before)
    kept = dict.fromkeys(updated, "data") | dict.fromkeys(reaching.intersection(updated), "clone()")
    saved = [f"{o.variable}.{kept[o.path]}" if o.path in kept else o.variable for o in operands]
    forward = compiled_forward(program, operands)
    sources = kernels.render_sources(program, env, forward.operators, watched)
    if sources and any('"""' in text for text in (sources.cuda, sources.glue)):
        raise EmitError("kernel source contains a triple quote")
    body = forward.body
    called = {name for line in body for name in re.findall(r"\w+", line)}
    called |= {"_fusegen_tf32_conv"} if "_fusegen_rounds" in called else set()
    replayed = any(operator.replayed for operator in forward.operators)
    text = env.get_template("module.py.j2").render(
        program=program,
        carried=carried,
        prelude=_prelude(carried),
        sources=sources,
        plans=plans,
        operators=forward.operators,
        replayed=replayed,
        watched=watched,
        hooks=", ".join(f'"{name}"' for name in HOOKS),
        calls="_fusegen_calls_of(module)" if replayed else "_fusegen_calls",
        only_hopper=any(plan.only_hopper for plan in plans),
        rounds="_fusegen_rounds" in called,
        uneven=any("around=(" in line for line in body),
        enlarged=any("enlarged=(" in line for line in body),
        settings=[name for name in ("conv", "matmul") if f"_fusegen_tf32_{name}" in called],
        header=header_lines(program, carried, title),
        signature=", ".join(local(o.node.name) for o in fused),
        body=body,
        eager_count=sum(isinstance(step, EagerStep) for step in program.steps),
        check_arguments=", ".join([*(o.variable for o in inputs), *(v for v, _ in extra)]),
        checks=checks,
        inputs=inputs,
        operands=operands,
        fused_arguments=", ".join(o.variable for o in fused),
        saved=", ".join(saved),
        updated_positions=tuple(i for i, o in enumerate(operands) if o.path in updated),
        paths=tuple(f"model.{o.path}" for o in params),
        differentiable=differentiable(operands),
        integer_outputs=any(graph.node(n).type.dtype.value not in FLOATS for n in graph.outputs),
        structure="" if results is None else _structure(results, carried.names),
        many_outputs=graph.tuple_output or len(graph.outputs) > 1,
        mode_dependent=mode_dependent,
        random=random,
        forward_signature=_forward_signature(carried),
        forward_values=_forward_values(carried, names, others),
        reference_call=_reference_call(carried),
        recomputed=_recomputed(carried, len(inputs)),
        default_parameters=[p for p in carried.forward if p.default is not None and not is_literal(p.default)],
        eval_paths=tuple(m.path for m in modules if not m.training),
        training_paths=tuple(m.path for m in modules if m.training),
    )
    text = escape_words("\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n")
    check_rules(text)
    return text
