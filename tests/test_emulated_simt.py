"""Products in plain fp32, run on the CPU thread by thread, against float64: also at other sizes than those traced."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fusegen.costs import simt
from fusegen.plan.details import SimtGemmPlan
from tests.emulated import agrees_with_float64

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]

Shapes = list[tuple[int, ...]]
MODELS: dict[str, tuple[str, list[Shapes]]] = {
    "one_row": ("F.relu(self.linear(x)) * self.p", [[(1, 772)]]),
    "some_rows": ("self.linear(x).tanh() + y", [[(3, 772), (3, 45)], [(8, 772), (8, 45)]]),
    "many_rows": ("F.gelu(self.linear(x))", [[(7, 3, 772)], [(1, 1, 772)]]),
    "rows_that_are_odd": ("self.odd(x).sigmoid() - 1", [[(2, 131)], [(1, 131)], [(5, 131)]]),
    "weights": ("(x @ self.w).relu() + self.p", [[(2, 300)], [(11, 300)]]),
    "odd_weights": ("(x @ self.v).abs()", [[(4, 77)], [(1, 77)], [(13, 77)]]),
    "batch": ("torch.sqrt(torch.bmm(x, y).abs() + 0.5)", [[(3, 8, 7), (3, 7, 5)], [(2, 9, 36), (2, 36, 33)]]),
    "batch_of_transposed": ("torch.einsum('bik,bjk->bij', x, y) * 2", [[(3, 5, 132), (3, 6, 132)]]),
    "batches": ("torch.matmul(x, y) * 0.5", [[(2, 3, 10, 20), (20, 26)], [(1, 4, 9, 20), (20, 27)]]),
    "heads": ("torch.matmul(x, y.transpose(-2, -1)).relu()", [[(3, 4, 5, 36), (3, 4, 6, 36)]]),
    "where": ("torch.where(y > 0, self.linear(x), y)", [[(2, 772), (2, 45)]]),
}
"""By name: what the forward returns, and shapes of its inputs: the first are the file's."""
INIT = """self.linear, self.odd = nn.Linear(772, 45), nn.Linear(131, 300)
self.p = nn.Parameter(torch.randn(45))
self.w, self.v = nn.Parameter(torch.randn(300, 45)), nn.Parameter(torch.randn(77, 10))"""


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_float64(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simt, "seconds", lambda *_: -1.0)
    agrees_with_float64(MODELS[name][0], INIT, MODELS[name][1], SimtGemmPlan, tmp_path)
