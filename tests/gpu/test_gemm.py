"""Matrix products with every kind of epilogue, at sizes that leave tails on every axis."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fusegen import gemm, narrow
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
    "logsumexp": (192, 600, "return torch.logsumexp(self.linear(x) * 3, 1) / 4"),
    "reductions": (192, 300, "z = self.linear(x)\nreturn z.amax(1) + z.amin(1) * z.mean(1)"),
    "softmax": (190, 100, "return torch.softmax(self.linear(x), 1) * 2"),
    "norm": (64, 96, "z = self.linear(x)\nreturn (z - z.mean(1, keepdim=True)) / (z.var(1, keepdim=True) + 1).sqrt()"),
    "groups": (192, 304, "return F.group_norm(self.linear(x).tanh(), 19, self.row) + self.row"),
    "group_sums": (192, 384, "z = self.linear(x).view(-1, 3, 128)\nreturn z.amax(2) * z.mean(2)"),
    "deep": (5000, 130, "return F.relu(self.linear(x)).sum(1)"),
}


NARROW = {  # a kernel of their own, in fp32 whatever the settings
    "narrow": (256, 16, "return F.relu(self.linear(x))"),
    "narrow_odd": (203, 10, "return torch.logsumexp(self.linear(x), 1)"),
    "narrow_softmax": (1000, 3, "z = self.linear(x)\nreturn torch.softmax(z * self.row, 1) + z"),
    "narrow_norm": (512, 30, "z = self.linear(x)\nreturn (z - z.mean(1, keepdim=True)) * z.var(1, keepdim=True)"),
    "narrow_one": (77, 1, "return self.linear(x).sigmoid() * 2"),
    "narrow_deep": (3000, 12, "return self.linear(x).tanh().sum(1)"),
}
HALF = {
    "half_gelu": (256, 264, "return F.gelu(self.linear(x)) * 1.5"),
    "half_odd": (72, 301, "return F.silu(self.linear(x)) * self.row"),
    "half_residual": (512, 512, "return x + self.linear(x).tanh() * x"),
    "half_truth": (64, 64, "return torch.where(self.linear(x) > 0, self.row, 2.0)"),
}


def make(case: tuple[int, int, str], folder: Path, dtype: str = "float32") -> tuple[nn.Module, nn.Module]:
    inputs, outputs, body = case
    init = f"self.linear = nn.Linear({inputs}, {outputs}, dtype=torch.{dtype})\n"
    init += f"self.row = nn.Parameter(torch.randn({outputs}, dtype=torch.{dtype}))"
    path = write(folder, body, init, f"torch.rand(130, {inputs}, dtype=torch.{dtype})")
    write_atomic(folder / "generated.py", compile_file(path).source)
    torch.manual_seed(0)
    reference = load_model_file(path).model_class().cuda()
    generated = load_generated(folder / "generated.py")().cuda()
    generated.load_state_dict(reference.state_dict())
    return reference, generated


@pytest.fixture(params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[nn.Module, ...]:
    """A reference and the module generated from it, with the product in a kernel whatever its size."""
    monkeypatch.setattr(gemm, "seconds", lambda *_: 0.0)
    return make(CASES[request.param], tmp_path)


@pytest.fixture(params=NARROW)
def narrow_pair(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[nn.Module, ...]:
    """The same for few features."""
    monkeypatch.setattr(narrow, "seconds", lambda *_: 1e-12)
    return make(NARROW[request.param], tmp_path)


@pytest.fixture(params=[(name, dtype) for name in HALF for dtype in ("bfloat16", "float16")], ids="-".join)
def half_pair(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[nn.Module, ...]:
    """The same in 16-bit floats."""
    monkeypatch.setattr(gemm, "half_seconds", lambda *_: 0.0)
    return make(HALF[request.param[0]], tmp_path, request.param[1])


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


def test_few_features_agree_at_every_height_and_twice_alike(narrow_pair: tuple[nn.Module, nn.Module]) -> None:
    test_agrees_at_every_height_and_twice_alike(narrow_pair)


def test_few_features_at_every_scale_and_special_values(narrow_pair: tuple[nn.Module, nn.Module]) -> None:
    test_scales_and_special_values(narrow_pair)


def test_16_bit_floats(half_pair: tuple[nn.Module, nn.Module]) -> None:
    reference, generated = half_pair
    linear = reference.linear
    assert isinstance(linear, nn.Linear)
    for rows in (1, 7, 128, 257, 1000):
        x = torch.randn(rows, linear.in_features, device="cuda").to(linear.weight.dtype)
        agrees(reference, generated, x)
        with torch.no_grad():
            assert torch.equal(generated(x), generated(x))
    x = torch.randn(130 * linear.in_features + 1, device="cuda").to(linear.weight.dtype)[1:].view(130, -1)
    agrees(reference, generated, x)  # at an address that tensor copies cannot read
    x = x.clone()
    x[5, 1], x[129, 0] = float("inf"), float("nan")
    with torch.no_grad():
        expected, found = reference(x), generated(x)
    assert torch.equal(expected.isnan(), found.isnan())
    assert torch.equal(expected.isinf(), found.isinf())
