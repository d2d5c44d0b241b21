"""Scans of rows of every length and number, along the last axis and others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.gpu.cases import built
from tests.models import write

pytestmark = pytest.mark.gpu

ROWS = [
    *((4, 7), (3, 1), (100_001, 3), (3000, 64), (50_000, 33), (1000, 257), (257, 1031), (90, 4096)),
    *((600, 8191), (2, 16_384), (200, 20_011), (1, 1_000_003), (3, 300_000), (130, 65_537), (1, 1 << 24)),
]
PLANES = [
    *((3, 7, 5), (2, 1, 3), (9, 1000, 1), (70, 129, 33), (1, 5000, 1000), (1, 70_001, 16), (3, 20_000, 9)),
    *((40_000, 17, 9), (2, 31, 130_000), (300, 40, 900), (2, 2500, 7001)),
]
BODIES = {
    "sum": ("x.cumsum(1)", ROWS),
    "product": ("(1 + 1e-3 * x).cumprod(1)", ROWS),
    "other_end": ("x.flip(1).cumsum(1).flip(1) / 3", ROWS),
    "of_what_is_before": (
        "torch.cat((torch.zeros_like(x[:, :1]), x), 1).cumsum(1)[:, :-1] + x",
        [shape for shape in ROWS if shape[1] > 1],
    ),
    "both_ends": ("x.cumsum(1), x.flip(1).cumsum(1).flip(1) + x", ROWS),
    "masked": ("(x * (x > 0)).cumsum(1) + (x * 2).cumsum(1)", ROWS),
    "strided": ("x.cumsum(1)", PLANES),
    "strided_other_end": ("(1 + 1e-3 * x).flip(1).cumprod(1).flip(1) * 2", PLANES),
    "strided_both_ends": ("x.cumsum(1) + x.flip(1).cumsum(1).flip(1)", PLANES),
    "strided_masked": ("(x * (x > 0)).cumsum(1) + x", PLANES),
}


def _agrees(reference: nn.Module, generated: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        found = [model(x) for model in (generated, reference, generated)]
        found.append(reference.double()(x.double()))
        reference.float()
    for y, e, again, r in zip(*(y if isinstance(y, tuple) else (y,) for y in found), strict=True):
        assert torch.equal(y.nan_to_num(), again.nan_to_num()), x.shape
        assert torch.equal(y.isnan(), r.isnan()), x.shape
        assert torch.equal(y.isinf(), r.isinf()), x.shape
        finite = r.isfinite() & e.isfinite()
        if finite.any():
            error, eager = ((v.double() - r)[finite].abs().max() for v in (y, e))
            assert error <= 2 * eager + 2**-21 * r[finite].abs().max(), (x.shape, error, eager)


@pytest.mark.parametrize("name", BODIES)
def test_agrees_at_every_length(name: str, tmp_path: Path) -> None:
    body, shapes = BODIES[name]
    _, reference, generated = built(write(tmp_path, f"return {body}", inputs=f"torch.rand{shapes[0]}"))
    for shape in shapes:
        x = torch.randn(torch.Size(shape).numel() + 1, device="cuda")
        for part in (x[1:], x[:-1]):  # the first begins at no multiple of 16 bytes
            _agrees(reference, generated, part.view(shape))
        for special in ("nan", "inf"):
            x[x.numel() // 2] = float(special)
            _agrees(reference, generated, x[:-1].view(shape))
