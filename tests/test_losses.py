"""Losses of class numbers: their softmax is not written, and the values are torch's."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fusegen.compiler import compile_file
from fusegen.interpret import run
from fusegen.ir import Graph, RegionOp, SoftmaxOp
from fusegen.passes import losses
from fusegen.passes.rewrite import rewrite
from fusegen.trace import trace
from tests.models import write

CALLS = {
    "mean": "F.cross_entropy(x, t)",
    "sum": "F.cross_entropy(x, t, reduction='sum')",
    "none": "F.cross_entropy(x, t, reduction='none')",
    "ignored": "F.cross_entropy(x, t, ignore_index=2)",
    "ignored_sum": "F.cross_entropy(x, t, ignore_index=2, reduction='sum')",
    "smoothed": "F.cross_entropy(x, t, label_smoothing=0.1)",
    "in_parts": "F.nll_loss(F.log_softmax(x, 1), t)",
}
OTHERS = {
    "weighted": "F.cross_entropy(x, t, weight=torch.ones(5))",
    "of_itself": "F.nll_loss(x, t)",
    "written": "F.nll_loss(l := F.log_softmax(x, 1), t), l * 2",
    "along_another_axis": "F.nll_loss(F.log_softmax(x, 0), t)",
}


class _Calls(nn.Module):
    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = compile(call, "call", "eval")

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> object:
        return eval(self.call, {"F": F, "torch": torch, "x": x, "t": t})


def _graph(call: str, x: torch.Tensor, t: torch.Tensor) -> Graph:
    return trace(_Calls(call), (x, t), Path(__file__)).graph


@pytest.mark.parametrize("shape", [(6, 5), (3, 5, 4), (2, 5, 3, 2)])
@pytest.mark.parametrize("name", CALLS)
def test_a_loss_reads_statistics(name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "WORTH", 0)
    x, t = torch.randn(shape) * 3, torch.randint(0, 5, (shape[0], *shape[2:]))
    t.flatten()[:3] = torch.tensor([2, -100 if "ignored" not in name else 2, 4])
    before = _graph(CALLS[name], x, t)
    outcome = rewrite(before, losses.RULES)
    assert [applied.identity for applied in outcome.applied] == [losses.RULES[0].identity]
    if name != "smoothed":
        assert not any(isinstance(node.op, SoftmaxOp) for node in outcome.graph.nodes)
    for special in (0.0, 1e5, math.nan, math.inf, -math.inf):
        values = x.double()
        values[0, 3], values[-1] = special, -abs(special)
        expected, found = (run(graph, [values, t], {})[0] for graph in (before, outcome.graph))
        torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-12, atol=1e-12)
    if name == "mean":
        nothing = torch.full_like(t, -100)
        assert run(outcome.graph, [x.double(), nothing], {})[0].isnan()


@pytest.mark.parametrize("name", OTHERS)
def test_other_losses_are_left(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "WORTH", 0)
    graph = _graph(OTHERS[name], torch.randn(5, 5), torch.randint(0, 5, (5,)))
    assert not rewrite(graph, losses.RULES).applied


@pytest.mark.parametrize(("rows", "kernels"), [(4096, 2), (64, 1)])
def test_a_large_softmax_is_not_written(rows: int, kernels: int, tmp_path: Path) -> None:
    """One of few rows stays in the L2 cache, where launches take longer than its second pass."""
    sizes = f"torch.rand({rows}, 1024), torch.randint(0, 1024, ({rows},))"
    compiled = compile_file(write(tmp_path, "return F.cross_entropy(x, t)", "", sizes, "x, t"))
    steps = compiled.program.steps
    assert [step.kind for step in steps].count("kernel") == kernels
    last = compiled.stages[-1].graph
    shape = last.inputs[0].type.shape
    assert any(node.type.shape == shape for node in last.nodes if isinstance(node.op, RegionOp)) == (rows == 64)
