"""Kernels of rows that read parts of their operands where they lie, run on the CPU, against float64."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path

import pytest
import torch

from fusegen import interpret
from fusegen.compiler import compile_file
from fusegen.plan.details import RowReducePlan, RowStreamPlan
from fusegen.plan.types import KernelStep
from tests.emulated import Kernel, steps
from tests.models import write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]

HELD = {
    "half": ("F.layer_norm(x[..., 24:], (24,))", [(5, 7, 48), (1, 3, 48), (130, 2, 48)]),
    "unaligned": ("F.layer_norm(x[..., 3:27], (24,))", [(5, 7, 32), (2, 3, 32)]),
    "odd_length": ("x[..., 4:27].softmax(-1)", [(5, 7, 32), (2, 3, 32)]),
    "any_whole": ("x[..., 4:28].softmax(-1)", [(5, 7, 33), (2, 3, 32), (2, 3, 28)]),
    "gate": ("x[..., :24] * F.layer_norm(x[..., 24:], (24,))", [(5, 7, 48), (1, 3, 48)]),
    "gate_of_odd_halves": ("x[..., :23] * x[..., 23:46].softmax(-1)", [(5, 7, 46), (1, 3, 46), (3, 3, 48)]),
    "positions_before": ("F.layer_norm(x[:, 2:5], (20,))", [(5, 7, 20), (2, 7, 20)]),
    "a_token": ("F.layer_norm(x[:, 0], (20,))", [(5, 7, 20), (150, 7, 20)]),
    "of_heads": ("x.reshape(-1, 7, 3, 20)[:, :, 1].softmax(-1)", [(5, 7, 60), (2, 7, 60)]),
    "heads_of": ("x[..., 24:48].unflatten(-1, (3, 8)).softmax(-1)", [(5, 7, 48), (2, 7, 50)]),
    "strided": ("x[:, :7, 4:16].softmax(1)", [(5, 8, 20), (2, 9, 20)]),
    "strided_part": ("x[:, 2:6].softmax(1)", [(5, 7, 20), (2, 7, 21)]),
    "twice_cut": ("x[:, 1:6, 4:16].softmax(-1)", [(5, 7, 20), (2, 7, 20)]),
    "whole_and_part": ("(y + x[..., 8:28]).softmax(-1)", [(5, 7, 32), (2, 7, 32)]),
    "joined_channels": ("torch.cat([x.amax(1, True), x.mean(1, True)], 1)", [(5, 7, 20), (1, 7, 33), (90, 7, 20)]),
    "joined_ends": ("torch.cat([x.mean(1) * 2, x.std(1), x.amin(1)], -1)", [(5, 7, 20), (1, 7, 33)]),
    "sums_of_parts": ("(x[..., 8:28] - x[..., 8:28].mean(-1, True)).abs()", [(5, 7, 32), (2, 7, 33)]),
}
"""By name: what the forward returns, and shapes of ``x``: the first is the file's."""
NORM = "F.layer_norm({0}, ({0}.shape[-1],))"
STREAMED = {
    "two_results": ("(lambda p: (p, p * x[..., :24]))(" + NORM.format("x[..., 24:]") + ")", [(5, 7, 48), (70, 9, 48)]),
    "any_length": ("x[..., 8:].softmax(-1)", [(5, 7, 48), (5, 7, 49), (2, 3, 40), (2, 1, 9000), (3, 70, 1008)]),
    "any_length_unaligned": ("x[..., 3:].softmax(-1)", [(5, 7, 48), (5, 7, 49), (2, 1, 9000), (3, 70, 1008)]),
    "half_of_any_length": (NORM.format("x.chunk(2, -1)[1]"), [(5, 7, 48), (5, 7, 64), (2, 1, 9000), (3, 70, 2016)]),
    "long": ("F.normalize(x[..., 5:40005], dim=-1)", [(2, 3, 40010), (9, 2, 40010)]),
    "long_aligned": (NORM.format("x[..., 8:40008]"), [(2, 3, 40016), (9, 2, 40016)]),
    "strided": ("x[:, :2100, 4:16].softmax(1)", [(3, 2200, 20), (2, 2101, 20), (1, 2200, 21)]),
    "strided_unaligned": ("F.normalize(x[:, 20:, 3:16], dim=1)", [(3, 1120, 20), (2, 1130, 20), (1, 1500, 20)]),
    "planes": ("F.instance_norm(x[:, 2:5, None])", [(3, 6, 49), (2, 6, 300), (150, 6, 20)]),
    "channels": ("F.batch_norm(x[:, 2:5], None, None, training=True)", [(3, 6, 49), (2, 6, 300), (150, 6, 20)]),
    "kept_in_registers": (NORM.format("x.chunk(2, -1)[1]"), [(400, 3, 96), (400, 3, 94), (400, 3, 92), (40, 3, 96)]),
    "joined_before": ("torch.cat([x.sum(-1), (x + 1).amax(-1)])", [(5, 7, 20), (1, 7, 33)]),
    "joined": ("torch.cat([x.amax((1, 2)), x.mean((1, 2))])", [(5, 7, 48), (200, 7, 43), (1, 300, 300)]),
    "argmax": ("x[..., 3:].argmax(-1)", [(5, 7, 48), (200, 7, 48), (200, 7, 43)]),
}


@pytest.mark.parametrize("name", [*HELD, *(f"streamed_{name}" for name in STREAMED)])
def test_agrees_with_float64(name: str, tmp_path: Path) -> None:
    streamed = name.startswith("streamed_")
    body, shapes = STREAMED[name.removeprefix("streamed_")] if streamed else HELD[name]
    inputs = f"torch.rand{shapes[0]}" + (", torch.rand(5, 7, 20)" if "y +" in body else "")
    path = write(tmp_path, f"return {body}", inputs=inputs, arguments="x, y" if "y +" in body else "x")
    compiled = compile_file(path)
    assert [type(step) for step in compiled.program.steps] == [KernelStep]
    (plan,) = steps(compiled, RowStreamPlan if streamed else RowReducePlan)
    assert {arg.node for arg in plan.args} == ({"x", "y"} if "y +" in body else {"x"})
    kernel = Kernel(compiled, plan, tmp_path)
    torch.manual_seed(0)
    for shape, offset in product(shapes, (0, 1)):  # in floats: of where the operand begins
        whole = torch.full((torch.Size(shape).numel() + 8,), torch.nan)
        x = whole[offset : offset + torch.Size(shape).numel()].view(shape)
        x.copy_(torch.randn(shape) + 0.5)
        given = {"x": x, "y": torch.randn(*shape[:-1], 20)}
        operands = [given[arg.node] for arg in kernel.plan.args]
        found, expected = kernel(operands), interpret.run(kernel.body, [operand.double() for operand in operands], {})
        for y, r in zip(found, expected, strict=True):
            torch.testing.assert_close(y.double(), r.double(), rtol=1e-5, atol=2e-5, msg=lambda m, s=shape: f"{s}: {m}")
