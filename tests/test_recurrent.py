"""Recurrent networks: their layers are products and recurrences, one kernel each, and compute what torch does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fusegen.compiler import compile_file
from fusegen.costs.recurrence import tiles
from fusegen.ir import GATES, RecurrenceOp
from fusegen.machines import MACHINES
from fusegen.passes.recurrent import IDENTITY
from fusegen.plan.details import RecurrencePlan
from tests.emulated import steps
from tests.models import all_nodes, check_in_double, write

CASES = {
    "lstm": ("nn.LSTM(5, 4, 2)", 2, "y, (h, c) = self.m(x)\nreturn y, h, c"),
    "lstm_both_ways": (
        "nn.LSTM(5, 4, 2, batch_first=True, bidirectional=True)",
        2,
        "y, (h, c) = self.m(x)\nreturn c, y, h",
    ),
    "lstm_states": (
        "nn.LSTM(5, 4, bias=False)",
        1,
        "y, s = self.m(x, (x[:1, :, :4], x[1:2, :, 1:]))\nreturn y, s[0] + 1",
    ),
    "gru": ("nn.GRU(5, 3, 3, batch_first=True)", 3, "y, h = self.m(x)\nreturn y, h"),
    "gru_last": ("nn.GRU(5, 3, bidirectional=True)", 1, "return self.m(x)[1].transpose(0, 1).flatten(1)"),
    "tanh": ("nn.RNN(5, 6)", 1, "return self.m(x.relu())[0].mean(0)"),
    "relu_twice": ("nn.RNN(5, 5, nonlinearity='relu')", 2, "return self.m(self.m(x)[0])[0]"),
}
"""By name: the module, how many layers run, and the forward."""


@pytest.mark.parametrize("name", CASES)
def test_layers_compute_what_torch_does(name: str, tmp_path: Path) -> None:
    module, layers, forward = CASES[name]
    path = write(tmp_path, forward, f"self.m = {module}", "torch.randn(6, 4, 5)")
    compiled = compile_file(path)
    assert any(event.identity == IDENTITY for event in compiled.program.rewrites)
    assert len(steps(compiled, RecurrencePlan)) == layers
    check_in_double(compiled, path, [[torch.randn(shape)] for shape in ((6, 4, 5), (3, 1, 5), (2, 7, 5))])


def test_features_that_windows_of_a_free_size_make_are_fixed_by_the_weights(tmp_path: Path) -> None:
    forward = "y = nn.functional.max_pool2d(x, 3, 2, 1)\nreturn self.m(y.permute(0, 3, 1, 2).flatten(2))[0]"
    path = write(tmp_path, forward, "self.m = nn.LSTM(2 * 4, 5, batch_first=True)", "torch.randn(3, 2, 8, 6)")
    compiled = compile_file(path)
    assert len(steps(compiled, RecurrencePlan)) == 1
    check_in_double(compiled, path, [[torch.randn(shape)] for shape in ((3, 2, 8, 6), (1, 2, 8, 11))])


def test_zeros_to_start_from_are_not_read(tmp_path: Path) -> None:
    forward = "h = torch.zeros(1, x.shape[1], 4, device=x.device)\nreturn self.m(x, h)[0]"
    compiled = compile_file(write(tmp_path, forward, "self.m = nn.GRU(5, 4)", "torch.randn(6, 4, 5)"))
    assert [node.op.given for node in all_nodes(compiled) if isinstance(node.op, RecurrenceOp)] == [False]


@pytest.mark.parametrize(
    ("module", "text", "reason"),
    [
        ("nn.LSTM(5, 4, 2, dropout=0.5)", "self.m(x)[0]", None),
        ("nn.LSTM(5, 4, proj_size=3)", "self.m(x)[0]", None),
        ("nn.LSTM(5, 1000)", "self.m(x)[0]", "1000 units are more than a cluster has on chip"),
        ("nn.GRU(5, 4).half()", "self.m(x.half())[0]", None),
    ],
)
def test_what_stays_with_torch(module: str, text: str, reason: str | None, tmp_path: Path) -> None:
    compiled = compile_file(write(tmp_path, f"return {text}", f"self.m = {module}", "torch.randn(6, 4, 5)"))
    assert not steps(compiled, RecurrencePlan)
    reasons = [event.reason for event in compiled.program.refusals if event.identity == IDENTITY]
    assert reasons == ([reason] if reason else [])
    assert ".input(" in compiled.source


def test_other_devices_have_no_clusters(tmp_path: Path) -> None:
    path = write(tmp_path, "return self.m(x)[0]", "self.m = nn.GRU(5, 4)", "torch.randn(6, 4, 5)")
    compiled = compile_file(path, target="sm_80")
    assert not steps(compiled, RecurrencePlan)
    assert [e.reason for e in compiled.program.refusals if e.identity == IDENTITY] == [
        "its kernel needs the clusters of sm_90"
    ]


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("hidden", [1, 3, 33, 64, 100, 256, 500])
def test_a_tile_has_all_units_and_their_weights_on_chip(cell: Any, hidden: int) -> None:
    for samples, directions in ((1, 1), (10, 2), (64, 1), (1000, 2)):
        found = tiles(cell, hidden, samples, 10, directions, MACHINES["sm_90"])
        assert found
        for tile in found.values():
            assert tile.blocks * tile.units >= hidden > (tile.blocks - 1) * tile.units
            assert tile.threads % 32 == 0
            assert tile.own * tile.samples <= tile.lanes <= 32
            assert 1 <= tile.held <= tile.fours(hidden)
            registers = tile.threads * tile.own * GATES[cell] * (4 * tile.held + tile.samples)
            assert registers < 65536
            assert tile.turns(cell, hidden) >= 1
