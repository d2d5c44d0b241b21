"""Products whose factors are computed as they are read, run on the CPU thread by thread, against float64."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from fusegen import interpret
from fusegen.compiler import compile_file
from fusegen.costs import viewproduct
from fusegen.plan.details import ViewProductPlan
from fusegen.trace import load_model_file
from tests.emulated import Kernel, operands_of, steps
from tests.models import write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]

Shapes = list[tuple[int, ...]]
INIT = """self.w = nn.Parameter(torch.randn(24))"""
MODELS: dict[str, tuple[str, list[Shapes]]] = {
    "heads": (
        "torch.einsum('bihd,bjhd->bhij', x, y).abs() + 1",
        [[(2, 9, 3, 20), (2, 11, 3, 20)], [(1, 40, 3, 20), (1, 70, 3, 20)]],
    ),
    "values": ("torch.einsum('bhij,bjhd->bihd', x.sigmoid(), y)", [[(2, 3, 9, 33), (2, 33, 3, 7)]]),
    "decay": (
        "torch.einsum('bcln,bcsn,bcls->bcls', x, x, torch.exp(y[..., None] - y[..., None, :]))",
        [[(2, 3, 10, 12), (2, 3, 10)]],
    ),
    "padded": ("torch.matmul(F.pad(x, (1, 2)), torch.cat([y, y * 2], dim=1))", [[(2, 5, 13), (2, 8, 6)]]),
    "parts": ("torch.matmul(x[:, 1:], y[..., ::2].mT) + 1", [[(3, 9, 8), (3, 21, 16)], [(2, 70, 8), (2, 3, 16)]]),
    "one_weight": ("torch.matmul(x.transpose(1, 2), self.w.view(4, 6).t())", [[(3, 6, 5)]]),
    "spread": (
        "torch.matmul(x.view(3, -1, 4, 6).transpose(1, 2).reshape(12, -1, 6), y.view(6, 5)).tanh()",
        [[(3, 7, 24), (30,)]],
    ),
    "columns_first": ("torch.matmul(x.transpose(1, 2) * 2, torch.relu(y))", [[(2, 40, 9), (2, 40, 35)]]),
    "other_order": (
        "(torch.matmul(x, y.unflatten(1, (2, 3)).transpose(1, 2).flatten(1, 2)) > 0).float()",
        [[(4, 2, 6), (4, 6, 9)]],
    ),
}
"""By name: what the forward returns, and shapes of its inputs: the first are the file's."""


@pytest.mark.parametrize("tile", [(1, 1), (4, 2), (8, 1), (2, 4)])
@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_float64(name: str, tile: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewproduct, "seconds", lambda *_: -1.0)
    monkeypatch.setattr(viewproduct, "_TILES", (tile,))
    body, calls = MODELS[name]
    drawn = ", ".join(f"torch.randn{shape}" for shape in calls[0])
    path = write(tmp_path, f"return {body}", INIT, drawn, ", ".join(("x", "y")[: len(calls[0])]))
    compiled = compile_file(path)
    (plan,) = steps(compiled, ViewProductPlan)
    kernel = Kernel(compiled, plan, tmp_path)
    torch.manual_seed(0)
    parameters = operands_of(compiled, plan, dict(load_model_file(path).model_class().named_parameters()))
    for shapes in calls:
        data = [torch.randn(shape) for shape in shapes]
        for special in (None, torch.inf, torch.nan):
            if special is not None:
                data[0].view(-1)[5] = special
            inputs = dict(zip("xy", data, strict=False))
            operands = [parameters[arg.name] if arg.name in parameters else inputs[arg.node] for arg in plan.args]
            (y,), (r,) = kernel(operands), interpret.run(kernel.body, [value.double() for value in operands], {})
            assert torch.equal(y.isnan(), r.isnan()), shapes
            assert torch.equal(y.isinf(), r.isinf()), shapes
            both = r.isfinite()
            assert not both.any() or (y.double() - r)[both].abs().max() <= 1e-6 * r[both].abs().max(), shapes
