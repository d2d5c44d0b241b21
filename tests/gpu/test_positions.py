"""Parts of a convolution's positions, and convolutions of repeated elements, at other sizes than compiled for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu.cases import agrees, built
from tests.models import write

pytestmark = pytest.mark.gpu

MODELS = {
    "causal": ("nn.Conv1d(24, 40, 3, padding=8, dilation=4)", "F.silu(self.m(x)[..., :-8])", (24, 133)),
    "causal_depthwise": ("nn.Conv1d(24, 24, 4, padding=3, groups=24)", "F.silu(self.m(x)[..., :-3])", (24, 133)),
    "one_side": ("nn.Conv2d(24, 40, 3, 1, 1)", "self.m(x)[:, :, :-1, 1:].relu()", (24, 21, 36)),
    "strided": ("nn.Conv2d(24, 40, 5, 2, 4)", "self.m(x)[:, :, 1:-1, 2:] * 2", (24, 31, 40)),
    "phases": ("nn.ConvTranspose2d(24, 40, 4, 2)", "F.silu(self.m(x)[:, :, 1:-1, 2:-1])", (24, 13, 20)),
    "residual": (
        "nn.ConvTranspose1d(24, 40, 16, 8)",
        "(lambda y: y + y.sin().square())(self.m(x)[..., 4:-4])",
        (24, 133),
    ),
    "repeated": ("nn.Conv2d(24, 40, 3, 1, 1)", "F.silu(self.m(F.interpolate(x, scale_factor=2)))", (24, 13, 20)),
    "repeated_thrice": ("nn.Conv1d(24, 40, 5)", "self.m(x.repeat_interleave(3, dim=2)).tanh()", (24, 133)),
    "repeated_rows": (
        "nn.Conv2d(32, 40, (3, 1), 1, (2, 0), bias=False)",
        "self.m(F.interpolate(x, scale_factor=(2, 1))).relu()",
        (32, 13, 20),
    ),
}
"""By name: the module ``self.m``, what the forward returns, the shape of a sample."""


@pytest.mark.parametrize("name", MODELS)
def test_parts_and_repeats(name: str, tmp_path: Path) -> None:
    module, body, shape = MODELS[name]
    path = write(tmp_path, f"return {body}", f"self.m = {module}", f"torch.randn(16, {', '.join(map(str, shape))})")
    _, reference, model = built(path)
    for sizes in (shape, tuple(size if axis == 0 else 2 * size + 1 for axis, size in enumerate(shape))):
        agrees(reference, model, torch.randn(16, *sizes, device="cuda"))
