"""Products whose factors are computed as they are read, and elementwise work behind views, run on the CPU thread by
thread, against float64."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fusegen.compiler import compile_file
from fusegen.costs import viewproduct
from fusegen.plan.details import PointwisePlan, ViewProductPlan
from tests.emulated import agrees_with_float64, steps
from tests.models import write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]

Shapes = list[tuple[int, ...]]
INIT = """self.w = nn.Parameter(torch.randn(24))"""
MODELS: dict[str, tuple[str, list[Shapes]]] = {
    "heads": (
        "torch.einsum('bihd,bjhd->bhij', x, y).abs() + 1",
        [[(2, 9, 3, 20), (2, 11, 3, 20)], [(1, 40, 3, 20), (1, 70, 3, 20)]],
    ),
    "values": ("torch.einsum('bhij,bjhd->bihd', x.sigmoid(), y)", [[(2, 3, 9, 33), (2, 33, 3, 7)]]),
    "decay": (
        "torch.einsum('bcln,bcsn,bcls->bcls', x, x, torch.exp(y[..., None] - y[..., None, :]))",
        [[(2, 3, 10, 12), (2, 3, 10)]],
    ),
    "padded": ("torch.matmul(F.pad(x, (1, 2)), torch.cat([y, y * 2], dim=1))", [[(2, 5, 13), (2, 8, 6)]]),
    "parts": ("torch.matmul(x[:, 1:], y[..., ::2].mT) + 1", [[(3, 9, 8), (3, 21, 16)], [(2, 70, 8), (2, 3, 16)]]),
    "one_weight": ("torch.matmul(x.transpose(1, 2), y.view(4, 6).t())", [[(3, 6, 5), (24,)]]),
    "spread": (
        "torch.matmul(x.view(3, -1, 4, 6).transpose(1, 2).reshape(12, -1, 6), y.view(6, 5)).tanh()",
        [[(3, 7, 24), (30,)]],
    ),
    "interpolated": ("torch.matmul(F.interpolate(x, y.shape[1], mode='linear'), y)", [[(2, 5, 4), (2, 16, 6)]]),
    "windows": (
        "torch.matmul(F.pad(x, (1, 1)).unfold(2, 3, 1).transpose(1, 2).flatten(2), torch.relu(y).view(3, 15, 4))",
        [[(3, 5, 13), (3, 60)], [(3, 5, 70), (3, 60)]],
    ),
    "columns_first": ("torch.matmul(x.transpose(1, 2) * 2, torch.relu(y))", [[(2, 40, 9), (2, 40, 35)]]),
    "other_order": (
        "(torch.matmul(x, y.unflatten(1, (2, 3)).transpose(1, 2).flatten(1, 2)) > 0).float()",
        [[(4, 2, 6), (4, 6, 9)]],
    ),
}
"""By name: what the forward returns, and shapes of its inputs: the first are the file's."""


@pytest.mark.parametrize("tile", [(1, 1), (4, 2), (8, 1), (2, 4)])
@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_float64(name: str, tile: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewproduct, "seconds", lambda *_: -1.0)
    monkeypatch.setattr(viewproduct, "_TILES", (tile,))
    agrees_with_float64(MODELS[name][0], INIT, MODELS[name][1], ViewProductPlan, tmp_path)


RUNS: dict[str, tuple[str, list[Shapes]]] = {
    "halves": ("torch.cat([-x[..., 12:], x[..., :12]], 2) * self.w.sin() + x", [[(3, 5, 24)], [(1, 1, 24)]]),
    "parts": ("torch.cat([x[..., 8:] * 2, x[..., 3:7], x[..., 1:5]], 2).exp()", [[(3, 5, 24)], [(40, 2, 24)]]),
    "between_accesses": ("torch.cat([x[..., 10:], x[..., :10]], 2) * self.w", [[(3, 5, 24)]]),
    "padded": ("F.pad(x * self.w, (4, 8)).cos()", [[(3, 5, 24)], [(1, 3, 24)]]),
    "padded_unevenly": ("F.pad(x * self.w, (3, 5)).cos()", [[(3, 5, 24)]]),
    "turned": ("x.flip(2) * self.w + torch.cat([x[..., 4:], x[..., :4].flip(2)], 2)", [[(3, 5, 24)]]),
    "every_other": ("torch.cat([x[..., ::2], x[..., 1::2]], 2) * self.w", [[(3, 5, 24)]]),
    "branches": ("torch.cat([x.tanh(), x.exp() * self.w, x - 1], 1)", [[(3, 5, 24)], [(1, 2, 24)]]),
    "branches_of_runs": ("torch.cat([x.tanh(), self.w.exp() * x, x.abs()], 2)", [[(3, 5, 24)]]),
    "rotated": (
        "torch.cat([x * self.w + torch.cat([-x[..., 12:], x[..., :12]], 2) * self.w.cos(), y.sigmoid()], 1)",
        [[(3, 5, 24), (3, 2, 24)], [(2, 1, 24), (2, 9, 24)]],
    ),
    "chosen_numbers": (
        "torch.fmax(x, self.w) + torch.fmin(y, x.sqrt()) * torch.linspace(-1, 2, 24) + torch.heaviside(x, y)",
        [[(3, 5, 24), (3, 5, 24)], [(1, 7, 24), (1, 7, 24)]],
    ),
    "crossed": ("torch.cross(x, y, dim=1) * self.w", [[(5, 3, 24), (5, 3, 24)], [(1, 3, 24), (1, 3, 24)]]),
    "odd_planes": ("torch.cat([x.tanh(), x.exp() - 1], 1)", [[(3, 2, 17, 19)], [(1, 3, 5, 7)], [(2, 1, 16, 31)]]),
    "odd_lines": ("torch.cat([x[..., :301].tanh(), x[..., 1:302].exp()], 1)", [[(3, 2, 305)]]),
    "from_the_second": ("torch.cat([x[..., 1:], x[..., 1:] * 2], 1) + 1", [[(3, 5, 25)], [(2, 7, 6)], [(2, 3, 9)]]),
}
"""The same for accesses of several elements that lie in one part, or in several."""


@pytest.mark.parametrize("name", RUNS)
def test_accesses_lie_in_parts(name: str, tmp_path: Path) -> None:
    agrees_with_float64(RUNS[name][0], INIT, RUNS[name][1], PointwisePlan, tmp_path)


@pytest.mark.parametrize(("name", "count"), [("branches", 3), ("branches_of_runs", 3), ("rotated", 2), ("halves", 0)])
def test_parts_of_a_result_are_computed_alone(name: str, count: int, tmp_path: Path) -> None:
    """A run has the loads and statements of its own part; what follows a join has those of all."""
    body, (shapes, *_) = RUNS[name]
    path = write(tmp_path, f"return {body}", INIT, f"torch.randn{shapes[0]}, torch.randn{shapes[-1]}", "x, y")
    (plan,) = steps(compile_file(path), PointwisePlan)
    assert isinstance(plan.detail, PointwisePlan)
    assert len(plan.detail.joined) == count
    statements = [name for part in plan.detail.joined for name in part.statements]
    assert len(statements) == len(set(statements))
