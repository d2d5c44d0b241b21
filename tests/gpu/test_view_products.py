"""Products whose factors are computed as they are read, at several sizes, and a model made of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusegen.costs import viewproduct
from fusegen.plan.details import ViewProductPlan
from fusegen.plan.types import KernelStep
from tests.gpu.cases import agrees, built
from tests.models import write

pytestmark = pytest.mark.gpu

Shapes = list[tuple[int, ...]]
CASES: dict[str, tuple[str, list[Shapes]]] = {
    "heads": (
        "torch.einsum('bihd,bjhd->bhij', x, y) * 0.5",
        [[(2, 49, 3, 32), (2, 49, 3, 32)], [(3, 130, 3, 32), (3, 77, 3, 32)], [(1, 1, 3, 32), (1, 1, 3, 32)]],
    ),
    "values": (
        "torch.einsum('bhij,bjhd->bihd', x.sigmoid(), y)",
        [[(2, 3, 49, 50), (2, 50, 3, 32)], [(3, 3, 130, 1500), (3, 1500, 3, 70)]],
    ),
    "decay": (
        "torch.einsum('bls,bsp->blp', torch.exp(x[..., None] - x[..., None, :]).tril(), y)",
        [[(5, 64), (5, 64, 33)], [(2, 100), (2, 100, 64)]],
    ),
    "masked": (
        "torch.einsum('bihd,bjhd->bhij', x, y).masked_fill(~torch.ones(33, 33, dtype=torch.bool, device=x.device)"
        ".tril(), -1e4)",
        [[(2, 33, 3, 32), (2, 33, 3, 32)]],
    ),
    "parts": ("torch.matmul(x[:, 1:], y[..., ::2].mT) + 1", [[(3, 9, 64), (3, 21, 128)], [(2, 70, 64), (2, 3, 128)]]),
    "columns_first": ("torch.matmul(x.transpose(1, 2) * 2, torch.relu(y))", [[(2, 40, 9), (2, 40, 35)]]),
}
"""By name: what the forward returns, and shapes of its inputs: the first are the file's."""


@pytest.mark.parametrize("tile", [(1, 2), (2, 4), (4, 1), (8, 2)])
@pytest.mark.parametrize("name", CASES)
def test_agrees_at_every_size(
    name: str, tile: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewproduct, "seconds", lambda *_: -1.0)
    monkeypatch.setattr(viewproduct, "_TILES", (tile,))
    body, calls = CASES[name]
    drawn = ", ".join(f"torch.randn{shape}" for shape in calls[0])
    compiled, reference, generated = built(write(tmp_path, f"return {body}", "pass", drawn, "x, y"))
    (step,) = (step for step in compiled.program.steps if isinstance(step, KernelStep))
    assert isinstance(step.plan.detail, ViewProductPlan)
    for shapes in calls:
        data = [torch.randn(shape, device="cuda") for shape in shapes]
        agrees(reference, generated, tuple(data))
        with torch.no_grad():
            assert torch.equal(generated(*data), generated(*data))
            data[1].view(-1)[3], data[1].view(-1)[-1] = float("inf"), float("nan")
            expected, found = reference(*data), generated(*data)
        assert torch.equal(expected.isnan(), found.isnan())
        assert torch.equal(expected.isinf(), found.isinf())


CHUNKED = """
X, A, B = (t.reshape(2, 3, 32, *t.shape[2:]) for t in (x, y[..., 0], y[..., 1:]))
total = A.permute(0, 3, 1, 2).cumsum(-1)
mask = torch.ones(32, 32, dtype=torch.bool, device=x.device).tril()
decay = (total[..., :, None] - total[..., None, :]).masked_fill(~mask, -torch.inf).exp()
inside = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", B, B, decay, X)
states = torch.einsum("bclhn,bhcl,bclhp->bchpn", B, (total[..., -1:] - total).exp(), X)
states = torch.cat([torch.zeros_like(states[:, :1]), states], dim=1)
last = F.pad(total[..., -1], (1, 0)).cumsum(-1)
small = torch.ones(4, 4, dtype=torch.bool, device=x.device).tril()
chunk = (last[..., :, None] - last[..., None, :]).masked_fill(~small, -torch.inf).exp()
return torch.einsum("bhzc,bchpn->bzhpn", chunk, states)[:, -1], inside.reshape(2, 96, 3, -1)
"""


def test_chunked_scan(tmp_path: Path) -> None:
    """Masks, chunks and states of a scan by matrix products: few kernels, and no copy."""
    drawn = "torch.randn(2, 96, 3, 20), torch.randn(2, 96, 3, 9) * 0.3"
    compiled, reference, generated = built(write(tmp_path, CHUNKED, "pass", drawn, "x, y"))
    data = tuple(torch.randn(shape, device="cuda") for shape in ((2, 96, 3, 20), (2, 96, 3, 9)))
    agrees(reference, generated, data)
    templates = [step.plan.detail.template for step in compiled.program.steps if isinstance(step, KernelStep)]
    assert templates.count("gemm_views") >= 2
