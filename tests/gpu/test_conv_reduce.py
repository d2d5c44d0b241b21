"""Convolutions that reduce their results over all positions, compiled here and now: every kind of structure."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from fusegen.costs import direct, hopper, library
from fusegen.plan import contraction
from fusegen.plan.details import ContractionPlan, HopperConvPlan
from fusegen.plan.types import KernelStep
from fusegen.spaces import convreduce
from tests.gpu.cases import agrees, built, keeps_specials
from tests.models import write

pytestmark = pytest.mark.gpu

BOTH = "(lambda y, at: torch.cat([y.mean(at), y.amax(at), y.amin(at)], 1))({}, (2, 3))"

MODELS = {
    "conv": ("nn.Conv2d(64, 40, 3, padding=1)", "F.relu(self.m(x)).mean((2, 3))", (64, 21, 33)),
    "sum": ("nn.Conv2d(64, 64, 3)", "F.gelu(self.m(x)).sum((2, 3), keepdim=True)", (64, 17, 40)),
    "tiles": ("nn.Conv2d(64, 272, 3)", "F.silu(self.m(x)).mean((2, 3))", (64, 17, 19)),
    "streamed": ("nn.Conv2d(64, 128, 3)", "F.adaptive_avg_pool2d(F.silu(self.m(x)), 1)", (64, 20, 31)),
    "groups": ("nn.Conv2d(128, 160, 3, 2, 1, groups=2)", "F.elu(self.m(x)).mean((2, 3))", (128, 23, 30)),
    "branches": ("nn.Conv3d(64, 24, 3)", "(self.m(x) * torch.sigmoid(self.m(x))).mean((2, 3, 4))", (64, 7, 9, 12)),
    "two_phases": ("nn.ConvTranspose1d(64, 40, 4, 2, 1)", "F.gelu(self.m(x)).mean(2)", (64, 301)),
    "four_phases": ("nn.ConvTranspose2d(64, 32, 4, 2, 1)", "torch.tanh(self.m(x)).mean((2, 3))", (64, 14, 19)),
    "nine_kinds": ("nn.ConvTranspose2d(64, 24, 4, 3)", "F.relu(self.m(x)).sum((2, 3))", (64, 11, 10)),
    "idle_taps": ("nn.ConvTranspose3d(64, 24, 3, 2, 1)", "self.m(x).sigmoid().mean((2, 3, 4))", (64, 5, 6, 7)),
    "precise": ("nn.Conv2d(8, 64, 3)", "F.gelu(self.m(x)).mean((2, 3))", (8, 41, 33)),
    "after": ("nn.Conv2d(8, 24, 3, 2)", "(F.relu(self.m(x)).mean((2, 3)) * 2 + 1).softmax(1)", (8, 41, 33)),
    "max": ("nn.Conv2d(64, 40, 3, padding=1)", "F.silu(self.m(x)).amax((2, 3))", (64, 21, 33)),
    "min_tiles": ("nn.Conv2d(64, 272, 3)", "self.m(x).amin((2, 3)).softmax(1)", (64, 17, 19)),
    "max_groups": ("nn.Conv2d(128, 160, 3, 2, 1, groups=2)", "F.mish(self.m(x)).amax((2, 3))", (128, 23, 30)),
    "min_phases": ("nn.ConvTranspose2d(64, 32, 4, 2, 1)", "self.m(x).sin().amin((2, 3))", (64, 14, 19)),
    "max_idle_taps": ("nn.ConvTranspose3d(64, 24, 3, 2, 1)", "self.m(x).abs().amax((2, 3, 4))", (64, 5, 6, 7)),
    "max_precise": ("nn.Conv2d(8, 64, 3)", "self.m(x).cos().amax((2, 3))", (8, 41, 33)),
    "in_place": ("nn.Conv2d(64, 64, 3)", "F.gelu(self.m(x)).sum((2, 3), keepdim=True)", (64, 17, 40)),
    "max_in_place": ("nn.Conv2d(64, 40, 1)", "F.silu(self.m(x)).amax((2, 3))", (64, 20, 33)),
    "exponentials": ("nn.Conv2d(64, 40, 3, padding=1)", "F.silu(self.m(x)).logsumexp((2, 3))", (64, 21, 33)),
    "exponentials_in_place": ("nn.Conv2d(64, 40, 1)", "F.silu(self.m(x)).logsumexp((2, 3))", (64, 20, 33)),
    "exponentials_tiles": ("nn.Conv2d(64, 272, 3)", "self.m(x).logsumexp((2, 3)).softmax(1)", (64, 17, 19)),
    "exponentials_phases": ("nn.ConvTranspose2d(64, 32, 4, 2, 1)", "self.m(x).abs().logsumexp((2, 3))", (64, 14, 19)),
    "exponentials_precise": ("nn.Conv2d(8, 64, 3)", "F.mish(self.m(x) * 9).logsumexp((2, 3))", (8, 41, 33)),
    "both": ("nn.Conv2d(64, 40, 3, padding=1)", BOTH.format("F.silu(self.m(x))"), (64, 21, 33)),
    "both_in_place": ("nn.Conv2d(64, 40, 1)", BOTH.format("F.silu(self.m(x))"), (64, 20, 33)),
    "both_tiles": ("nn.Conv2d(64, 272, 3)", BOTH.format("self.m(x).tanh()"), (64, 17, 19)),
    "both_phases": ("nn.ConvTranspose2d(64, 32, 4, 2, 1)", BOTH.format("self.m(x).sin()"), (64, 14, 19)),
    "both_precise": ("nn.Conv2d(8, 64, 3)", BOTH.format("self.m(x).cos()"), (8, 41, 33)),
    "places": ("nn.Conv2d(16, 24, 3)", "(self.m(x) * self.p).relu().mean((2, 3))", (16, 20, 31)),
}
"""By name: the module ``self.m``, what the forward returns, the shape of one sample."""

NORMS = {
    "group": ("nn.Conv2d(64, 40, 3, padding=1)", "self.n(self.m(x)).mean((1, 2, 3))", (64, 21, 33)),
    "chain": ("nn.Conv3d(64, 24, 3)", "self.n(F.hardswish(self.m(x)) * 2).mean((2, 3, 4))", (64, 7, 9, 12)),
    "tiles": ("nn.Conv2d(64, 272, 3)", "self.n(self.m(x)).mean((2, 3))", (64, 17, 19)),
    "in_place": ("nn.Conv2d(64, 272, 3)", "self.n(self.m(x)).mean((2, 3))", (64, 17, 20)),
    "plane_in_place": ("nn.Conv2d(64, 40, 1)", "self.n(F.relu(self.m(x))).mean((1, 2, 3))", (64, 20, 33)),
    "groups": ("nn.Conv2d(128, 160, 3, 2, 1, groups=2)", "self.n(F.elu(self.m(x))).sum((2, 3))", (128, 23, 30)),
    "two_phases": ("nn.ConvTranspose1d(64, 40, 4, 2, 1)", "self.n(F.gelu(self.m(x))).mean(2)", (64, 301)),
    "four_phases": ("nn.ConvTranspose2d(64, 32, 4, 2, 1)", "self.n(self.m(x)).mean((2, 3))", (64, 14, 19)),
    "nine_kinds": ("nn.ConvTranspose2d(64, 24, 4, 3)", "self.n(self.m(x)).sum((1, 2, 3))", (64, 11, 10)),
    "batch": ("nn.ConvTranspose3d(64, 24, 3, 2, 1)", "self.n(self.m(x) * 1.5).mean((2, 3, 4))", (64, 5, 6, 7)),
    "precise": ("nn.Conv2d(8, 64, 3)", "self.n(self.m(x)).mean((1, 2, 3))", (8, 41, 33)),
    "few": ("nn.Conv3d(3, 16, 4)", "self.n(F.hardswish(self.m(x))).mean((2, 3, 4))", (3, 11, 13, 14)),
}
"""The same with a norm ``self.n``."""
MODELS |= {f"norm_{name}": model for name, model in NORMS.items()}


def pair(name: str, portable: bool, tmp_path: Path) -> tuple[nn.Module, nn.Module, tuple[int, ...]]:
    """The reference and the generated module, with the same parameters, and the shape of a sample."""
    module, body, shape = MODELS[name]
    init = [f"self.m = {module}", "self.p = nn.Parameter(torch.randn(18, 29))"]
    if name.startswith("norm"):
        channels = int(module.split(",")[1])
        norm = f"nn.BatchNorm{len(shape) - 1}d({channels})" if name == "norm_batch" else f"nn.GroupNorm(8, {channels})"
        init += [f"self.n = {norm}", "nn.init.normal_(self.n.weight)", "nn.init.normal_(self.n.bias)"]
    path = write(tmp_path, f"return {body}", "\n".join(init), f"torch.rand(4, {', '.join(map(str, shape))})")
    compiled, reference, model = built(path)
    plans = [step.plan for step in compiled.program.steps if isinstance(step, KernelStep)]
    details = [plan.detail if portable else plan.hopper for plan in plans]
    assert any(isinstance(plan, ContractionPlan | HopperConvPlan) and plan.reduced for plan in details)
    if name.endswith("in_place") and not portable:
        assert any(isinstance(plan, HopperConvPlan) and plan.alternative for plan in details)
    return reference, model, shape


@pytest.mark.parametrize(("portable", "tf32"), [(False, True), (False, False), (True, True)])
@pytest.mark.parametrize("name", MODELS)
def test_agrees(name: str, portable: bool, tf32: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "is_small", lambda *_: False)
    monkeypatch.setattr(library, "seconds", lambda *_: math.inf)
    monkeypatch.setattr(convreduce, "LEAST_POSITIONS", 1)
    monkeypatch.setattr(convreduce, "together_or_apart", lambda *_: None)
    monkeypatch.setattr(contraction, "_is_slower", lambda *_: portable)
    if portable:
        monkeypatch.setattr(contraction, "hopper_conv", lambda *_, **__: "left to the portable one")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    if name.endswith("in_place"):
        monkeypatch.setattr(hopper, "reads_in_place", lambda *_: True)
        monkeypatch.setattr(hopper, "pays_in_halves", lambda *_: False)
    reference, model, shape = pair(name, portable, tmp_path)
    offset = torch.randn(1, shape[0], *[1] * (len(shape) - 1), device="cuda")
    for batch in (1, 2, 33, 300):  # samples of less than a tile to shares of a sample
        x = torch.randn(batch, *shape, device="cuda") * 3 + offset
        agrees(reference, model, x)
        with torch.no_grad():
            assert torch.equal(model(x), model(x))
    if name == "places":
        return  # of one size
    agrees(reference, model, torch.randn(3, shape[0], *(3 * size + 5 for size in shape[1:]), device="cuda"))
    if name == "norm_batch":
        return  # samples depend on each other
    keeps_specials(reference, model, shape)
