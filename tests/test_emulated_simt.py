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
ROWS: dict[str, tuple[str, list[Shapes]]] = {
    "softmax": ("F.softmax(self.linear(x), 1)", [[(3, 772)], [(1, 772)], [(9, 772)]]),
    "few_terms": ("F.log_softmax(0.1 - self.short(x).tanh(), dim=1)", [[(16, 64)], [(3, 64)]]),
    "norm": ("F.layer_norm(self.odd(x) + y, (300,)) * 2", [[(4, 131), (4, 300)], [(7, 131), (7, 300)]]),
    "unit_rows": ("F.normalize(x @ self.w, dim=-1) + self.p", [[(5, 300)], [(2, 300)]]),
    "of_rows": ("self.linear(x).relu().amax(1)", [[(130, 772)], [(5, 772)]]),
    "several_sums": (
        "(lambda v: v / (v.abs().sum(1, True) + v.amax(1, True).relu() + 1))(self.linear(x))",
        [[(20, 772)]],
    ),
    "batch": ("torch.bmm(x, y).softmax(-1)", [[(3, 8, 7), (3, 7, 50)], [(3, 9, 7), (3, 7, 50)]]),
    "logsumexp": ("torch.logsumexp(self.short(x), 1)", [[(40, 64)], [(17, 64)]]),
}
"""The same where rows are reduced."""
INIT = """self.linear, self.odd, self.short = nn.Linear(772, 45), nn.Linear(131, 300), nn.Linear(64, 768)
self.p = nn.Parameter(torch.randn(45))
self.w, self.v = nn.Parameter(torch.randn(300, 45)), nn.Parameter(torch.randn(77, 10))"""


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_float64(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simt, "seconds", lambda *_: -1.0)
    agrees_with_float64(MODELS[name][0], INIT, MODELS[name][1], SimtGemmPlan, tmp_path)


@pytest.mark.parametrize("name", ROWS)
def test_whole_rows_agree_with_float64(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simt, "row_seconds", lambda *_: -1.0)
    agrees_with_float64(ROWS[name][0], INIT, ROWS[name][1], SimtGemmPlan, tmp_path)


@pytest.mark.parametrize("blocks", [1, 2, 8])
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_rows_of_clusters_of_every_size(
    rows: int, blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = simt.RowLayout(rows, blocks, -(-300 // (blocks * 8)), features=8, own=1, parts=1, steps=2)
    monkeypatch.setattr(simt, "row_seconds", lambda *_: -1.0)
    monkeypatch.setattr(simt, "row_layout", lambda *_: layout)
    agrees_with_float64("F.softmax(self.odd(x), 1)", INIT, [[(10, 131)], [(1, 131)]], SimtGemmPlan, tmp_path)
