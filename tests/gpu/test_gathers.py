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


LOGITS = "torch.randn(4, 7, 500), torch.randint(0, 500, (4, 7)), torch.rand(500)"
IN_PLACES = {
    "a token": "x.log_softmax(-1).gather(-1, j.unsqueeze(-1)).squeeze(-1)",
    "the next token": "(x / 0.7)[:, :-1].softmax(-1).gather(2, j[:, 1:, None]).squeeze(-1)",
    "less what all come to": "x.gather(-1, j.unsqueeze(-1)).squeeze(-1) - x.logsumexp(-1)",
    "a mean": "x[torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1]), j - 500].square().mean()",
    "with a vector": "(x + w).gather(-1, j.unsqueeze(-1)) * 2",
    "beside entropy": "(lambda y: y.gather(-1, j[:, :, None])[..., 0] - (y.exp() * y).sum(-1))(x.log_softmax(-1))",
    "loss": "F.cross_entropy(x.flatten(0, 1), j.flatten())",
    "loss of rows": "F.cross_entropy(x.mT, j, reduction='none', ignore_index=3)",
    "weighted loss": "F.cross_entropy(x.mT, j, weight=w)",
    "written loss": "F.nll_loss(-x.mT.square(), j)",  # of one sign: nothing cancels
    "siblings": "torch.stack([x.mean(-1), x.amax(-1)]) + x.softmax(-1).square().sum(-1)",
}


@pytest.mark.parametrize("name", IN_PLACES)
def test_named_in_places_agrees_at_every_size(name: str, tmp_path: Path) -> None:
    _, reference, generated = built(write(tmp_path, f"return {IN_PLACES[name]}", "pass", LOGITS, "x, j, w"))
    for batch, count in [(4, 7), (3, 2), (33, 1000)]:
        x, w = torch.randn(batch, count, 500, device="cuda") * 2, torch.rand(500, device="cuda")
        agrees(reference, generated, (x, torch.randint(0, 500, (batch, count), device="cuda"), w))


SIBLINGS = {
    "elements": "return x.relu() * y, x.sigmoid() + 1",
    "a row": "return x.log_softmax(3), x.mean(3), x.amax(3)",
    "long rows": "return x.flatten(1).mean(1), x.relu() + y",
    "channels": "return x.sum((0, 2, 3)), x.relu() * 2",
}


@pytest.mark.parametrize("name", SIBLINGS)
def test_kernels_that_are_one_agree_at_every_size(name: str, tmp_path: Path) -> None:
    inputs = "torch.randn(4, 6, 9, 40), torch.randn(4, 6, 9, 40)"
    compiled, reference, generated = built(write(tmp_path, SIBLINGS[name], "pass", inputs, "x, y"))
    assert len(compiled.program.kernels) == 1
    for batch in (4, 3, 700):
        agrees(reference, generated, tuple(torch.randn(batch, 6, 9, 40, device="cuda") for _ in range(2)))


@pytest.mark.parametrize(
    "body",
    [
        "F.layer_norm(F.embedding(i, x), (24,))",
        "F.embedding(i, x).mean(1)",
        "F.one_hot(i, 9).float() * x[0, 0]",
        "F.nll_loss(x.log_softmax(1)[:3], i[:, 0] + 20)",
    ],
)
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
