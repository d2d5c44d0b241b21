"""Reductions that read the windows of a pooling, run on the CPU thread by thread, against float64."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path

import pytest
import torch

from fusegen import interpret
from fusegen.compiler import compile_file
from fusegen.plan.details import RowReducePlan, RowStreamPlan
from fusegen.plan.types import KernelStep
from fusegen.spaces import poolrows
from fusegen.trace import load_model_file
from tests.emulated import Kernel, operands_of
from tests.models import write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]

MODELS = {
    "in_order": ("F.instance_norm(F.max_pool1d(x, 2, 1)) * 2", [(3, 4, 99), (1, 4, 99)]),
    "whole_vectors": ("F.instance_norm(F.avg_pool1d(x + self.s, 2))", [(3, 4, 64), (1, 4, 64)]),
    "planes": ("F.max_pool1d(x + self.q, 3, 1).sum((1, 2))", [(3, 9, 8), (1, 9, 8)]),
    "samples": ("F.max_pool1d(x + self.s, 1, 2).sum(2)", [(3, 12, 64), (1, 5, 64)]),
    "one_window": ("F.max_pool1d(x, 2).sum(1)", [(3, 40, 3), (1, 40, 3)]),
    "channels": ("F.avg_pool2d(x, 3, 2).softmax(1)", [(2, 24, 7, 13), (2, 24, 3, 3), (1, 24, 16, 11)]),
    "many_channels": ("F.max_pool1d(x, 2).logsumexp(1)", [(2, 900, 11)]),
    "groups": ("F.group_norm(F.avg_pool2d(x, 2), 2)", [(3, 6, 12, 9), (1, 6, 12, 9)]),
    "dilated": ("F.max_pool1d(x, 3, 1, dilation=2).log_softmax(2)", [(2, 3, 37), (5, 3, 37)]),
    "volume": ("F.max_pool3d(x, (2, 1, 2), (1, 2, 2)).sum(1)", [(2, 3, 5, 6, 7), (1, 3, 2, 3, 4)]),
    "padded": ("F.max_pool1d(x, 3, 2, 1).softmax(2)", [(2, 3, 37)]),
    "padded_channels": ("F.max_pool2d(x, (3, 1), (2, 1), (1, 0)).amax(1)", [(2, 9, 8, 5), (2, 9, 3, 5), (1, 9, 11, 2)]),
    "padded_means": ("F.avg_pool2d(x, 3, 2, 1).sum(1)", [(2, 9, 8, 7), (2, 9, 3, 4), (1, 9, 11, 2)]),
    "padded_and_dilated": ("F.max_pool1d(x, 3, 1, 1, 4).amin(1)", [(2, 9, 19)]),
    "last_windows": ("F.max_pool2d(x, 2, ceil_mode=True).sum(1)", [(2, 9, 7, 6), (1, 9, 3, 3), (1, 9, 8, 4)]),
    "all_beside": ("F.avg_pool2d(x, 2, divisor_override=3).softmax(1)", [(2, 9, 6, 9), (2, 9, 3, 2)]),
    "streamed": ("F.max_pool1d(x, 2).abs().amax((0, 1))", [(8, 30, 22), (2, 7, 22), (1, 1, 22)]),
    "streamed_rows": ("F.avg_pool2d(x, 3, 2, 1).sum((0, 1))", [(4, 3, 9, 13), (1, 3, 2, 3), (70, 3, 16, 16)]),
    "streamed_chain": ("F.max_pool2d(x * self.p, 2, ceil_mode=True).mean((0, 1))", [(3, 7, 9, 8), (5, 7, 3, 4)]),
    "chain": ("F.softmax(F.max_pool2d(x * self.p + self.q, 2, (1, 2)) + self.r, 1)", [(2, 7, 9, 8), (1, 7, 9, 8)]),
    "chain_of_two": ("F.avg_pool1d(x.abs() * x, 2, padding=1).sum(1)", [(5, 6, 41), (2, 6, 3)]),
}
"""By name: what the forward returns, and shapes of ``x``, the first the file's."""
PARAMETERS = """
self.p = nn.Parameter(torch.randn(7, 1, 1))
self.q = nn.Parameter(torch.randn(9, 8))
self.r = nn.Parameter(torch.randn(8, 4))
self.s = nn.Parameter(torch.randn(64))
"""


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_float64(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poolrows, "faster", lambda *_: None)
    body, shapes = MODELS[name]
    path = write(tmp_path, f"return {body}", PARAMETERS, f"torch.rand{shapes[0]}")
    compiled = compile_file(path)
    (step,) = compiled.program.steps
    assert isinstance(step, KernelStep)
    plan = step.plan
    assert isinstance(plan.detail, RowStreamPlan if name.startswith("streamed") else RowReducePlan)
    torch.manual_seed(0)
    kernel = Kernel(compiled, plan, tmp_path)
    parameters = operands_of(compiled, plan, dict(load_model_file(path).model_class().named_parameters()))
    for shape, special in product(shapes, (0.0, torch.inf, -torch.inf, torch.nan)):
        x = torch.randn(shape) + 0.5
        x[(0,) * len(shape)] = special
        operands = [parameters.get(arg.name, x) for arg in plan.args]
        found, exact = kernel(operands), interpret.run(kernel.body, [o.double() for o in operands], {})
        for y, r in zip(found, exact, strict=True):
            finite = r.isfinite()
            assert torch.equal(y.isnan(), r.isnan()), (shape, special)
            assert torch.equal(y[~finite].nan_to_num(), r[~finite].float().nan_to_num()), (shape, special)
            bound = 4e-6 * float(r.nan_to_num(0, 0, 0).abs().max())
            assert torch.allclose(y[finite].double(), r[finite], rtol=0, atol=bound), (shape, special)
