"""Reductions of what is computed as it is read, from behind views, run on the CPU thread by thread, against float64."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fusegen.compiler import compile_file
from fusegen.plan.details import ViewReducePlan
from tests.emulated import agrees_with_float64, steps
from tests.models import write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]

Shapes = list[tuple[int, ...]]
INIT = """self.w = nn.Parameter(torch.randn(24))"""
MODELS: dict[str, tuple[str, list[Shapes]]] = {
    "differences": ("x.diff().abs().mean()", [[(9, 33)], [(40, 1201)]]),
    "of_rows": ("(x[:, 1:] - x[:, :-1]).pow(2).sum(1)", [[(7, 9, 12)], [(2, 300, 8)], [(1, 40, 1)]]),
    "largest": ("(x[1:] * x[:-1]).amax((0, 2), keepdim=True) + self.w.view(4, 6, 1)[:1]", [[(9, 6, 5)], [(40, 6, 70)]]),
    "pairs": ("((x[:, None] - y[None]) ** 2).sum(-1).sqrt()", [[(9, 8), (7, 8)], [(5, 30), (3, 30)]]),
    "rolled": ("(x - x.roll(1, 1)).abs().amin(1) * 2", [[(3, 20000)], [(1, 20000)]]),
    "padded": ("F.pad(x, (1, 2), value=-1.0).exp().mean((0, 2))", [[(5, 6, 7)]]),
    "joined": ("torch.cat([x, y * 2], dim=1).relu().sum(1)", [[(6, 8), (6, 12)], [(2, 600), (2, 400)]]),
    "parts_of_columns": ("(x[..., :4] / (y[..., 2:6].abs() + 1)).sum(0)", [[(33, 3, 8), (33, 3, 8)]]),
    "nothing": ("x.diff().abs().sum(0) + 1", [[(9, 33)], [(9, 2)], [(1, 1)]]),
    "both": ("(lambda d: d.mean(1) / (d.amax(1) + 1))((x[:, ::2] - x[:, 1::2]).abs())", [[(6, 40)], [(2, 40)]]),
    "windows": ("x.unfold(1, 4, 4).prod(-1)", [[(6, 40)]]),
    "sliding": (
        "(F.pad(x, (1, 1)).unfold(1, 3, 1) * y.unsqueeze(1)).sum((0, 2))",
        [[(6, 40), (6, 3)], [(2, 9), (2, 3)]],
    ),
    "mirrored": ("(F.pad(x, (2, 2), mode='reflect') * 3).mean(-1)", [[(6, 5, 9)]]),
    "flipped": ("(x - x.flip(1)).abs().sum((0, 1))", [[(20, 9, 4)]]),
    "rows_across": (
        "(x.permute(3, 1, 0, 2) * (y * y[..., :1]).unsqueeze(2)).sum(-1) + 1",
        [[(6, 3, 16, 33), (33, 3, 16)]],
    ),
    "interpolated": ("(F.interpolate(x, y.shape[2], mode='linear') - y).abs().mean((0, 2))", [[(3, 2, 5), (3, 2, 20)]]),
    "turned_points": (
        "(torch.stack([x[:, 0] * x[:, i] - x[:, j] for i in range(3) for j in range(1, 4)], 1).view(-1, 3, 3)"
        " * y.unsqueeze(1)).sum(-1)",
        [[(90, 4), (90, 3)], [(5, 4), (5, 3)]],
    ),
    "one_number": ("(x[:, None] - y).abs().mean()", [[(150,), (200,)]]),
}
"""By name: what the forward returns, and shapes of its inputs: the first are the file's."""


def test_neighbouring_rows_are_those_that_lie_side_by_side(tmp_path: Path) -> None:
    body, calls = MODELS["rows_across"]
    drawn = ", ".join(f"torch.randn{shape}" for shape in calls[0])
    compiled = compile_file(write(tmp_path, f"return {body}", INIT, drawn, "x, y"))
    (plan,) = steps(compiled, ViewReducePlan)
    assert isinstance(plan.detail, ViewReducePlan)
    assert plan.detail.strided


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_float64(name: str, tmp_path: Path) -> None:
    agrees_with_float64(MODELS[name][0], INIT, MODELS[name][1], ViewReducePlan, tmp_path)
