"""Mean poolings of convolutions from box means: what shares the kernel, what refuses, and the kernel on a CPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from fusegen.compiler import Compiled, compile_file
from fusegen.costs import boxes
from fusegen.passes.algebra import boxes as rule
from fusegen.plan.details import ConvBoxesPlan
from fusegen.plan.types import KernelStep
from fusegen.trace import load_model_file
from tests.emulated import Emulated
from tests.models import write

CONV = "\n".join(
    (
        "self.c = nn.Conv2d(16, 64, 3)",
        "self.d = nn.Conv2d(16, 64, 3, bias=False)",
        "self.s = nn.Parameter(torch.randn(64, 1, 1))",
    )
)


def compiled(tmp_path: Path, body: str, init: str = CONV, x: str = "torch.empty(32, 16, 64, 64)") -> Compiled:
    return compile_file(write(tmp_path, body, init, x))


def templates(found: Compiled) -> list[str]:
    return [step.plan.detail.template if isinstance(step, KernelStep) else "torch" for step in found.program.steps]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return F.avg_pool2d(self.c(x), 4)", ["conv_boxes"]),
        ("return F.gelu(F.avg_pool2d(self.c(x) * 2 + self.s, 3, 2)) * self.s", ["conv_boxes"]),
        ("return F.avg_pool2d(self.c(x), 4).sigmoid().sum((1, 2, 3))", ["conv_boxes"]),
        ("return F.avg_pool2d(self.c(x), 4).relu().mean((2, 3))", ["conv_boxes"]),
        ("return F.avg_pool2d(self.c(x), 4).sigmoid().sum((1, 2, 3)).exp()", ["conv_boxes", "pointwise"]),
        ("return F.avg_pool2d(self.c(x), 4).softmax(1)", ["conv_boxes", "row_reduce"]),
        ("y = F.avg_pool2d(self.c(x), 4)\nreturn y, y.relu()", ["conv_boxes", "pointwise"]),
        ("return F.avg_pool2d(self.c(x), 4).relu() + F.avg_pool2d(self.d(x), 4)", ["conv_boxes", "conv_boxes"]),
    ],
)
def test_what_shares_the_kernel(body: str, expected: list[str], tmp_path: Path) -> None:
    assert templates(compiled(tmp_path, body)) == expected


@pytest.mark.parametrize(
    "body",
    [
        "return F.avg_pool2d(self.c(x), 3, 2, padding=1)",  # zeros around the results are no results
        "return F.avg_pool2d(self.c(x), 3, 1)",  # as many products as before
        "return F.avg_pool2d(self.c(x).relu(), 4)",
        "return F.max_pool2d(self.c(x), 4)",
        "y = self.c(x)\nreturn F.avg_pool2d(y, 4).relu(), y",  # computed anyway
        "return F.avg_pool2d(self.c(x), 4).mean((2, 3))",  # a mean over all positions collapses
        "return F.avg_pool2d(self.c(x), 4, divisor_override=3)",
    ],
)
def test_what_does_not(body: str, tmp_path: Path) -> None:
    assert "conv_boxes" not in templates(compiled(tmp_path, body))


def test_explain_weighs_box_means_against_an_averaged_kernel(tmp_path: Path) -> None:
    choices = compiled(tmp_path, "return F.avg_pool2d(self.c(x), 4)").choices
    (times,) = (found for point, found in choices.items() if point.endswith(" from"))
    assert list(times) == ["box means", "an averaged kernel"]


@pytest.mark.parametrize(
    ("taps", "window", "step", "inputs", "why"),
    [
        ((3, 3), (15, 15), (15, 15), 8, "too many lines"),
        ((31,), (2,), (2,), 8, "too many lines"),
        ((7, 7, 7), (2, 2, 2), (2, 2, 2), 8, "too many lines"),
        ((3, 3), (2, 2), (64, 64), 16, "shared memory"),
    ],
)
def test_what_does_not_fit_is_said(
    taps: tuple[int, ...], window: tuple[int, ...], step: tuple[int, ...], inputs: int, why: str
) -> None:
    found = boxes.tile(taps, (1,) * len(taps), window, step, inputs, 64)
    assert isinstance(found, str)
    assert why in found


MODELS = {
    "image": ("nn.Conv2d(5, 24, 3, padding=1)", "F.hardswish(F.avg_pool2d(self.m(x), 2)) * self.s", (5, 13, 20)),
    "windows_apart": ("nn.Conv2d(16, 33, (3, 2))", "F.avg_pool2d(self.m(x), (2, 3), (5, 4)).tanh()", (16, 19, 22)),
    "windows_overlap": ("nn.Conv2d(11, 70, 3, padding=(0, 2))", "F.avg_pool2d(self.m(x), 3, 2)", (11, 17, 33)),
    "dilated": ("nn.Conv2d(20, 16, 3, padding=2, dilation=(2, 3))", "F.avg_pool2d(self.m(x), 4).exp()", (20, 16, 24)),
    "line": ("nn.Conv1d(48, 40, 5, padding=1)", "F.avg_pool1d(self.m(x), 4) + self.s[..., 0]", (48, 541)),
    "volume": ("nn.Conv3d(3, 16, 3)", "F.avg_pool3d(self.m(x), 2).sigmoid()", (3, 6, 9, 12)),
    "groups": ("nn.Conv2d(32, 48, 3, groups=2)", "F.avg_pool2d(self.m(x), 2).relu()", (32, 12, 18)),
    "single_taps": ("nn.Conv2d(16, 8, 1)", "F.avg_pool2d(self.m(x), 3).sin()", (16, 9, 40)),
    "of_samples": ("nn.Conv2d(16, 72, 3)", "F.avg_pool2d(self.m(x), 4).sigmoid().sum((1, 2, 3))", (16, 30, 44)),
    "of_channels": ("nn.Conv2d(9, 72, 3)", "F.avg_pool2d(self.m(x), 2).relu().mean((2, 3))", (9, 20, 38)),
    "of_groups": (
        "nn.Conv3d(16, 32, 2, groups=2)",
        "F.avg_pool3d(self.m(x), 2).relu().mean((1, 2, 3, 4), keepdim=True)",
        (16, 6, 7, 9),
    ),
    "of_sizes": ("nn.Conv2d(16, 24, 3)", "(F.avg_pool2d(self.m(x), 4) * x.shape[3]).relu().sum((2, 3))", (16, 18, 26)),
}  # fmt: skip
"""By name: the module ``self.m``, what the forward returns, the shape of one sample."""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("name", MODELS)
def test_kernel_agrees_with_float64(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "_pays", lambda *_: None)
    module, body, shape = MODELS[name]
    init = f"self.m = {module}\nself.s = nn.Parameter(torch.randn(int(self.m.weight.shape[0]), 1, 1))"
    path = write(tmp_path, f"return {body}", init, f"torch.rand(4, {', '.join(map(str, shape))})")
    found = compile_file(path)
    torch.manual_seed(0)
    kernel = Emulated(found, dict(load_model_file(path).model_class().named_parameters()), tmp_path)
    assert isinstance(kernel.detail, ConvBoxesPlan)
    assert bool(kernel.detail.total) == name.startswith("of_")

    grown = (shape[0], *(size + 3 for size in shape[1:]))
    calls = [(shape, True), (shape, False)]
    for size, tf32 in [*calls, (grown, True)]:
        x = torch.randn(3, *size) + 0.5
        for y, r in zip(kernel.of(x, tf32), kernel.exact(x, tf32), strict=True):
            assert (y - r).abs().max() <= 4e-6 * r.abs().max(), (size, tf32, y, r)

    x = torch.randn(2, *shape) + 0.5
    x[(0, 2, *(size // 2 for size in shape[1:]))], x[(1, 0, *(0 for _ in shape[1:]))] = torch.nan, torch.inf
    for tf32 in (True, False):
        for y, r in zip(kernel.of(x, tf32), kernel.exact(x, tf32), strict=True):
            assert torch.equal(y.isnan(), r.isnan())
            finite = r.isfinite()
            assert torch.equal(y[~finite].nan_to_num(), r[~finite].float().nan_to_num())
            assert not finite.any() or (y - r)[finite].abs().max() <= 4e-6 * r[finite].abs().max() + 2e-6
