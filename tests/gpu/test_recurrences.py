"""Recurrent networks: every cell, both directions, weights in registers and beside them, many samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusegen.plan.details import RecurrencePlan
from fusegen.plan.types import KernelStep
from tests.gpu.cases import agrees, built
from tests.models import write

pytestmark = pytest.mark.gpu

LSTM = "y, (h, c) = self.m(x)\ny, h, c"
CASES: dict[str, tuple[str, str, tuple[int, int, int]]] = {
    "lstm": ("nn.LSTM(48, 128, 2)", LSTM, (50, 10, 48)),
    "lstm_both_ways": ("nn.LSTM(64, 256, 2, batch_first=True, bidirectional=True)", LSTM, (16, 40, 64)),
    "lstm_wide": ("nn.LSTM(32, 512)", LSTM, (30, 9, 32)),
    "lstm_many": ("nn.LSTM(20, 100, batch_first=True)", "self.m(x)[0]", (700, 12, 20)),
    "gru": ("nn.GRU(40, 256, 3)", "self.m(x)", (33, 10, 40)),
    "gru_odd": ("nn.GRU(7, 77, bias=False, bidirectional=True)", "self.m(x)", (25, 131, 7)),
    "tanh": ("nn.RNN(24, 300)", "self.m(x)", (60, 8, 24)),
    "relu": ("nn.RNN(16, 64, 2, nonlinearity='relu', bidirectional=True)", "self.m(x)[1]", (20, 33, 16)),
}
"""By name: the module, what is returned, and the shape of the input."""


@pytest.mark.parametrize("name", CASES)
def test_agrees_at_every_size(name: str, tmp_path: Path) -> None:
    module, returned, shape = CASES[name]
    *lines, last = returned.split("\n")
    path = write(tmp_path, "\n".join([*lines, f"return {last}"]), f"self.m = {module}", f"torch.randn{shape}", "x")
    compiled, reference, generated = built(path)
    plans = [step.plan.detail for step in compiled.program.steps if isinstance(step, KernelStep)]
    assert any(isinstance(plan, RecurrencePlan) for plan in plans)
    for first, second in (shape[:2], (1, 1), (3, 5), (shape[1], shape[0])):
        x = torch.randn(first, second, shape[2], device="cuda")
        agrees(reference, generated, (x,))
        with torch.no_grad():
            once, again = (found[0] if isinstance(found, tuple) else found for found in (generated(x), generated(x)))
            assert torch.equal(once, again)


def test_what_is_not_a_number_stays_in_its_sample(tmp_path: Path) -> None:
    path = write(tmp_path, "return self.m(x)[0]", "self.m = nn.GRU(8, 64)", "torch.randn(9, 6, 8)", "x")
    _, reference, generated = built(path)
    x = torch.randn(9, 6, 8, device="cuda")
    x[4, 2, 1] = torch.nan
    with torch.no_grad():
        expected, found = reference(x), generated(x)
    assert torch.equal(expected.isnan(), found.isnan())
    assert found[4:, 2].isnan().all()
