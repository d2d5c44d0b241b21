"""Reductions over all positions after a convolution: when the convolution's own kernel does them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusegen.compiler import compile_file
from fusegen.plan.details import ContractionPlan, HopperConvPlan
from fusegen.plan.types import KernelStep, Program
from tests.models import write

CONV = "self.c = nn.Conv2d(64, 64, 3)"


def _program(tmp_path: Path, body: str, init: str = CONV, size: int = 64, inputs: int = 64) -> Program:
    return compile_file(write(tmp_path, body, init, f"torch.rand(32, {inputs}, {size}, {size})")).program


def _reduced(program: Program, hopper: bool = True) -> list[str]:
    """What the kernels of convolutions give in place of their results."""
    found = []
    for step in program.steps:
        if isinstance(step, KernelStep) and isinstance(step.plan.detail, ContractionPlan) and step.plan.detail.reduced:
            found += [result.fn for result in step.plan.detail.reduced]
            assert (step.plan.hopper is not None) == hopper
            if isinstance(step.plan.hopper, HopperConvPlan):
                assert step.plan.hopper.reduced == step.plan.detail.reduced
    return found


@pytest.mark.parametrize(
    ("body", "fn"),
    [
        ("return F.gelu(self.c(x)).mean((2, 3))", "mean"),
        ("return F.adaptive_avg_pool2d(F.relu(self.c(x)), 1).flatten(1)", "mean"),
        ("y = self.c(x)\nreturn (y * torch.sigmoid(y)).sum((-1, -2), keepdim=True)", "sum"),
        ("return F.gelu(self.c(x)).mean((2, 3)).softmax(1)", "mean"),
        ("return F.gelu(self.c(x)).amax((2, 3))", "max"),
        ("return F.gelu(self.c(x)).min(3)[0].amin(2) * 2", "min"),
        ("return F.gelu(self.c(x)).max()", "max"),
        ("return F.gelu(self.c(x)).mean()", "mean"),
        ("return F.gelu(self.c(x)).mean((0, 2, 3))", "mean"),
        ("return F.gelu(self.c(x)).logsumexp((2, 3))", "logsumexp"),
    ],
)
def test_its_results_are_never_written(body: str, fn: str, tmp_path: Path) -> None:
    program = _program(tmp_path, body)
    assert _reduced(program) == [fn]
    assert program.bytes_after < 1.1 * 4 * 32 * 64 * 64 * 64


@pytest.mark.parametrize(
    ("body", "size"),
    [
        ("y = F.gelu(self.c(x))\nreturn y.mean((2, 3)), y", 64),  # its results are asked for
        ("y = F.gelu(self.c(x))\nreturn y - y.mean((2, 3), keepdim=True)", 64),
        ("return F.gelu(self.c(x)).mean(3)", 64),
        ("y = F.gelu(self.c(x))\nreturn y.logsumexp((2, 3)) - y.mean((2, 3))", 64),
        ("y = F.gelu(self.c(x))\nreturn y.logsumexp((2, 3)) - y.var((2, 3))", 64),
        ("y = F.gelu(self.c(x))\nreturn y.amax((2, 3)) - y.var((2, 3))", 64),
        ("return F.gelu(self.c(x)).mean((2, 3))", 24),  # few positions
    ],
)
def test_what_it_leaves_to_another_kernel(body: str, size: int, tmp_path: Path) -> None:
    assert not _reduced(_program(tmp_path, body, size=size))


@pytest.mark.parametrize(("first", "second"), [("mean", "amax"), ("amin", "sum"), ("amax", "amin")])
def test_several_of_them_are_found_at_once(first: str, second: str, tmp_path: Path) -> None:
    program = _program(tmp_path, f"y = F.gelu(self.c(x))\nreturn torch.cat([y.{first}((2, 3)), y.{second}((2, 3))], 1)")
    assert sorted(_reduced(program)) == sorted(name.removeprefix("a") for name in (first, second))
    assert program.bytes_after < 1.1 * 4 * 32 * 64 * 64 * 64


def test_without_anything_between_the_mean_collapses(tmp_path: Path) -> None:
    program = _program(tmp_path, "return self.c(x).mean((2, 3))")
    assert [step.plan.detail.template for step in program.steps if isinstance(step, KernelStep)] == ["window_sum"]


def test_full_fp32(tmp_path: Path) -> None:
    program = _program(tmp_path, "return F.gelu(self.c(x)).mean((2, 3))", "self.c = nn.Conv2d(8, 64, 3)", 128, 8)
    assert _reduced(program) == ["mean"]


GROUPED = f"{CONV}\nself.n = nn.GroupNorm(8, 64)"


@pytest.mark.parametrize(
    ("body", "init"),
    [
        ("return self.n(self.c(x)).mean((1, 2, 3))", GROUPED),
        ("return self.n(F.hardswish(self.c(x)) * 2).mean((2, 3))", GROUPED),
        ("return F.adaptive_avg_pool2d(self.n(self.c(x) * 2), 1)", f"{CONV}\nself.n = nn.BatchNorm2d(64)"),
        ("return self.n(F.gelu(self.c(x))).sum((2, 3))", f"{CONV}\nself.n = nn.InstanceNorm2d(64, affine=True)"),
    ],
)
def test_a_mean_of_a_norm_from_moments_of_what_is_never_written(body: str, init: str, tmp_path: Path) -> None:
    program = _program(tmp_path, body, init)
    found = _reduced(program)
    assert "mean" in found
    assert len(found) == len(set(found)) <= 3
    assert program.bytes_after < 1.2 * 4 * 32 * 64 * 64 * 64


@pytest.mark.parametrize(
    ("body", "init"),
    [
        ("return self.n(self.c(x))", GROUPED),  # the norm's result is asked for
        ("y = self.c(x)\nreturn self.n(y).mean((2, 3)), y", GROUPED),
        ("return F.relu(self.n(self.c(x))).mean((2, 3))", GROUPED),  # a mean of what follows a norm
        ("return self.n(self.c(x)).mean((2, 3))", f"{CONV}\nself.n = nn.LayerNorm(62)"),  # a shorter row
    ],
)
def test_what_norms_leave_to_another_kernel(body: str, init: str, tmp_path: Path) -> None:
    assert not _reduced(_program(tmp_path, body, init))


def test_a_mean_whose_axes_meet_others_is_no_distance_from_it(tmp_path: Path) -> None:
    body = "y = F.gelu(self.c(x))\nm = y.mean((2, 3))\nreturn (y - m).mean((2, 3)), m"
    path = write(tmp_path, body, "self.c = nn.Conv2d(32, 32, 3, padding=1)", "torch.rand(32, 32, 32, 32)")
    assert not _reduced(compile_file(path).program)


@pytest.mark.parametrize("channels", [2, 3])
def test_few_channels_in_full_fp32_stay_with_the_portable_kernel(channels: int, tmp_path: Path) -> None:
    init = f"self.c = nn.Conv3d({channels}, 24, 3)\nself.n = nn.GroupNorm(4, 24)"
    model = write(
        tmp_path, "return self.n(self.c(x)).mean((1, 2, 3, 4))", init, f"torch.rand(64, {channels}, 20, 32, 32)"
    )
    assert _reduced(compile_file(model).program, hopper=False) == ["mean", "rest", "var"]


def test_elsewhere_the_portable_kernel_reduces(tmp_path: Path) -> None:
    model = write(tmp_path, "return F.gelu(self.c(x)).mean((2, 3))", CONV, "torch.rand(32, 64, 64, 64)")
    program = compile_file(model, target="sm_80").program
    assert program.bytes_after < 1.1 * 4 * 32 * 64 * 64 * 64
    assert _reduced(program)
