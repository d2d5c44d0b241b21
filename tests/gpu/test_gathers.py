"""Kernels that fetch elements which a tensor of whole numbers names, compiled here and now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fusegen.plan.details import PointwisePlan, RowReducePlan, ViewReducePlan
from fusegen.plan.types import KernelStep
from tests.gpu.cases import agrees, built
from tests.models import write

pytestmark = pytest.mark.gpu

SIZES = [(9, 13, 3), (30, 1, 1), (2, 3000, 70), (50000, 20000, 1000), (5, 0, 0)]
"""Rows of the table, and of what names them: ``i`` [n], ``j`` [b, 5]; the first are the file's."""
INIT = "self.p = nn.Parameter(torch.randn(1, 5, 24))"
CASES = {
    "embedding_norm": ("F.layer_norm(F.embedding(j, x) + self.p, (24,))", RowReducePlan),
    "two_tables": ("F.layer_norm(F.embedding(j, x) + F.embedding(j, x.sin()), (24,))", RowReducePlan),
    "from_the_end": ("(x[i] + 1).softmax(-1)", RowReducePlan),
    "mean_of_named": ("F.embedding(j, x).mean(1) * 2", ViewReducePlan),
    "distances": ("(x[i] - x[i.flip(0) // 2]).square().sum(-1)", ViewReducePlan),
    "padded": ("F.pad(F.embedding(j, x).transpose(1, 2), (1, 2)) + 1", PointwisePlan),
    "columns": ("x[:, i % 24].exp()", PointwisePlan),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_at_every_size(name: str, tmp_path: Path) -> None:
    body, detail = CASES[name]
    drawn = "torch.randn(9, 24), torch.randint(-9, 9, (13,)), torch.randint(0, 9, (3, 5))"
    compiled, reference, generated = built(write(tmp_path, f"return {body}", INIT, drawn, "x, i, j"))
    last = compiled.program.steps[-1]
    assert isinstance(last, KernelStep)
    assert isinstance(last.plan.detail, detail)
    for rows, count, batch in SIZES:
        x = torch.randn(rows, 24, device="cuda")
        i = torch.randint(-rows, rows, (count,), device="cuda")
        j = torch.randint(0, rows, (batch, 5), device="cuda")
        agrees(reference, generated, (x, i, j))


@pytest.mark.parametrize("body", ["F.layer_norm(F.embedding(i, x), (24,))", "F.embedding(i, x).mean(1)"])
def test_a_number_that_no_element_has_stops_the_kernel(body: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"return {body}", "pass", "torch.randn(9, 24), torch.randint(0, 9, (3, 5))", "x, i")
    text = f"""
import torch
from pathlib import Path
from tests.gpu.cases import built
_, reference, generated = built(Path({str(path)!r}))
x, i = torch.randn(9, 24, device="cuda"), torch.full((3, 5), 9, device="cuda")
generated(x, i)
torch.cuda.synchronize()
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "CUDA error" in done.stderr
