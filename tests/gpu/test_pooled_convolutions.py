"""Mean poolings of convolutions and of their norms, compiled here and now: every kind of structure."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusegen.ir import NormalizeOp, PoolOp
from fusegen.passes.algebra import pooled_norms, transposed_pools
from tests.gpu.cases import agrees, built
from tests.models import all_nodes, write

pytestmark = pytest.mark.gpu

MODELS = {
    "multiple": ("nn.ConvTranspose2d(16, 40, 3, 2, 1)", "F.avg_pool2d(self.m(x), 4)", (16, 21, 33)),
    "tail": ("nn.ConvTranspose2d(16, 40, 3, 2, 1, 1)", "F.avg_pool2d(self.m(x), 4).tanh()", (16, 20, 32)),
    "overlapping": ("nn.ConvTranspose2d(3, 24, 4, 2, 1)", "F.avg_pool2d(self.m(x), 5, 4)", (3, 21, 33)),
    "groups": ("nn.ConvTranspose2d(16, 48, 3, 2, groups=2)", "F.avg_pool2d(self.m(x), 2, 4)", (16, 21, 33)),
    "stride_1": ("nn.ConvTranspose1d(16, 40, 5)", "F.avg_pool1d(self.m(x), 3)", (16, 301)),
    "twice": ("nn.ConvTranspose3d(3, 16, 3, 2, 1)", "F.avg_pool3d(F.avg_pool3d(self.m(x), 2), 2)", (3, 9, 14, 18)),
    "batch_norm": ("nn.ConvTranspose3d(3, 16, 3, 2, 1)", "F.avg_pool3d(self.n(self.m(x)), 4)", (3, 9, 14, 18)),
    "instance_norm": ("nn.Conv2d(8, 16, 3)", "F.avg_pool2d(F.instance_norm(self.m(x)), 4)", (8, 66, 66)),
    "norm_alone": ("nn.Conv2d(32, 16, 3, bias=False)", "F.avg_pool2d(self.n(self.m(x)), 4).relu()", (32, 66, 66)),
    "divided": ("nn.ConvTranspose2d(16, 16, 4, 4)", "F.avg_pool2d(self.n(self.m(x)), 2)", (16, 21, 33)),
}
"""By name: the module ``self.m``, what the forward returns, the shape of one sample."""


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_agrees(name: str, tf32: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooled_norms, "_pays", lambda *_: None)
    monkeypatch.setattr(transposed_pools, "_pays", lambda *_: None)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    module, body, shape = MODELS[name]
    rank = len(shape) - 1
    init = f"self.m = {module}\n" + (f"self.n = nn.BatchNorm{rank}d(16)" if "self.n" in body else "")
    compiled, reference, generated = built(
        write(tmp_path, f"return {body}", init, f"torch.rand(8, {', '.join(map(str, shape))})")
    )
    nodes = all_nodes(compiled)
    pooled = [node for node in nodes if isinstance(node.op, PoolOp)]
    assert all(isinstance(node.type.shape[0], int) for node in pooled), "weights alone are pooled"
    assert not any(isinstance(node.op, NormalizeOp) for node in nodes)
    for batch, offset in ((8, 0.0), (2, 0.5), (3, 20.0), (40, 0.5)):
        agrees(reference, generated, torch.randn(batch, *shape, device="cuda") + offset)
