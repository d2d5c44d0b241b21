"""Renders a program as one Python module. Decides nothing: the program and the carried class say it all."""

from __future__ import annotations

import ast
import builtins
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2.ext import Extension

from fusegen import dims, ops
from fusegen.carry import CarriedModel, ForwardParameter, reword
from fusegen.carry.clean import escape_words
from fusegen.emit import kernels
from fusegen.emit.header import header_lines
from fusegen.emit.predicate import FLOATS, Operand, covered, differentiable, is_literal, parameter_operands
from fusegen.emit.rules import check_rules
from fusegen.emit.structure import ModuleSnapshot
from fusegen.errors import EmitError
from fusegen.interpret import bound_sizes, is_random
from fusegen.ir import ConstOp, DType, Graph, ParamOp
from fusegen.literals import hex_float
from fusegen.plan.details import ContractionPlan, ConvApartPlan, ConvBoxesPlan, DirectConvPlan
from fusegen.plan.types import EagerStep, KernelPlan, KernelStep, Program
from fusegen.plan.updates import added
from fusegen.trace.results import Constant, Size, is_named


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
        schema=kernels.schema,
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


def _local(name: str) -> str:
    """A node's name as a local variable of the compiled forward."""
    return f"v_{name}"


class _Locals(ast.NodeTransformer):
    """Renames the variables of an expression."""

    def __init__(self, names: Mapping[str, str]):
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.names.get(node.id, node.id)
        return node


def _expression(text: str, renames: _Locals, graph: Graph) -> str:
    """``text`` over the variables of the compiled forward. Raises ``EmitError`` for a name that it lacks."""
    tree = ast.parse(text, mode="eval")
    known = {*renames.names, *graph.sizes, *dir(builtins)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in known:
            raise EmitError(f"a step uses {node.id!r}, which a generated module lacks: {text}")
    return ast.unparse(renames.visit(tree))


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


def _tf32(plan: KernelPlan, variables: Mapping[str, str]) -> list[str]:
    """The argument that says whether a kernel may compute in TF32, where it has one."""
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
    return [
        f'_fusegen_rounds("{plan.name}", {variables[detail.source]}, {variables[detail.weight]}, '
        f"{', '.join(map(str, structure))}{around})"
    ]


def _body(program: Program, operands: Sequence[Operand]) -> list[str]:
    """The statements of the compiled forward."""
    graph = program.after
    nodes = graph.by_name
    by_path = {o.path: _local(o.node.name) for o in operands if o.path}
    variable = {name: by_path.get(getattr(node.op, "path", ""), _local(name)) for name, node in nodes.items()}
    renames = _Locals({"torch": "_fusegen_torch", **{_local(name): text for name, text in variable.items()}})
    lines: list[str] = []
    in_place, updates = _updates(program, by_path, variable)
    kernels = {plan.name: i for i, plan in enumerate(program.kernels)}
    for step in program.steps:
        if isinstance(step, EagerStep) and step.output in in_place:
            continue
        if isinstance(step, KernelStep):
            targets = ", ".join(variable[name] for name in step.outputs)
            arguments = [variable[name] for name in step.inputs]
            by_name = dict(zip((arg.name for arg in step.plan.args), arguments, strict=True))
            arguments += [*step.given, *_tf32(step.plan, by_name)]
            lines.append(f"{targets} = ops[{kernels[step.plan.name]}]({', '.join(arguments)})")
            continue
        if step.comment:
            lines.append("# " + " ".join(reword(step.comment).split()))
        lines.append(f"{variable[step.output]} = {_expression(step.expr, renames, graph)}")
    named = {name for step in program.steps for name in step.inputs} | set(graph.results)
    constants = [
        f"{variable[name]} = {_expression(ops.torch_expr(node.op, ()), renames, graph)}"
        for name, node in nodes.items()
        if name in named and isinstance(node.op, ConstOp)
    ]
    mentioned = set(re.findall(r"\w+", "\n".join(line for line in constants + lines if not line.startswith("#"))))
    inputs = [_local(node.name) for node in graph.inputs]
    sizes = [
        f"{size} = {inputs[position]}.shape[{axis}]"
        for size, (position, axis) in bound_sizes(graph).items()
        if size in mentioned
    ]
    results = ", ".join(variable[name] for name in graph.outputs)
    comma = "," if graph.tuple_output and len(graph.outputs) == 1 else ""
    return [*sizes, *constants, *lines, *updates, f"return {results}{comma}"]


def _structure(results: Any) -> str:
    """``results`` as Python text, with results in place of their numbers."""
    if isinstance(results, int):
        return f"_fusegen_results[{results}]"
    if isinstance(results, Constant):
        return results.text
    if isinstance(results, Size):  # operands begin with the inputs
        return re.sub(r"\bx(\d+)_(\d+)\b", r"_fusegen_found[\1].shape[\2]", str(results.dim))
    if isinstance(results, dict):
        return "{" + ", ".join(f"{key!r}: {_structure(value)}" for key, value in results.items()) + "}"
    parts = ", ".join(map(_structure, results))
    if is_named(results):
        return f"_fusegen_torch.return_types.{type(results).__name__}(({parts},))"
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
    """(expressions of the tensor inputs in ``forward``, its other parameters)."""
    plain = [p for p in _positional(carried) if p.given is None]
    if len(plain) >= count:
        return [p.name for p in plain[:count]], [p for p in carried.forward if p not in plain[:count]]
    raise EmitError(
        f"forward takes {len(plain)} positional parameters, the graph has {count} inputs",
        hint="give every input a parameter of its own in forward",
    )


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
    return ", ".join(value if isinstance(value, str) else f"inputs[{value}]" for value in known)


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
    sources = kernels.render_sources(program, env)
    if sources and any('"""' in text for text in (sources.cuda, sources.glue)):
        raise EmitError("kernel source contains a triple quote")
    graph = program.after
    inputs = [Operand(f"x{i}", node) for i, node in enumerate(graph.inputs)]
    updated = [path for path, _ in graph.updates]
    params = parameter_operands((graph, program.before), updated)
    operands = [*inputs, *params]
    names, others = _split_parameters(carried, len(inputs))
    extra = [(f"a{i}", p) for i, p in enumerate(others)]
    random = any(is_random(node.op) for node in program.before.nodes)
    checks = covered(graph, inputs, params, names, extra, modules, carried, mode_dependent, random)
    named = {name for step in program.steps for name in step.inputs} | set(graph.results)
    read = {getattr(n.op, "path", None) for n in graph.params if n.name in named} | set(updated)
    fused = [o for o in operands if o.path is None or o.path in read]
    reaching = _paths_behind_outputs(program.before)
    kept = dict.fromkeys(updated, "data") | dict.fromkeys(reaching.intersection(updated), "clone()")
    saved = [f"{o.variable}.{kept[o.path]}" if o.path in kept else o.variable for o in operands]
    body = _body(program, operands)
    called = {name for line in body for name in re.findall(r"\w+", line)}
    called |= {"_fusegen_tf32_conv"} if "_fusegen_rounds" in called else set()
    text = env.get_template("module.py.j2").render(
        program=program,
        carried=carried,
        prelude=_prelude(carried),
        sources=sources,
        plans=plans,
        only_hopper=any(plan.only_hopper for plan in plans),
        rounds="_fusegen_rounds" in called,
        uneven=any("around=(" in line for line in body),
        enlarged=any("enlarged=(" in line for line in body),
        settings=[name for name in ("conv", "matmul") if f"_fusegen_tf32_{name}" in called],
        header=header_lines(program, carried, title),
        signature=", ".join(_local(o.node.name) for o in fused),
        body=body,
        eager_count=len(program.steps) - len(plans),
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
        structure="" if results is None else _structure(results),
        many_outputs=graph.tuple_output or len(graph.outputs) > 1,
        mode_dependent=mode_dependent,
        random=random,
        forward_signature=_forward_signature(carried),
        forward_values=", ".join([carried.self_name, *names, *(p.name for p in others)]),
        reference_call=_reference_call(carried),
        recomputed=_recomputed(carried, len(inputs)),
        default_parameters=[p for p in carried.forward if p.default is not None and not is_literal(p.default)],
        eval_paths=tuple(m.path for m in modules if not m.training),
        training_paths=tuple(m.path for m in modules if m.training),
    )
    text = escape_words("\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n")
    check_rules(text)
    return text
