"""Kernels that fetch elements which a tensor of whole numbers names, run on the CPU, against float64."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from fusegen import interpret
from fusegen.compiler import compile_file
from fusegen.ir import GatherElementsOp, GatherOp
from fusegen.plan.details import PointwisePlan, RowReducePlan, ViewReducePlan
from fusegen.plan.types import KernelStep
from tests.emulated import Kernel
from tests.emulated.programs import OnTheCPU
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
    "two_lists": ("x[i, i % 24] * 2", PointwisePlan),
    "pairs": ("(x[i[:, None], j[0] - 24] * 2).softmax(-1)", RowReducePlan),
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


IN_PLACES = {
    "a token": "x.log_softmax(-1).gather(-1, j.unsqueeze(-1)).squeeze(-1)",
    "of a share": "(x / 0.7).softmax(-1).gather(-1, j.unsqueeze(-1)).squeeze(-1) * 2",
    "the next token": "x[:, :-1].log_softmax(-1).gather(2, j[:, 1:, None]).squeeze(-1)",
    "some behind the first": "x[:, 1:].softmax(-1).gather(2, j[:, :-1, None])",
    "less what all come to": "x.gather(-1, j.unsqueeze(-1)).squeeze(-1) - x.logsumexp(-1)",
    "several of a row": "x.log_softmax(1).gather(1, k) + 1",
    "spread": "torch.take_along_dim(x, k[:, :, :1] % 3, 1).relu() + 1",
    "less of every axis": "x.gather(1, k[:2, :, :9]).exp()",
    "of every row": "x[:, 0][torch.arange(x.shape[0]), j[:, 0] - 300].square().mean()",
    "of every place": "-x.log_softmax(-1)[torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1]), j].mean()",
    "with a vector": "(x + self.p).gather(-1, j.unsqueeze(-1)) * 2",
    "beside entropy": "(lambda y: y.gather(-1, j[:, :, None])[..., 0] - (y.exp() * y).sum(-1))(x.log_softmax(-1))",
}


@pytest.mark.parametrize("name", IN_PLACES)
def test_named_in_places_agrees_with_float64(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEGEN_STRICT", "1")
    inputs = "torch.randn(3, 5, 300), torch.randint(0, 300, (3, 5)), torch.randint(0, 5, (3, 2, 300))"
    path = write(tmp_path, f"return {IN_PLACES[name]}", "self.p = nn.Parameter(torch.randn(300))", inputs, "x, j, k")
    compiled = compile_file(path)
    assert any(isinstance(node.op, GatherElementsOp) for node in compiled.program.after.every_node)
    assert compiled.program.kernels
    for batch in (3, 4) if name != "spread" else (3,):  # torch compares its sizes itself, which fixes them
        x, j = torch.randn(batch, 5, 300), torch.randint(0, 300, (batch, 5))
        OnTheCPU(compiled, "generated_places", tmp_path)(x, j, torch.randint(0, 5, (batch, 2, 300)))
