"""Sums and means of convolutions over their samples, compiled here and now: every kind of structure."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusegen.ir import ConvOp
from fusegen.passes.algebra import samples
from tests.gpu.cases import agrees, built
from tests.models import all_nodes, write

pytestmark = pytest.mark.gpu

MODELS = {
    "planes": ("nn.Conv2d(16, 40, 3, padding=1)", "self.m(x).mean(0)", (16, 21, 33)),
    "wide": ("nn.Conv2d(64, 128, 3)", "self.m(x).sum(0, keepdim=True).relu()", (64, 20, 31)),
    "one_tap": ("nn.Conv2d(64, 96, 1)", "self.m(x).mean(0) * 2", (64, 20, 31)),
    "rows_too": ("nn.Conv2d(16, 40, 3)", "self.m(x).mean((0, 2)).tanh()", (16, 21, 33)),
    "channels_too": ("nn.Conv2d(16, 40, 3, stride=2)", "self.m(x).sum((0, 1))", (16, 21, 33)),
    "groups": ("nn.Conv2d(48, 96, 3, groups=3)", "self.m(x).mean((0, 1))", (48, 21, 33)),
    "depthwise": ("nn.Conv2d(32, 32, 5, padding=2, groups=32)", "self.m(x).mean(0)", (32, 21, 33)),
    "line": ("nn.Conv1d(32, 64, 7, padding=3)", "(self.m(x) * self.s).sum(0)", (32, 301)),
    "phases": ("nn.ConvTranspose2d(32, 40, 4, 2, 1)", "self.m(x).mean(0).sigmoid()", (32, 14, 19)),
    "gaps": ("nn.ConvTranspose1d(8, 16, 2, 3)", "self.m(x).mean(0)", (8, 301)),
    "volume": ("nn.ConvTranspose3d(32, 24, 3, 2, 1)", "self.m(x).mean((0, 4))", (32, 5, 6, 7)),
    "after_a_chain": ("nn.Conv2d(32, 40, 3)", "self.m(F.gelu(x)).mean(0)", (32, 21, 33)),
    "residual": ("nn.Conv2d(32, 32, 3, padding=1)", "(self.m(x) + x).mean(0)", (32, 21, 33)),
}
"""By name: the module ``self.m``, what the forward returns, the shape of one sample."""


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_agrees(name: str, tf32: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "_pays", lambda *_: None)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    module, body, shape = MODELS[name]
    init = f"self.m = {module}\nself.s = nn.Parameter(torch.rand(64, 1))"
    compiled, reference, generated = built(
        write(tmp_path, f"return {body}", init, f"torch.rand(8, {', '.join(map(str, shape))})")
    )
    convolutions = [node for node in all_nodes(compiled) if isinstance(node.op, ConvOp)]
    assert [node.type.shape[0] for node in convolutions] == [1]
    for batch, offset in ((8, 0.0), (1, 0.5), (3, 20.0), (300, 0.5)):
        agrees(reference, generated, torch.randn(batch, *shape, device="cuda") + offset)
