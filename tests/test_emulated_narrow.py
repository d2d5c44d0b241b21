"""Rows of which less than a line of memory lies side by side, and of pairs: kernels run by threads of the CPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fusegen.compiler import compile_file
from fusegen.plan.details import PointwisePlan, RowReducePlan, RowStreamPlan
from tests.emulated import agrees_with_float64, steps
from tests.models import write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]

NARROW = {
    "held": ("x.softmax(1) * 2", [(9, 40, 4), (9, 40, 3), (7, 40, 12), (1, 40, 1), (3, 40, 40), (300, 40, 2)]),
    "short": ("x.logsumexp(1)", [(500, 5, 2), (70, 5, 3), (3, 5, 8), (1, 5, 1)]),
    "long": ("x - x.mean(1, True)", [(3, 1300, 2), (2, 1300, 3), (1, 1300, 16)]),
    "of_two": ("(x * y).softmax(1) + x", [(30, 120, 4), (3, 120, 3), (1, 120, 24)]),
    "stored_as_rows": (
        "F.layer_norm(x.permute(0, 2, 1), (140,)) * 2",
        [(9, 140, 4), (5, 140, 3), (3, 140, 12), (1, 140, 1)],
    ),
}
"""By name: what the forward returns, and shapes of what it is given: the first is the file's."""


@pytest.mark.parametrize("name", NARROW)
def test_threads_side_by_side_share_held_rows(name: str, tmp_path: Path) -> None:
    body, shapes = NARROW[name]
    calls = [[shape] * (2 if name == "of_two" else 1) for shape in shapes]
    compiled = compile_file(
        write(tmp_path, f"return {body}", "", f"torch.rand{shapes[0]}, torch.rand{shapes[0]}", "x, y")
    )
    (plan,) = steps(compiled, RowReducePlan)
    assert isinstance(plan.detail, RowReducePlan)
    assert plan.detail.abreast == shapes[0][2]
    assert plan.detail.turned == (name == "stored_as_rows")
    agrees_with_float64(body, "", calls, RowReducePlan, tmp_path)


ODD = {
    "softmax": ("x.softmax(1) * 2", [[(9, 515)], [(2, 515)], [(1, 515)]]),
    "of_two": ("(x - y).abs().sum(1) / (x * y).amax(1)", [[(5, 1031), (5, 1031)], [(3, 1031), (3, 1031)]]),
    "two_beyond": ("x / x.norm(dim=1, keepdim=True)", [[(7, 258)], [(4, 258)]]),
    "of_planes": ("x.softmax(2) * x.amin(2, True)", [[(40, 5, 131)], [(2, 5, 131)]]),
}
"""By name: what the forward returns, and shapes of what it is given: the first are the file's."""


@pytest.mark.parametrize("name", ODD)
def test_odd_rows_are_read_in_whole_accesses(name: str, tmp_path: Path) -> None:
    body, calls = ODD[name]
    drawn = ", ".join(f"torch.rand{shape}" for shape in calls[0])
    compiled = compile_file(write(tmp_path, f"return {body}", "", drawn, "x, y"[: 3 * len(calls[0]) - 2]))
    (plan,) = steps(compiled, RowReducePlan)
    assert isinstance(plan.detail, RowReducePlan)
    assert plan.detail.ragged
    agrees_with_float64(body, "", calls, RowReducePlan, tmp_path)


def test_odd_rows_beside_what_all_of_them_read_are_read_one_by_one(tmp_path: Path) -> None:
    compiled = compile_file(write(tmp_path, "return self.n(x)", "self.n = nn.LayerNorm(515)", "torch.rand(99, 515)"))
    (plan,) = steps(compiled, RowReducePlan)
    assert isinstance(plan.detail, RowReducePlan)
    assert not plan.detail.ragged


STREAMED = {
    "statistics": (
        "(x - x.mean(1, True)) * x.var(1, keepdim=True)",
        [(3, 2100, 4), (2, 2100, 3), (1, 2100, 16), (1, 2100, 1)],
    ),
    "extremes": ("x.amax(1) + x.sum(1)", [(3, 4000, 2), (2, 4000, 6), (1, 4000, 1), (1, 4000, 12)]),
}


@pytest.mark.parametrize("name", STREAMED)
def test_threads_side_by_side_share_streamed_rows(name: str, tmp_path: Path) -> None:
    body, shapes = STREAMED[name]
    agrees_with_float64(body, "", [[shape] for shape in shapes], RowStreamPlan, tmp_path)


PAIRS = {
    "last": ("torch.tanh(x.unsqueeze(2) - y.unsqueeze(1)).softmax(-1)", [((5, 7), (5, 40)), ((2, 9), (2, 40))]),
    "middle": ("(x.unsqueeze(2) + y.unsqueeze(1)).softmax(2) * 3", [((5, 7, 4), (5, 40, 4)), ((2, 3, 4), (2, 40, 4))]),
    "turned": (
        "(x.unsqueeze(2) + y.unsqueeze(1)).softmax(2).permute(0, 3, 1, 2).flatten(0, 1) * 2",
        [((5, 7, 4), (5, 40, 4)), ((2, 3, 4), (2, 40, 4))],
    ),
    "streamed": ("(x.unsqueeze(2) * y.unsqueeze(1)).argmax(2)", [((5, 7), (5, 40)), ((2, 9), (2, 60))]),
}
"""By name: what the forward returns, and shapes of ``x`` and ``y``."""


@pytest.mark.parametrize("name", PAIRS)
def test_rows_of_pairs_are_computed_as_they_are_read(name: str, tmp_path: Path) -> None:
    body, calls = PAIRS[name]
    drawn = ", ".join(f"torch.rand{shape}" for shape in calls[0])
    compiled = compile_file(write(tmp_path, f"return {body}", "", drawn, "x, y"))
    assert len(compiled.program.steps) == 1
    agrees_with_float64(body, "", calls, RowStreamPlan if name == "streamed" else RowReducePlan, tmp_path)


def test_rows_of_several_pairs_are_one_kernel(tmp_path: Path) -> None:
    """Scores of several heads, each of its own pairs: nothing as large as all pairs is written."""
    body = "torch.stack([F.leaky_relu(x[:, :, None, k] + y[:, None, :, k], 0.2) @ self.a[k] for k in range(2)], -1)"
    drawn = "torch.rand(3, 20, 2, 8), torch.rand(3, 30, 2, 8)"
    compiled = compile_file(
        write(tmp_path, f"return {body}", "self.a = nn.Parameter(torch.randn(2, 8))", drawn, "x, y")
    )
    (plan,) = steps(compiled, RowReducePlan)
    assert isinstance(plan.detail, RowReducePlan)
    assert plan.detail.paired
    assert not steps(compiled, PointwisePlan)
