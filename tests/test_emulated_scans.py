"""Kernels of scans, run on the CPU thread by thread, against float64."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from fusegen import interpret
from fusegen.compiler import compile_file
from fusegen.plan.details import ScanPlan
from tests.emulated import Kernel, kernel_of, steps
from tests.models import write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]

ROWS = [(5, 7), (3, 1), (70, 16), (2, 700), (3, 2050), (1, 9001), (1, 70_000), (40, 257)]
PLANES = [(3, 7, 5), (2, 1, 3), (1, 90, 33), (1, 700, 40), (2, 2100, 1), (600, 5, 9), (3, 40, 900)]
MODELS = {
    "sum": ("torch.cumsum(x, -1)", ROWS),
    "product": ("torch.cumprod(1 + 0.01 * x, 1) * 2", ROWS),
    "other_end": ("(2 * x).flip(1).cumsum(1).flip(1) / 3", ROWS),
    "both_ends": ("x.cumsum(1) - x.flip(1).cumsum(1).flip(1)", ROWS),
    "of_what_is_before": ("torch.cat((torch.zeros_like(x[:, :1]), x), 1).cumsum(1)[:, :-1] + x", ROWS),
    "two_results": ("torch.cumsum(x, -1), torch.cumprod(x.sigmoid(), 1) + x.cumsum(-1)", ROWS),
    "read_again": ("(lambda y: y - y.cumsum(-1) / torch.arange(1, x.shape[-1] + 1, device=x.device))(F.silu(x))", ROWS),
    "strided": ("torch.cumsum(x.abs(), 1) / 3", PLANES),
    "strided_other_end": ("torch.cumprod((x.sigmoid() + 0.5).flip(1), 1).flip(1)", PLANES),
    "strided_both_ends": ("x.cumsum(1) * x.flip(1).cumsum(1).flip(1)", PLANES),
    "first_axis": ("x.cumsum(0) - 1", [(300, 4, 3), (40, 50, 1)]),
    "merged_axes": ("x.flatten(1).cumsum(1).view_as(x) + x", PLANES),
}
"""By name: what the forward returns, and shapes of ``x``: the first is the file's."""


def _agrees(kernel: Kernel, operands: list[torch.Tensor], case: object) -> None:
    exact = [x.double() if x.is_floating_point() else x for x in operands]
    for y, r in zip(kernel(operands), interpret.run(kernel.body, exact, {}), strict=True):
        finite = r.isfinite()
        assert torch.equal(y.isnan(), r.isnan()), case
        assert torch.equal(y[~finite].nan_to_num(), r[~finite].float().nan_to_num()), case
        if finite.any():
            unit = 2e-5 if "prod" in str(kernel.plan.computes) else 1e-6
            assert (y.double() - r)[finite].abs().max() <= unit * (1 + r[finite].abs().max()), case


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_float64(name: str, tmp_path: Path) -> None:
    body, shapes = MODELS[name]
    kernel = kernel_of(body, f"torch.rand{shapes[0]}", ScanPlan, tmp_path)
    for shape in shapes:
        for special in (0.0, torch.inf):
            x = torch.randn(shape)
            x.flatten()[x.numel() // 2] = special
            _agrees(kernel, [x], (shape, special))


@pytest.mark.parametrize("axis", [0, 1])
def test_truth_values_and_spread_operands_beside_the_data(axis: int, tmp_path: Path) -> None:
    body = f"(x * flags).cumsum({axis}) * scale + shift"
    inputs = "torch.rand(9, 44), torch.rand(9, 44) > 0.5, torch.rand(44), torch.rand(9, 1)"
    compiled = compile_file(write(tmp_path, f"return {body}", inputs=inputs, arguments="x, flags, scale, shift"))
    (plan,) = steps(compiled, ScanPlan)
    kernel = Kernel(compiled, plan, tmp_path)
    for rows, features in ((9, 44), (5, 44), (700, 44)):
        given = {"x": torch.randn(rows, features), "flags": torch.rand(rows, features) > 0.5}
        given |= {"scale": torch.rand(features), "shift": torch.rand(rows, 1)}
        _agrees(kernel, [given[arg.node] for arg in plan.args], (rows, features))


def test_an_odd_address(tmp_path: Path) -> None:
    compiled = compile_file(write(tmp_path, "return x.cumsum(1)", inputs="torch.rand(5, 44)"))
    (plan,) = steps(compiled, ScanPlan)
    kernel = Kernel(compiled, plan, tmp_path)
    for length in (44, 1031):
        x = torch.randn(5 * length + 1)[1:].view(5, length)
        assert x.data_ptr() % 16
        _agrees(kernel, [x], length)
