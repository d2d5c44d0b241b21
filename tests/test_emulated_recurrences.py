"""Layers of recurrent networks, run on the CPU thread by thread, blocks of a cluster side by side, against float64."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from fusegen import interpret
from fusegen.compiler import compile_file
from fusegen.costs import recurrence
from fusegen.costs.recurrence import RecurrenceTile
from fusegen.plan.details import RecurrencePlan
from tests.emulated import steps
from tests.emulated.hopper import HopperKernel
from tests.models import write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]


def _tile(lanes: int, own: int, units: int, blocks: int, samples: int, held: int) -> RecurrenceTile:
    return RecurrenceTile(lanes=lanes, own=own, units=units, blocks=blocks, samples=samples, held=held)


MODELS: dict[str, tuple[str, str, RecurrenceTile]] = {
    "one_block": ("nn.LSTM(6, 13)", "self.m(x)[0]", _tile(8, 1, 16, 1, 2, 1)),
    "blocks": ("nn.LSTM(6, 30, batch_first=True)", "self.m(x, (y, y * 2))", _tile(4, 1, 8, 4, 1, 2)),
    "stored": ("nn.LSTM(3, 74)", "self.m(x, (y, y * 2))[1]", _tile(8, 2, 24, 4, 4, 1)),
    "both_ways": ("nn.LSTM(5, 19, bidirectional=True)", "self.m(x)", _tile(16, 1, 10, 2, 2, 1)),
    "gru": ("nn.GRU(5, 33, batch_first=True)", "self.m(x, y)", _tile(16, 2, 20, 2, 4, 1)),
    "gru_both_ways": ("nn.GRU(5, 9, bias=False, bidirectional=True)", "self.m(x)", _tile(32, 1, 5, 2, 4, 1)),
    "tanh": ("nn.RNN(4, 50)", "self.m(x, y)[0]", _tile(8, 4, 16, 4, 2, 1)),
    "relu": ("nn.RNN(4, 14, nonlinearity='relu')", "self.m(x)[1]", _tile(32, 4, 4, 4, 8, 1)),
}
"""By name: the module, what is returned, and how a cluster shares the units."""


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_float64(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, returned, tile = MODELS[name]
    monkeypatch.setattr(recurrence, "tiles", lambda *_: {"forced": tile})
    hidden, features = (int(module.partition("(")[2].split(",")[i].strip(" )")) for i in (1, 0))
    batch_first = "batch_first" in module
    inputs = f"torch.randn({'5, 4' if batch_first else '4, 5'}, {features})"
    given = ", y" in returned
    more = f", torch.randn(1, 5, {hidden})" if given else ""
    path = write(tmp_path, f"return {returned}", f"self.m = {module}", inputs + more, "x, y" if given else "x")
    compiled = compile_file(path)
    (plan,) = steps(compiled, RecurrencePlan)
    kernel = HopperKernel(compiled, plan, "", tmp_path)
    detail = plan.detail
    assert isinstance(detail, RecurrencePlan)
    torch.manual_seed(0)
    for length, samples in ((4, 5), (1, 1), (7, 9)):
        for special in (None, torch.inf, torch.nan):
            operands = []
            for arg in plan.args:
                shape = tuple(size for size in arg.type.shape if isinstance(size, int))
                if arg.name in detail.first:
                    shape = (detail.directions, samples, hidden)
                elif arg.name in detail.sums:
                    lead = (samples, length) if batch_first else (length, samples)
                    shape = (*lead, detail.gates * hidden)
                operands.append(torch.randn(shape) / (1 if arg.name in detail.sums else 4))
            if special is not None:
                operands[[arg.name for arg in plan.args].index(detail.sums[0])].view(-1)[-3] = special
            found = kernel(operands)
            exact = interpret.run(kernel.body, [value.double() for value in operands], {})
            for y, r in zip(found, exact, strict=True):
                assert torch.equal(y.isnan(), r.isnan()), (length, samples, special)
                assert torch.equal(y.isinf(), r.isinf()), (length, samples, special)
                both = r.isfinite()
                assert (y.double() - r)[both].abs().max() <= 1e-6, (length, samples, special)
