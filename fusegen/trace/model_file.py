"""A model file: loaded, and instantiated without data."""

from __future__ import annotations

import importlib.util
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fusegen.errors import ModelFileError


@dataclass(frozen=True)
class LoadedModel:
    """A model file's parts. ``source`` is its text; calling the functions runs the file's Python."""

    path: Path
    source: str
    model_class: type[nn.Module]
    get_inputs: Callable[[], list[Any]]
    get_init_inputs: Callable[[], list[Any]]
    module: ModuleType


def location(error: BaseException, path: Path) -> str | None:
    """``file:line`` of the innermost frame of ``error`` inside the model file."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path.name}:{error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f"{path.name}:{frames[-1].lineno}" if frames else None


def forward_line(model: nn.Module, path: Path) -> str | None:
    """``file:line`` where ``model``'s forward begins, if that is in the model file."""
    code = getattr(type(model).forward, "__code__", None)
    return f"{path.name}:{code.co_firstlineno}" if code is not None and code.co_filename == str(path) else None


def first_line(error: BaseException) -> str:
    """What ``error`` says, or its type where it says nothing."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def load_model_file(path: Path) -> LoadedModel:
    """Import a model file. Raises ``ModelFileError`` when it cannot be, or lacks what fusegen needs."""
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"cannot read {path}: {error}") from error
    path = path.resolve()
    name = f"fusegen_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModelFileError(f"{path} is not a Python file", hint="give a .py model file or a .json graph")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        sys.modules.pop(name, None)
        kind = "syntax error" if isinstance(error, SyntaxError) else type(error).__name__
        raise ModelFileError(f"{kind}: {first_line(error)}", source=location(error, path)) from error
    model_class = getattr(module, "Model", None)
    if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
        raise ModelFileError(f"{path.name} defines no class Model(nn.Module)", hint="name the module to compile Model")
    get_inputs = getattr(module, "get_inputs", None)
    if not callable(get_inputs):
        raise ModelFileError(
            f"{path.name} defines no get_inputs()", hint="return a list of example inputs from get_inputs()"
        )
    get_init_inputs = getattr(module, "get_init_inputs", list)
    return LoadedModel(path, source, model_class, get_inputs, get_init_inputs, module)


def _call(what: str, path: Path, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        raise ModelFileError(
            f"{what} raised {type(error).__name__}: {first_line(error)}", source=location(error, path)
        ) from error


def instantiate(loaded: LoadedModel) -> tuple[nn.Module, tuple[Any, ...]]:
    """The model and example inputs as fake tensors. Raises ``ModelFileError``."""

    def build() -> nn.Module:
        arguments = loaded.get_init_inputs()
        if isinstance(arguments, dict):
            return loaded.model_class(**arguments)
        return loaded.model_class(*arguments)

    with warnings.catch_warnings(), FakeTensorMode(allow_non_fake_inputs=True):
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # a copied layer's
        inputs = _call("get_inputs()", loaded.path, loaded.get_inputs)
        try:
            model = build()
        except Exception:
            model = None
    if model is None:  # a constructor may need real values; an error of its own shows itself again here
        model = _call("Model's constructor", loaded.path, build)
    inputs = tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,)
    return model, inputs
