"""Kernels that fetch elements which a tensor of whole numbers names, run on the CPU, against float64."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from fusegen import interpret
from fusegen.compiler import compile_file
from fusegen.ir import GatherOp
from fusegen.plan.details import PointwisePlan, RowReducePlan, ViewReducePlan
from fusegen.plan.types import KernelStep
from tests.emulated import Kernel
from tests.models import write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]

ROWS = "x[i]"
NORM = "F.layer_norm({0}, (24,))"
MODELS = {
    "embedding_norm": (NORM.format("F.embedding(j, x) + self.p"), RowReducePlan),
    "two_tables": (NORM.format("F.embedding(j, x) + F.embedding(j % 2, self.p[0])"), RowReducePlan),
    "from_the_end": (f"({ROWS} + 1).softmax(-1)", RowReducePlan),
    "middle": ("x.unflatten(1, (6, 4))[:, i % 6].softmax(-1)", RowReducePlan),
    "over_what_is_named": ("F.embedding(j, x).softmax(1)", RowReducePlan),
    "scalars": ("x[:, 0][j].softmax(-1)", RowReducePlan),
    "mean_of_named": ("F.embedding(j, x).mean(1) * 2", ViewReducePlan),
    "distances": ("(x[i] - x[i.flip(0) // 2]).square().sum(-1)", ViewReducePlan),
    "joined": ("torch.cat([F.embedding(j, x), j.unsqueeze(-1) * self.p[0, 0]], -1).exp()", PointwisePlan),
    "padded": ("F.pad(F.embedding(j, x).transpose(1, 2), (1, 2)) + 1", PointwisePlan),
    "columns": ("x[:, i % 24].exp()", PointwisePlan),
    "selected": ("torch.index_select(x.unflatten(1, (4, 6)), 1, i.abs() % 4) * 2", PointwisePlan),
    "of_padded": ("F.pad(x, (0, 0, 0, 9))[i.abs()].relu()", PointwisePlan),
}
"""By name: what the forward returns, over ``x`` [V, 24], ``i`` [n], ``j`` [b, t], ``self.p`` [1, t, 24]; its kernel."""


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_float64(name: str, tmp_path: Path) -> None:
    body, detail = MODELS[name]
    init = "self.p = nn.Parameter(torch.randn(1, 5, 24))"
    inputs = "torch.rand(9, 24), torch.randint(-9, 9, (13,)), torch.randint(0, 9, (3, 5))"
    compiled = compile_file(write(tmp_path, f"return {body}", init, inputs, "x, i, j"))
    *_, last = compiled.program.steps
    assert isinstance(last, KernelStep)
    assert isinstance(last.plan.detail, detail)
    kernel = Kernel(compiled, last.plan, tmp_path)
    assert any(isinstance(node.op, GatherOp) for node in kernel.body.nodes)
    before = compiled.program.after.replace(outputs=tuple(arg.node for arg in kernel.plan.args))
    torch.manual_seed(0)
    for rows, count, batch in [(9, 13, 3), (30, 1, 1), (2, 300, 70)]:
        x, p = torch.randn(rows, 24), torch.randn(1, 5, 24)
        i, j = torch.randint(-rows, rows, (count,)), torch.randint(0, rows, (batch, 5))
        operands = [value.contiguous() for value in interpret.run(before, [x, i, j], {"p": p})]
        found = kernel(operands)
        wide = [operand.double() if operand.is_floating_point() else operand for operand in operands]
        for y, r in zip(found, interpret.run(kernel.body, wide, {}), strict=True):
            torch.testing.assert_close(y.double(), r, rtol=1e-5, atol=1e-5)
