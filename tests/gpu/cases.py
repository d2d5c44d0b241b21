"""Golden files beside their references, at sizes that run in milliseconds on a GPU."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from fusegen.check import compare
from fusegen.subject import Subject, call, load_generated
from fusegen.trace import LoadedModel, load_model_file
from tests.variants import ROOT

SPATIAL = {0: (), 1: (131,), 2: (33, 29), 3: (9, 12, 11)}
"""By rank: odd sizes, so that rows are not aligned to 16 bytes and tails are not empty."""
BATCH = 3

COLLAPSED = "conv_transpose_mean_logsumexp"
"""One kernel and nothing else."""
WINDOWED = "conv_transpose_scale_mean"
"""Several windows per axis."""
TAIL = "conv_transpose_softmax_sigmoid"
"""A library convolution, then a kernel."""
VOLUME = "conv_transpose3d_mean_max"
GROUPED = "conv_transpose_grouped_dilated_logsumexp"
STRIDED = "conv1d_strided_mean_sigmoid"
FEW = (COLLAPSED, WINDOWED, TAIL, VOLUME, GROUPED, STRIDED)


@dataclass(frozen=True)
class Case:
    """A spec's reference class and the class generated from it."""

    name: str
    loaded: LoadedModel
    model_new: type[nn.Module]
    channels: int
    rank: int

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
        shape = (batch, self.channels, *(spatial or SPATIAL[self.rank]))
        return torch.randn(shape, device="cuda", generator=generator) + 0.5

    def subject(self) -> Subject:
        """For ``check_numerics``, at the small sizes."""
        shape = (16, self.channels, *SPATIAL[self.rank])
        return Subject(
            name=self.name, reference=self.reference, generated=self.generated, inputs=lambda: (torch.rand(shape),)
        )


@cache
def case(name: str) -> Case:
    """The golden file of a spec."""
    loaded = load_model_file(ROOT / "specs" / f"{name}.py")
    with torch.device("meta"):
        (x,) = loaded.get_inputs()
    return Case(name, loaded, load_generated(ROOT / "generated" / f"{name}.py"), x.shape[1], x.dim() - 2)


def agrees(reference: nn.Module, generated: nn.Module, x: torch.Tensor, y: Any = None) -> None:
    """Assert that ``generated(x)`` (or ``y``) is as close to float64 as the tolerance asks for."""
    with torch.no_grad():
        result = generated(x) if y is None else y
    r = call(copy.deepcopy(reference).double(), (x.double(),))[0]
    e = call(copy.deepcopy(reference), (x,))[0]
    found = compare("output", result.detach(), e, r)
    assert found.wrong_specials == 0, found
    assert found.max_generated <= found.max_allowed, found
    assert r.numel() < 1024 or found.passed, found  # the RMS of a few roundings is no statistic
