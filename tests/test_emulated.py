"""The portable convolution's kernels, run on the CPU thread by thread: every kind of epilogue against float64."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch

from fusegen.compiler import compile_file
from fusegen.costs import direct, library, tiling
from fusegen.plan import contraction
from fusegen.spaces import convpool, convreduce, convsweep
from fusegen.trace import load_model_file
from tests.emulated import Emulated
from tests.models import write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]

MODELS = {
    "stored": ("nn.Conv2d(20, 33, 3, 2, 1)", "F.hardswish(self.m(x)) * 2", (20, 9, 14)),
    "stored_unevenly_padded": ("nn.Conv2d(20, 33, 3, 2)", "self.m(F.pad(x, (0, 1, 2, 0))) * 2", (20, 9, 14)),
    "sums_unevenly_padded": (
        "nn.Conv2d(16, 24, 3)",
        "F.silu(self.m(F.pad(x, (2, 0, 0, 1)))).mean((2, 3))",
        (16, 20, 31),
    ),
    "swept_unevenly_padded": ("nn.Conv1d(12, 33, 5, 2)", "self.m(F.pad(x, (4, 1))).abs().amax(2)", (12, 75)),
    "causal_in_turns": ("nn.Conv1d(2, 16, 5, dilation=3)", "self.m(F.pad(x, (12, 0))).abs() + 1", (2, 4001)),
    "few_positions": ("nn.Conv2d(72, 30, 3, 3, 1, 2)", "self.m(x).sigmoid() - self.m(x)", (72, 8, 10)),
    "few_far_taps": ("nn.Conv2d(40, 24, (3, 2), 1, 0, (19, 1))", "self.m(x) * 2", (40, 42, 5)),
    "few_in_a_volume": ("nn.Conv3d(128, 24, 2)", "self.m(x).tanh()", (128, 3, 4, 5)),
    "cropped": ("nn.Conv2d(20, 33, 3, 1, 1)", "F.hardswish(self.m(x)[:, :, :-1, 1:]) * 2", (20, 9, 14)),
    "cropped_steps": ("nn.Conv1d(12, 33, 5, 2, 4)", "F.silu(self.m(x)[..., 1:-1]) * 2", (12, 75)),
    "cropped_phases": ("nn.ConvTranspose2d(16, 24, 4, 2)", "F.silu(self.m(x)[:, :, 1:-1, 2:-1])", (16, 5, 6)),
    "channels": ("nn.ConvTranspose2d(16, 40, 3, 2, 1)", "self.m(x).softmax(1)", (16, 6, 7)),
    "sums": ("nn.Conv3d(3, 24, 3)", "F.relu(self.m(x)).mean((2, 3, 4))", (3, 6, 7, 9)),
    "sums_of_places": ("nn.Conv2d(16, 24, 3)", "(self.m(x) * self.p).relu().sum((2, 3))", (16, 20, 31)),
    "sums_and_extremes": (
        "nn.Conv2d(16, 24, 3)",
        "(lambda y: y.mean((2, 3)) * y.amax((2, 3)) - y.amin((2, 3)))(F.silu(self.m(x)))",
        (16, 20, 31),
    ),
    "sums_or_extremes_of_phases": (
        "nn.ConvTranspose2d(16, 24, 4, 3)",
        "(lambda y: y.amax((2, 3)) + y.sum((2, 3)))(self.m(x).cos())",
        (16, 5, 6),
    ),
    "extremes": ("nn.Conv2d(16, 24, 3)", "F.silu(self.m(x)).amax((2, 3))", (16, 20, 31)),
    "extremes_of_phases": ("nn.ConvTranspose2d(16, 24, 4, 3)", "self.m(x).cos().amin((2, 3)).softmax(1)", (16, 5, 6)),
    "extremes_of_groups": ("nn.Conv3d(32, 80, 2, groups=2)", "(self.m(x) * self.s).amax((2, 3, 4))", (32, 5, 6, 7)),
    "extremes_of_places": ("nn.Conv2d(16, 24, 3)", "(self.m(x) * self.p).min(3)[0].amin(2)", (16, 20, 31)),
    "moments": ("nn.Conv2d(5, 40, 3, padding=1)", "self.n(F.hardswish(self.m(x))).mean((1, 2, 3))", (5, 13, 17)),
    "moments_of_phases": ("nn.ConvTranspose2d(16, 24, 4, 3)", "self.n(self.m(x)).mean((2, 3))", (16, 5, 6)),
    "moments_of_groups": ("nn.Conv2d(32, 80, 3, groups=2)", "self.n(self.m(x) + 30).mean((2, 3))", (32, 9, 20)),
    "pooled": ("nn.ConvTranspose2d(16, 24, 3, 2, 1, 1)", "F.max_pool2d(self.m(x).abs() - 1, 2).tanh()", (16, 8, 11)),
    "pooled_means": ("nn.ConvTranspose2d(20, 40, 5, 2, 2)", "F.avg_pool2d(F.silu(self.m(x)), 2)", (20, 7, 9)),
    "pooled_with_sizes": (
        "nn.ConvTranspose2d(16, 24, 4, 2, 1)",
        "F.max_pool2d(self.m(x).sin() / x.shape[2], 2) * x.shape[3]",
        (16, 5, 6),
    ),
    "pooled_volume": ("nn.ConvTranspose3d(3, 16, 3, 2, 1)", "F.max_pool3d(self.m(x).abs(), 2)", (3, 3, 4, 5)),
    "pooled_groups": (
        "nn.ConvTranspose2d(48, 60, (3, 4), (3, 2), 1, groups=3)",
        "F.max_pool2d(self.m(x).abs(), (3, 2))",
        (48, 4, 5),
    ),
    "pooled_by_five": ("nn.ConvTranspose1d(32, 40, 7, 5, 2)", "F.avg_pool1d(self.m(x).sin(), 5)", (32, 37)),
    "pooled_idle_phases": (
        "nn.ConvTranspose2d(16, 24, (2, 3), (3, 4), (0, 1), (2, 3), dilation=(1, 2))",
        "F.max_pool2d(self.m(x).abs(), (3, 4))",
        (16, 5, 6),
    ),
    "pooled_far_taps": (
        "nn.ConvTranspose2d(16, 24, 3, 2, dilation=(19, 1))",
        "F.max_pool2d(self.m(x).abs(), 2)",
        (16, 6, 7),
    ),
    "swept_depth": ("nn.Conv3d(3, 24, 3)", "self.m(x).min(2).values.softmax(1)", (3, 8, 9, 13)),
    "swept_height": ("nn.Conv2d(16, 40, 3, 2, 1)", "F.silu(self.m(x) * self.q).amax(2).tanh() + 1", (16, 19, 14)),
    "swept_width": ("nn.Conv2d(20, 24, (3, 2), 1, 0, (1, 2))", "self.m(x).amin(-1, keepdim=True).abs()", (20, 9, 37)),
    "swept_plane": ("nn.Conv3d(5, 72, 2)", "self.m(x).sin().amax((3, 4)) * x.shape[2]", (5, 6, 7, 8)),
    "swept_around": ("nn.Conv3d(8, 16, 2)", "self.m(x).cos().amax((2, 4)).logsumexp(1)", (8, 5, 6, 7)),
    "swept_positions": ("nn.Conv2d(16, 24, 3)", "self.m(x).abs().amax((2, 3))", (16, 7, 9)),
    "swept_line": ("nn.Conv1d(12, 33, 5, 2)", "(self.m(x) / -1.5).min(2).values", (12, 75)),
    "swept_groups": ("nn.Conv2d(32, 80, 3, groups=2)", "self.m(x).square().amax(3) - 1", (32, 7, 20)),
    "swept_far_taps": ("nn.Conv2d(40, 24, (3, 2), 1, 0, (19, 1))", "self.m(x).amax(2) * 2", (40, 45, 5)),
    "swept_phases": ("nn.ConvTranspose2d(16, 24, 4, 2, 1)", "self.m(x).sin().amax(2)", (16, 5, 6)),
    "swept_side_by_side": ("nn.ConvTranspose2d(16, 24, 5, 2, 1)", "self.m(x).sin().amin(3).softmax(1)", (16, 5, 6)),
    "swept_many_phases": ("nn.ConvTranspose2d(16, 24, 3, (3, 5))", "self.m(x).sin().amax(3)", (16, 4, 5)),
    "swept_all_phases": ("nn.ConvTranspose3d(4, 16, 3, 2, 1)", "self.m(x).abs().amax((2, 3, 4))", (4, 3, 4, 5)),
    "swept_short": ("nn.ConvTranspose2d(16, 24, 4, 3, 1)", "self.m(x).sin().amax(2)", (16, 1, 6)),
    "swept_narrow": ("nn.ConvTranspose2d(16, 24, 4, (1, 3), (0, 1))", "self.m(x).sin().amax(3)", (16, 4, 1)),
    "swept_mean_depth": ("nn.Conv3d(3, 24, 3)", "self.m(x).relu().mean(2).softmax(1)", (3, 8, 9, 13)),
    "swept_sum_height": ("nn.Conv2d(16, 40, 3, 2, 1)", "F.silu(self.m(x) * self.q).sum(2).tanh() + 1", (16, 19, 14)),
    "swept_mean_width": ("nn.Conv2d(20, 24, (3, 2), 1, 0, (1, 2))", "self.m(x).sin().mean(-1, True)", (20, 9, 37)),
    "swept_mean_plane": ("nn.Conv3d(5, 72, 2)", "self.m(x).sin().mean((3, 4)) * x.shape[2]", (5, 6, 7, 8)),
    "swept_sum_around": ("nn.Conv3d(8, 16, 2)", "self.m(x).cos().sum((2, 4)).logsumexp(1)", (8, 5, 6, 7)),
    "swept_prod_width": ("nn.Conv2d(20, 24, (3, 2), 1, 0, (1, 2))", "self.m(x).cos().prod(3)", (20, 9, 37)),
    "swept_prod_side_by_side": ("nn.ConvTranspose2d(16, 24, 5, 2, 1)", "(self.m(x) * 2).prod(3)", (16, 5, 6)),
    "swept_mean_positions": ("nn.Conv2d(16, 24, 3)", "F.gelu(self.m(x)).mean((2, 3))", (16, 7, 9)),
    "swept_sum_line": ("nn.Conv1d(12, 33, 5, 2)", "self.m(x).abs().sum(2)", (12, 75)),
    "swept_mean_groups": ("nn.Conv2d(32, 80, 3, groups=2)", "self.m(x).square().mean(3) - 1", (32, 7, 20)),
    "swept_mean_far_taps": ("nn.Conv2d(40, 24, (3, 2), 1, 0, (19, 1))", "self.m(x).relu().mean(2) * 2", (40, 45, 5)),
    "swept_mean_phases": ("nn.ConvTranspose2d(16, 24, 4, 2, 1)", "self.m(x).relu().mean(2)", (16, 5, 6)),
    "swept_mean_side_by_side": ("nn.ConvTranspose2d(16, 24, 5, 2, 1)", "self.m(x).abs().mean(3)", (16, 5, 6)),
    "swept_sum_many_phases": ("nn.ConvTranspose2d(16, 24, 3, (3, 5))", "self.m(x).abs().sum(3)", (16, 4, 5)),
    "swept_sum_all_phases": ("nn.ConvTranspose3d(4, 16, 3, 2, 1)", "self.m(x).abs().sum((2, 3, 4))", (4, 3, 4, 5)),
    "swept_mean_short": ("nn.ConvTranspose2d(16, 24, 4, 3, 1)", "self.m(x).abs().mean(2)", (16, 1, 6)),
    "swept_mean_narrow": ("nn.ConvTranspose2d(16, 24, 4, (1, 3), (0, 1))", "self.m(x).abs().mean(3)", (16, 4, 1)),
    "merged": ("nn.ConvTranspose2d(20, 3, 5, 2)", "self.m(x) * 2 + 1", (20, 6, 9)),
    "merged_by_three": ("nn.ConvTranspose2d(16, 3, 3, 3, 2, 2, dilation=2)", "self.m(x).tanh()", (16, 5, 12)),
    "merged_volume": ("nn.ConvTranspose3d(16, 3, 3, 2)", "F.hardswish(self.m(x))", (16, 3, 4, 5)),
    "merged_groups": ("nn.ConvTranspose2d(32, 16, (3, 4), (3, 2), groups=2)", "self.m(x).abs() - 1", (32, 4, 5)),
    "merged_idle_phases": (
        "nn.ConvTranspose2d(16, 3, (2, 3), 2, (0, 1), 1, dilation=2)",
        "self.m(x).relu()",
        (16, 6, 8),
    ),
    "merged_far_taps": ("nn.ConvTranspose2d(16, 2, 3, 2, dilation=(20, 1))", "self.m(x).abs()", (16, 6, 7)),
    "merged_of_places": ("nn.ConvTranspose2d(16, 3, 4, 2, 1, (0, 1))", "self.m(x) * self.p", (16, 9, 14)),
    "residual": ("nn.Conv2d(20, 33, 3, 2, 1)", "(self.m(x) * 2 + self.r).relu()", (20, 9, 14)),
    "residual_channels": ("nn.Conv2d(20, 36, 3, padding=1)", "(self.m(x) + self.r).softmax(1) * self.r", (20, 7, 9)),
    "residual_line": ("nn.ConvTranspose1d(24, 40, 3, 2, 1)", "self.m(x).tanh() * self.r - self.r", (24, 37)),
    "residual_groups": ("nn.Conv3d(24, 32, 2, groups=2)", "self.m(x).sigmoid() * self.r", (24, 4, 5, 7)),
    "merged_residual": ("nn.ConvTranspose2d(16, 3, 4, 2, 1, (0, 1))", "self.m(x) * self.r", (16, 9, 14)),
    "merged_line": ("nn.ConvTranspose1d(3, 4, 7, 4, 2)", "self.m(x) * 3", (3, 37)),
    "in_turns": ("nn.Conv2d(3, 20, 3, padding=1)", "self.m(x).tanh() * 2", (3, 61, 43)),
    "in_turns_strided": ("nn.Conv2d(3, 16, (5, 4), (3, 2), dilation=(1, 2))", "self.m(x).relu() - 1", (3, 150, 70)),
    "in_turns_channels": ("nn.Conv2d(3, 24, 3)", "self.m(x).softmax(1)", (3, 61, 35)),
    "in_turns_line": ("nn.Conv1d(2, 16, 5)", "self.m(x).abs() + 1", (2, 4001)),
    "in_turns_phases": ("nn.ConvTranspose3d(3, 16, 3, 2, 1)", "self.m(x).relu()", (3, 7, 12, 19)),
    "in_turns_groups": ("nn.Conv2d(6, 32, 3, groups=2)", "self.m(x).sigmoid()", (6, 40, 37)),
    "merged_in_turns": ("nn.ConvTranspose2d(3, 4, 3, 2)", "self.m(x) * 3", (3, 60, 37)),
    "sums_in_turns": ("nn.Conv3d(3, 16, 3)", "F.relu(self.m(x)).mean((2, 3, 4))", (3, 12, 15, 19)),
    "extremes_in_turns": ("nn.Conv2d(1, 24, 5)", "F.silu(self.m(x)).amax((2, 3))", (1, 61, 47)),
    "pooled_in_turns": ("nn.ConvTranspose3d(3, 16, 3, 2, 1, 1)", "F.max_pool3d(self.m(x).abs(), 2)", (3, 9, 13, 17)),
    "swept_in_turns": ("nn.Conv3d(3, 24, 3)", "self.m(x).amax(2)", (3, 17, 14, 20)),
    "swept_mean_in_turns": ("nn.Conv3d(3, 16, (2, 3, 3), (2, 1, 1))", "self.m(x).relu().mean(2)", (3, 24, 12, 20)),
    "swept_width_in_turns": ("nn.Conv2d(3, 24, 3)", "self.m(x).amin(3)", (3, 9, 700)),
    "swept_plane_in_turns": ("nn.Conv3d(3, 16, 3)", "self.m(x).square().sum((3, 4))", (3, 5, 22, 75)),
}
"""By name: the module ``self.m``, what the forward returns, the shape of one sample."""


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_float64(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "is_small", lambda *_: False)
    monkeypatch.setattr(library, "seconds", lambda *_: math.inf)
    monkeypatch.setattr(convreduce, "LEAST_POSITIONS", 1000 if name.startswith("swept") else 1)
    for module in (convsweep, convpool, convreduce):
        monkeypatch.setattr(module, "together_or_apart", lambda *_: None)
    monkeypatch.setattr(contraction, "hopper_conv", lambda *_, **__: "left to the portable one")
    if "in_turns" in name:
        monkeypatch.setattr(tiling, "_FILLED", 0)  # as with more positions
    module, body, shape = MODELS[name]
    init = f"self.m = {module}\nself.p = nn.Parameter(torch.randn(18, 29))"
    init += "\nself.s = nn.Parameter(torch.randn(80, 1, 1, 1))"
    if "self.q" in body:
        init += "\nself.q = nn.Parameter(torch.randn(40, 1, 1))"
    if "self.r" in body:
        init += f"\nself.r = nn.Parameter(torch.randn_like(self.m(torch.zeros(2, {', '.join(map(str, shape))}))))"
    if name.startswith("moments"):
        init += f"\nself.n = nn.GroupNorm(8, {module.split(',')[1]})"
    path = write(tmp_path, f"return {body}", init, f"torch.rand(2, {', '.join(map(str, shape))})")
    compiled = compile_file(path)
    torch.manual_seed(0)
    kernel = Emulated(compiled, dict(load_model_file(path).model_class().named_parameters()), tmp_path)
    assert (not kernel.detail.folds or "sum" in kernel.detail.folds) != name.startswith("extremes")
    assert bool(kernel.detail.reduced) == name.startswith(("sums", "extremes", "moments"))
    assert kernel.detail.moments == name.startswith("moments")
    assert (kernel.detail.sweep is not None) == name.startswith(("pooled", "swept"))
    assert not kernel.detail.sweep or any(kernel.detail.sweep.swept) == name.startswith("swept")
    assert (max(kernel.detail.tiling.merged) > 1) == name.startswith("merged")
    assert kernel.detail.shares or not name.startswith("few")
    assert kernel.detail.tiling.turns or "in_turns" not in name

    grown = (shape[0], *(size + 3 if size > 1 else 1 for size in shape[1:]))  # an only position is a constant
    calls = [(shape, True), (shape, False)]
    for size, tf32 in calls if "self.p" in body or "self.r" in body else [*calls, (grown, True)]:
        x = torch.randn(2, *size) + 0.5
        found, exact = kernel.of(x, tf32), kernel.exact(x, tf32)
        if name.startswith("moments"):  # what rounding took from the mean is no multiple of what float64 loses
            mean, rest, _ = found
            assert rest.abs().max() <= 2**-24 * mean.abs().max()
            assert (mean.double() + rest - exact[0]).abs().max() <= (mean.double() - exact[0]).abs().max() + 1e-7
            found, exact = [found[0], found[2]], [exact[0], exact[2]]
        for y, r in zip(found, exact, strict=True):
            assert (y - r).abs().max() <= 4e-6 * r.abs().max(), (size, tf32, y, r)

    x = torch.randn(2, *shape) + 0.5
    x[(0, min(2, shape[0] - 1), *(size // 2 for size in shape[1:]))], x[(1, 0, *(0 for _ in shape[1:]))] = (
        torch.nan,
        torch.inf,
    )
    for tf32 in (True, False):
        for y, r in zip(kernel.of(x, tf32), kernel.exact(x, tf32), strict=True):
            if kernel.detail.moments:  # a mean that is infinite, beside a variance that is NaN
                assert torch.equal(y.isfinite(), r.isfinite())
            else:
                assert torch.equal(y.isnan(), r.isnan())
            finite = r.isfinite()
            assert not finite.any() or (y - r)[finite].abs().max() <= 4e-6 * r[finite].abs().max() + 2e-6


@pytest.mark.parametrize(
    ("channels", "kernel_size", "lengths"),
    [
        (8, "(1, 2)", ((2, 140001), (2, 300))),  # many boxes, one after the other
        (64, "(3, 2)", ((9, 203), (5, 130))),  # few boxes of many positions
    ],
)
def test_sums_of_long_rows_are_of_several_chains(
    channels: int,
    kernel_size: str,
    lengths: tuple[tuple[int, int], ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library, "seconds", lambda *_: math.inf)
    monkeypatch.setattr(convsweep, "together_or_apart", lambda *_: None)
    path = write(
        tmp_path,
        "return self.m(x).abs().mean(3)",
        f"self.m = nn.Conv2d({channels}, 16, {kernel_size})",
        f"torch.rand(1, {channels}, {lengths[0][0]}, {lengths[0][1]})",
    )
    compiled = compile_file(path)
    torch.manual_seed(0)
    kernel = Emulated(compiled, dict(load_model_file(path).model_class().named_parameters()), tmp_path)
    assert kernel.detail.accumulates
    for size in lengths:
        x = torch.randn(1, channels, *size) * 3 + 0.5
        (y,), (r,) = kernel.of(x, True), kernel.exact(x, True)
        assert (y - r).abs().max() <= 4 * 2**-24 * r.abs().max(), size
