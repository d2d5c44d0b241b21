"""Convolutions that write into the tensor their results are joined in, compiled here and now."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from fusegen.plan.types import KernelStep
from tests.gpu.cases import built
from tests.models import write

pytestmark = pytest.mark.gpu

FIRE = """self.s = nn.Conv2d(96, 16, 1)
self.a = nn.Conv2d(16, 64, 1)
self.b = nn.Conv2d(16, 64, 3, padding=1)"""
LINES = """self.a = nn.Conv1d(32, 48, 3, padding=1)
self.b = nn.Conv1d(32, 64, 5, padding=2)"""
UP = """self.a = nn.ConvTranspose2d(32, 24, 2, 2)
self.b = nn.ConvTranspose2d(32, 48, 4, 2, 1)"""
MODELS = {
    "fire": (FIRE, "s = self.s(x).relu()\nreturn torch.cat([self.a(s).relu(), self.b(s).relu()], 1)", (96, 55, 55)),
    "fire_in_place": (FIRE, "s = self.s(x)\nreturn torch.cat([self.a(s).tanh(), F.mish(self.b(s))], 1)", (96, 56, 56)),
    "lines": (LINES, "return torch.cat([F.gelu(self.a(x)), self.b(x).relu() * 2], 1)", (32, 2040)),
    "up": (UP, "return torch.cat([F.hardswish(self.b(x)), F.gelu(self.a(x))], 1)", (32, 40, 48)),
}
"""By name: modules, the forward, the shape of one sample."""


@pytest.mark.parametrize("name", MODELS)
def test_parts_are_in_their_places(name: str, tmp_path: Path) -> None:
    init, body, shape = MODELS[name]
    compiled, reference, model = built(write(tmp_path, body, init, f"torch.rand(32, {', '.join(map(str, shape))})"))
    assert sum(isinstance(step, KernelStep) and step.part is not None for step in compiled.program.steps) == 2
    exact = copy.deepcopy(reference).double()
    for batch, grown in ((32, 0), (1, 0), (3, 4), (17, 8), (2, 9)):
        x = torch.randn(batch, shape[0], *(size + grown for size in shape[1:]), device="cuda")
        with torch.no_grad():
            y, eager, r = model(x), reference(x), exact(x.double())
            assert torch.equal(y, model(x))
        assert y.shape == r.shape
        assert y.is_contiguous()
        assert (y - r).abs().max() <= max(2.5 * (eager - r).abs().max(), 1e-6 * r.abs().max())
