"""Buffers that kernels update by themselves, and those that they leave to torch."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from fusegen.compiler import Compiled, compile_file
from fusegen.plan.types import KernelStep
from tests.emitted import reference_from, simulated
from tests.emulated.programs import OnTheCPU
from tests.models import write

NORM = "self.n = nn.BatchNorm2d(3)"
MEAN, VAR, COUNT = "n.running_mean", "n.running_var", "n.num_batches_tracked"


def _updated(compiled: Compiled) -> set[str]:
    """The paths of the buffers that kernels update."""
    return {path for step in compiled.program.steps if isinstance(step, KernelStep) for path in step.updates}


def _agrees(path: Path, compiled: Compiled, calls: int = 3) -> None:
    """The module returns and keeps what the model does, call after call."""
    torch.manual_seed(0)
    reference, generated = reference_from(path.read_text()).Model(), simulated(compiled)
    model = generated.ModelNew()
    model.load_state_dict(reference.state_dict())
    for _ in range(calls):
        x = torch.randn(4, 3, 6, 5) * 2 + 1
        versions = [buffer._version for buffer in model.buffers()]
        with torch.no_grad():
            torch.testing.assert_close(model(x), reference(x))
        torch.testing.assert_close(model.state_dict(), reference.state_dict())
        assert all(buffer._version > before for buffer, before in zip(model.buffers(), versions, strict=True))
    assert generated.calls


@pytest.mark.parametrize(
    ("body", "init", "left"),
    [
        ("return self.n(x).relu()", NORM, set()),
        ("return self.n(x.flatten(2)).relu()", "self.n = nn.BatchNorm1d(3, momentum=0.3)", set()),
        ("return self.n(self.n(x).relu())", NORM, {COUNT}),  # one kernel; the count grows by two in steps
        # something else reads them, before or after the norm
        ("y = x * self.n.running_var.sum()\nreturn self.n(y)", NORM, {VAR}),
        ("y = self.n(x)\nreturn y * self.n.running_mean.sum()", NORM, {MEAN}),
        ("y = self.n(x)\nreturn y * self.n.num_batches_tracked", NORM, {COUNT}),
        ("return self.n(x), self.n.running_mean", NORM, {MEAN}),
    ],
)
def test_what_is_left_to_torch(body: str, init: str, left: set[str], tmp_path: Path) -> None:
    path = write(tmp_path, body, init)
    compiled = compile_file(path)
    assert {MEAN, VAR, COUNT} - _updated(compiled) == left
    _agrees(path, compiled)


def test_a_buffer_that_is_only_written(tmp_path: Path) -> None:
    body = "y = x.relu() * 2\ntorch.sum(y, (2, 3), out=self.last)\nreturn y + 1"
    path = write(tmp_path, body, "self.register_buffer('last', torch.zeros(4, 3))")
    _agrees(path, compile_file(path))


def test_the_schema_says_what_is_written(tmp_path: Path) -> None:
    source = compile_file(write(tmp_path, "return self.n(x).relu()", NORM)).source
    assert (
        source.count("(Tensor x0, Tensor(a1!) p0, Tensor(a2!) p1, Tensor p2, Tensor p3, Tensor(a5!) n0) -> Tensor") == 1
    )


def test_a_gradient_is_that_of_the_statistics_as_they_were(tmp_path: Path) -> None:
    path = write(tmp_path, "return self.n(x).relu()", NORM)
    reference, generated = reference_from(path.read_text()).Model(), simulated(compile_file(path))
    model = generated.ModelNew()
    model.load_state_dict(reference.state_dict())
    x = torch.randn(4, 3, 6, 5)
    mine, theirs = (x.clone().requires_grad_() for _ in range(2))
    for module, own in ((model, mine), (reference, theirs)):
        module(own).square().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)
    torch.testing.assert_close(model.state_dict(), reference.state_dict())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize(
    ("body", "init"),
    [
        ("return self.n(x.tanh()).relu()", NORM),
        ("return self.n(self.n(x).relu())", NORM),
        ("return self.n(x.mean((2, 3))).relu()", "self.n = nn.BatchNorm1d(3)"),
        ("return self.m(self.n(x)).relu()", f"{NORM}\nself.m = nn.BatchNorm2d(3)"),
    ],
)
def test_the_kernels_own_text_updates_them(body: str, init: str, tmp_path: Path) -> None:
    path = write(tmp_path, body, init)
    torch.manual_seed(0)
    reference = reference_from(path.read_text()).Model()
    played = OnTheCPU(compile_file(path), f"generated_{tmp_path.name}", tmp_path)
    played.model.load_state_dict(reference.state_dict())
    for samples in (4, 9):
        x = torch.randn(samples, 3, 6, 5) * 2 + 1
        with torch.no_grad():
            torch.testing.assert_close(played(x), reference(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(played.model.state_dict(), reference.state_dict())


@pytest.mark.parametrize(
    ("body", "copies"),
    [("return self.n(x).relu()", 0), ("y = self.n(x)\nreturn y * self.n.running_mean.sum()", 1)],
)
def test_what_no_result_depends_on_is_not_copied_for_the_gradient(body: str, copies: int, tmp_path: Path) -> None:
    path = write(tmp_path, body, NORM)
    compiled = compile_file(path)
    (line,) = [line for line in compiled.source.splitlines() if "save_for_backward(" in line]
    assert line.count(".clone()") == copies
    torch.manual_seed(0)
    reference, model = reference_from(path.read_text()).Model(), simulated(compiled).ModelNew()
    model.load_state_dict(reference.state_dict())
    for _ in range(2):
        mine, theirs = (torch.ones(4, 3, 6, 5).cumsum(3).requires_grad_() for _ in range(2))
        for module, own in ((model, mine), (reference, theirs)):
            loss = module(own).square().sum()
            module(own.detach())  # the state moves on before the gradient is asked for
            loss.backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
        torch.testing.assert_close(model.state_dict(), reference.state_dict())
