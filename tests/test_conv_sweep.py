"""Reductions along some of a convolution's axes: when its kernel has them, and what follows joins it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusegen.compiler import compile_file
from fusegen.plan.details import ContractionPlan
from fusegen.plan.types import KernelStep, Program
from fusegen.spaces import convsweep
from tests.models import write

CONV = "self.c = nn.Conv3d(3, 24, 3)"


def _program(tmp_path: Path, body: str, init: str = CONV, shape: str = "64, 3, 24, 32, 32") -> Program:
    return compile_file(write(tmp_path, body, init, f"torch.rand({shape})")).program


def _swept(program: Program) -> list[tuple[str, tuple[bool, bool, bool]]]:
    """What the kernels of convolutions reduce, and along which axes."""
    details = [step.plan.detail for step in program.steps if isinstance(step, KernelStep)]
    sweeps = [detail.sweep for detail in details if isinstance(detail, ContractionPlan) and detail.sweep]
    return [(sweep.fn, sweep.swept) for sweep in sweeps]


@pytest.mark.parametrize(
    ("body", "fn", "axes"),
    [
        ("return self.c(x).min(2).values", "min", (True, False, False)),
        ("return self.c(x).amax(2).softmax(1)", "max", (True, False, False)),
        (
            "y = self.c(x)\nreturn torch.amax(y * torch.relu(y - 1), (3,), keepdim=True).abs() * 2",
            "max",
            (False, True, False),
        ),
        ("return self.c(x).amax(2).logsumexp(1)", "max", (True, False, False)),
        ("return torch.min(self.c(x), 2)[0].flatten(2) - 1", "min", (True, False, False)),
        ("return F.relu(self.c(x)).mean(2).softmax(1)", "mean", (True, False, False)),
        ("return self.c(x).square().sum((3, 4)) + 1", "sum", (False, True, True)),
        ("return torch.norm(self.c(x), dim=2)", "sum", (True, False, False)),
    ],
)
def test_its_results_are_never_written(body: str, fn: str, axes: tuple[bool, ...], tmp_path: Path) -> None:
    program = _program(tmp_path, body)
    assert _swept(program) == [(fn, axes)]
    assert len(program.steps) == 1
    assert program.bytes_after < 2 * 4 * 64 * 3 * 24 * 32 * 32


def test_a_reduction_over_other_axes_is_a_kernel_of_its_own(tmp_path: Path) -> None:
    program = _program(tmp_path, "return self.c(x).amax(2).mean((2, 3))")
    assert _swept(program) == [("max", (True, False, False))]
    assert len(program.steps) == 2


@pytest.mark.parametrize(
    "body",
    [
        "y = self.c(x)\nreturn y.amax(2), y",  # its results are asked for
        "y = self.c(x)\nreturn y - y.amax(2, True)",
        "return self.c(x).amax((0, 2))",
        "return self.c(x).amax((1, 2))",
        "y = self.c(x)\nreturn y.amax(2) - y.amin(2)",  # two reductions
        "return (self.c(x) + self.p).amax(2)",  # an operand of positions
        "return self.c(x).argmax(2).float()",
        "return self.c(x).relu().mean((0, 2))",
        "return self.c(x).relu().mean((2, 3, 4))",  # blocks share so many positions
        "return self.c(x).mean(2)",  # has no convolution left
    ],
)
def test_what_it_leaves_to_another_kernel(body: str, tmp_path: Path) -> None:
    init = f"{CONV}\nself.p = nn.Parameter(torch.randn(22, 30, 30))" if "self.p" in body else CONV
    assert not _swept(_program(tmp_path, body, init))


def test_few_positions_are_reduced_whole(tmp_path: Path) -> None:
    init = "self.c = nn.Conv2d(3, 32, 3)"
    program = _program(tmp_path, "return F.relu(self.c(x)).mean((2, 3))", init, "512, 3, 30, 30")
    assert _swept(program) == [("mean", (False, True, True))]
    assert len(program.steps) == 1
    assert program.bytes_after < 1.1 * 4 * 512 * 3 * 30 * 30


def test_with_many_channels_another_kernel_is_faster(tmp_path: Path) -> None:
    assert not _swept(
        _program(tmp_path, "return self.c(x).amax(2)", "self.c = nn.Conv2d(64, 128, 3)", "64, 64, 64, 64")
    )


def test_a_function_of_many_operations_has_another_kernel(tmp_path: Path) -> None:
    assert not _swept(_program(tmp_path, "return F.gelu(self.c(x)).mean(2).softmax(1)"))


@pytest.mark.parametrize("channels", [1, 7])
def test_few_channels_are_left_to_another_kernel(
    channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convsweep, "together_or_apart", lambda *_: None)
    assert not _swept(_program(tmp_path, "return self.c(x).amax(2)", f"self.c = nn.Conv3d(3, {channels}, 3)"))


def test_channels_of_several_groups_are_reduced_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convsweep, "together_or_apart", lambda *_: None)
    init = "self.c = nn.Conv2d(32, 32, 3, groups=2)"
    assert len(_program(tmp_path, "return self.c(x).amax(3).softmax(1)", init, "8, 32, 30, 30").steps) == 2
    assert len(_program(tmp_path, "return self.c(x).amax(3).tanh()", init, "8, 32, 30, 30").steps) == 1
