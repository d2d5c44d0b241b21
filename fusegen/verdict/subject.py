"""What ``check`` and ``bench`` run: a reference model, the generated module, and their inputs."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fusegen import interpret
from fusegen.errors import FusegenError, GraphFormatError, MismatchError, ModelFileError
from fusegen.ir import Graph
from fusegen.trace import load_model_file
from fusegen.trace.assigned import hold, plain_tensors

SEED = 20240229


@dataclass(frozen=True)
class Subject:
    """Factories of the reference, of the generated module, and of one set of inputs."""

    name: str
    reference: Callable[[], nn.Module]
    generated: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    evaluation: bool = False

    def build(self, factory: Callable[[], nn.Module], device: torch.device | str) -> nn.Module:
        """``factory()`` under the fixed seed, on ``device``, in the mode that was compiled for."""
        torch.manual_seed(SEED)
        module = factory().to(device)
        return module.eval() if self.evaluation else module

    def inputs_on(self, device: torch.device | str) -> tuple[Any, ...]:
        """The inputs under the fixed seed, drawn on ``device`` where the factory allows it."""
        torch.manual_seed(SEED)
        with torch.device(device):
            drawn = self.inputs()
        return tuple(x.to(device) if isinstance(x, torch.Tensor) else x for x in drawn)


class GraphModule(nn.Module):
    """The reference of an operator-graph description: parameters by path, forward by the interpreter."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        paths = {getattr(node.op, "path", ""): node for node in graph.params}
        for path, node in sorted(paths.items()):  # the order of the generated module
            *parents, leaf = path.split(".")
            owner: nn.Module = self
            for name in parents:
                if name not in owner._modules:
                    owner.add_module(name, nn.Module())
                owner = owner.get_submodule(name)
            value = torch.zeros(graph.shape(node.name), dtype=getattr(torch, node.type.dtype.value))
            if getattr(node.op, "buffer", False):
                owner.register_buffer(leaf, value)
            else:
                owner.register_parameter(leaf, nn.Parameter(value, requires_grad=value.is_floating_point()))

    def forward(self, *inputs: torch.Tensor) -> Any:
        results = interpret.run(self.graph, inputs, self.state_dict(keep_vars=True))
        outputs = results[: len(self.graph.outputs)]
        return outputs if self.graph.tuple_output else outputs[0]


def load_generated(path: Path) -> type[nn.Module]:
    """``ModelNew`` of a generated file. Raises ``ModelFileError`` when the file has none or fails to import."""
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"fusegen_generated_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ModelFileError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ModelFileError(f"{path} does not import: {type(error).__name__}: {error}") from error
    found = getattr(module, "ModelNew", None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ModelFileError(f"{path.name} defines no class ModelNew(nn.Module)", hint="give a file fusegen wrote")
    return found


def _construct(cls: type[nn.Module], arguments: Any) -> nn.Module:
    return cls(**arguments) if isinstance(arguments, dict) else cls(*arguments)


def model_subject(model: Path, generated: Path, evaluation: bool = False) -> Subject:
    """The subject of a model file and the file generated from it."""
    loaded = load_model_file(model)
    model_new = load_generated(generated)

    def inputs() -> tuple[Any, ...]:
        drawn = loaded.get_inputs()
        return tuple(drawn) if isinstance(drawn, (list, tuple)) else (drawn,)

    def new() -> nn.Module:
        return _construct(model_new, loaded.get_init_inputs())

    def reference() -> nn.Module:
        """With the buffers of the generated module that are plain attributes here, so that both can be compared."""
        found = _construct(loaded.model_class, loaded.get_init_inputs())
        if plain_tensors(found):
            with torch.random.fork_rng():
                hold(found, frozenset(name for name, _ in new().named_buffers()))
        return found

    return Subject(
        name=model.stem,
        reference=reference,
        generated=new,
        inputs=inputs,
        evaluation=evaluation,
    )


def graph_subject(graph: Graph, generated: Path, name: str, evaluation: bool = False) -> Subject:
    """The subject of an operator-graph description; its reference takes the generated module's parameters."""
    model_new = load_generated(generated)

    def reference() -> nn.Module:
        module = GraphModule(graph)
        module.load_state_dict(model_new().state_dict())
        return module

    def inputs() -> tuple[Any, ...]:
        drawn = []
        for node in graph.inputs:
            dtype = getattr(torch, node.type.dtype.value)
            if not dtype.is_floating_point:
                raise GraphFormatError("random inputs need a floating-point type", node=node.name)
            drawn.append(torch.rand(graph.shape(node.name), dtype=dtype))
        return tuple(drawn)

    return Subject(name=name, reference=reference, generated=model_new, inputs=inputs, evaluation=evaluation)


def part_subject(whole: Subject, graph: Graph, generated: Path) -> Subject:
    """The subject of ``graph``, a part of the model of ``whole``: its parameters, its inputs."""
    model_new = load_generated(generated)

    def with_parameters(factory: Callable[[], nn.Module]) -> nn.Module:
        known = whole.reference().state_dict()  # first, so that it draws the same numbers for both
        module = factory()
        module.load_state_dict({path: known[path] for path in module.state_dict()})
        return module

    return Subject(
        name=whole.name,
        reference=lambda: with_parameters(lambda: GraphModule(graph)),
        generated=lambda: with_parameters(model_new),
        inputs=whole.inputs,
        evaluation=whole.evaluation,
    )


def open_subject(model: Path, generated: Path, graph: Graph, evaluation: bool = False) -> Subject:
    """The subject of a model file or, for ``.json``, of the graph it describes."""
    if model.suffix == ".json":
        return graph_subject(graph, generated, model.stem, evaluation)
    return model_subject(model, generated, evaluation)


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors of a model's result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [leaf for item in value for leaf in leaves(item)]


def call(module: Callable[..., Any], inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    """The tensors that ``module`` returns, without gradients, under the fixed seed (for dropout)."""
    torch.manual_seed(SEED)
    with torch.no_grad():
        return leaves(module(*inputs))


def call_generated(module: nn.Module, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    """``call`` for a generated module: any failure of its fast path is a ``MismatchError``."""
    try:
        return call(module, inputs)
    except FusegenError:
        raise
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise MismatchError(
            f"the generated module failed: {type(error).__name__}: {error}", hint="`fusegen doctor` checks the tools"
        ) from error


@contextmanager
def strict() -> Iterator[None]:
    """Within it, a generated module that would take its reference path raises instead."""
    before = os.environ.get("FUSEGEN_STRICT")
    os.environ["FUSEGEN_STRICT"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["FUSEGEN_STRICT"]
        else:
            os.environ["FUSEGEN_STRICT"] = before
