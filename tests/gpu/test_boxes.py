"""Mean poolings of convolutions from box means, compiled here and now, with and without TF32."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from fusegen.passes.algebra import boxes
from tests.gpu.cases import agrees, built
from tests.gpu.test_contraction import full_precision
from tests.models import write

pytestmark = pytest.mark.gpu
__all__ = ["full_precision"]

MODELS = {
    "image": ("nn.Conv2d(5, 24, 3, padding=1)", "F.hardswish(F.avg_pool2d(self.m(x), 2)) * self.s", (5, 33, 40)),
    "windows_apart": ("nn.Conv2d(16, 33, (3, 2))", "F.avg_pool2d(self.m(x), (2, 3), (5, 4)).tanh()", (16, 39, 62)),
    "windows_overlap": ("nn.Conv2d(11, 70, 3, padding=(0, 2))", "F.avg_pool2d(self.m(x), 3, 2)", (11, 37, 93)),
    "dilated": ("nn.Conv2d(20, 24, 3, padding=2, dilation=(2, 3))", "F.avg_pool2d(self.m(x), 4).sin()", (20, 36, 44)),
    "line": ("nn.Conv1d(48, 24, 5, padding=1)", "F.avg_pool1d(self.m(x), 4) + self.s[..., 0]", (48, 1041)),
    "volume": ("nn.Conv3d(3, 16, 3)", "F.avg_pool3d(self.m(x), 2).sigmoid()", (3, 16, 19, 32)),
    "groups": ("nn.Conv2d(32, 48, 3, groups=2)", "F.avg_pool2d(self.m(x), 2).relu()", (32, 22, 38)),
    "pixels": ("nn.Conv2d(16, 8, 1)", "F.avg_pool2d(self.m(x), 3).sin()", (16, 29, 40)),
    "many_channels": ("nn.Conv2d(72, 136, 3, padding=1)", "F.avg_pool2d(self.m(x), 2).relu()", (72, 20, 28)),
    "of_samples": ("nn.Conv2d(16, 72, 3)", "F.avg_pool2d(self.m(x), 4).sigmoid().sum((1, 2, 3))", (16, 50, 64)),
    "of_channels": ("nn.Conv2d(9, 72, 3)", "F.avg_pool2d(self.m(x), 2).relu().mean((2, 3))", (9, 40, 76)),
    "of_groups": (
        "nn.Conv3d(16, 32, 2, groups=2)",
        "F.avg_pool3d(self.m(x), 2).relu().mean((1, 2, 3, 4))",
        (16, 9, 14, 20),
    ),
    "residual": (
        "nn.Conv2d(16, 24, 3)",
        "F.avg_pool2d(self.m(x), 2) * F.avg_pool2d(self.o(x), 2).tanh()",
        (16, 24, 31),
    ),
}  # fmt: skip
"""By name: the module ``self.m``, what the forward returns, the shape of one sample."""


@pytest.fixture(autouse=True)
def _whatever_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boxes, "_pays", lambda *_: None)


def pair(name: str, tmp_path: Path) -> tuple[nn.Module, nn.Module, tuple[int, ...]]:
    """The reference and the generated module, with the same parameters, and the shape of a sample."""
    module, body, shape = MODELS[name]
    init = f"self.m = {module}\nself.s = nn.Parameter(torch.randn(24, 1, 1))"
    if name == "residual":
        init += f"\nself.o = {module}"
    path = write(tmp_path, f"return {body}", init, f"torch.rand(4, {', '.join(map(str, shape))})")
    compiled, reference, model = built(path)
    found = {step.plan.detail.template for step in compiled.program.steps if step.kind == "kernel"}
    assert "conv_boxes" in found
    return reference, model, shape


def unaligned(x: torch.Tensor) -> torch.Tensor:
    """The same values, a float off 16-byte alignment."""
    return torch.empty(x.numel() + 1, device="cuda")[1:].view(x.shape).copy_(x)


def _every_size(name: str, tmp_path: Path) -> None:
    reference, model, shape = pair(name, tmp_path)
    for batch, more in ((1, 0), (3, 0), (17, 1), (2, 2), (2, 203)):
        x = torch.randn(batch, shape[0], *(size + min(more, 19) for size in shape[1:-1]), shape[-1] + more).cuda() + 0.5
        agrees(reference, model, x)
        with torch.no_grad():
            y = model(x)
            assert torch.equal(y, model(x))
            assert torch.equal(y, model(unaligned(x)))
    with torch.no_grad():
        assert model(x[:0]).shape == (0, *y.shape[1:])


@pytest.mark.parametrize("name", MODELS)
def test_every_size_and_alignment(name: str, tmp_path: Path) -> None:
    """In eager's class, the same bits again, and the same bits wherever accesses may be wide."""
    _every_size(name, tmp_path)


@pytest.mark.usefixtures("full_precision")
@pytest.mark.parametrize("name", MODELS)
def test_full_precision(name: str, tmp_path: Path) -> None:
    """With TF32 switched off; and special values reach the same outputs."""
    _every_size(name, tmp_path)
    reference, model, shape = pair(name, tmp_path)
    x = torch.randn(3, *shape, device="cuda")
    start, middle = tuple(0 for _ in shape[1:]), tuple(size // 2 for size in shape[1:])
    x[(0, 2, *middle)] = torch.nan
    x[(1, 0, *middle)] = torch.inf
    x[(2, 0, *start)] = torch.inf
    x[(2, shape[0] - 1, *start)] = -torch.inf
    with torch.no_grad():
        y = model(x).cpu()
        r = copy.deepcopy(reference).cpu().double()(x.cpu().double())
    for specials in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(specials(y), specials(r))


def test_smallest_sizes(tmp_path: Path) -> None:
    """One result of one sample, and every residue of the stride."""
    path = write(
        tmp_path,
        "return F.avg_pool2d(self.m(x), 4).relu()",
        "self.m = nn.Conv2d(16, 8, 3)",
        "torch.rand(4, 16, 30, 30)",
    )
    _, reference, model = built(path)
    for height in range(7, 15):
        for width in (7, 8, 13, 22):
            agrees(reference, model, torch.randn(1, 16, height, width).cuda())
