"""Golden files beside their references, at sizes that run in milliseconds on a GPU."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from fusegen.compiler import Compiled, compile_file
from fusegen.dims import Dim
from fusegen.emit import write_atomic
from fusegen.ir import DType, TensorType
from fusegen.trace import LoadedModel, instantiate, load_model_file, trace
from fusegen.verdict.check import compare
from fusegen.verdict.subject import Subject, call, load_generated
from fusegen.verdict.tf32 import tf32_results
from tests.variants import ROOT


@contextmanager
def tf32_products() -> Iterator[None]:
    """Within it, torch's settings permit TF32 in matrix products. (They are no plain attributes, which a patch could
    put back.)"""
    saved = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = saved


SPATIAL = {0: (), 1: (131,), 2: (33, 29), 3: (9, 12, 11)}
"""By rank: odd sizes, so that rows are not aligned to 16 bytes and tails are not empty."""
BATCH = 3
OWN = 7
"""Of an axis that another input has, and the first one does not."""

COLLAPSED = "conv_transpose_mean_logsumexp"
"""One kernel and nothing else."""
WINDOWED = "conv_transpose_scale_mean"
"""Several windows per axis."""
TAIL = "conv_transpose_softmax_sigmoid"
"""A library convolution, then a kernel."""
VOLUME = "conv_transpose3d_mean_max"
GROUPED = "conv_transpose_grouped_dilated_logsumexp"
STRIDED = "conv1d_strided_mean_sigmoid"
ROWS = "conv_transpose_row_mean"
"""Two kernels, one after the other."""
FEW = (COLLAPSED, WINDOWED, TAIL, VOLUME, GROUPED, STRIDED)


def torch_dtype(type_: TensorType) -> torch.dtype:
    found: torch.dtype = getattr(torch, type_.dtype.value)
    return found


@dataclass(frozen=True)
class Case:
    """A spec's reference class and the class generated from it."""

    name: str
    loaded: LoadedModel
    model_new: type[nn.Module]
    types: tuple[TensorType, ...]
    """Of the inputs as compiled: integers are structure."""

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.types[0].shape

    @property
    def dtype(self) -> torch.dtype:
        return torch_dtype(self.types[0])

    @property
    def rank(self) -> int:
        """Axes after the batch whose size is free."""
        return sum(isinstance(size, str) for size in self.shape[1:])

    def reference(self) -> nn.Module:
        return self.loaded.model_class(*self.loaded.get_init_inputs())

    def generated(self) -> nn.Module:
        return self.model_new(*self.loaded.get_init_inputs())

    def pair(self, seed: int = 0) -> tuple[nn.Module, nn.Module]:
        """The reference and the generated module, on the GPU, with the same parameters."""
        torch.manual_seed(seed)
        reference = self.reference().cuda()
        generated = self.generated().cuda()
        generated.load_state_dict(reference.state_dict())
        return reference, generated

    def x(self, batch: int = BATCH, spatial: tuple[int, ...] | None = None, seed: int = 1) -> torch.Tensor:
        """Random input of the given batch and spatial sizes."""
        generator = torch.Generator("cuda").manual_seed(seed)
        drawn = torch.randn(self.sized(batch, spatial), device="cuda", generator=generator) + 0.5
        return drawn.to(self.dtype)

    def inputs(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``x`` and the other inputs, as large as it makes them; one in four elements of a mask is a hole."""
        sizes = dict(zip(self.shape, x.shape, strict=True))

        def drawn(type_: TensorType) -> torch.Tensor:
            shape = [size if isinstance(size, int) else sizes.setdefault(size, OWN) for size in type_.shape]
            if type_.dtype is DType.BOOL:
                return torch.rand(shape, device=x.device) > 0.25
            return torch.randn(shape, device=x.device).to(torch_dtype(type_))

        return (x, *map(drawn, self.types[1:]))

    def sized(self, batch: int, spatial: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """The input's shape for the given batch and free spatial sizes."""
        free = iter(spatial or SPATIAL[self.rank])
        return (batch, *(size if isinstance(size, int) else next(free) for size in self.shape[1:]))

    def subject(self) -> Subject:
        """For ``check_numerics``, at the small sizes."""
        shape = self.sized(16)
        return Subject(
            name=self.name,
            reference=self.reference,
            generated=self.generated,
            inputs=lambda: self.inputs(torch.rand(shape, dtype=self.dtype)),
        )


@cache
def case(name: str) -> Case:
    """The golden file of a spec."""
    path = ROOT / "specs" / f"{name}.py"
    loaded = load_model_file(path)
    inputs = trace(*instantiate(loaded), path).graph.inputs
    model_new = load_generated(ROOT / "generated" / f"{name}.py")
    return Case(name, loaded, model_new, tuple(x.type for x in inputs))


def built(path: Path) -> tuple[Compiled, nn.Module, nn.Module]:
    """A model file compiled here and now, its reference and the generated module, with the same parameters."""
    compiled = compile_file(path)
    generated = path.with_name("generated.py")
    write_atomic(generated, compiled.source)
    torch.manual_seed(0)
    reference = load_model_file(path).model_class().cuda()
    model = load_generated(generated)().cuda()
    model.load_state_dict(reference.state_dict())
    return compiled, reference, model


class Calls(TorchDispatchMode):
    """Records the calls of fusegen's operators within it, with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace.startswith("fusegen"):
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def opcheck(generated: nn.Module, x: torch.Tensor) -> list[str]:
    """torch's own checks of every operator that a call runs; returns their names."""
    with torch.no_grad():
        generated(x)
        with Calls() as recorder:
            generated(x)
    for operator, arguments in recorder.calls:
        torch.library.opcheck(operator, tree_map_only(torch.Tensor, lambda a: a.detach().clone(), arguments))
    return [str(operator) for operator, _ in recorder.calls]


def agrees(
    reference: nn.Module, generated: nn.Module, x: torch.Tensor | tuple[torch.Tensor, ...], y: Any = None
) -> None:
    """Assert that every result of ``generated(x)`` (or ``y``) is as close to float64 as the tolerance asks for."""
    xs = x if isinstance(x, tuple) else (x,)
    with torch.no_grad():
        found = generated(*xs) if y is None else y
    results = found if isinstance(found, tuple) else (found,)
    wide = tuple(value.double() if value.is_floating_point() else value for value in xs)
    exact = call(copy.deepcopy(reference).double(), wide)
    eager = call(copy.deepcopy(reference), xs)
    permitted = tf32_results(lambda: call(copy.deepcopy(reference), xs)) or [None] * len(eager)
    for result, e, r, tf32 in zip(results, eager, exact, permitted, strict=True):
        error = compare("output", result.detach(), e, r, tf32)
        assert error.wrong_specials == 0, error
        assert error.max_generated <= error.max_allowed, error
        assert r.numel() < 1024 or error.passed, error  # the RMS of a few roundings is no statistic


def keeps_specials(reference: nn.Module, model: nn.Module, shape: tuple[int, ...]) -> None:
    """NaN and infinities come out where they do in float64, and a sample's result depends on nothing else."""
    x = torch.randn(4, *shape, device="cuda")
    middle = tuple(size // 2 for size in shape[1:])
    with torch.no_grad():
        before = model(x)
        x[(1, 1, *middle)], x[(2, 1, *middle)] = torch.inf, torch.nan
        y, r = model(x), copy.deepcopy(reference).double()(x.double())
    assert torch.equal(y[[0, 3]], before[[0, 3]])
    for specials in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(specials(y), specials(r))
