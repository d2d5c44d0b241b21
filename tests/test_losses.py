"""Losses of class numbers: their softmax is not written, and the values are torch's."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fusegen.compiler import compile_file
from fusegen.interpret import run
from fusegen.ir import Graph, RegionOp, SoftmaxOp
from fusegen.passes import losses
from fusegen.passes.rewrite import Rule, rewrite
from fusegen.trace import load_model_file, trace
from tests.emulated.programs import OnTheCPU
from tests.models import write

CALLS = {
    "mean": "F.cross_entropy(x, t)",
    "sum": "F.cross_entropy(x, t, reduction='sum')",
    "none": "F.cross_entropy(x, t, reduction='none')",
    "ignored": "F.cross_entropy(x, t, ignore_index=2)",
    "ignored_sum": "F.cross_entropy(x, t, ignore_index=2, reduction='sum')",
    "smoothed": "F.cross_entropy(x, t, label_smoothing=0.1)",
    "in_parts": "F.nll_loss(F.log_softmax(x, 1), t)",
    "weighted": "F.cross_entropy(x, t, weight=x.flatten()[:5].abs())",
    "weighted_rows": "F.cross_entropy(x, t, weight=x.flatten()[:5].abs(), ignore_index=2, reduction='none')",
}
WRITTEN = {
    "of_itself": "F.nll_loss(x, t)",
    "weighted": "F.nll_loss(x, t, weight=x.flatten()[:5].abs(), reduction='sum')",
    "read": "F.nll_loss(l := F.log_softmax(x, 1), t) + (l * x).cumsum(1).sum()",
    "along_another_axis": "F.nll_loss(F.log_softmax(x, 0), t, reduction='none')",
}
OTHERS = {"one_row": "F.cross_entropy(x[0], t[0])", "half": "F.nll_loss(x.bfloat16(), t)"}


class _Calls(nn.Module):
    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = compile(call, "call", "eval")

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> object:
        return eval(self.call, {"F": F, "torch": torch, "x": x, "t": t})


def _graph(call: str, x: torch.Tensor, t: torch.Tensor) -> Graph:
    return trace(_Calls(call), (x, t), Path(__file__)).graph


def _of(shape: tuple[int, ...], name: str) -> tuple[torch.Tensor, torch.Tensor]:
    x, t = torch.randn(shape) * 3, torch.randint(0, 5, (shape[0], *shape[2:]))
    t.flatten()[:3] = torch.tensor([2, -100 if "ignore_index" not in name else 2, 4])
    return x, t


def _check(call: str, rule: Rule, shape: tuple[int, ...]) -> Graph:
    """The graph after ``rule``, whose loss is torch's, of what is no number too."""
    x, t = _of(shape, call)
    before = _graph(call, x, t)
    outcome = rewrite(before, losses.RULES)
    assert [applied.identity for applied in outcome.applied] == [rule.identity]
    for special in (0.0, 1e5, math.nan, math.inf, -math.inf):
        values = x.double()
        values[0, 3], values[-1] = special, -abs(special)
        expected, found = (run(graph, [values, t], {})[0] for graph in (before, outcome.graph))
        torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-12, atol=1e-12)
    return outcome.graph


@pytest.mark.parametrize("shape", [(6, 5), (3, 5, 4), (2, 5, 3, 2)])
@pytest.mark.parametrize("name", CALLS)
def test_a_loss_reads_statistics(name: str, shape: tuple[int, ...]) -> None:
    after = _check(CALLS[name], losses.RULES[0], shape)
    if name != "smoothed":
        assert not any(isinstance(node.op, SoftmaxOp) for node in after.nodes)
    if name == "mean":
        x, t = _of(shape, name)
        assert run(after, [x.double(), torch.full_like(t, -100)], {})[0].isnan()


@pytest.mark.parametrize("shape", [(6, 5), (3, 5, 4)])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_loss_of_what_is_written_reads_one_place_of_a_row(name: str, shape: tuple[int, ...]) -> None:
    _check(WRITTEN[name], losses.RULES[1], shape)


@pytest.mark.parametrize("name", OTHERS)
def test_other_losses_are_left(name: str) -> None:
    graph = _graph(OTHERS[name], torch.randn(5, 5), torch.randint(0, 5, (5,)))
    assert not rewrite(graph, losses.RULES).applied


@pytest.mark.parametrize("rows", [4096, 64])
def test_a_loss_is_two_kernels(rows: int, tmp_path: Path) -> None:
    """One of them finds statistics of rows, and neither writes anything as large as those."""
    sizes = f"torch.rand({rows}, 1024), torch.randint(0, 1024, ({rows},))"
    compiled = compile_file(write(tmp_path, "return F.cross_entropy(x, t)", "", sizes, "x, t"))
    assert [step.kind for step in compiled.program.steps] == ["kernel", "kernel"]
    last = compiled.stages[-1].graph
    shape = last.inputs[0].type.shape
    assert not any(node.type.shape == shape for node in last.nodes if isinstance(node.op, RegionOp))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize(
    "call", ["x, t", "x, t, ignore_index=2, reduction='sum'", "x, t, weight=w", "x, t, reduction='none'"]
)
def test_kernels_agree_with_float64(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEGEN_STRICT", "1")
    sizes = "torch.randn(7, 12, 9), torch.randint(0, 12, (7, 9)), torch.rand(12)"
    path = write(tmp_path, f"return F.cross_entropy({call})", "", sizes, "x, t, w")
    compiled = compile_file(path)
    assert all(step.kind == "kernel" for step in compiled.program.steps)
    played, model = OnTheCPU(compiled, "generated_loss", tmp_path), load_model_file(path).model_class()
    for batch in (7, 40):
        x, t, w = torch.randn(batch, 12, 9) * 3, torch.randint(0, 12, (batch, 9)), torch.rand(12)
        t[0, :3] = torch.tensor([2, 2 if "ignore" in call else -100, 11])
        torch.testing.assert_close(played(x, t, w), model(x, t, w), rtol=1e-5, atol=1e-5)
