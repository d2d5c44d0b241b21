"""Convolutions in full fp32 on Hopper's asynchronous tensor cores, compiled here and now: every kind of structure."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from fusegen.costs import contractions, direct, hopper, library, precision
from fusegen.plan import contraction
from fusegen.plan.details import HopperConvPlan
from fusegen.plan.types import KernelStep
from fusegen.spaces import channels
from tests.gpu.cases import agrees, built
from tests.gpu.test_contraction import full_precision
from tests.models import write

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("full_precision")]
__all__ = ["full_precision"]

MODELS = {
    "eight": ("nn.Conv2d(8, 64, 3)", "F.mish(self.m(x) - 0.7)", (8, 21, 33)),
    "one": ("nn.Conv2d(1, 32, 5, padding=2)", "self.m(x).tanh()", (1, 40, 29)),
    "three": ("nn.Conv2d(3, 30, 7, 2, 3)", "self.m(x).amin(1, keepdim=True).tanh()", (3, 37, 44)),
    "five": ("nn.Conv3d(5, 17, (2, 3, 1), (1, 2, 3), (1, 0, 2))", "F.hardswish(self.m(x))", (5, 9, 14, 17)),
    "twelve": ("nn.Conv2d(12, 96, 3, (2, 1), 4, (1, 4))", "F.gelu(self.m(x))", (12, 30, 36)),
    "fifteen": ("nn.Conv1d(15, 130, 9)", "self.m(x).softmax(1)", (15, 301)),
    "line": ("nn.Conv1d(8, 64, 9, 2, 4)", "self.m(x).relu() + 1", (8, 1033)),
    "grouped": ("nn.Conv2d(24, 60, 3, groups=3, bias=False)", "self.m(x).sigmoid()", (24, 14, 18)),
    "volume": ("nn.Conv3d(3, 16, 3)", "(self.m(x) * 0.75).tanh()", (3, 9, 12, 19)),
    "deep_volume": ("nn.Conv3d(8, 32, 3, padding=1)", "F.gelu(self.m(x)) * 2", (8, 7, 30, 45)),
    "long": ("nn.Conv1d(11, 24, 31)", "self.m(x).relu()", (11, 501)),
    "many": ("nn.Conv2d(40, 64, 3, 2)", "F.silu(self.m(x))", (40, 31, 33)),
    "pixels": ("nn.Conv2d(9, 40, 1)", "self.m(x).relu() * 2", (9, 20, 31)),
    "rows": ("nn.Conv2d(8, 128, 3)", "torch.logsumexp(self.m(x), 1, keepdim=True)", (8, 19, 30)),
    "transposed": ("nn.ConvTranspose2d(8, 20, 3, 2, 1, 1)", "self.m(x).clamp(-1, 1) * 2", (8, 13, 20)),
    "transposed_volume": ("nn.ConvTranspose3d(10, 16, 4, 2, 1)", "F.mish(self.m(x))", (10, 4, 6, 9)),
    "pooled": ("nn.Conv2d(8, 64, 3)", "F.max_pool2d(self.m(x).tanh() * self.s, 4)", (8, 43, 70)),
    "pooled_parts": ("nn.Conv2d(6, 24, 3, (2, 1), 1)", "F.avg_pool2d(self.m(x).abs(), (3, 2))", (6, 61, 33)),
    "pooled_volume": ("nn.Conv3d(3, 16, 3, 1, 1)", "F.max_pool3d(F.silu(self.m(x)), 2)", (3, 7, 11, 19)),
    "pooled_line": ("nn.Conv1d(8, 64, 9, 2, 4)", "F.avg_pool1d(self.m(x).sigmoid(), 2)", (8, 501)),
    "pooled_transposed": ("nn.ConvTranspose2d(8, 24, 3, 1, 1)", "F.max_pool2d(self.m(x).abs(), 2)", (8, 17, 22)),
    "plain": ("nn.Conv2d(8, 64, 3, bias=False)", "self.m(x) * 2", (8, 15, 26)),
    "normed": ("nn.Conv2d(8, 64, 3)", "self.n(self.m(x)) * 2", (8, 41, 33)),
}
"""By name: the module ``self.m``, what the forward returns, the shape of one sample."""


@pytest.fixture(autouse=True)
def _whatever_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every convolution is one that eager computes in fp32, and is taken."""
    monkeypatch.setattr(precision, "allows_tf32", lambda *_: False)
    monkeypatch.setattr(direct, "is_small", lambda *_: False)
    monkeypatch.setattr(library, "seconds", lambda *_: math.inf)
    monkeypatch.setattr(contraction, "_is_slower", lambda *_: False)
    monkeypatch.setattr(hopper, "pooled_seconds", lambda *_: 0.0)
    monkeypatch.setattr(channels, "pays", lambda *_: True)


def pair(name: str, tmp_path: Path) -> tuple[nn.Module, nn.Module, tuple[int, ...]]:
    """The reference and the generated module, with the same parameters, and the shape of a sample."""
    module, body, shape = MODELS[name]
    init = f"self.m = {module}\nself.s = nn.Parameter(torch.randn(64, 1, 1))\nself.n = nn.BatchNorm2d(64)"
    path = write(tmp_path, f"return {body}", init, f"torch.rand(4, {', '.join(map(str, shape))})")
    compiled, reference, model = built(path)
    plans = [step.plan.hopper for step in compiled.program.steps if isinstance(step, KernelStep)]
    assert any(isinstance(plan, HopperConvPlan) and plan.precise for plan in plans)
    return reference, model, shape


def _specials(reference: nn.Module, model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        y, r = model(x), copy.deepcopy(reference).double()(x.double())
    for specials in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(specials(y), specials(r))
    finite = r.isfinite()
    if finite.any():
        assert (y - r)[finite].abs().max() <= 1e-5 * r[finite].abs().max()


@pytest.mark.parametrize("name", MODELS)
def test_as_accurate_as_eager(name: str, tmp_path: Path) -> None:
    reference, model, shape = pair(name, tmp_path)
    for batch in (1, 3, 17):
        x = torch.randn(batch, *shape, device="cuda") + 0.5
        agrees(reference, model, x)
        with torch.no_grad():
            assert torch.equal(model(x), model(x))
    x = torch.randn(2, shape[0], *(size + 5 for size in shape[1:]), device="cuda")
    agrees(reference, model, x)
    if name == "normed":
        return
    with torch.no_grad():  # a sample's result depends on nothing but the sample
        apart = torch.cat([model(x[:1] * 2.0**-30), model(x[1:])])
        assert torch.equal(apart, model(torch.cat([x[:1] * 2.0**-30, x[1:]])))

    # NaN and infinities come out where they do in float64.
    x = torch.randn(4, *shape, device="cuda")
    start, middle = tuple(0 for _ in shape[1:]), tuple(size // 2 for size in shape[1:])
    x[(0, 3 % shape[0], *middle)] = torch.nan
    x[(1, 0, *middle)] = torch.inf
    x[(2, 0, *start)] = torch.inf
    x[(2, shape[0] - 1, *start)] = -torch.inf
    _specials(reference, model, x)
    if "transposed" in name:  # what a weight meets beyond the input is not defined
        return
    for value in (torch.nan, -torch.inf):
        with torch.no_grad():
            for module in (reference, model):
                module.m.weight.view(-1)[5] = value
        _specials(reference, model, torch.randn(3, *shape, device="cuda"))


@pytest.mark.parametrize("name", ["eight", "grouped", "rows", "transposed", "pooled", "normed"])
def test_a_file_in_tf32_has_a_kernel_in_full_fp32_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "allows_tf32", lambda *_: True)
    monkeypatch.setattr(contractions, "fp32_pays", lambda *_: True)
    module, body, shape = MODELS[name]
    init = f"self.m = {module}\nself.s = nn.Parameter(torch.randn(64, 1, 1))\nself.n = nn.BatchNorm2d(64)"
    path = write(tmp_path, f"return {body}", init, f"torch.rand(4, {', '.join(map(str, shape))})")
    _, reference, model = built(path)
    for batch in (3, 17):
        x = torch.randn(batch, *shape, device="cuda") + 0.5
        agrees(reference, model, x)
        with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            model(x)
            torch.cuda.synchronize()
        ran = [event.key for event in profile.key_averages()]
        assert any("_fp32_kernel::run" in key for key in ran), ran


@pytest.mark.parametrize("name", ["eight", "volume", "pooled"])
def test_magnitudes_at_the_ends_of_the_range(name: str, tmp_path: Path) -> None:
    reference, model, shape = pair(name, tmp_path)
    fresh = copy.deepcopy(reference.m.weight.data)
    for of_x, of_w in ((2.0**-140, 1.0), (2.0**-120, 2.0**110), (2.0**99, 2.0**-90), (2.0**120, 2.0**-120)):
        with torch.no_grad():
            for module in (reference, model):
                module.m.weight.copy_(fresh * of_w)
        x = torch.randn(2, *shape, device="cuda")
        agrees(reference, model, x * of_x)
        x[0, 0] *= of_x
        agrees(reference, model, x)


def test_channels_of_small_weights_keep_their_digits(tmp_path: Path) -> None:
    reference, model, shape = pair("plain", tmp_path)
    with torch.no_grad():
        for module in (reference, model):
            module.m.weight *= 2.0 ** torch.linspace(-60, 3, 64, device="cuda").round()[:, None, None, None]
        x = torch.randn(5, *shape, device="cuda")
        y, r = model(x), copy.deepcopy(reference).double()(x.double())
    assert ((y - r).abs().amax((0, 2, 3)) <= 1e-6 * r.abs().amax((0, 2, 3))).all()
