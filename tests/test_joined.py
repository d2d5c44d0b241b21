"""Results of kernels that are written where they are joined: when they are, and by every kernel of a convolution."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from fusegen import interpret
from fusegen.compiler import Compiled, compile_file
from fusegen.costs import direct, hopper, library, precision
from fusegen.ir import RegionOp
from fusegen.plan import contraction
from fusegen.plan.types import EagerStep, KernelStep
from fusegen.trace import load_model_file
from tests.emitted import region_of
from tests.emulated import Kernel, operands_of, rounded
from tests.emulated.hopper import HopperKernel
from tests.models import untied, write

INIT = (
    "self.a = nn.Conv2d(24, 40, 1)\nself.b = nn.Conv2d(24, 32, 3, padding=1)\nself.c = nn.Conv2d(24, 8, 5, padding=2)"
)
INPUT = "torch.empty(32, 24, 64, 64)"


@pytest.fixture(autouse=True)
def _own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every convolution by a kernel for tensor cores, however long it is expected to take."""
    monkeypatch.setattr(direct, "is_small", lambda *_: False)
    monkeypatch.setattr(library, "seconds", lambda *_: math.inf)


def _parts(compiled: Compiled) -> dict[str, list[int]]:
    """By joined tensor, the channels from which on kernels write into it."""
    found: dict[str, list[int]] = {}
    for step in compiled.program.steps:
        if isinstance(step, KernelStep) and step.part:
            found.setdefault(step.part.whole, []).append(step.part.first)
    return found


@pytest.mark.parametrize(
    ("body", "firsts"),
    [
        ("torch.cat([self.a(x).relu(), self.b(x).relu()], 1)", [0, 40]),
        ("torch.cat([self.b(x).tanh(), self.a(x) * 2, self.c(x).relu()], 1)", [0, 32, 72]),
        ("torch.cat([self.a(x).relu(), self.b(x).relu(), x], 1)", None),  # an input is nobody's result
        ("torch.cat([self.a(x).relu(), self.a(x).relu()], 1)", None),
        ("torch.cat([self.a(x), self.a(x).mean((2, 3), keepdim=True) + self.a(x)], 1)", None),
        ("torch.cat([self.a(x).relu(), self.b(x)[:, :, ::2].repeat(1, 1, 2, 1)], 1)", None),
    ],
)
def test_what_is_written_where_it_is_joined(body: str, firsts: list[int] | None, tmp_path: Path) -> None:
    compiled = compile_file(write(tmp_path, f"return {body}", INIT, INPUT))
    assert list(_parts(compiled).values()) == ([firsts] if firsts else [])
    memory = [step for step in compiled.program.steps if isinstance(step, EagerStep) and step.written_later]
    assert len(memory) == bool(firsts)
    assert "aten::cat" not in compiled.source or not firsts


def test_what_others_read_is_a_tensor_of_its_own(tmp_path: Path) -> None:
    body = "y, z = self.a(x).relu(), self.b(x).relu()\nreturn torch.cat([y, z], 1), z"
    assert not _parts(compile_file(write(tmp_path, body, INIT, INPUT)))


def test_memory_comes_before_what_is_written_into_it(tmp_path: Path) -> None:
    compiled = compile_file(write(tmp_path, "return torch.cat([self.a(x).relu(), self.b(x).relu()], 1)", INIT, INPUT))
    steps = compiled.program.steps
    assert [step.kind for step in steps] == ["eager", "kernel", "kernel"]
    (memory,) = (step.output for step in steps if isinstance(step, EagerStep))
    assert [step.part.whole for step in steps if isinstance(step, KernelStep) and step.part] == [memory, memory]
    assert compiled.program.bytes_after == sum(step.bytes for step in steps)


CASES = {
    "pixels": ("nn.Conv2d(20, 36, 1)", (20, 9, 12)),
    "windows": ("nn.Conv2d(20, 33, 3, padding=1)", (20, 9, 12)),
    "line": ("nn.Conv1d(20, 40, 5, padding=2)", (20, 44)),
    "volume": ("nn.Conv3d(17, 24, 3, padding=1)", (17, 4, 5, 8)),
    "grouped": ("nn.Conv2d(48, 60, 3, padding=1, groups=3)", (48, 6, 12)),
    "phases": ("nn.ConvTranspose2d(16, 24, 4, 2, 1)", (16, 7, 8)),
}


@pytest.mark.parametrize("variant", ["sm80", "sm90", "in_place"])
@pytest.mark.parametrize("name", CASES)
def test_kernels_write_their_part_alone(
    name: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other channels before and after theirs, in every sample."""
    monkeypatch.setattr(precision, "allows_tf32", lambda *_: True)
    monkeypatch.setattr(contraction, "_is_slower", lambda *_: False)
    monkeypatch.setattr(hopper, "reads_in_place", lambda *_: variant == "in_place")
    monkeypatch.setattr(hopper, "pays_in_halves", lambda *_: False)
    module, shape = CASES[name]
    body = "torch.cat([F.hardswish(self.a(x)), self.b(x).tanh() * self.s], 1)"
    init = f"self.a = {module}\nself.b = {module}\nself.s = nn.Parameter(torch.rand({(1,) * len(shape)}))"
    path = write(tmp_path, f"return {body}", init, f"torch.rand(3, {', '.join(map(str, shape))})")
    compiled = compile_file(path)
    plans = [step.plan for step in compiled.program.steps if isinstance(step, KernelStep) and step.part]
    assert len(plans) == 2
    torch.manual_seed(0)
    model: nn.Module = load_model_file(path).model_class()
    for plan in plans:
        if variant == "in_place" and f"{plan.name}_in_place_kernel" not in compiled.source:
            pytest.skip("there is no such kernel")
        portable = variant == "sm80"
        kernel = Kernel(compiled, plan, tmp_path) if portable else HopperKernel(compiled, plan, variant, tmp_path)
        parameters = operands_of(compiled, plan, dict(model.named_parameters()))
        x = untied(torch.randn(5, *shape))
        operands = [parameters.get(arg.name, x) for arg in plan.args]
        (found,) = kernel(operands, 1)
        region = region_of(compiled.program, plan)
        assert isinstance(region.op, RegionOp)
        weights = [value.dim() > 2 and value.numel() > 1 for value in operands]
        rounds = [(rounded(value) if own else value).double() for value, own in zip(operands, weights, strict=True)]
        (exact,) = interpret.run(region.op.body, rounds, {})
        assert found.shape == exact.shape
        assert (found - exact).abs().max() <= 1e-5 * exact.abs().max()
