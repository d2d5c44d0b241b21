"""Means and sums of convolutions over some of their axes, compiled here and now: every kind of structure."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusegen.passes.algebra import axes
from fusegen.plan.details import AxisSumPlan
from fusegen.plan.types import KernelStep
from tests.gpu.cases import agrees, built
from tests.models import write

pytestmark = pytest.mark.gpu

MODELS = {
    "rows": ("nn.ConvTranspose2d(8, 16, 4, 2, 1)", "self.m(x).mean(3).relu()", (8, 12, 16)),
    "one_window": ("nn.ConvTranspose2d(8, 16, 3, 2)", "self.m(x).mean(3)", (8, 12, 16)),
    "steps": ("nn.Conv2d(8, 16, 5, 2, 2)", "self.m(x).mean(3)", (8, 12, 16)),
    "steps_of_three": ("nn.Conv2d(8, 16, 4, 3, 1)", "self.m(x).sum(3, keepdim=True)", (8, 12, 16)),
    "many_windows": ("nn.Conv2d(8, 16, 7, padding=3)", "self.m(x).mean(3)", (8, 12, 16)),
    "dilated": ("nn.Conv2d(8, 16, 3, 1, 2, 2)", "self.m(x).mean(3).softmax(1)", (8, 12, 16)),
    "columns": ("nn.Conv2d(16, 32, 3, padding=1, groups=2)", "self.m(x).mean(2)", (16, 12, 16)),
    "column_steps": ("nn.Conv2d(8, 16, (5, 3), (2, 1), 2)", "self.m(x).mean(2, keepdim=True)", (8, 12, 16)),
    "depth": ("nn.ConvTranspose3d(16, 32, 3, 2, 1, 1, groups=2)", "self.m(x).mean(2)", (16, 8, 6, 8)),
    "height": ("nn.Conv3d(8, 16, 3)", "self.m(x).sum(3).tanh()", (8, 6, 8, 8)),
    "two_axes": ("nn.Conv3d(8, 16, 3, padding=1)", "self.m(x).mean((2, 4))", (8, 6, 8, 8)),
    "all_axes": ("nn.Conv3d(3, 8, (3, 5, 5), (1, 2, 2), (1, 2, 2))", "self.m(x).mean((2, 3, 4))", (3, 6, 8, 8)),
}
"""By name: the module ``self.m``, what the forward returns, the shape of one sample."""


@pytest.mark.parametrize("name", MODELS)
def test_agrees(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axes, "_pays", lambda *_: None)
    module, body, (channels, *sizes) = MODELS[name]
    shape = ", ".join(map(str, (channels, *sizes)))
    compiled, reference, generated = built(
        write(tmp_path, f"return {body}", f"self.m = {module}", f"torch.rand(4, {shape})")
    )
    details = [step.plan.detail for step in compiled.program.steps if isinstance(step, KernelStep)]
    assert any(isinstance(detail, AxisSumPlan) for detail in details)
    odd = [size + 3 for size in sizes]
    last, first = [*sizes[:-1], 6001], [1500, *sizes[1:]]
    for batch, size in ((4, sizes), (1, sizes), (3, odd), (2, last), (2, first), (1, [*sizes[:-1], 1200])):
        agrees(reference, generated, torch.randn(batch, channels, *size, device="cuda") + 0.5)
    unaligned = torch.randn(4 * channels * torch.Size(sizes).numel() + 1, device="cuda")[1:].view(4, channels, *sizes)
    agrees(reference, generated, unaligned)
