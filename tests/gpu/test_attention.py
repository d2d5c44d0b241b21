"""Attention in one kernel, at several sizes, with conditions and with what is not finite."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from fusegen.costs import attention
from fusegen.costs.attention import AttentionTile
from fusegen.plan.details import AttentionPlan
from fusegen.plan.types import KernelStep
from tests.gpu.cases import agrees, built
from tests.models import write

pytestmark = pytest.mark.gpu

HEADS = "q, k, v = (t.unflatten(2, ({heads}, -1)).transpose(1, 2) for t in x.chunk(3, dim=2))"
MASK = "s = q @ k.mT * 0.125\ns = s.masked_fill(torch.ones_like(s).tril() == 0, float('-inf'))"
CASES: dict[str, tuple[str, tuple[int, ...]]] = {
    "plain": (f"{HEADS.format(heads=3)}\ntorch.softmax(q @ k.mT / 8, dim=-1) @ v", (2, 197, 576)),
    "causal": (f"{HEADS.format(heads=8)}\n{MASK}\n(s.softmax(-1) @ v).transpose(1, 2).flatten(2)", (3, 512, 1536)),
    "large_masks": (
        f"{HEADS.format(heads=2)}\ns = torch.where(torch.ones_like(q @ k.mT).triu() > 0, q @ k.mT * 0.1, -1e9)\n"
        "s.softmax(-1) @ v",
        (2, 300, 384),
    ),
    "wide": (f"{HEADS.format(heads=2)}\n(torch.softmax(q @ k.mT * 0.1, dim=-1) @ v).transpose(1, 2)", (2, 300, 768)),
    "widest": (f"{HEADS.format(heads=1)}\ntorch.softmax(q @ k.mT * 0.1, dim=-1) @ v", (3, 200, 720)),
    "odd": (f"{HEADS.format(heads=3)}\ntorch.softmax(q @ k.mT * 0.2, dim=-1) @ v", (5, 77, 369)),
    "relu": (f"{HEADS.format(heads=4)}\n(torch.relu(q @ k.mT - 1) @ v).transpose(1, 2).flatten(2)", (2, 1024, 768)),
    "linear": (f"{HEADS.format(heads=4)}\n(q @ k.mT).tril() @ v + 1", (2, 320, 768)),
    "channels": (
        "q, v = x.flatten(2).split((32, 64), dim=1)\n"
        "torch.bmm(v, torch.softmax(torch.bmm(q.transpose(1, 2), q), dim=-1).transpose(1, 2)).view(-1, 64, 20, 20)",
        (4, 96, 20, 20),
    ),
    "torch_plain": (f"{HEADS.format(heads=8)}\nF.scaled_dot_product_attention(q, k, v)", (2, 260, 1536)),
    "torch_causal": (
        f"{HEADS.format(heads=8)}\nF.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)",
        (2, 500, 1536),
    ),
    "torch_masked": (
        f"m = x[:, :, 0] > 0\n{HEADS.format(heads=2)}\n"
        "F.scaled_dot_product_attention(q, k, v, attn_mask=m[:, None, None], scale=0.3)",
        (3, 130, 240),
    ),
    "perceptron": ("F.gelu(x @ self.w.t()) @ self.v.t() + 1", (3, 333, 96)),
}
"""By name: what the forward returns, and the shape of its input."""


@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("name", CASES)
def test_agrees_at_every_size(name: str, warps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "seconds", lambda *_: -1.0)
    monkeypatch.setattr(attention, "_TILES", tuple(AttentionTile(warps=warps, keys=keys) for keys in (64, 32)))
    if name == "widest" and warps == 8:
        pytest.skip("more shared memory than there is")
    *lines, last = CASES[name][0].split("\n")
    shape = CASES[name][1]
    init = "self.w = nn.Parameter(torch.randn(384, 96) / 8); self.v = nn.Parameter(torch.randn(96, 384) / 8)"
    text = "\n".join([*lines, f"return {last}"])
    compiled, reference, generated = built(write(tmp_path, text, init, f"torch.randn{shape}", "x"))
    plans = [step.plan.detail for step in compiled.program.steps if isinstance(step, KernelStep)]
    assert any(isinstance(plan, AttentionPlan) for plan in plans)
    for batch in (shape[0], 1):
        x = torch.randn(batch, *shape[1:], device="cuda")
        agrees(reference, generated, (x,))
        with torch.no_grad():
            assert torch.equal(generated(x), generated(x))
            if name == "torch_causal":  # what does not count is no number in one of torch's kernels, and not in others
                continue
            for special in (torch.inf, torch.nan):  # torch's fast kernels make NaN of all scores of an infinite key
                x.view(-1)[x.numel() // 3] = special
                with sdpa_kernel(SDPBackend.MATH):
                    expected, found = reference(x), generated(x)
                assert torch.equal(expected.isnan(), found.isnan())
                assert torch.equal(expected.isinf(), found.isinf())
