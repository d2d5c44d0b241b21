"""Convolutions that pool in their epilogue, compiled here and now: every kind of window and structure."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from fusegen.costs import direct, hopper
from fusegen.spaces import convpool
from tests.gpu.cases import agrees, built
from tests.gpu.test_contraction import full_precision, rounded
from tests.models import untied, write

pytestmark = pytest.mark.gpu
__all__ = ["full_precision"]

MODELS = {
    "conv": ("nn.Conv2d(16, 40, 3, padding=1)", "F.max_pool2d(F.hardswish(self.m(x)), 2).tanh()", (16, 21, 33)),
    "strided": ("nn.Conv2d(24, 20, (3, 5), (2, 3), (1, 2))", "F.max_pool2d(self.m(x).abs(), 2) * 2", (24, 63, 80)),
    "dilated": ("nn.Conv2d(20, 33, 3, 1, 4, 4)", "F.max_pool2d(self.m(x), (2, 4)).relu()", (20, 30, 36)),
    "mean_of_four": ("nn.Conv2d(32, 64, 3)", "F.mish(F.avg_pool2d(F.silu(self.m(x)), 4))", (32, 43, 39)),
    "eight": ("nn.Conv2d(16, 24, 5)", "F.max_pool2d(self.m(x) ** 2, 8)", (16, 41, 50)),
    "eight_by_two": ("nn.Conv2d(16, 24, (1, 5))", "F.avg_pool2d(self.m(x).sigmoid(), (8, 2))", (16, 41, 50)),
    "columns": ("nn.Conv2d(16, 32, 3)", "F.max_pool2d(self.m(x).abs(), (1, 2))", (16, 12, 70)),
    "narrow_columns": ("nn.Conv2d(16, 32, 3)", "F.max_pool2d(self.m(x).abs(), (1, 2))", (16, 35, 13)),
    "rows": ("nn.Conv2d(16, 32, 3)", "F.avg_pool2d(self.m(x).exp(), (2, 1))", (16, 20, 31)),
    "three": ("nn.Conv2d(16, 24, 3)", "F.avg_pool2d(F.gelu(self.m(x)), 3)", (16, 33, 28)),
    "three_by_two": ("nn.Conv2d(20, 40, 3, (2, 1), 1)", "F.max_pool2d(self.m(x).abs(), (3, 2))", (20, 61, 33)),
    "twelve": ("nn.Conv2d(16, 24, 3)", "F.max_pool2d(self.m(x).abs(), (4, 3))", (16, 33, 28)),
    "line": ("nn.Conv1d(32, 64, 9, 2, 4)", "F.max_pool1d(self.m(x).abs(), 4) + 1", (32, 301)),
    "line_of_three": ("nn.Conv1d(32, 64, 4)", "F.avg_pool1d(self.m(x).relu(), 3) + 1", (32, 133)),
    "volume": ("nn.Conv3d(17, 24, 3, 1, 1)", "F.max_pool3d(F.hardswish(self.m(x)), 2)", (17, 7, 11, 19)),
    "volume_strided": (
        "nn.Conv3d(16, 24, 3, (2, 1, 2), 1)",
        "F.avg_pool3d(self.m(x).sigmoid(), (3, 2, 4))",
        (16, 14, 11, 35),
    ),
    "grouped": ("nn.Conv2d(48, 60, 3, groups=3)", "F.max_pool2d(self.m(x).abs() * self.s, 2)", (48, 14, 18)),
    "transposed": ("nn.ConvTranspose2d(16, 24, 3, 1, 1)", "F.max_pool2d(self.m(x).abs(), 2)", (16, 17, 22)),
    "pixels": ("nn.Conv2d(48, 100, 1)", "F.max_pool2d(self.m(x).abs(), 2).sqrt()", (48, 9, 20)),
    "channels": ("nn.Conv2d(64, 300, 3)", "F.max_pool2d(F.silu(self.m(x)), 2)", (64, 15, 18)),
    "streamed": ("nn.Conv2d(128, 128, 3)", "F.max_pool2d(F.silu(self.m(x)), 2)", (128, 37, 41)),
    "streamed_parts": ("nn.Conv3d(64, 128, 3)", "F.max_pool3d(F.silu(self.m(x)), (2, 2, 2))", (64, 9, 11, 21)),
    "pairs": ("nn.Conv2d(4, 33, 5)", "F.max_pool2d(F.hardswish(self.m(x)), 2).tanh()", (4, 21, 35)),
    "pairs_strided": ("nn.Conv2d(3, 40, 7, 2, 3)", "F.avg_pool2d(self.m(x).abs(), 2)", (3, 41, 50)),
    "pairs_of_a_volume": ("nn.Conv3d(3, 16, 5)", "F.max_pool3d(F.silu(self.m(x)), 2)", (3, 9, 13, 21)),
    # read as it lies
    "three_in_place": ("nn.Conv2d(3, 40, 7)", "F.max_pool2d(F.hardswish(self.m(x)), 2).tanh()", (3, 26, 36)),
    "in_place": ("nn.Conv2d(16, 40, 3, padding=1)", "F.max_pool2d(F.hardswish(self.m(x)), 2).tanh()", (16, 21, 36)),
    "four_in_place": ("nn.Conv2d(64, 136, 3)", "F.mish(F.avg_pool2d(F.silu(self.m(x)), 4))", (64, 43, 40)),
    "eight_in_place": ("nn.Conv2d(16, 24, 5)", "F.max_pool2d(self.m(x) ** 2, (8, 2))", (16, 41, 52)),
    "dilated_in_place": ("nn.Conv2d(20, 33, 3, 1, 4, 4)", "F.max_pool2d(self.m(x), (2, 4)).relu()", (20, 30, 36)),
    "grouped_in_place": ("nn.Conv2d(48, 60, 3, groups=3)", "F.max_pool2d(self.m(x).abs() * self.s, 2)", (48, 14, 20)),
    "pixels_in_place": ("nn.Conv2d(48, 100, 1)", "F.max_pool2d(self.m(x).abs(), 2).sqrt()", (48, 9, 20)),
    "transposed_in_place": ("nn.ConvTranspose2d(16, 24, 3, 1, 1)", "F.max_pool2d(self.m(x).abs(), 2)", (16, 17, 24)),
    "volume_in_place": ("nn.Conv3d(17, 24, 3, 1, 1)", "F.max_pool3d(self.m(x).abs(), (1, 2, 2))", (17, 7, 11, 20)),
    # windows that are the phases of a transposed convolution
    "phases": (
        "nn.ConvTranspose2d(16, 24, 3, 2, 1, 1)",
        "F.max_pool2d(F.leaky_relu(self.m(x)) * 0.5, 2).tanh()",
        (16, 17, 22),
    ),
    "phases_mean": ("nn.ConvTranspose2d(20, 40, 5, 2, 2)", "F.avg_pool2d(F.silu(self.m(x)), 2) * 2", (20, 13, 18)),
    "phases_few": ("nn.ConvTranspose3d(3, 16, 3, 2, 1, 1)", "F.max_pool3d(self.m(x).abs(), 2)", (3, 5, 7, 9)),
    "phases_deep": ("nn.ConvTranspose3d(32, 64, 5, 2, 2)", "F.max_pool3d(self.m(x).abs(), 2)", (32, 5, 6, 7)),
    "phases_grouped": (
        "nn.ConvTranspose2d(48, 60, (3, 4), (3, 2), 1, groups=3)",
        "F.max_pool2d(self.m(x).abs() * self.s, (3, 2))",
        (48, 9, 11),
    ),
    "phases_of_five": ("nn.ConvTranspose1d(32, 40, 7, 5, 2)", "F.avg_pool1d(self.m(x).sin(), 5)", (32, 61)),
    "phases_far": (
        "nn.ConvTranspose2d(16, 24, 3, 2, dilation=(19, 1))",
        "F.max_pool2d(self.m(x).abs(), 2)",
        (16, 12, 14),
    ),
    "phases_without_taps": ("nn.ConvTranspose2d(16, 24, 1, 2)", "F.max_pool2d(1 - self.m(x), 2)", (16, 12, 14)),
}
"""By name: the module ``self.m``, what the forward returns, the shape of one sample."""


@pytest.fixture(autouse=True)
def _whatever_it_takes(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(direct, "is_small", lambda *_: False)
    monkeypatch.setattr(hopper, "pays_in_halves", lambda *_: False)
    monkeypatch.setattr(hopper, "pooled_seconds", lambda *_: 0.0)
    monkeypatch.setattr(convpool, "together_or_apart", lambda *_: None)
    monkeypatch.setattr(hopper, "pools_in_place", lambda *_: request.node.callspec.params["name"].endswith("in_place"))


def pair(name: str, tmp_path: Path) -> tuple[nn.Module, nn.Module, tuple[int, ...]]:
    """The reference and the generated module, with the same parameters, and the shape of a sample."""
    module, body, shape = MODELS[name]
    init = f"self.m = {module}\nself.s = nn.Parameter(torch.randn(60, 1, 1))"
    path = write(tmp_path, f"return {body}", init, f"torch.rand(4, {', '.join(map(str, shape))})")
    compiled, reference, model = built(path)
    templates = [step.plan.detail.template for step in compiled.program.steps if step.kind == "kernel"]
    assert templates == ["contraction" if name.startswith("phases") else "conv_apart"]
    assert ("_in_place_kernel" in compiled.source) == name.endswith("in_place")
    return reference, model, shape


def grown(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Other sizes: rows stay multiples of 16 bytes where that decides on the kernel."""
    return shape[0], *(size + (8 if name.endswith("in_place") else 9) for size in shape[1:])


@pytest.mark.parametrize("name", MODELS)
def test_tf32_rounds_both_operands_to_nearest(name: str, tmp_path: Path) -> None:
    reference, model, shape = pair(name, tmp_path)
    type(model).forward.__globals__["_fusegen_rounds"] = lambda *_, **__: 1  # whatever cuDNN does at this size
    exact = copy.deepcopy(reference)
    exact.m.weight.data = rounded(exact.m.weight.data)
    exact.double()
    for batch, own in ((1, shape), (3, shape), (17, shape), (2, grown(name, shape)), (150, shape)):
        x = untied(torch.randn(batch, *own, device="cuda") + 0.5)
        with torch.no_grad():
            y, r = model(x), exact(rounded(x).double())
            assert torch.equal(y, model(x))
        assert y.shape == r.shape
        assert (y - r).abs().max() <= 2e-5 * r.abs().max(), (batch, own)


@pytest.mark.parametrize("name", MODELS)
def test_special_values_reach_the_same_outputs(name: str, tmp_path: Path) -> None:
    reference, model, shape = pair(name, tmp_path)
    type(model).forward.__globals__["_fusegen_rounds"] = lambda *_, **__: 1
    x = torch.randn(2, *shape, device="cuda")
    corner, middle = (0 for _ in shape[1:]), (size // 2 for size in shape[1:])
    x[(0, 2, *middle)] = torch.nan
    x[(1, 0, *corner)] = torch.inf
    x[1, 1, ..., -1] = -torch.inf
    with torch.no_grad():
        y, r = model(x), copy.deepcopy(reference).double()(x.double())
    assert torch.equal(y.isnan(), r.isnan())
    assert torch.equal(y.isinf(), r.isinf())
    finite = r.isfinite()
    assert (y - r)[finite].abs().max() <= 5e-3 * r[finite].abs().max()


@pytest.mark.usefixtures("full_precision")
@pytest.mark.parametrize("name", MODELS)
def test_two_kernels_where_tf32_is_off(name: str, tmp_path: Path) -> None:
    reference, model, shape = pair(name, tmp_path)
    for batch, own in ((1, shape), (3, shape), (2, grown(name, shape))):
        agrees(reference, model, torch.randn(batch, *own, device="cuda") + 0.5)
