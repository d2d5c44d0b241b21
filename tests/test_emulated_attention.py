"""Attention in one kernel, run on the CPU thread by thread, against float64."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from fusegen import interpret
from fusegen.compiler import compile_file
from fusegen.costs import attention
from fusegen.costs.attention import AttentionTile
from fusegen.plan.details import AttentionPlan
from fusegen.trace import load_model_file
from tests.emulated import operands_of, steps
from tests.emulated.hopper import HopperKernel
from tests.models import write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]

Shapes = list[tuple[int, ...]]
INIT = "self.w = nn.Parameter(torch.randn(24, 20)); self.v = nn.Parameter(torch.randn(7, 24))"
QKV = "q, k, v = (t.unflatten(2, (2, -1)).transpose(1, 2) for t in x.chunk(3, dim=2))"
MODELS: dict[str, tuple[str, list[Shapes]]] = {
    "plain": (
        "q, k, v = x.split((20, 20, 7), dim=2)\ntorch.softmax(q @ k.mT / 4, dim=-1) @ v",
        [[(2, 9, 47)], [(1, 70, 47)]],
    ),
    "causal": (
        f"{QKV}\ns = q @ k.mT * 0.5\ns = s.masked_fill(torch.ones_like(s).tril() == 0, float('-inf'))\n"
        "(torch.softmax(s, -1) @ v).transpose(1, 2).flatten(2)",
        [[(2, 40, 48)], [(1, 131, 48)]],
    ),
    "large_masks": (
        f"{QKV}\ns = torch.where(torch.ones_like(q @ k.mT).triu() > 0, q @ k.mT, -1e9)\n"
        "(torch.softmax(s, -1) @ v).transpose(1, 2).flatten(2)",
        [[(2, 40, 48)], [(1, 131, 48)]],
    ),
    "relu": (
        f"{QKV}\n(torch.relu(q @ k.mT - 1) @ v).transpose(1, 2).flatten(2)",
        [[(2, 21, 102)], [(1, 90, 102)]],
    ),
    "channels": (
        "q, v = x.flatten(2).split((5, 11), dim=1)\n"
        "a = torch.softmax(torch.bmm(q.transpose(1, 2), q), dim=-1)\n"
        "torch.bmm(v, a.transpose(1, 2)).unflatten(2, (x.shape[2], x.shape[3]))",
        [[(2, 16, 4, 9)], [(1, 16, 6, 13)]],
    ),
    "masked": (
        "q, v = x.split((12, 40), dim=2)\ntorch.softmax((q @ q.mT) + y[:, None], dim=-1) @ (v * 2)",
        [[(2, 33, 52), (2, 33)], [(1, 5, 52), (1, 5)]],
    ),
    "torch_causal": (
        f"{QKV}\nF.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)",
        [[(2, 70, 48)]],
    ),
    "torch_masked": (
        f"{QKV}\nF.scaled_dot_product_attention(q, k, v, attn_mask=(y > 0)[:, None], scale=0.3)",
        [[(2, 33, 48), (2, 33, 33)]],
    ),
    "perceptron": ("F.gelu(x @ self.w.t()) @ self.v.t() + 1", [[(3, 11, 20)], [(2, 90, 20)]]),
}
"""By name: the forward, and the shapes of its inputs, one file each."""


@pytest.mark.parametrize(("variant", "warps"), [("sm80", 8), ("sm80", 4), ("sm90", 8), ("sm90", 4)])
@pytest.mark.parametrize(
    ("name", "shapes"), [(name, shapes) for name, (_, found) in MODELS.items() for shapes in found]
)
def test_agrees_with_float64(
    name: str, shapes: Shapes, variant: str, warps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "seconds", lambda *_: -1.0)
    monkeypatch.setattr(attention, "_TILES", tuple(AttentionTile(warps=warps, keys=keys) for keys in (64, 32)))
    *lines, last = MODELS[name][0].split("\n")
    text = "\n".join([*lines, f"return {last}"])
    drawn = ", ".join(f"torch.randn{shape}" for shape in shapes)
    path = write(tmp_path, text, INIT, drawn, ", ".join(("x", "y")[: len(shapes)]))
    compiled = compile_file(path)
    (plan,) = steps(compiled, AttentionPlan)
    kernel = HopperKernel(compiled, plan, variant, tmp_path)
    torch.manual_seed(0)
    parameters = operands_of(compiled, plan, dict(load_model_file(path).model_class().named_parameters()))
    data = [torch.randn(shape) for shape in shapes]
    for special in (None, 1e15, torch.inf, torch.nan):
        if special is not None:
            data[0].view(-1)[5] = special
        inputs = dict(zip("xy", data, strict=False))
        operands = [parameters[arg.name] if arg.name in parameters else inputs[arg.node] for arg in plan.args]
        (y,), (r,) = kernel(operands), interpret.run(kernel.body, [value.double() for value in operands], {})
        assert torch.equal(y.isnan(), r.isnan()), special
        assert torch.equal(y.isinf(), r.isinf()), special
        both = r.isfinite()
        assert not both.any() or (y.double() - r)[both].abs().max() <= 1e-6 * r[both].abs().max(), special
