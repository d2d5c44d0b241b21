"""Reductions of what is computed as it is read, at sizes that take one block, and that many blocks share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusegen.plan.details import ViewReducePlan
from fusegen.plan.types import KernelStep
from tests.gpu.cases import agrees, built
from tests.models import write

pytestmark = pytest.mark.gpu

Shapes = list[tuple[int, ...]]
CASES: dict[str, tuple[str, list[Shapes]]] = {
    "differences": ("x.diff().abs().mean()", [[(9, 33)], [(300, 12001)], [(1, 2)]]),
    "of_rows": (
        "(x[:, 1:] - x[:, :-1]).pow(2).sum(1)",
        [[(7, 9, 12)], [(2, 30000, 8)], [(3, 400, 257)], [(900, 3, 33)]],
    ),
    "largest": ("(x[1:] * x[:-1]).amax((0, 2), keepdim=True) * 2", [[(9, 6, 5)], [(400, 6, 700)]]),
    "pairs": (
        "((x[:, None] - y[None]) ** 2).sum(-1).sqrt()",
        [[(9, 8), (7, 8)], [(500, 64), (700, 64)], [(5, 30), (3, 30)]],
    ),
    "padded": ("F.pad(x, (1, 2), value=-1.0).exp().mean((0, 2))", [[(5, 6, 7)], [(50, 6, 20000)]]),
    "joined": ("torch.cat([x, y * 2], dim=1).relu().sum(1)", [[(6, 8), (6, 12)], [(2, 60000), (2, 40001)]]),
    "no_part": ("torch.cat([x, y * 2], dim=0).relu().sum(0)", [[(6, 8), (3, 8)], [(0, 8), (3, 8)]]),
    "columns": ("(x[:, 0:2] * y[:, 1:3]).sum(0)", [[(33, 3, 8), (33, 3, 8)], [(50000, 3, 8), (50000, 3, 8)]]),
    "both": ("(lambda d: d.mean(1) / (d.amax(1) + 1))((x[:, 1:] - x[:, :-1]).abs())", [[(6, 40)], [(2, 70000)]]),
    "rows_across": (
        "(x.permute(3, 1, 0, 2) * (y * y[..., :1]).unsqueeze(2)).sum(-1) + 1",
        [[(6, 3, 16, 33), (33, 3, 16)], [(1152, 10, 16, 64), (64, 10, 16)]],
    ),
    "one_number": ("(x[:, None] - y).abs().mean()", [[(150,), (200,)], [(1500,), (2000,)]]),
}
"""By name: what the forward returns, and shapes of its inputs: the first are the file's."""


@pytest.mark.parametrize("name", CASES)
def test_agrees_at_every_size(name: str, tmp_path: Path) -> None:
    body, calls = CASES[name]
    drawn = ", ".join(f"torch.randn{shape}" for shape in calls[0])
    names = ", ".join(("x", "y")[: len(calls[0])])
    compiled, reference, generated = built(write(tmp_path, f"return {body}", "pass", drawn, names))
    (step,) = (step for step in compiled.program.steps if isinstance(step, KernelStep))
    assert isinstance(step.plan.detail, ViewReducePlan)
    for shapes in calls:
        data = [torch.randn(shape, device="cuda") for shape in shapes]
        agrees(reference, generated, tuple(data))
        with torch.no_grad():
            assert torch.equal(generated(*data), generated(*data))
            data[-1].view(-1)[1], data[-1].view(-1)[-1] = float("inf"), float("nan")
            assert torch.equal(generated(*data).isnan(), reference(*data).isnan())
