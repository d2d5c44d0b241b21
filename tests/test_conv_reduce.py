"""A reduction over all positions after a convolution: when the convolution's own kernel does it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusegen.compiler import compile_file
from fusegen.plan.details import ConvApartPlan, HopperConvPlan
from fusegen.plan.types import KernelStep, Program
from tests.models import write

CONV = "self.c = nn.Conv2d(64, 64, 3)"


def _program(tmp_path: Path, body: str, init: str = CONV, size: int = 64, inputs: int = 64) -> Program:
    return compile_file(write(tmp_path, body, init, f"torch.rand(32, {inputs}, {size}, {size})")).program


def _reduced(program: Program) -> list[str]:
    plans = [step.plan.hopper for step in program.steps if isinstance(step, KernelStep)]
    return [plan.reduced for plan in plans if isinstance(plan, HopperConvPlan) and plan.reduced]


@pytest.mark.parametrize(
    ("body", "fn"),
    [
        ("return F.gelu(self.c(x)).mean((2, 3))", "mean"),
        ("return F.adaptive_avg_pool2d(F.relu(self.c(x)), 1).flatten(1)", "mean"),
        ("y = self.c(x)\nreturn (y * torch.sigmoid(y)).sum((-1, -2), keepdim=True)", "sum"),
        ("return F.gelu(self.c(x)).mean((2, 3)).softmax(1)", "mean"),
    ],
)
def test_its_results_are_never_written(body: str, fn: str, tmp_path: Path) -> None:
    program = _program(tmp_path, body)
    assert _reduced(program) == [fn]
    first = next(step for step in program.steps if isinstance(step, KernelStep))
    assert isinstance(first.plan.detail, ConvApartPlan)  # what runs elsewhere
    assert [part.detail.template for part in first.plan.parts] == ["contraction", "row_stream"]
    assert program.bytes_after < 1.1 * 4 * 32 * 64 * 64 * 64


@pytest.mark.parametrize(
    ("body", "size"),
    [
        ("y = F.gelu(self.c(x))\nreturn y.mean((2, 3)), y", 64),  # its results are asked for
        ("y = F.gelu(self.c(x))\nreturn y - y.mean((2, 3), keepdim=True)", 64),
        ("return F.gelu(self.c(x)).mean(3)", 64),
        ("return F.gelu(self.c(x)).amax((2, 3))", 64),
        ("return F.gelu(self.c(x)).mean((0, 2, 3))", 64),
        ("return F.gelu(self.c(x)).mean((2, 3))", 24),  # few positions
    ],
)
def test_what_it_leaves_to_another_kernel(body: str, size: int, tmp_path: Path) -> None:
    assert not _reduced(_program(tmp_path, body, size=size))


def test_without_anything_between_the_mean_collapses(tmp_path: Path) -> None:
    program = _program(tmp_path, "return self.c(x).mean((2, 3))")
    assert [step.plan.detail.template for step in program.steps if isinstance(step, KernelStep)] == ["window_sum"]


def test_full_fp32(tmp_path: Path) -> None:
    program = _program(tmp_path, "return F.gelu(self.c(x)).mean((2, 3))", "self.c = nn.Conv2d(8, 64, 3)", 128, 8)
    assert _reduced(program) == ["mean"]
