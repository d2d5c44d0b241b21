"""Convolutions of groups of few channels, compiled here and now: every kind of structure."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from fusegen.costs import library
from fusegen.spaces import convsweep
from tests.gpu.cases import agrees, built, keeps_specials
from tests.gpu.test_contraction import full_precision
from tests.models import write

__all__ = ["full_precision"]
pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("full_precision")]

MODELS = {
    "depthwise": ("nn.Conv2d(20, 20, 3, padding=1, groups=20)", "F.hardswish(self.m(x)) * self.s", (20, 19, 28)),
    "uneven": ("nn.Conv2d(20, 20, 3, 2, groups=20)", "F.silu(self.m(F.pad(x, (0, 1, 0, 1))))", (20, 18, 28)),
    "strided": ("nn.Conv2d(12, 12, (5, 3), 2, (2, 1), groups=12)", "self.m(x).tanh()", (12, 32, 40)),
    "steps": ("nn.Conv2d(12, 12, 3, (3, 5), (0, 1), groups=12)", "self.m(x).relu()", (12, 31, 48)),
    "dilated": ("nn.Conv2d(12, 12, 3, 1, 4, (4, 3), groups=12)", "self.m(x) * 2", (12, 30, 36)),
    "wide": ("nn.Conv2d(16, 16, 7, padding=3, groups=16, bias=False)", "F.gelu(self.m(x))", (16, 28, 28)),
    "multiplier": ("nn.Conv2d(8, 24, 3, padding=1, groups=8)", "self.m(x).sigmoid()", (8, 17, 24)),
    "seven": ("nn.Conv2d(6, 42, 3, groups=6)", "self.m(x).abs()", (6, 18, 22)),
    "few_channels": ("nn.Conv2d(24, 16, 3, padding=1, groups=8)", "self.m(x).relu() + 1", (24, 14, 20)),
    "line": ("nn.Conv1d(16, 16, 9, 2, 4, groups=16)", "F.silu(self.m(x))", (16, 132)),
    "line_multiplier": ("nn.Conv1d(16, 32, 5, padding=2, groups=16)", "F.silu(self.m(x))", (16, 136)),
    "volume": ("nn.Conv3d(6, 6, 3, (1, 2, 1), 1, groups=6)", "F.hardswish(self.m(x))", (6, 6, 11, 16)),
    "residual": ("nn.Conv2d(20, 20, 3, padding=1, groups=20, bias=False)", "self.m(x) * self.s + x", (20, 19, 28)),
    "chain_before": ("nn.Conv2d(20, 20, 3, 2, 1, groups=20)", "self.m(F.relu6(x * self.s + 0.5)).tanh()", (20, 18, 28)),
    "transposed": ("nn.ConvTranspose2d(12, 12, 4, 2, 1, groups=12)", "self.m(x).clamp(-1, 1) * 2", (12, 13, 20)),
    "transposed_far": (
        "nn.ConvTranspose2d(6, 12, (2, 5), (5, 3), (0, 2), (4, 2), groups=6)",
        "self.m(x).relu()",
        (6, 9, 10),
    ),
    "transposed_few_outputs": ("nn.ConvTranspose2d(32, 8, 1, 3, groups=2)", "F.mish(self.m(x))", (32, 31, 43)),
    "transposed_phases": (
        "nn.ConvTranspose2d(8, 12, (7, 4), (3, 2), (2, 1), (1, 1), groups=2)",
        "self.m(x).relu()",
        (8, 15, 36),
    ),
    "transposed_phases_volume": (
        "nn.ConvTranspose3d(4, 6, (3, 2, 4), 3, 1, 2, groups=2)",
        "self.m(x) * 2",
        (4, 5, 7, 9),
    ),
    "transposed_line": ("nn.ConvTranspose1d(16, 10, 9, 5, 3, 1, groups=2)", "F.silu(self.m(x))", (16, 131)),
    "many_inputs": ("nn.Conv2d(64, 12, 3, padding=1, groups=4)", "self.m(x).tanh()", (64, 14, 20)),
    "many_outputs": ("nn.Conv2d(4, 32, 3, 2, dilation=2, groups=2)", "F.silu(self.m(x))", (4, 33, 32)),
    "many_outputs_transposed": ("nn.ConvTranspose1d(6, 33, 2, 3, groups=3)", "self.m(x).tanh()", (6, 130)),
    "transposed_volume": ("nn.ConvTranspose3d(8, 8, 3, 2, 1, 1, groups=8)", "F.mish(self.m(x))", (8, 4, 6, 9)),
    "groups_in_turns": ("nn.Conv1d(96, 8, 5, 2, groups=2)", "F.silu(self.m(x))", (96, 1310)),
    "groups_in_turns_of_volumes": (
        "nn.ConvTranspose3d(128, 8, 2, 2, dilation=2, groups=2)",
        "self.m(x).tanh()",
        (128, 5, 9, 11),
    ),
    "few_outputs": ("nn.Conv2d(20, 3, 3, padding=1)", "self.m(x).tanh() + 1", (20, 190, 192)),
    "few_outputs_strided": ("nn.Conv2d(130, 3, 5, 2)", "F.silu(self.m(x))", (130, 21, 32)),
    "over_channels": ("nn.Conv2d(20, 3, 3, padding=1)", "F.log_softmax(self.m(x) * 2, 1) + 1", (20, 190, 192)),
    "over_channels_mean": ("nn.Conv2d(5, 4, 3, padding=1)", "F.leaky_relu(self.m(x)).mean(1, True) * 2", (5, 19, 28)),
    "over_channels_far": ("nn.ConvTranspose2d(32, 3, 2, 3)", "self.m(x).amax(1).tanh()", (32, 31, 44)),
    "one_input": ("nn.Conv2d(1, 32, 3, padding=1, bias=False)", "self.m(x)", (1, 32, 100)),
    "three_inputs": ("nn.Conv2d(3, 16, 3, 2, 1, bias=False)", "self.m(x)", (3, 32, 64)),
    "few_outputs_volume": ("nn.Conv3d(24, 4, 3, (1, 2, 1), 1)", "self.m(x).abs()", (24, 7, 12, 16)),
}  # fmt: skip
"""By name: the module ``self.m``, what the forward returns, the shape of one sample."""


@pytest.fixture(autouse=True)
def _whatever_the_library_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "seconds", lambda *_: math.inf)


def pair(name: str, tmp_path: Path) -> tuple[nn.Module, nn.Module, tuple[int, ...]]:
    """The reference and the generated module, with the same parameters, and the shape of a sample."""
    module, body, shape = MODELS[name]
    init = f"self.m = {module}\nself.s = nn.Parameter(torch.randn(20, 1, 1))"
    path = write(tmp_path, f"return {body}", init, f"torch.rand(4, {', '.join(map(str, shape))})")
    compiled, reference, model = built(path)
    assert [step.plan.detail.template for step in compiled.program.steps if step.kind == "kernel"] == ["conv_direct"]
    return reference, model, shape


def unaligned(x: torch.Tensor) -> torch.Tensor:
    """The same values, a float off 16-byte alignment."""
    return torch.empty(x.numel() + 1, device="cuda")[1:].view(x.shape).copy_(x)


@pytest.mark.parametrize("name", MODELS)
def test_every_size_and_alignment(name: str, tmp_path: Path) -> None:
    """As accurate as eager, the same bits again, and the same bits wherever accesses may be wide."""
    reference, model, shape = pair(name, tmp_path)
    for batch, more in ((1, 0), (3, 0), (17, 1), (2, 2), (5, 4), (2, 103)):
        x = torch.randn(batch, shape[0], *(size + min(more, 19) for size in shape[1:-1]), shape[-1] + more).cuda() + 0.5
        agrees(reference, model, x)
        with torch.no_grad():
            y = model(x)
            assert torch.equal(y, model(x))
            assert torch.equal(y, model(unaligned(x)))
    with torch.no_grad():
        assert model(x[:0]).shape == (0, *y.shape[1:])


@pytest.mark.parametrize("name", MODELS)
def test_special_values_reach_the_same_outputs(name: str, tmp_path: Path) -> None:
    reference, model, shape = pair(name, tmp_path)
    x = torch.randn(3, *shape, device="cuda")
    start, middle = tuple(0 for _ in shape[1:]), tuple(size // 2 for size in shape[1:])
    x[(0, min(3, shape[0] - 1), *middle)] = torch.nan
    x[(1, 0, *middle)] = torch.inf
    x[(2, 0, *start)] = torch.inf
    x[(2, shape[0] - 1, *start)] = -torch.inf
    with torch.no_grad():
        y = model(x).cpu()
        r = copy.deepcopy(reference).cpu().double()(x.cpu().double())
    for specials in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(specials(y), specials(r))


REDUCTIONS = {
    "depthwise": ("nn.Conv2d(20, 20, 3, 1, 1, groups=20)", "F.hardswish(self.m(x)).mean((2, 3)) * 2", (20, 19, 28)),
    "several_channels": ("nn.Conv2d(64, 12, 3, 1, 1, groups=4)", "self.m(x).abs().sum((2, 3), True)", (64, 14, 20)),
    "parts": ("nn.Conv2d(4, 14, 2, groups=2)", "(self.m(x) / -1.5).amax((2, 3)).tanh()", (4, 41, 41)),
    "prologue": ("nn.Conv2d(20, 20, 5, 2, 2, groups=20)", "self.m(x.relu()).square().mean((2, 3))", (20, 65, 64)),
    "transposed": ("nn.ConvTranspose2d(12, 12, 4, 2, 1, groups=12)", "self.m(x).relu().amax((2, 3))", (12, 13, 20)),
    "phases": ("nn.ConvTranspose2d(32, 8, 1, 3, groups=2)", "F.mish(self.m(x)).mean((2, 3)) - 1", (32, 31, 43)),
    "volume": ("nn.Conv3d(6, 6, 3, (1, 2, 1), 1, groups=6)", "self.m(x).abs().amin((2, 3, 4))", (6, 6, 11, 16)),
    "line": ("nn.Conv1d(16, 16, 9, 2, 4, groups=16)", "F.silu(self.m(x)).sum(2)", (16, 5132)),
    "turned": ("nn.Conv2d(8, 24, 3, padding=1, groups=8)", "F.gelu(self.m(x)).mean((2, 3)).T", (8, 117, 124)),
}  # fmt: skip
"""Likewise, with a reduction over all positions."""


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_over_all_positions(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convsweep, "together_or_apart", lambda *_: None)
    module, body, shape = REDUCTIONS[name]
    path = write(tmp_path, f"return {body}", f"self.m = {module}", f"torch.rand(4, {', '.join(map(str, shape))})")
    compiled, reference, model = built(path)
    (plan,) = (step.plan for step in compiled.program.steps if step.kind == "kernel")
    assert plan.detail.reduction
    for batch, more in ((1, 0), (3, 0), (17, 1), (900, 2), (5, 4), (2, 603)):
        x = torch.randn(batch, shape[0], *(size + min(more, 19) for size in shape[1:-1]), shape[-1] + more).cuda() + 0.5
        agrees(reference, model, x)
        agrees(reference, model, unaligned(x))
        with torch.no_grad():
            assert torch.equal(model(x), model(x))
    if name != "turned":  # its samples are columns
        keeps_specials(reference, model, shape)
    with torch.no_grad():
        assert model(x[:0]).numel() == 0
