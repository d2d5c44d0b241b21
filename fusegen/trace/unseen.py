"""What a trace cannot show, found in the source of a model's methods: such a graph would stand for something else."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import nn

from fusegen.errors import TraceError

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_WHERE = "asks where it runs, and is traced elsewhere: without a GPU, in no mode"
_ASKED = {
    "is_cuda": _WHERE,
    "is_cpu": _WHERE,
    "is_grad_enabled": _WHERE,
    "is_autocast_enabled": _WHERE,
    "autocast": "computes in other element types than the trace does",
}
_GRADIENTS = ("requires_grad", "grad_fn")
"""Mostly asked before what keeps memory, which changes no result: the trace has gradients."""


def _methods(kind: type) -> Iterator[FunctionType]:
    """The forward of a class that is not torch's, and the methods that it names, and those that they name."""
    pending, seen = ["forward"], set[str]()
    while pending:
        name = pending.pop()
        function = inspect.getattr_static(kind, name, None)
        function = inspect.unwrap(getattr(function, "__func__", function))  # of a static or class method, decorated
        if name in seen or not isinstance(function, FunctionType) or function.__module__.startswith("torch."):
            continue
        seen.add(name)
        pending += function.__code__.co_names
        yield function


def _may_be_off(call: ast.AST) -> bool:
    """``autocast(..., enabled=...)``, but for a literal True: ``no_autocast`` sees what that is."""
    return isinstance(call, ast.Call) and any(
        k.arg == "enabled" and not (isinstance(k.value, ast.Constant) and k.value.value) for k in call.keywords
    )


@contextmanager
def no_autocast() -> Iterator[None]:
    """Within it, autocast that is enabled is a ``TraceError``."""
    begin = torch.autocast.__init__

    def checked(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        if inspect.signature(begin).bind(self, device_type, *args, **kwargs).arguments.get("enabled", True):
            frame = sys._getframe(1)
            raise TraceError(
                f"forward {_ASKED['autocast']} (autocast)",
                source=f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}",
                hint="convert the tensors instead",
            )
        begin(self, device_type, *args, **kwargs)

    setattr(torch.autocast, "__init__", checked)  # noqa: B010 - its declared type is a method's
    try:
        yield
    finally:
        setattr(torch.autocast, "__init__", begin)  # noqa: B010


def _reason(node: ast.AST) -> tuple[str, str] | None:
    """(what a node of a method is, why the trace does not show it), if it does not."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name, value=ast.Attribute(attr="data"))) if name.endswith("_"):
            return f"data.{name}", "writes to a tensor behind the trace's back"
        case ast.Compare(
            left=ast.Attribute(attr="type", value=ast.Attribute(attr="device")),
            comparators=[ast.Constant(value="cuda" | "cpu")],
        ):
            return "device.type", _WHERE
        case ast.Attribute(attr=name) | ast.Name(id=name) if name in _ASKED:
            return name, _ASKED[name]
    return None


def check(model: nn.Module) -> tuple[str, ...]:
    """Notes on methods of the model that ask a tensor for its gradient.

    Raises ``TraceError`` where one does what a trace would not show, or hooks would run twice.
    """
    if (model._forward_hooks or model._forward_pre_hooks) and not torchs_hooks(model):
        raise TraceError(
            "the model itself has hooks, which are part of the trace and would run around the compiled forward again",
            hint="do in forward what they do, or register them after construction",
        )
    notes: dict[str, None] = {}
    kinds = dict.fromkeys(type(module) for module in model.modules())
    for function in dict.fromkeys(function for kind in kinds for function in _methods(kind)):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        except (OSError, TypeError, SyntaxError):
            continue
        off = {id(call.func) for call in ast.walk(tree) if isinstance(call, ast.Call) and _may_be_off(call)}
        for node in ast.walk(tree):
            line = function.__code__.co_firstlineno + getattr(node, "lineno", 1) - 1
            source = f"{Path(function.__code__.co_filename).name}:{line}"
            if id(node) not in off and (found := _reason(node)):
                name, why = found
                raise TraceError(
                    f"{function.__qualname__} {why} ({name})",
                    source=source,
                    hint="say it once, in the constructor" if why is _WHERE else "convert or copy the tensor instead",
                )
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in _GRADIENTS:
                notes[f"{function.__qualname__} reads {node.attr} ({source}): compiled as with gradients"] = None
    return tuple(notes)


def torchs_hooks(module: nn.Module) -> tuple[object, ...]:
    """The hooks of ``module`` where all are torch's own, which make weights of parameters: the trace shows that. None
    where it has others.
    """
    hooks = tuple(module._forward_pre_hooks.values())
    others = any(getattr(module, name) for name in HOOKS if name != "_forward_pre_hooks")
    known = not others and all(type(hook).__module__.startswith("torch.nn.utils.") for hook in hooks)
    return hooks if known else ()


def hooked(model: nn.Module) -> tuple[str, ...]:
    """Submodules with other hooks: calls of a generated file run the reference forward beside them."""
    return tuple(
        path
        for path, module in model.named_modules()
        if path and any(getattr(module, name) for name in HOOKS) and not torchs_hooks(module)
    )
