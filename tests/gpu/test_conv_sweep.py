"""Convolutions that reduce along some of their positions' axes, compiled here and now."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from fusegen.costs import direct, library
from fusegen.plan.details import ContractionPlan
from fusegen.plan.types import KernelStep
from fusegen.spaces import convsweep
from tests.gpu.cases import agrees, built, keeps_specials
from tests.models import write

pytestmark = pytest.mark.gpu

MODELS = {
    "depth": ("nn.Conv3d(3, 24, 3)", "self.m(x).min(2).values.softmax(1)", (3, 20, 17, 19)),
    "height": ("nn.Conv2d(64, 40, 3, 2, 1)", "F.silu(self.m(x)).amax(2) + 1", (64, 61, 34)),
    "width": ("nn.Conv2d(64, 24, (3, 2), 1, 0, (1, 2))", "self.m(x).amin(-1, keepdim=True).abs()", (64, 9, 203)),
    "plane": ("nn.Conv3d(5, 72, 2)", "self.m(x).sin().amax((3, 4)) * 2", (5, 16, 17, 18)),
    "around": ("nn.Conv3d(8, 16, 2)", "self.m(x).cos().amax((2, 4)).logsumexp(1)", (8, 15, 16, 17)),
    "line": ("nn.Conv1d(64, 33, 5, 2)", "(self.m(x) / -1.5).min(2).values", (64, 1075)),
    "groups": ("nn.Conv2d(128, 80, 3, groups=2)", "self.m(x).square().amax(3) - 1", (128, 27, 40)),
    "far_taps": ("nn.Conv2d(64, 24, (3, 2), 1, 0, (19, 1))", "self.m(x).amax(2) * 2", (64, 45, 35)),
    "phases": ("nn.ConvTranspose2d(64, 24, 4, 2, 1)", "self.m(x).sin().amax(2)", (64, 15, 16)),
    "side_by_side": ("nn.ConvTranspose2d(64, 24, 5, 2, 1)", "self.m(x).sin().amin(3).softmax(1)", (64, 15, 26)),
    "mean_depth": ("nn.Conv3d(3, 24, 3)", "F.relu(self.m(x)).mean(2).softmax(1)", (3, 20, 17, 19)),
    "sum_height": ("nn.Conv2d(64, 40, 3, 2, 1)", "F.silu(self.m(x)).sum(2) + 1", (64, 61, 34)),
    "mean_width": ("nn.Conv2d(64, 24, (3, 2), 1, 0, (1, 2))", "self.m(x).abs().mean(-1, True)", (64, 9, 203)),
    "sum_around": ("nn.Conv3d(8, 16, 2)", "F.gelu(self.m(x)).sum((2, 4)).logsumexp(1)", (8, 15, 16, 17)),
    "mean_positions": ("nn.Conv2d(64, 40, 3)", "F.hardswish(self.m(x)).mean((2, 3))", (64, 29, 30)),
    "sum_groups": ("nn.Conv2d(128, 80, 3, groups=2)", "self.m(x).square().sum(3) - 1", (128, 27, 40)),
    "prod_width": ("nn.Conv2d(64, 24, (3, 2), 1, 0, (1, 2))", "self.m(x).cos().prod(-1) * 2", (64, 9, 203)),
    "mean_side_by_side": ("nn.ConvTranspose2d(64, 24, 5, 2, 1)", "self.m(x).relu().mean(3)", (64, 15, 26)),
    "sum_volume": ("nn.ConvTranspose3d(64, 16, 3, 2, 1)", "self.m(x).abs().sum((2, 3))", (64, 5, 6, 7)),
    "mean_of_long_rows": ("nn.Conv2d(8, 16, (1, 3))", "self.m(x).abs().mean(3)", (8, 1, 140001)),
    "volume": ("nn.ConvTranspose3d(64, 16, 3, 2, 1)", "self.m(x).abs().amax((2, 3))", (64, 5, 6, 7)),
}
"""By name: the module ``self.m``, what the forward returns, the shape of one sample."""


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_agrees(name: str, tf32: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "is_small", lambda *_: False)
    monkeypatch.setattr(library, "seconds", lambda *_: math.inf)
    monkeypatch.setattr(convsweep, "together_or_apart", lambda *_: None)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    module, body, shape = MODELS[name]
    path = write(tmp_path, f"return {body}", f"self.m = {module}", f"torch.rand(4, {', '.join(map(str, shape))})")
    compiled, reference, model = built(path)
    (step,) = compiled.program.steps
    assert isinstance(step, KernelStep)
    assert isinstance(step.plan.detail, ContractionPlan)
    assert step.plan.detail.sweep
    offset = torch.randn(1, shape[0], *[1] * (len(shape) - 1), device="cuda")
    for batch in (1, 2, 33, 300):
        x = torch.randn(batch, *shape, device="cuda") * 3 + offset
        agrees(reference, model, x)
        with torch.no_grad():
            assert torch.equal(model(x), model(x))
    longer = (2 * size + 5 if size > 1 else 1 for size in shape[1:])  # an axis of one element is fixed
    agrees(reference, model, torch.randn(3, shape[0], *longer, device="cuda"))
    keeps_specials(reference, model, shape)
