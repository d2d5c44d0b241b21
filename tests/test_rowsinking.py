"""Statements of a kernel of rows: arrays between its phases, or computed where they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusegen.compiler import compile_file
from fusegen.plan.details import RowReducePlan
from tests.emulated import steps
from tests.models import write


@pytest.mark.parametrize(
    ("body", "arrays"),
    [
        ("(x.abs().sum(-1, keepdim=True) + x) * (1 - self.w).abs()", [0, 0]),  # of the row's axis alone
        ("x * (1 - self.w.abs()) / x.norm(dim=-1, keepdim=True)", [0, 0]),
        ("F.layer_norm(x, (768,))", [0, 0, 0]),  # what is left of the mean: once for the variance, once at the end
        ("(lambda d: d * (d * d).mean(-1, True).rsqrt())(x - x.mean(-1, True))", [0, 1, 0]),  # read in two phases
        ("x.softmax(-1) * (y * 2).exp()", [1, 1, 0]),  # data are on their way from the first phase on
    ],
)
def test_what_a_later_phase_needs_alone_is_of_that_phase(body: str, arrays: list[int], tmp_path: Path) -> None:
    path = write(
        tmp_path,
        f"return {body}",
        "self.w = nn.Parameter(torch.randn(768))",
        "torch.rand(4096, 768), torch.rand(4096, 768)" if "y" in body else "torch.rand(4096, 768)",
        "x, y" if "y" in body else "x",
    )
    (plan,) = steps(compile_file(path), RowReducePlan)
    assert isinstance(plan.detail, RowReducePlan)
    found = [sum(statement.array for statement in phase.elements) for phase in plan.detail.rows.phases]
    assert found == arrays
