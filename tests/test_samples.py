"""Sums over the samples of a convolution: when they go before it, and what is computed in double after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusegen.compiler import compile_file
from fusegen.ir import ConvOp, RegionOp
from fusegen.plan.details import RowReducePlan
from fusegen.plan.types import KernelStep
from tests.models import write


@pytest.mark.parametrize(
    ("init", "body", "x", "kernels", "double"),
    [
        ("nn.Conv2d(64, 128, 3)", "self.c(x).mean(0).relu()", "torch.empty(64, 64, 96, 96)", 2, False),
        ("nn.Conv2d(32, 64, 3, groups=4)", "self.c(x).mean((0, 1))", "torch.empty(64, 32, 96, 96)", 3, True),
    ],
)
def test_sums_over_samples_leave_one(init: str, body: str, x: str, kernels: int, double: bool, tmp_path: Path) -> None:
    """What reduces the few results of a convolution of sums adds up in double: it averages nothing out."""
    program = compile_file(write(tmp_path, f"return {body}", f"self.c = {init}", x)).program
    steps = [step for step in program.steps if isinstance(step, KernelStep)]
    assert len(steps) == len(program.steps) == kernels
    assert any(isinstance(step.plan.detail, RowReducePlan) and step.plan.detail.double for step in steps) == double
    regions = [node.op.body.nodes for node in program.after.nodes if isinstance(node.op, RegionOp)]
    (conv,) = (node for nodes in regions for node in nodes if isinstance(node.op, ConvOp))
    assert conv.type.shape[0] == 1
    assert isinstance(conv.op, ConvOp)
    assert conv.op.precise


def test_few_samples_are_not_worth_a_kernel_of_sums(tmp_path: Path) -> None:
    path = write(tmp_path, "return self.c(x).sum(0)", "self.c = nn.Conv2d(8, 8, 3)", "torch.empty(2, 8, 12, 12)")
    assert any("of their sum" in refusal.reason for refusal in compile_file(path).program.refusals)
