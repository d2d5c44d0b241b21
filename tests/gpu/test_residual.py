"""Convolutions whose epilogue has an operand with an element for every result, at sizes that are aligned to nothing."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from fusegen.costs import direct, hopper, library, precision
from fusegen.plan import contraction
from fusegen.plan.details import HopperConvPlan
from fusegen.verdict.subject import call
from tests.gpu.cases import agrees, built
from tests.gpu.test_contraction import full_precision, rounded
from tests.models import untied, write

pytestmark = pytest.mark.gpu
__all__ = ["full_precision"]

MODELS = {
    "added": ("nn.Conv2d(24, 40, 3, padding=1)", "(self.m(x) + y).relu()", (24, 21, 33), (40, 21, 33)),
    "aligned": ("nn.Conv2d(24, 40, 3, padding=1)", "(self.m(x) + y).relu()", (24, 21, 36), (40, 21, 36)),
    "pixels": ("nn.Conv2d(48, 200, 1)", "torch.tanh(self.m(x) * y) - y", (48, 9, 20), (200, 9, 20)),
    "plane": ("nn.Conv2d(40, 72, 1)", "torch.maximum(self.m(x), y).sigmoid()", (40, 9, 20), (72, 1, 20)),
    "gated": ("nn.Conv2d(20, 33, 3)", "self.m(x) * y.sigmoid() * self.s", (20, 30, 41), (33, 28, 39)),
    "strided": ("nn.Conv2d(64, 96, (3, 5), (2, 3))", "self.m(x).sigmoid() + y", (64, 31, 40), (96, 15, 12)),
    "dilated": ("nn.Conv2d(20, 33, 3, 1, 6, (5, 3))", "self.m(x) / (y.abs() + 1)", (20, 30, 40), (33, 32, 46)),
    "grouped": ("nn.Conv2d(40, 60, 3, groups=2)", "self.m(x) - y", (40, 14, 20), (60, 12, 18)),
    "of_its_input": ("nn.Conv2d(36, 36, 3, padding=1)", "self.m(x) * y + x", (36, 19, 27), (36, 19, 27)),
    "of_places": ("nn.Conv2d(32, 48, 3, padding=1)", "(self.m(x) + self.p) * y", (32, 13, 19), (1, 13, 19)),
    "columns": ("nn.Conv2d(20, 33, 3)", "torch.maximum(self.m(x), y)", (20, 30, 41), (33, 1, 39)),
    "rows": ("nn.Conv2d(24, 40, 3, padding=1)", "self.m(x).relu() * y", (24, 13, 20), (40, 13, 1)),
    "samples": ("nn.ConvTranspose2d(16, 20, 4, 2, 1)", "self.m(x).sigmoid() * y", (16, 9, 12), (20, 1, 1)),
    "layers": ("nn.Conv3d(17, 24, (2, 3, 2), 1, 1)", "self.m(x) - y", (17, 6, 4, 8), (24, 7, 1, 1)),
    "line": ("nn.Conv1d(32, 64, 9, 1, 4)", "self.m(x).relu() + y", (32, 133), (64, 133)),
    "volume": ("nn.Conv3d(17, 24, (2, 3, 2), 1, 1)", "F.mish(self.m(x)) * y", (17, 6, 11, 12), (24, 7, 11, 13)),
    "streamed": ("nn.Conv2d(68, 264, 3, padding=1)", "F.hardswish(self.m(x) + y)", (68, 20, 43), (264, 20, 43)),
    "transposed": ("nn.ConvTranspose2d(32, 50, 3, 2, 1, 1)", "self.m(x) * 2 + y", (32, 13, 20), (50, 26, 40)),
    "transposed_far": (
        "nn.ConvTranspose2d(8, 16, (2, 5), (5, 3), (0, 2), (4, 2))",
        "self.m(x).relu() - y",
        (8, 9, 11),
        (16, 46, 33),
    ),
    "transposed_fifths": ("nn.ConvTranspose1d(16, 24, 10, 5, 2, 1)", "F.silu(self.m(x)) + y", (16, 131), (24, 657)),
    "transposed_eighths": ("nn.ConvTranspose1d(16, 24, 16, 8, 4)", "F.silu(self.m(x)) + y", (16, 83), (24, 664)),
    "transposed_sevenths": (
        "nn.ConvTranspose2d(16, 24, (3, 9), (2, 7), (1, 4))",
        "self.m(x) * y",
        (16, 5, 9),
        (24, 9, 57),
    ),
    "transposed_volume": (
        "nn.ConvTranspose3d(16, 20, 3, 2, 1)",
        "F.mish(self.m(x)) * y",
        (16, 4, 6, 9),
        (20, 7, 11, 17),
    ),
    "transposed_rows": ("nn.ConvTranspose2d(40, 130, (3, 4), (1, 2), 1)", "self.m(x) + y", (40, 11, 13), (130, 11, 26)),
}
"""By name: the module ``self.m``, what the forward returns, the shapes of a sample of ``x`` and ``y``."""


PARAMETERS = "self.s = nn.Parameter(torch.randn(33, 1, 1))\nself.p = nn.Parameter(torch.randn(48, 13, 19))\n"


@pytest.fixture(autouse=True)
def _whatever_the_library_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "is_small", lambda *_: False)
    monkeypatch.setattr(library, "seconds", lambda *_: math.inf)
    monkeypatch.setattr(contraction, "_is_slower", lambda *_: False)


def pair(name: str, tmp_path: Path) -> tuple[nn.Module, nn.Module, HopperConvPlan]:
    """The reference and the generated module, with the same parameters, and the kernel's plan."""
    module, body, *shapes = MODELS[name]
    drawn = ", ".join(f"torch.randn(3, {', '.join(map(str, shape))})" for shape in shapes)
    init = f"{PARAMETERS}self.m = {module}"
    compiled, reference, model = built(write(tmp_path, f"return {body}", init, drawn, "x, y"))
    (plan,) = [step.plan for step in compiled.program.steps if step.kind == "kernel"]
    assert isinstance(plan.hopper, HopperConvPlan)
    assert plan.hopper.ahead
    return reference, model, plan.hopper


def drawn(name: str, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = (torch.randn(batch, *shape, device="cuda") for shape in MODELS[name][2:])
    return untied(x + 0.5), y


class Rounded(nn.Module):
    """A convolution in float64, of operands rounded to TF32."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        module.weight.data = rounded(module.weight.data.float()).double()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.module(rounded(x.float()).double())
        return found


@pytest.mark.parametrize("reads", ["prepared", "in place"])
@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_float64_of_rounded_operands(
    name: str, reads: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hopper, "reads_in_place", lambda *_: reads == "in place")
    monkeypatch.setattr(hopper, "pays_in_halves", lambda *_: False)
    monkeypatch.setattr(precision, "allows_tf32", lambda *_: True)
    reference, model, plan = pair(name, tmp_path)
    if reads == "in place" and (plan.alternative is None or MODELS[name][2][-1] % 4):
        pytest.skip("its input cannot be read as it lies")
    type(model).forward.__globals__["_fusegen_rounds"] = lambda *_, **__: 1
    exact = copy.deepcopy(reference).double()
    exact.m = Rounded(exact.m)  # the same tensor as an operand of the epilogue is not rounded
    for batch in (3, 1, 17):
        x, y = drawn(name, batch)
        with torch.no_grad():
            found = model(x, y)
            (r,) = call(exact, (x.double(), y.double()))
        assert (found - r).abs().max() <= 2e-5 * r.abs().max(), batch
        assert torch.equal(found, model(x, y))


@pytest.mark.usefixtures("full_precision")
@pytest.mark.parametrize("name", MODELS)
def test_as_accurate_as_eager_in_full_precision(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "allows_tf32", lambda *_: False)
    reference, model, _ = pair(name, tmp_path)
    for batch in (3, 1, 17):
        agrees(reference, model, drawn(name, batch))


@pytest.mark.parametrize("name", ["added", "aligned", "gated", "transposed", "of_its_input"])
def test_special_values_reach_the_same_outputs(name: str, tmp_path: Path) -> None:
    reference, model, _ = pair(name, tmp_path)
    x, y = drawn(name, 3)
    middle = tuple(size // 2 for size in x.shape[2:])
    x[(0, 3, *middle)], y[(1, 0, *(0 for _ in middle))] = torch.nan, torch.inf
    y[2, -1, ..., -1] = torch.nan
    with torch.no_grad():
        found = model(x, y)
        (r,) = call(copy.deepcopy(reference).double(), (x.double(), y.double()))
    for specials in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(specials(found), specials(r))


def test_operands_lie_where_they_like(tmp_path: Path) -> None:
    """An operand that begins anywhere, and one that is no neighbour of the result."""
    reference, model, _ = pair("added", tmp_path)
    x, y = drawn("added", 3)
    flat = torch.randn(y.numel() + 3, device="cuda")
    for begin in (1, 2, 3):
        agrees(reference, model, (x, flat[begin : begin + y.numel()].view_as(y)))
    agrees(reference, model, (x, y.transpose(2, 3).contiguous().transpose(2, 3)))
