"""Chains before convolutions and products, computed as their data is prepared or split, at sizes aligned to nothing."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from fusegen.costs import direct, gemm, hopper, library, precision
from fusegen.plan import contraction
from fusegen.plan.details import ContractionPlan, GemmPlan, HopperConvPlan
from fusegen.verdict.subject import call
from tests.gpu.cases import agrees, built
from tests.gpu.test_contraction import full_precision
from tests.gpu.test_residual import Rounded
from tests.models import write

pytestmark = pytest.mark.gpu
__all__ = ["full_precision"]

CONVOLUTIONS = {
    "where": ("nn.Conv2d(24, 40, 3, padding=1)", "self.m(torch.where(x > 0.1, x, self.q)).relu()", (24, 21, 33)),
    "aligned": ("nn.Conv2d(24, 40, 3, padding=1)", "self.m(x.clamp(-0.5, 0.75)) * 2", (24, 21, 36)),
    "strided": ("nn.Conv2d(24, 96, (3, 5), (2, 3), 2)", "self.m(torch.maximum(x, self.q)).tanh()", (24, 31, 40)),
    "grouped": ("nn.Conv2d(24, 36, 3, padding=2, groups=2)", "self.m(x.abs().neg()) - 1", (24, 14, 20)),
    "channels": ("nn.Conv2d(24, 40, 3, padding=1)", "self.m(torch.minimum(x, self.q)).softmax(1)", (24, 13, 20)),
    "line": ("nn.Conv1d(24, 64, 9, 1, 4)", "self.m(x.relu()).relu() + 0.5", (24, 133)),
    "volume": ("nn.Conv3d(24, 24, (2, 3, 2), 1, 1)", "F.mish(self.m(x.abs()))", (24, 6, 11, 12)),
    "transposed": ("nn.ConvTranspose2d(24, 50, 3, 2, 1, 1)", "self.m(F.relu6(x * 8)) * 2", (24, 13, 20)),
}
"""By name: the module ``self.m``, what the forward returns, the shape of a sample. Chains round nothing."""
PRODUCTS = {
    "silu": ("x @ self.w", (70, 1290), 200),
    "aligned": ("x @ self.w", (300, 768), 64),
    "linear": ("F.linear(x, self.w.T.contiguous())", (257, 203), 130),
    "batch": ("x @ self.w", (3, 5, 41, 132), 77),
    "few": ("x @ self.w", (2, 515), 300),
}
CHAINS = ("F.silu(x) + 0.5", "x.exp() / (self.q.abs() + 1)", "torch.log(x.abs())")


def pair(name: str, tmp_path: Path) -> tuple[nn.Module, nn.Module]:
    """The reference and the generated module, with the same parameters."""
    module, body, shape = CONVOLUTIONS[name]
    one = ", ".join("1" for _ in shape[1:])
    init = f"self.q = nn.Parameter(torch.rand(24, {one}) - 0.25)\nself.m = {module}"
    path = write(tmp_path, f"return {body}", init, f"torch.randn(3, {', '.join(map(str, shape))})")
    compiled, reference, model = built(path)
    (plan,) = [step.plan for step in compiled.program.steps if step.kind == "kernel"]
    assert isinstance(plan.detail, ContractionPlan)
    assert isinstance(plan.hopper, HopperConvPlan)
    assert plan.detail.before
    assert plan.hopper.before
    return reference, model


@pytest.fixture
def _asynchronous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "is_small", lambda *_: False)
    monkeypatch.setattr(library, "seconds", lambda *_: math.inf)
    monkeypatch.setattr(contraction, "_is_slower", lambda *_: False)
    monkeypatch.setattr(hopper, "reads_in_place", lambda *_: False)
    monkeypatch.setattr("fusegen.costs.contractions.tensor_core_seconds", lambda *_, **__: (1e-6, math.inf))


@pytest.mark.usefixtures("_asynchronous")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_agrees_with_float64_of_rounded_operands(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "allows_tf32", lambda *_: True)
    reference, model = pair(name, tmp_path)
    type(model).forward.__globals__["_fusegen_rounds"] = lambda *_, **__: 1
    exact = copy.deepcopy(reference).double()
    exact.m = Rounded(exact.m)
    for batch in (3, 1, 17):
        x = torch.randn(batch, *CONVOLUTIONS[name][2], device="cuda") + 0.25
        with torch.no_grad():
            found = model(x)
            (r,) = call(exact, (x.double(),))
        assert (found - r).abs().max() <= 2e-5 * r.abs().max(), batch
        assert torch.equal(found, model(x))


@pytest.mark.usefixtures("_asynchronous", "full_precision")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_as_accurate_as_eager(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "allows_tf32", lambda *_: False)
    reference, model = pair(name, tmp_path)
    for batch in (3, 1, 17):
        agrees(reference, model, (torch.randn(batch, *CONVOLUTIONS[name][2], device="cuda"),))


@pytest.mark.usefixtures("_asynchronous")
def test_the_portable_kernel_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the calls that Hopper's does not: a kernel before it computes the chain."""
    monkeypatch.setattr(precision, "allows_tf32", lambda *_: True)
    monkeypatch.setattr("fusegen.costs.contractions.fp32_pays", lambda *_: False)
    reference, model = pair("where", tmp_path)
    type(model).forward.__globals__["_fusegen_rounds"] = lambda *_, **__: 0
    with torch.backends.cudnn.flags(allow_tf32=False):
        for batch in (3, 1, 17):
            agrees(reference, model, (torch.randn(batch, 24, 21, 33, device="cuda"),))


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("form", ["prepared", "in place"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_as_accurate_as_eager(
    name: str, form: str, chain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm, "streams", lambda *_: False)
    monkeypatch.setattr(gemm, "form", lambda *_: form)
    monkeypatch.setattr(gemm, "refusal", lambda *_: None)
    monkeypatch.setattr("fusegen.costs.before_products._OPERATION", 0.0)
    product, shape, features = PRODUCTS[name]
    init = f"self.w = nn.Parameter(torch.randn({shape[-1]}, {features}))\n"
    init += f"self.q = nn.Parameter(torch.randn({shape[-1]}))"
    body = f"x = {chain}\nreturn F.leaky_relu({product}, 0.3) * 2"  # what flattens would leave few sums to compare
    compiled, reference, model = built(write(tmp_path, body, init, f"torch.randn{shape}"))
    (plan,) = [step.plan for step in compiled.program.steps if step.kind == "kernel"]
    detail = plan.hopper or plan.detail
    assert isinstance(detail, GemmPlan)
    assert detail.form == form
    assert detail.before
    for rows in (shape[0], 1, 133):
        x = torch.randn(rows, *shape[1:], device="cuda")
        agrees(reference, model, (x,))
    x.view(-1)[[3, 77]] = torch.tensor([torch.inf, -torch.inf], device="cuda")
    x.view(-1)[200] = torch.nan
    with torch.no_grad():
        found, expected = model(x), reference(x)
    for specials in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(specials(found), specials(expected))
