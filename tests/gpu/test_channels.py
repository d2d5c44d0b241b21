"""Statistics in the epilogue of convolutions of every structure: results, running statistics, repeats."""

from __future__ import annotations

import copy
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from fusegen.costs import direct, hopper, library
from fusegen.plan import contraction
from fusegen.spaces import channels
from fusegen.verdict.check import compare
from fusegen.verdict.tf32 import tf32_results
from tests.gpu.cases import built
from tests.models import write

pytestmark = pytest.mark.gpu

MODELS = {
    "conv": ("nn.Conv2d(64, 40, 3, padding=1)", 40, "return self.n(self.m(x)).relu()", (64, 21, 33)),
    "in_place": ("nn.Conv2d(64, 136, 3, padding=1)", 136, "return self.n(self.m(x)).relu()", (64, 21, 36)),
    "plane_in_place": ("nn.Conv2d(64, 40, 1)", 40, "return F.silu(self.n(self.m(x)))", (64, 20, 33)),
    "tiles": ("nn.Conv2d(64, 272, 3)", 272, "return self.n(self.m(x)) * 1.5", (64, 17, 19)),
    "groups": ("nn.Conv2d(128, 160, 3, 2, 1, groups=2)", 160, "return self.n(F.gelu(self.m(x))).tanh()", (128, 23, 30)),
    "pooled": ("nn.Conv3d(64, 24, 3)", 24, "return F.max_pool3d(F.silu(self.n(self.m(x))), 2)", (64, 7, 9, 12)),
    "mean": ("nn.Conv2d(64, 128, 3)", 128, "return F.silu(self.n(self.m(x))).mean((2, 3))", (64, 20, 31)),
    "five_phases": ("nn.ConvTranspose1d(64, 24, 10, 5, 2)", 24, "return F.gelu(self.n(self.m(x)))", (64, 101)),
    "two_phases": ("nn.ConvTranspose1d(64, 40, 4, 2, 1)", 40, "return F.gelu(self.n(self.m(x)))", (64, 301)),
    "four_phases": ("nn.ConvTranspose2d(64, 32, 4, 2, 1)", 32, "return self.n(self.m(x)).tanh()", (64, 14, 19)),
    "nine_kinds": ("nn.ConvTranspose2d(64, 24, 4, 3)", 24, "return F.silu(self.n(self.m(x)))", (64, 11, 10)),
    "from_its_peak": (
        "nn.ConvTranspose3d(64, 24, 3, 2, 1)",
        24,
        "y = self.n(self.m(x))\nreturn y - y.amax((2, 3, 4), keepdim=True)",
        (64, 4, 9, 8),
    ),
    "idle_taps": ("nn.ConvTranspose3d(64, 24, 3, 2, 1)", 24, "return self.n(self.m(x)).sigmoid()", (64, 5, 6, 7)),
}
"""By name: the convolution, its channels, the forward, the shape of a sample."""
OF_SAMPLES = {
    "groups": ("nn.Conv2d(64, 40, 3, padding=1)", "nn.GroupNorm(8, 40)", "self.n(self.m(x)).relu()", (64, 21, 33)),
    "in_place": (
        "nn.Conv2d(64, 136, 3, padding=1)",
        "nn.InstanceNorm2d(136)",
        "F.max_pool2d(self.n(self.m(x)), 2)",
        (64, 21, 36),
    ),
    "all_in_place": ("nn.Conv2d(64, 40, 1)", "nn.GroupNorm(1, 40)", "F.silu(self.n(self.m(x)))", (64, 20, 33)),
    "tiles": ("nn.Conv2d(64, 272, 3)", "nn.GroupNorm(4, 272)", "self.n(self.m(x)) * 1.5", (64, 17, 19)),
    "groups_of_groups": (
        "nn.Conv2d(128, 160, 3, 2, 1, groups=2)",
        "nn.GroupNorm(10, 160)",
        "F.avg_pool2d(self.n(F.gelu(self.m(x))), 3)",
        (128, 23, 30),
    ),
    "small_samples": ("nn.Conv3d(64, 24, 3)", "nn.GroupNorm(3, 24)", "self.n(self.m(x)).tanh()", (64, 4, 5, 6)),
    "gate": (
        "nn.Conv2d(64, 48, 3)",
        "nn.Linear(48, 48)",
        "(lambda y: y * self.n(y.mean((2, 3))).sigmoid()[:, :, None, None])(F.silu(self.m(x)))",
        (64, 20, 31),
    ),
    "eight_phases": (
        "nn.ConvTranspose1d(64, 24, 16, 8, 4)",
        "nn.GroupNorm(2, 24)",
        "F.silu(self.n(self.m(x)))",
        (64, 100),
    ),
    "two_phases": (
        "nn.ConvTranspose1d(64, 40, 4, 2, 1)",
        "nn.GroupNorm(1, 40)",
        "F.gelu(self.n(self.m(x)))",
        (64, 301),
    ),
    "four_phases": (
        "nn.ConvTranspose2d(64, 32, 4, 2, 1)",
        "nn.InstanceNorm2d(32)",
        "self.n(self.m(x)).tanh()",
        (64, 14, 19),
    ),
    "nine_kinds": (
        "nn.ConvTranspose2d(64, 24, 4, 3)",
        "nn.GroupNorm(2, 24)",
        "F.silu(self.n(self.m(x)))",
        (64, 11, 10),
    ),
    "idle_taps": (
        "nn.ConvTranspose3d(64, 24, 3, 2, 1)",
        "nn.GroupNorm(6, 24)",
        "self.n(self.m(x)).sigmoid()",
        (64, 5, 6, 7),
    ),
}
"""By name: the convolution, the norm (or what follows the means), the result, the shape of a sample."""


def _values(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    fresh = copy.deepcopy(model)
    with torch.no_grad():
        y = fresh(x)
    return [y, *(buffer for buffer in fresh.buffers() if buffer.is_floating_point())]


def _agrees(reference: nn.Module, generated: nn.Module, shape: tuple[int, ...], tf32: bool) -> None:
    leading = (shape[0], *[1] * (len(shape) - 1))
    for batch, offset in ((2, 0.0), (3, 5.0), (33, 0.5), (3, 300.0)):
        x = torch.randn(batch, *shape, device="cuda") * 3 + offset * torch.randn(batch, *leading, device="cuda")
        r = _values(copy.deepcopy(reference).double(), x.double())
        e, y, again = (_values(model, x) for model in (reference, generated, generated))
        permitted = tf32_results(partial(_values, reference, x)) or [None] * len(e)
        for i, (one, two, three, four, five) in enumerate(zip(y, e, r, again, permitted, strict=True)):
            assert torch.equal(one, four)
            found = compare(f"value {i}", one, two, three, five)
            assert found.wrong_specials == 0, found
            assert found.max_generated <= found.max_allowed, found
            assert three.numel() < 1024 or found.passed, found


def _without_costs(monkeypatch: pytest.MonkeyPatch, tf32: bool, name: str) -> None:
    monkeypatch.setattr(direct, "is_small", lambda *_: False)
    monkeypatch.setattr(library, "seconds", lambda *_: math.inf)
    monkeypatch.setattr(channels, "pays", lambda *_: True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    if name.endswith("in_place"):
        monkeypatch.setattr(hopper, "reads_in_place", lambda *_: True)
        monkeypatch.setattr(hopper, "pays_in_halves", lambda *_: False)


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_agrees(name: str, tf32: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_costs(monkeypatch, tf32, name)
    head, outputs, body, shape = MODELS[name]
    init = f"self.m = {head}\nself.n = nn.BatchNorm{len(shape) - 1}d({outputs})"
    path = write(tmp_path, body, init, f"torch.rand(4, {', '.join(map(str, shape))})")
    compiled, reference, generated = built(path)
    assert "Moments moments" in compiled.source
    assert ("_in_place" in compiled.source) == name.endswith("in_place")
    _agrees(reference, generated, shape, tf32)


@pytest.mark.parametrize(("portable", "tf32"), [(False, True), (False, False), (True, True)])
@pytest.mark.parametrize("name", OF_SAMPLES)
def test_of_samples(name: str, portable: bool, tf32: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_costs(monkeypatch, tf32, name)
    if portable:
        monkeypatch.setattr(contraction, "hopper_conv", lambda *_, **__: "left to the portable one")
    head, after, result, shape = OF_SAMPLES[name]
    size = f"torch.rand(4, {', '.join(map(str, shape))})"
    compiled, reference, generated = built(
        write(tmp_path, f"return {result}", f"self.m, self.n = {head}, {after}", size)
    )
    assert (" of_sample" in compiled.source) != portable
    assert ("Swept" in compiled.source) or not portable
    _agrees(reference, generated, shape, tf32)
