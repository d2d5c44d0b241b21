"""Matrix products with every kind of epilogue, at sizes that leave tails on every axis."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fusegen import gemm
from fusegen.compiler import compile_file
from fusegen.emit import write_atomic
from fusegen.subject import load_generated
from fusegen.trace import load_model_file
from tests.gpu.cases import agrees
from tests.models import write

pytestmark = pytest.mark.gpu

CASES = {  # inputs, outputs, forward
    "store": (200, 300, "return F.gelu(self.linear(x)) * 1.5"),
    "odd": (203, 77, "z = self.linear(x).sigmoid()\nreturn z * self.row + z"),
    "bare": (129, 513, "return self.linear(x)"),
    "residual": (256, 256, "return x + self.linear(x).tanh() * x"),
    "logsumexp": (192, 600, "return torch.logsumexp(self.linear(x) * 3, 1).tanh()"),
    "reductions": (192, 300, "z = self.linear(x)\nreturn z.amax(1) + z.amin(1) * z.mean(1)"),
    "softmax": (190, 100, "return torch.softmax(self.linear(x), 1) * 2"),
    "norm": (64, 96, "z = self.linear(x)\nreturn (z - z.mean(1, keepdim=True)) / (z.var(1, keepdim=True) + 1).sqrt()"),
    "deep": (5000, 130, "return F.relu(self.linear(x)).sum(1)"),
}


@pytest.fixture(params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[nn.Module, ...]:
    """A reference and the module generated from it, with the product in a kernel whatever its size."""
    monkeypatch.setattr(gemm, "seconds", lambda *_: 0.0)
    inputs, outputs, body = CASES[request.param]
    init = f"self.linear = nn.Linear({inputs}, {outputs})\nself.row = nn.Parameter(torch.randn({outputs}))"
    path = write(tmp_path, body, init, f"torch.rand(130, {inputs})")
    write_atomic(tmp_path / "generated.py", compile_file(path).source)
    torch.manual_seed(0)
    reference = load_model_file(path).model_class().cuda()
    generated = load_generated(tmp_path / "generated.py")().cuda()
    generated.load_state_dict(reference.state_dict())
    return reference, generated


def test_agrees_at_every_height_and_twice_alike(pair: tuple[nn.Module, nn.Module]) -> None:
    reference, generated = pair
    inputs = reference.linear.in_features  # type: ignore[union-attr]
    for rows in (1, 7, 64, 65, 130, 1000):
        x = torch.randn(rows, inputs, device="cuda") * 3 + torch.randn(rows, 1, device="cuda")  # type: ignore[arg-type]
        agrees(reference, generated, x)
        with torch.no_grad():
            assert torch.equal(generated(x), generated(x))


def test_scales_and_special_values(pair: tuple[nn.Module, nn.Module]) -> None:
    reference, generated = pair
    x = torch.randn(130, reference.linear.in_features, device="cuda")  # type: ignore[arg-type,union-attr]
    for scale in (1e-30, 1e20):
        agrees(reference, generated, x * scale)
    x[0] = 0
    x[5, 1], x[129, 0] = float("inf"), float("nan")
    with torch.no_grad():
        expected, found = reference(x), generated(x)
    assert torch.equal(expected.isnan(), found.isnan())
    assert torch.equal(expected.isinf(), found.isinf())


def test_tf32_where_torch_permits_it(pair: tuple[nn.Module, nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    reference, generated = pair
    x = torch.randn(130, reference.linear.in_features, device="cuda")  # type: ignore[arg-type,union-attr]
    with torch.no_grad():
        accurate = generated(x)
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
        agrees(reference, generated, x)
        assert not torch.equal(accurate, generated(x))
