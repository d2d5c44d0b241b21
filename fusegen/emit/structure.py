"""What of a module the compiled program has baked in, as the generated module checks it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import BuiltinFunctionType, FunctionType

import torch
from torch import nn

from fusegen.carry import CarriedModel
from fusegen.ir import Frozen
from fusegen.literals import python_float
from fusegen.trace.unseen import torchs_hooks

_STATE = frozenset(nn.Module().__dict__) | {"training"}


class Attribute(Frozen):
    """``condition``: Python text over ``{0}``, the attribute, that holds when it was changed.

    ``kind``: for an attribute known by its function or class alone, the qualified name of that, ``{1}`` in the text.
    ``instance``: it is known by its class. ``carried``: that is defined beside the model, so the generated module has
    it under a name of its own.
    """

    name: str
    condition: str
    compiled: str
    kind: str = ""
    carried: bool = False
    instance: bool = False


class ModuleSnapshot(Frozen):
    """One submodule: its class, attributes, number of children, and the parameters that it lacks.

    ``same_as``: the first name of a module that has several; under that alone there is more of it. ``tied``: its
    parameters and buffers that have a name before, as slot, path and the path of that first one.
    """

    path: str
    same_as: str | None = None
    class_module: str
    class_name: str
    attributes: tuple[Attribute, ...] = ()
    children: int | None = None
    absent: tuple[str, ...] = ()
    tied: tuple[tuple[str, str, str], ...] = ()
    training: bool = True
    described: str = ""
    hooks: str = ""
    """Where torch computes its weights before its forward, which is part of the trace: Python text over ``{0}``, the
    module, that holds when those hooks were changed.
    """


def _literal(value: object) -> str | None:
    """``value`` as Python text when it is built of plain values."""
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, (int, str)):  # members of enumerations, which are equal to their values, too
        return int.__repr__(value) if isinstance(value, int) else str.__repr__(value)
    if isinstance(value, float):
        return python_float(value)
    if isinstance(value, (tuple, list)):
        parts = [_literal(v) for v in value]
        if any(p is None for p in parts) or type(value) not in (tuple, list):
            return None
        inner = ", ".join(str(p) for p in parts)
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(parts) == 1 else f"({inner})"
    if isinstance(value, dict) and type(value) is dict:
        items = [(_literal(k), _literal(v)) for k, v in value.items()]
        if any(k is None or v is None for k, v in items):
            return None
        return "{" + ", ".join(f"{k}: {v}" for k, v in items) + "}"
    if isinstance(value, (torch.dtype, torch.memory_format)):
        return f"_fusegen_{value}"
    if isinstance(value, torch.device):
        return f"_fusegen_torch.{value!r}"
    return None


def _braced(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _attribute(name: str, value: object, home: str) -> Attribute:
    text = _literal(value)
    if value is None or isinstance(value, bool):
        return Attribute(name=name, condition=f"{{0}} is not {value}", compiled=str(value))
    if text is not None:
        # A NaN, alone or among others, equals nothing: its text does.
        condition = f"repr({{0}}) != {_braced(repr(repr(value)))}" if "nan" in text else f"{{0}} != {_braced(text)}"
        return Attribute(name=name, condition=condition, compiled=text)
    known = value if isinstance(value, (FunctionType, BuiltinFunctionType)) else type(value)
    function = known is value
    return Attribute(
        name=name,
        condition='getattr({0}, "__qualname__", "") != {1}' if function else "type({0}).__qualname__ != {1}",
        compiled=known.__qualname__ if function else f"a {known.__qualname__}",
        kind=known.__qualname__,
        carried=known.__module__ == home,
        instance=not function,
    )


def _attributes(module: nn.Module, home: str) -> Iterator[Attribute]:
    for name, value in vars(module).items():
        if name not in _STATE:
            yield _attribute(name, value, home)


def _tensor_slots(module: nn.Module) -> Iterator[tuple[str, str, object]]:
    for slot in ("_parameters", "_buffers"):
        for name, value in getattr(module, slot).items():
            yield slot, name, value


def _tied(path: str, module: nn.Module, known: dict[tuple[str, int], str]) -> Iterator[tuple[str, str, str]]:
    """``ModuleSnapshot.tied``; ``known``: the first names of the tensors so far, to which the module's are added."""
    for slot, name, value in _tensor_slots(module):
        full = f"{path}.{name}" if path else name
        if value is not None and (first := known.setdefault((slot, id(value)), full)) != full:
            yield slot, full, first


def _hooks(hooks: Sequence[object]) -> str:
    """``ModuleSnapshot.hooks``: of their classes, and of their attributes those that have a text."""
    if not hooks:
        return ""
    plain = [{name: text for name, value in vars(hook).items() if (text := _literal(value))} for hook in hooks]
    names = sorted({name for attributes in plain for name in attributes})
    found = ["type(hook).__qualname__", *(f"hook.__dict__.get({name!r})" for name in names)]
    compiled = [
        (repr(type(hook).__qualname__), *(attributes.get(name, "None") for name in names))
        for hook, attributes in zip(hooks, plain, strict=True)
    ]
    wanted = ", ".join(f"({', '.join(values)},)" for values in compiled)
    return f"[({', '.join(found)},) for hook in {{0}}._forward_pre_hooks.values()] != {_braced(f'[{wanted}]')}"


def snapshot_modules(model: nn.Module) -> tuple[ModuleSnapshot, ...]:
    """A snapshot of every name of a submodule of the instance that was traced; the model itself has path ``""``."""
    found = []
    modules: dict[int, str] = {}
    tensors: dict[tuple[str, int], str] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        kind = type(module)
        if (known := modules.setdefault(id(module), path)) != path:
            found.append(
                ModuleSnapshot(path=path, same_as=known, class_module=kind.__module__, class_name=kind.__qualname__)
            )
            continue
        found.append(
            ModuleSnapshot(
                path=path,
                class_module=kind.__module__,
                class_name=kind.__qualname__,
                attributes=tuple(_attributes(module, type(model).__module__)),
                children=len(module._modules),
                absent=tuple(name for _, name, value in _tensor_slots(module) if value is None),
                tied=tuple(_tied(path, module, tensors)),
                training=module.training,
                described=" ".join(repr(module).split()) if not module._modules else "",
                hooks=_hooks(torchs_hooks(module)),
            )
        )
    return tuple(found)


def class_expression(module: ModuleSnapshot, carried: CarriedModel) -> str | None:
    """The class of a submodule as text of the generated module, if it can be named there."""
    if module.path == "":
        return "ModelNew"
    if module.class_module == "torch" or module.class_module.startswith("torch.nn."):
        if not _is_found(module):
            return None
        return f"_fusegen_{module.class_module}.{module.class_name}"
    carries = module.class_name.partition(".")[0] in carried.names and "<locals>" not in module.class_name
    return carried_name(module.class_name, carried) if carries else None


def _is_found(module: ModuleSnapshot) -> bool:
    """Whether the class is where its name says: parametrised modules have classes that torch makes."""
    found: object = sys.modules.get(module.class_module)
    for name in module.class_name.split("."):
        found = getattr(found, name, None)
    return found is not None


def carried_name(qualified: str, carried: CarriedModel) -> str:
    """The qualified name in the generated module of what is defined beside the model: ``Model.f`` is ``ModelNew.f``."""
    head, dot, rest = qualified.partition(".")
    names = {**carried.names, carried.class_name: "ModelNew"}
    return names.get(head, head) + dot + rest
