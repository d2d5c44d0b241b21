"""Which calls the compiled program covers: straight-line checks, each with the reason it gives.

The checks run on every call, so they are plain comparisons over instance dictionaries, which is three times as fast as
asking modules for attributes (about 2 us for a model of one layer). ``module``, ``x0, x1, ...`` (tensor inputs) and
``a0, ...`` (other arguments) are in scope; submodules become ``m1, m2, ...``, the dictionaries ``d0`` (of ``module``),
``d1, ...`` and parameters ``p0, p1, ...``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusegen import dims
from fusegen.carry import CarriedModel, ForwardParameter
from fusegen.emit.structure import Attribute, ModuleSnapshot, carried_name, class_expression
from fusegen.errors import EmitError
from fusegen.ir import Graph, Node, ParamOp
from fusegen.trace.unseen import HOOKS

_MANY = 12
"""Modules whose checks take as long as to look from C++ whether any has changed (0.5 us each, beside 5 to 10 us)."""
FLOATS = frozenset({"float64", "float32", "float16", "bfloat16", "complex64", "complex128"})
"""Element types that have gradients."""


@dataclass(frozen=True)
class Check:
    """``setup`` lines run first; when ``condition`` holds the call is not covered, because of ``reason``.

    ``reason`` is Python text: a string literal or an f-string.
    """

    condition: str | None
    reason: str = ""
    setup: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operand:
    """A tensor that the program reads: an input or a parameter. ``variable`` is its name in the checks."""

    variable: str
    node: Node
    path: str | None = None
    buffer: bool = False


def _any(conditions: Sequence[str]) -> str:
    return " or ".join(conditions)


def formatted(before: str, expression: str, after: str) -> str:
    """An f-string with one field, which comes out as text in double quotes."""
    fixed = [t.replace("\\", "\\\\").replace('"', "'").replace("{", "{{").replace("}", "}}") for t in (before, after)]
    return f'f"{fixed[0]}{{{expression}}}{fixed[1]}"'


def text(value: str) -> str:
    """A Python string literal in double quotes."""
    return '"' + value.replace("\\", "\\\\").replace('"', "'") + '"'


def _environment_checks() -> Iterator[Check]:
    yield Check("_fusegen_torch.is_autocast_enabled()", text("autocast is on"))
    transforms = "_fusegen_torch._C._are_functorch_transforms_active() or _fusegen_forward_ad._current_level >= 0"
    yield Check(
        f"not compiling and ({transforms})", text("a torch.func transform or forward-mode differentiation is active")
    )
    yield Check("any(_fusegen_global_hooks)", text("global module hooks are installed"))


def _needed_sizes(inputs: Sequence[Operand], graph: Graph) -> set[str]:
    """Size symbols that a check of another axis or a constraint mentions."""
    needed = set(re.findall(r"\w+", " ".join(graph.constraints)))
    seen: set[object] = set()
    for size in (d for operand in inputs for d in operand.node.type.shape):
        if isinstance(size, str) and (size in seen or not size.isidentifier()):
            needed.update(dims.symbols((size,)))
        seen.add(size)
    return needed


def _input_checks(inputs: Sequence[Operand], names: Sequence[str], graph: Graph) -> Iterator[Check]:
    known: dict[str, tuple[str, int]] = {}
    needed = _needed_sizes(inputs, graph)
    first = inputs[0].variable if inputs else None
    for operand, name in zip(inputs, names, strict=True):
        x, type_ = operand.variable, operand.node.type
        yield Check(
            f"{x}.__class__ not in _fusegen_TENSORS and not compiling",
            f'f"input {name} is a {{type({x}).__name__}}, not a plain tensor"',
        )
        yield Check(f"not {x}.is_cuda", f'f"input {name} is on {{{x}.device}}, not on a CUDA device"')
        yield Check(
            f"{x}.dtype is not _fusegen_torch.{type_.dtype.value}",
            f'f"input {name} is {{{x}.dtype}}, compiled for torch.{type_.dtype.value}"',
        )
        if x == first:
            yield Check(None, "", (f"device = {x}.get_device()",))
        else:
            yield Check(f"{x}.get_device() != device", text(f"input {name} is on another device than the first input"))
        yield Check(
            f"{x}.layout is not _fusegen_torch.strided or {x}.is_nested", text(f"input {name} is not a strided tensor")
        )
        yield from _shape_checks(x, name, operand.node, known, needed)
    for operand, name in zip(inputs, names, strict=True):  # now that every size has a name
        yield from _size_checks(operand, name, known)
    for operand in inputs:
        if operand.node.type.shape:
            yield Check(f"0 in {operand.variable}_shape", '""')
    for constraint in graph.constraints:
        yield Check(f"not ({constraint})", text(f"sizes do not satisfy {constraint}"))


def _shape_checks(
    x: str, name: str, node: Node, known: dict[str, tuple[str, int]], needed: set[str]
) -> Iterator[Check]:
    """Rank and constant sizes; the first axis of a size binds its symbol for later checks."""
    type_ = node.type
    shape = f"[{', '.join('*' if isinstance(d, str) else str(d) for d in type_.shape)}]"
    conditions = [f"len({x}_shape) != {type_.rank}"]
    setup: list[str] = []
    for axis, size in enumerate(type_.shape):
        if isinstance(size, int):
            conditions.append(f"{x}_shape[{axis}] != {size}")
        elif size.isidentifier() and size not in known:
            known[size] = (x, axis)
            setup += [f"{size} = {x}_shape[{axis}]"] if size in needed else []
    reason = f'f"input {name} has shape {{tuple({x}_shape)}}, compiled for {shape}"'
    yield Check(_any(conditions), reason, (f"{x}_shape = {x}.shape",))
    if setup:
        yield Check(None, "", tuple(setup))


def _size_checks(operand: Operand, name: str, known: Mapping[str, tuple[str, int]]) -> Iterator[Check]:
    """Sizes that are another axis's, or arithmetic over others."""
    x, conditions = operand.variable, []
    for axis, size in enumerate(operand.node.type.shape):
        if isinstance(size, int) or known.get(size) == (x, axis):
            continue
        missing = [s for s in dims.symbols((size,)) if s not in known]
        if missing:
            raise EmitError(f"size {missing[0]!r} is not the size of an input axis", node=operand.node.name)
        conditions.append(f"{x}_shape[{axis}] != {size}")
    if conditions:
        yield Check(_any(conditions), text(f"input {name} has sizes that do not fit together"))


def _module_checks(
    modules: Sequence[ModuleSnapshot], carried: CarriedModel, mode_dependent: bool
) -> tuple[list[Check], dict[str, str]]:
    """Checks of every submodule, and path -> variable."""
    variables: dict[str, str] = {}
    checks: list[Check] = []
    aliases = {module.path for module in modules if module.same_as is not None}
    for index, module in enumerate(modules):
        if module.same_as is not None:
            variables[module.path] = variables[module.same_as]
            if module.path.rpartition(".")[0] not in aliases:  # else it is where the owner's first name has it
                checks.append(_is_one("_modules", module.path, module.same_as, variables))
            continue
        variable = "module" if module.path == "" else f"m{index}"
        variables[module.path] = variable
        setup: tuple[str, ...] = ()
        label = f"submodule {module.path}" if module.path else "the module"
        if module.path:
            owner, _, name = module.path.rpartition(".")
            setup = (f"{variable} = {_slot(variables[owner], '_modules')}.get({name!r})",)
        kind = class_expression(module, carried)
        wrong = (
            f"{variable}.__class__ is not {kind}"
            if kind
            else f"{variable}.__class__.__qualname__ != {module.class_name!r}"
        )
        checks.append(
            Check(wrong, f'f"{label} is a {{type({variable}).__qualname__}}, compiled as {module.class_name}"', setup)
        )
        checks.append(Check(None, "", (f"{_dictionary(variable)} = {variable}.__dict__",)))
        conditions = [] if module.children is None else [_children(variable, module.children)]
        if module.path:
            changed = {"_forward_pre_hooks": module.hooks.format(variable)} if module.hooks else {}
            conditions += [changed.get(slot, _slot(variable, slot)) for slot in HOOKS]
            conditions.append(f'"forward" in {_dictionary(variable)}')
        for slot in module.absent:
            conditions.append(f"{_slot(variable, '_parameters')}.get({slot!r}) is not None")
        if conditions:
            checks.append(Check(_any(conditions), text(f"{label} has hooks, or parts that it had not when compiled")))
        checks += [_is_one(slot, path, first, variables) for slot, path, first in module.tied]
        if mode_dependent:
            word = "training" if module.training else "eval"
            checks.append(
                Check(f"{_slot(variable, 'training')} is not {module.training}", text(f"{label} is not in {word} mode"))
            )
        checks += _attribute_checks(module, variable, label, carried)
    return checks, variables


def _is_one(slot: str, path: str, first: str, variables: Mapping[str, str]) -> Check:
    """A module, parameter or buffer under another name is still the one under its first."""

    def found(path: str) -> str:
        owner, _, name = path.rpartition(".")
        return f"{_slot(variables[owner], slot)}.get({name!r})"

    return Check(f"{found(path)} is not {found(first)}", text(f"{path} is not {first}, which it was when compiled"))


def _children(variable: str, count: int) -> str:
    children = _slot(variable, "_modules")
    return f"len({children}) != {count}" if count else children


def _dictionary(variable: str) -> str:
    """The variable for the instance dictionary of a module."""
    return "d0" if variable == "module" else f"d{variable[1:]}"


def _slot(variable: str, name: str) -> str:
    """An attribute of a module's instance, by its dictionary."""
    return f"{_dictionary(variable)}[{name!r}]"


def _changed(attribute: Attribute, slot: str, carried: CarriedModel) -> str:
    """The condition under which an attribute is not what it was when compiled."""
    if not attribute.carried:
        return attribute.condition.format(slot, repr(attribute.kind))
    name = carried_name(attribute.kind, carried)
    condition = attribute.condition.format(slot, repr(name))
    if attribute.instance and name != attribute.kind and "<locals>" not in name:
        return f"type({slot}) is not {name} and {condition}"  # what a call made has the name that it was given
    return condition


def _attribute_checks(module: ModuleSnapshot, variable: str, label: str, carried: CarriedModel) -> Iterator[Check]:
    conditions = [_changed(a, _slot(variable, a.name), carried) for a in module.attributes]
    if not conditions:
        return
    if module.path and module.described:
        yield Check(_any(conditions), formatted(f"{label} is ", variable, f", compiled for {module.described}"))
        return
    for attribute, condition in zip(module.attributes, conditions, strict=True):
        reason = formatted(
            f"{label}: {attribute.name} is ",
            f"{_slot(variable, attribute.name)}!r",
            f", compiled for {attribute.compiled}",
        )
        yield Check(condition, reason)


def _parameter_checks(params: Sequence[Operand], variables: Mapping[str, str], device: bool) -> Iterator[Check]:
    """``device``: an input has said where the call is; else the first parameter does."""
    first = "the first input" if device else "the first parameter"
    for operand in params:
        p, path, type_ = operand.variable, operand.path or "", operand.node.type
        owner, _, name = path.rpartition(".")
        slot = "_buffers" if operand.buffer else "_parameters"
        setup = (f"{p} = {_slot(variables[owner], slot)}.get({name!r})",)
        yield Check(
            f"{p}.__class__ not in _fusegen_TENSORS and ({p} is None or not compiling)",
            text(f"{path} is not a plain parameter"),
            setup,
        )
        yield Check(
            f"{p}.dtype is not _fusegen_torch.{type_.dtype.value} or {p}.shape != {tuple(type_.shape)}",
            f'f"{path} is {{{p}.dtype}} {{list({p}.shape)}}, compiled for {type_}"',
        )
        if device:
            yield Check(f"{p}.get_device() != device", text(f"{path} is on another device than {first}"))
        else:
            yield Check(f"not {p}.is_cuda", f'f"{path} is on {{{p}.device}}, not on a CUDA device"')
            yield Check(None, "", (f"device = {p}.get_device()",))
            device = True


def is_literal(text_: str) -> bool:
    """True for the text of a plain value."""
    try:
        ast.literal_eval(text_)
    except (ValueError, SyntaxError):
        return False
    return True


def _argument_checks(extra: Sequence[tuple[str, ForwardParameter]]) -> Iterator[Check]:
    """Arguments that are not tensors must have the values that were compiled in: the example's, or their defaults."""
    for variable, parameter in extra:
        if parameter.kind in ("args", "kwargs"):
            what = "has another number of values" if parameter.kind == "args" else "is given"
            yield Check(variable, text(f"argument {parameter.name} {what}"))
            continue
        default, what = parameter.default, "its default"
        if parameter.given is not None:
            default, what = parameter.given, parameter.given
        if default is None:
            raise EmitError(f"forward parameter {parameter.name!r} is neither a tensor input nor has a default")
        if not is_literal(default):
            condition = f"{variable} is not _fusegen_DEFAULTS[{parameter.name!r}]"
        elif default in ("None", "True", "False"):
            condition = f"{variable} is not {default}"
        else:
            condition = f"{variable}.__class__ is not ({default}).__class__ or {variable} != {default}"
        yield Check(condition, text(f"argument {parameter.name} differs from {what}, which was compiled in"))


def is_watched(
    inputs: Sequence[Operand],
    params: Sequence[Operand],
    modules: Sequence[ModuleSnapshot],
    graph: Graph,
    carried: CarriedModel,
) -> bool:
    """Whether a module that has passed the checks is looked at from C++ for changes, and not checked again."""
    own = sum(module.same_as is None for module in modules)
    return own >= _MANY and bool(inputs and params) and not any(path in carried.held for path, _ in graph.updates)


def covered(
    graph: Graph,
    inputs: Sequence[Operand],
    params: Sequence[Operand],
    names: Sequence[str],
    extra: Sequence[tuple[str, ForwardParameter]],
    modules: Sequence[ModuleSnapshot],
    carried: CarriedModel,
    mode_dependent: bool,
    random: bool = False,
    watched: bool = False,
) -> list[Check]:
    """Every check of a call, cheapest and most telling first. ``random``: the program draws random numbers.

    ``watched``: modules that have passed are looked at for changes (``is_watched``).
    """
    if not inputs and not params:
        raise EmitError("forward reads neither an input nor a parameter", hint="there is nothing to compile in it")
    owners = {(p.path or "").rpartition(".")[0] for p in params}
    for owner in sorted(owners - {m.path for m in modules}):
        raise EmitError(f"no snapshot of submodule {owner!r}, which holds a parameter of the program")
    dense = [
        Check(
            f"not {operand.variable}.is_contiguous()",
            text(f"input {name} is not contiguous, and eager draws random numbers in memory order"),
        )
        for operand, name in zip(inputs, names, strict=True)
        if random
    ]
    module_checks, variables = _module_checks(modules, carried, mode_dependent)
    passed = Check(
        "known is not None",
        f"({', '.join(operand.variable for operand in inputs)}, *known)",
        ("known = None if compiling else _fusegen_known(module, device)",),
    )
    counted = [own for own in extra if own[1].kind == "args"]  # with None for inputs that are missing
    return [
        *_argument_checks(counted),
        *_input_checks(inputs, names, graph),
        *dense,
        *_argument_checks([own for own in extra if own not in counted]),
        *_environment_checks(),
        *([passed] if watched else []),
        *module_checks,
        *_parameter_checks(params, variables, bool(inputs)),
        *_compiled_gradients([*inputs, *params]),
        *_kept_gradients([*inputs, *params], carried, graph),
        # Under torch.compile the load is a constant call: a guard on what it changes would never hold.
        Check("(compiling or device not in _fusegen_devices) and _fusegen_load(device)", "_fusegen_load(device)"),
    ]


def _gradient_wanted(operands: Sequence[Operand]) -> str | None:
    """The condition that a gradient may be asked for; None: none can be."""
    wanted = [f"{o.variable}.requires_grad" for o in differentiable(operands)]
    return f"_fusegen_torch.is_grad_enabled() and ({_any(wanted)})" if wanted else None


def _compiled_gradients(operands: Sequence[Operand]) -> Iterator[Check]:
    """Under torch.compile the reference runs where a gradient may be asked for."""
    if wanted := _gradient_wanted(operands):
        yield Check(f"compiling and {wanted}", '""')


def _kept_gradients(operands: Sequence[Operand], carried: CarriedModel, graph: Graph) -> Iterator[Check]:
    """A tensor that forward keeps in an attribute takes the gradient's graph along to the next call."""
    kept = [path for path, _ in graph.updates if path in carried.held]
    if kept and (wanted := _gradient_wanted(operands)):
        yield Check(wanted, text(f"{kept[0]} is kept from call to call, and a gradient may be asked for through it"))


def differentiable(operands: Sequence[Operand]) -> list[Operand]:
    """The operands of floating-point types."""
    return [o for o in operands if o.node.type.dtype.value in FLOATS]


def parameter_operands(program_graphs: Sequence[Graph], updates: Sequence[str]) -> list[Operand]:
    """Every parameter and buffer of the graphs, once each, in first-use order."""
    found: dict[str, Operand] = {}
    for graph in program_graphs:
        for node in graph.params:
            if isinstance(node.op, ParamOp) and node.op.path not in found:
                variable = f"p{len(found)}"
                found[node.op.path] = Operand(variable, node, node.op.path, node.op.buffer)
    missing = [path for path in updates if path not in found]
    if missing:
        raise EmitError(f"buffer {missing[0]!r} is updated, but no graph declares it")
    return list(found.values())
