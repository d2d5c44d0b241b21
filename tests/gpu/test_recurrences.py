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


LOOPS = {
    "joined": (
        "self.i = nn.Linear(88, 72); self.o = nn.Linear(72, 3)",
        "h, outs = x[0, :, :72], []\nfor t in range(x.size(0)):\n"
        "    h = torch.tanh(self.i(torch.cat((x[t, :, :16], h), dim=1)))\n    outs.append(self.o(h))\n"
        "return torch.stack(outs)",
    ),
    "by_hand": (
        "self.w = nn.Parameter(torch.randn(72, 80) / 9); self.v = nn.Parameter(torch.randn(80, 80) / 9)",
        "h = x.new_ones(x.size(1), 80)\nfor step in x.unbind(0):\n"
        "    h = torch.tanh(step @ self.w + h @ self.v)\nreturn h",
    ),
    "lstm_cell": (
        "self.c = nn.LSTMCell(72, 96)",
        "h = c = x.new_zeros(x.size(1), 96)\nouts = []\nfor t in range(x.size(0)):\n"
        "    h, c = self.c(x[t], (h, c))\n    outs.append(h)\nreturn torch.stack(outs, dim=1), c",
    ),
    "gru_cell": (
        "self.c = nn.GRUCell(72, 260)",
        "h = x.new_zeros(x.size(1), 260)\nfor t in range(x.size(0)):\n    h = self.c(x[t], h)\nreturn h",
    ),
}
"""By name: the constructor, and the forward of x [12, 9, 72]."""


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_one_kernel(name: str, tmp_path: Path) -> None:
    init, forward = LOOPS[name]
    compiled, reference, generated = built(write(tmp_path, forward, init, "torch.randn(12, 9, 72)", "x"))
    plans = [step.plan.detail for step in compiled.program.steps if isinstance(step, KernelStep)]
    assert sum(isinstance(plan, RecurrencePlan) for plan in plans) == 1
    for samples in (9, 1, 200):
        agrees(reference, generated, (torch.randn(12, samples, 72, device="cuda"),))


def test_what_is_not_a_number_stays_in_its_sample(tmp_path: Path) -> None:
    path = write(tmp_path, "return self.m(x)[0]", "self.m = nn.GRU(8, 64)", "torch.randn(9, 6, 8)", "x")
    _, reference, generated = built(path)
    x = torch.randn(9, 6, 8, device="cuda")
    x[4, 2, 1] = torch.nan
    with torch.no_grad():
        expected, found = reference(x), generated(x)
    assert torch.equal(expected.isnan(), found.isnan())
    assert found[4:, 2].isnan().all()
