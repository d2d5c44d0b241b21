"""Norms and reductions over rows of every length: in registers, in shared memory, in a cluster's, streamed."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path

import pytest
import torch
from torch import nn

from fusegen.compiler import compile_file
from fusegen.emit import write_atomic
from fusegen.trace import load_model_file
from fusegen.verdict.check import compare
from fusegen.verdict.subject import load_generated
from tests.gpu.cases import built
from tests.models import write

pytestmark = pytest.mark.gpu

IMAGES = [
    (4, 8, 6, 5),
    (3, 8, 64, 64),
    (2, 8, 301, 303),
    (1, 8, 1024, 1030),
    (64, 8, 33, 30),
    (100, 8, 63, 61),
    (700, 8, 6, 5),
]
MATRICES = [(6, 33), (3000, 33), (100_001, 33)]
BODIES = {
    "group": ("return F.relu(self.n(x * 2)) + 1", "nn.GroupNorm(2, 8)", IMAGES),
    "group_residual": ("y = x.relu()\nreturn self.n(y) + y", "nn.GroupNorm(4, 8)", IMAGES),
    "instance": ("return self.n(x).relu()", "nn.InstanceNorm2d(8)", IMAGES),
    "batch": ("return self.n(x.tanh()).relu()", "nn.BatchNorm2d(8)", [*IMAGES, (4097, 8, 3, 3), (24, 8, 128, 130)]),
    "batch_of_short_runs": ("return self.n(x).relu()", "nn.BatchNorm2d(2)", [(5000, 2, 2, 3), (70_001, 2, 3, 3)]),
    "batch_then_mean": ("return self.n(x.tanh()).relu().mean((2, 3))", "nn.BatchNorm2d(8)", IMAGES),
    "batch_of_features": ("return self.n(x).relu()", "nn.BatchNorm1d(33)", MATRICES),
    "layer": ("return self.n(x).relu()", "nn.LayerNorm([64, 32, 32])", [(4, 64, 32, 32), (300, 64, 32, 32)]),
    "spatial_softmax": ("return x.flatten(2).softmax(-1).view_as(x) * x", "nn.Identity()", IMAGES),
    "spatial_log_softmax": ("return x.flatten(2).log_softmax(-1) * 2", "nn.Identity()", IMAGES),
    "logsumexp": ("return x.relu().logsumexp((2, 3))", "nn.Identity()", IMAGES),
    "mean": ("return (x.relu() * 2).mean((2, 3))", "nn.Identity()", IMAGES),
    "extremes": ("return x.tanh().amax((2, 3)) + x.abs().amin((2, 3))", "nn.Identity()", IMAGES),
    "short_rows": ("return x.tanh().amax(-1) + x.relu().sum(-1)", "nn.Identity()", IMAGES[::-1]),
    "small_planes": ("return self.n(x) / 2", "nn.InstanceNorm2d(8)", IMAGES[::-1]),
    "held_planes": ("return self.n(x).relu()", "nn.InstanceNorm2d(8)", [(80, 8, 126, 66), (80, 8, 120, 64), *IMAGES]),
    "held_groups": ("return F.silu(self.n(x))", "nn.GroupNorm(4, 8)", [(150, 8, 17, 16), (150, 8, 17, 15), *IMAGES]),
    "held_softmax": ("return x.flatten(2).softmax(-1).view_as(x) * x", "nn.Identity()", [(70, 8, 63, 61), *IMAGES]),
    "held_rows": ("return x.relu().logsumexp(-1)", "nn.Identity()", [(70, 8, 63, 126), (70, 8, 63, 125), *IMAGES]),
    "few_channels": ("return x[:, :3].exp().amax(1), x.softmax(1)", "nn.Identity()", IMAGES),
    "everything": ("return x.square().sum()", "nn.Identity()", IMAGES),
    "long_channels": ("return x.softmax(1)", "nn.Identity()", [(2, 5000, 7), (3, 5000, 64), (1, 5000, 1000)]),
    "two_runs": ("return x.sum(2).relu(), x.exp().mean((1, 3))", "nn.Identity()", IMAGES),
    "several_results": ("y = x.exp()\nreturn y, y.sum(1), y.mean((2, 3))", "nn.Identity()", IMAGES),
    "norm_of_sum": ("return self.n(self.n(x) + x.cumsum(0))", "nn.GroupNorm(2, 8)", IMAGES),
    "batch_mean": ("return self.n(x).mean((2, 3))", "nn.BatchNorm2d(8)", IMAGES[1:]),
    "batch_centred": ("y = self.n(x)\nreturn y - y.mean((2, 3), keepdim=True)", "nn.BatchNorm2d(8)", IMAGES[1:]),
    "mean_of_means": ("m = x.mean((2, 3))\nreturn (m - m.mean(1, keepdim=True)) / 3", "nn.Identity()", IMAGES[1:]),
    "group_pool": ("return F.max_pool2d(self.n(x) * 2, 3, 2, 1)", "nn.GroupNorm(2, 8)", IMAGES),
    "group_wide_pool": ("return F.avg_pool2d(self.n(x), 7)", "nn.GroupNorm(2, 8)", IMAGES[1:4]),
    "layer_pool": ("return F.avg_pool2d(self.n(x), 2).tanh()", "nn.LayerNorm(64)", [(4, 8, 6, 64), (3, 8, 33, 64)]),
    "layer_cells": ("return F.adaptive_avg_pool2d(self.n(x), 3)", "nn.LayerNorm(64)", [(4, 8, 6, 64), (3, 8, 33, 64)]),
    "normalize": ("return F.normalize(x.flatten(1), dim=1)", "nn.Identity()", IMAGES),
    "parts": ("return x[:, :, 1:].sum(2) + x.sum(2) * x[:, :, :-1].sum(2)", "nn.Identity()", IMAGES),
    "half": ("return self.n(x[..., 64:])", "nn.LayerNorm(64)", [(4, 8, 6, 128), (3, 8, 64, 128), (999, 2, 3, 128)]),
    "gate": (
        "u, v = x.chunk(2, dim=-1)\nreturn u * self.n(v)",
        "nn.LayerNorm(63)",
        [(4, 8, 6, 126), (3, 8, 64, 126), (999, 2, 3, 126)],
    ),
    "odd_softmax": ("return x.softmax(-1) * 2", "nn.Identity()", [(64, 515), (4099, 515), (1, 515)]),
    "odd_norm": ("return x / x.norm(dim=1, keepdim=True)", "nn.Identity()", [(9, 2050), (1000, 2050), (1, 2050)]),
    "odd_divergence": (
        "y = x.cumsum(0).sin()\nreturn F.kl_div(x.log_softmax(1), y.softmax(1), reduction='none').sum(1)",
        "nn.Identity()",
        [(9, 1333), (700, 1333)],
    ),
    "part_of_rows": ("return x[..., 3:].softmax(-1)", "nn.Identity()", IMAGES),
    "part_of_channels": ("return x[:, 2:6].softmax(1)", "nn.Identity()", IMAGES),
    "planes_of_channels": ("return F.instance_norm(x[:, 2:6])", "nn.Identity()", IMAGES),
    "channels_last": ("return F.layer_norm(x.permute(0, 2, 3, 1), (8,)) + 1", "nn.Identity()", IMAGES),
    "channels_of_several_last": (
        "return F.layer_norm(x.permute(0, 2, 3, 1), (100,)).relu()",
        "nn.Identity()",
        [(4, 100, 6, 5), (3, 100, 28, 28), (9, 100, 7, 7)],
    ),
    "sines": ("return (1e3 * x.sin() * (9 * x).cos()).softmax(1) * (x * 1e5).sin()", "nn.Identity()", IMAGES),
    "losses": (
        "p, q = x.log_softmax(-1), (x * 2).softmax(-1)\nreturn (q * p).sum((2, 3)) + (p - x).abs().mean((2, 3))",
        "nn.Identity()",
        [(4, 8, 6, 33), (3, 8, 64, 33), (2, 8, 301, 33), (700, 8, 6, 33)],
    ),
    "few_beside": (
        "return x.relu().softmax(1), x.argmax(1)",
        "nn.Identity()",
        [(300, 512, 4), (40, 512, 3), (7, 512, 24), (2000, 512, 2), (5, 512, 40), (3, 512, 1)],
    ),
    "few_beside_long": (
        "return (x - x.mean(1, True)) / x.std(1, keepdim=True), x.amax(1)",
        "nn.Identity()",
        [(30, 4096, 4), (3, 4096, 3), (70, 4096, 16), (1, 4096, 2), (2, 4096, 33)],
    ),
    "few_beside_last": (
        "return self.n(x.transpose(1, 2)) * 2",
        "nn.LayerNorm(140)",
        [(900, 140, 4), (7, 140, 3), (50, 140, 12), (3, 140, 50)],
    ),
    "short": ("return (x * x.tanh()).sum(-1), x.softmax(-1)", "nn.Identity()", [(400_000, 12), (3, 12), (900_001, 12)]),
    "pairs": (
        "return (x.unsqueeze(2) - x.unsqueeze(1)).abs().softmax(2)",
        "nn.Identity()",
        [(20, 300, 4), (3, 300, 1), (2, 300, 7)],
    ),
    "variance": ("return x.tanh().var((2, 3)) + x.tanh().mean((2, 3))", "nn.Identity()", IMAGES),
}


def _values(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The results of a fresh copy, and its floating-point buffers after the call."""
    fresh = copy.deepcopy(model)
    with torch.no_grad():
        y = fresh(x)
    return [*(y if isinstance(y, tuple) else (y,)), *(b for b in fresh.buffers() if b.is_floating_point())]


def _agrees(reference: nn.Module, generated: nn.Module, x: torch.Tensor) -> None:
    r = _values(copy.deepcopy(reference).double(), x.double())
    e, y, again = _values(reference, x), _values(generated, x), _values(generated, x)
    for i, (one, two, three, four) in enumerate(zip(y, e, r, again, strict=True)):
        assert torch.equal(one.nan_to_num(), four.nan_to_num())
        owed = (two.isnan() == three.isnan()) & (two.isinf() == three.isinf())
        found = compare(f"output {i}", *(torch.where(owed, value, 0.0) for value in (one, two, three)))
        assert found.wrong_specials == 0, found
        assert found.max_generated <= found.max_allowed, found
        assert three.numel() < 1024 or found.passed, found


def test_rows_that_begin_anywhere(tmp_path: Path) -> None:
    """A contiguous view from the second element of its storage on: no access of 16 bytes is aligned."""
    path = write(tmp_path, "return self.n(x).relu()", "self.n = nn.GroupNorm(2, 8)", "torch.rand(4, 8, 6, 5)")
    write_atomic(tmp_path / "generated.py", compile_file(path).source)
    reference = load_model_file(path).model_class().cuda()
    generated = load_generated(tmp_path / "generated.py")().cuda()
    for shape in ((4, 8, 6, 5), (40, 8, 64, 63), (2, 8, 512, 512)):
        x = torch.randn(torch.Size(shape).numel() + 1, device="cuda")[1:].view(shape)
        _agrees(reference, generated, x)


PLACES = {
    "rows": (
        "(x * 2).argmax(-1)",
        (24, 96, 130),
        [(3, 9, 130), (2, 5, 4099), (1, 1, 300001), (70, 96, 16), (4000, 3, 62)],
    ),
    "columns": ("x.abs().argmin(1)", (24, 96, 130), [(3, 9, 130), (2, 5000, 3), (1, 40000, 4), (24, 97, 132)]),
    "samples": ("torch.min(x - 1, 0, keepdim=True)", (24, 96, 130), [(3000, 3, 130), (70001, 2, 4)]),
    "planes": ("torch.max(x.flatten(1), 1)", (24, 96, 130), [(3, 999, 131), (1, 1, 2)]),
    "all": ("x.argmax(), (x * 0.5).argmin(keepdim=True)", (24, 96, 130), [(300, 96, 131), (1, 2, 3)]),
}


@pytest.mark.parametrize("name", PLACES)
def test_the_first_extreme(name: str, tmp_path: Path) -> None:
    """Of many equal elements, and of NaN, the first, as in eager."""
    body, shape, others = PLACES[name]
    _, reference, generated = built(write(tmp_path, f"return {body}", "", f"torch.rand{shape}"))
    for size, special in itertools.product((shape, *others), (0.0, torch.inf, torch.nan)):
        x = torch.randint(-4, 5, size, device="cuda") / 2
        x[torch.rand(size, device="cuda") < 0.001] = special
        with torch.no_grad():
            found, expected = generated(x), reference(x)
        for y, r in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, expected)), strict=True):
            torch.testing.assert_close(y, r, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", BODIES)
def test_agrees_at_every_length(name: str, tmp_path: Path) -> None:
    body, norm, shapes = BODIES[name]
    path = write(tmp_path, body, f"self.n = {norm}", f"torch.rand{shapes[0]}")
    _, reference, generated = built(path)
    for shape in shapes:
        x = torch.randn(shape, device="cuda")
        _agrees(reference, generated, x)
        _agrees(reference, generated, 3 * x + 10 * torch.randn(*shape[:2], *(1,) * (len(shape) - 2), device="cuda"))
        x.view(-1)[x.numel() // 2] = float("nan")
        _agrees(reference, generated, x)
        if "batch" not in name:  # a batch norm's running mean of an infinity: eager's is not a number
            x.view(-1)[x.numel() // 2] = float("inf")
            _agrees(reference, generated, x)
