"""Convolutions with what follows them, compiled here and now: every kind of structure."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from fusegen.costs import direct, hopper, library, precision
from fusegen.plan import contraction
from fusegen.plan.details import HopperConvPlan
from tests.gpu.cases import agrees, built
from tests.models import untied, write

pytestmark = pytest.mark.gpu

MODELS = {
    "conv": ("nn.Conv2d(16, 40, 3, padding=1)", "return self.m(x).relu()", (16, 21, 33)),
    "uneven": ("nn.Conv2d(16, 40, 3)", "return self.m(F.pad(x, (2, 0, 0, 1))).relu()", (16, 21, 33)),
    "uneven_strided": ("nn.Conv2d(24, 20, 3, 2)", "return self.m(F.pad(x, (0, 1, 0, 1))).tanh()", (24, 32, 40)),
    "causal": ("nn.Conv1d(32, 64, 3, dilation=4)", "return self.m(F.pad(x, (8, 0))).relu() + 1", (32, 132)),
    "strided": ("nn.Conv2d(24, 20, (3, 5), (2, 3), (1, 2))", "return self.m(x).tanh()", (24, 31, 40)),
    "dilated": ("nn.Conv2d(20, 33, 3, 1, 12, 12)", "return self.m(x) * 2", (20, 30, 36)),
    "few_channels": ("nn.Conv2d(3, 30, 7, 2, 3)", "return self.m(x).amin(1, keepdim=True).tanh()", (3, 37, 44)),
    "grouped": ("nn.Conv2d(36, 60, 3, groups=3)", "return self.m(x).sigmoid()", (36, 14, 18)),
    "line": ("nn.Conv1d(32, 64, 9, 2, 4)", "return self.m(x).relu() + 1", (32, 133)),
    "volume": ("nn.Conv3d(17, 24, 3, (1, 2, 1), 1)", "return F.hardswish(self.m(x))", (17, 6, 11, 13)),
    "pixels": ("nn.Conv2d(48, 100, 1)", "return self.m(x).softmax(1)", (48, 9, 20)),
    "patches": ("nn.Conv2d(3, 72, 8, 7)", "return self.m(x).relu()", (3, 40, 48)),
    "transposed": ("nn.ConvTranspose2d(32, 50, 3, 2, 1, 1)", "return self.m(x).clamp(0, 1) * 2", (32, 13, 20)),
    "transposed_far": (
        "nn.ConvTranspose2d(8, 16, (2, 5), (5, 3), (0, 2), (4, 2))",
        "return self.m(x).relu()",
        (8, 9, 10),
    ),
    "transposed_volume": ("nn.ConvTranspose3d(16, 20, 3, 2, 1)", "return F.mish(self.m(x))", (16, 4, 6, 9)),
    "transposed_rows": ("nn.ConvTranspose2d(40, 130, 4, 2, 1)", "return self.m(x).logsumexp(1) * 3", (40, 12, 11)),
    "merged": ("nn.ConvTranspose2d(40, 3, 5, 2)", "return self.m(x).tanh() * 2", (40, 13, 22)),
    "merged_volume": ("nn.ConvTranspose3d(32, 3, 3, 2)", "return F.hardswish(self.m(x))", (32, 5, 6, 9)),
    "merged_by_three": (
        "nn.ConvTranspose2d(64, 3, 3, 3, 2, 2, dilation=2)",
        "return self.m(x).abs() - 1",
        (64, 13, 21),
    ),
    "narrow_groups": ("nn.Conv3d(40, 12, 5, groups=4)", "return self.m(x).relu() * 2", (40, 7, 8, 14)),
    "narrow_phases": ("nn.ConvTranspose3d(24, 8, 5, padding=2, groups=2)", "return self.m(x).tanh()", (24, 6, 9, 7)),
    "stem": ("nn.Conv2d(3, 64, 7, 2, 3)", "return self.m(x).relu()", (3, 37, 44)),
    "pairs_of_a_volume": ("nn.Conv3d(4, 24, 5, padding=2)", "return F.mish(self.m(x))", (4, 7, 11, 13)),
    "pairs_of_groups": ("nn.Conv2d(16, 40, 3, padding=1, groups=4)", "return self.m(x).tanh()", (16, 21, 33)),
    "pairs_transposed": ("nn.ConvTranspose3d(4, 16, 4, 2, 1)", "return F.mish(self.m(x))", (4, 4, 6, 9)),
    "six_channels": ("nn.Conv2d(6, 33, 5)", "return self.m(x).sigmoid()", (6, 21, 33)),
    "residual": ("nn.Conv2d(20, 20, 3, padding=1, bias=False)", "return self.m(x) * self.s + x", (20, 19, 28)),
}
"""By name: the module ``self.m``, the forward, the shape of one sample."""


@pytest.fixture(autouse=True)
def _whatever_the_library_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "is_small", lambda *_: False)
    monkeypatch.setattr(library, "seconds", lambda *_: math.inf)


@pytest.fixture
def full_precision() -> Iterator[None]:
    """Convolutions in fp32, as matrix products are."""
    saved = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = saved


def pair(name: str, tmp_path: Path) -> tuple[nn.Module, nn.Module, tuple[int, ...]]:
    """The reference and the generated module, with the same parameters, and the shape of a sample."""
    module, body, shape = MODELS[name]
    init = f"self.m = {module}\nself.s = nn.Parameter(torch.randn(20, 1, 1))"
    path = write(tmp_path, body, init, f"torch.rand(4, {', '.join(map(str, shape))})")
    compiled, reference, model = built(path)
    assert [step.plan.detail.template for step in compiled.program.steps if step.kind == "kernel"] == ["contraction"]
    return reference, model, shape


@pytest.mark.usefixtures("full_precision")
@pytest.mark.parametrize("name", MODELS)
def test_as_accurate_as_eager_in_full_precision(name: str, tmp_path: Path) -> None:
    reference, model, shape = pair(name, tmp_path)
    for batch in (1, 3, 17):
        x = torch.randn(batch, *shape, device="cuda") + 0.5
        agrees(reference, model, x)
        with torch.no_grad():
            assert torch.equal(model(x), model(x))
    agrees(reference, model, torch.randn(2, shape[0], *(size + 5 for size in shape[1:]), device="cuda"))


TF32 = [
    *("conv", "strided", "pixels", "transposed", "transposed_volume", "transposed_rows", "merged", "merged_volume"),
    *("stem", "pairs_of_a_volume", "pairs_of_groups", "pairs_transposed", "six_channels"),
]


def rounded(t: torch.Tensor) -> torch.Tensor:
    """To TF32: nearest, ties away from zero."""
    return ((t.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("name", TF32)
def test_tf32_rounds_both_operands_to_nearest(name: str, tmp_path: Path) -> None:
    reference, model, shape = pair(name, tmp_path)
    x = torch.randn(3, *shape, device="cuda") + 0.5
    type(model).forward.__globals__["_fusegen_rounds"] = lambda *_, **__: 1  # whatever cuDNN does at this size
    exact = copy.deepcopy(reference)
    exact.m.weight.data = rounded(exact.m.weight.data)
    with torch.no_grad():
        y = model(x)
        r = exact.double()(rounded(x).double())
        unrounded = reference.double()(x.double())
    assert (y - r).abs().max() <= 2e-5 * r.abs().max()
    # What follows may flatten differences: the rounding itself is the measure.
    assert (y - r).square().mean().sqrt() <= 0.1 * (unrounded - r).square().mean().sqrt()


@pytest.mark.parametrize("name", TF32)
def test_tf32_only_where_cudnn_chooses_it(name: str, tmp_path: Path) -> None:
    reference, model, shape = pair(name, tmp_path)
    for batch, grown in ((1, 0), (3, 0), (16, 7), (64, 40)):
        x = torch.randn(batch, shape[0], *(size + grown for size in shape[1:]), device="cuda")
        with torch.no_grad():
            y, e, r = model(x), reference(x), copy.deepcopy(reference).double()(x.double())
        eager, ours = ((value - r).square().mean().sqrt().item() for value in (e, y))
        assert ours <= 2 * eager + 2.0**-23 * r.square().mean().sqrt().item(), (batch, grown)


@pytest.mark.parametrize("name", ["conv", "transposed_volume", "transposed_far", "transposed_rows", "merged"])
def test_special_values_reach_the_same_outputs(name: str, tmp_path: Path) -> None:
    reference, model, shape = pair(name, tmp_path)
    x = torch.randn(2, *shape, device="cuda")
    corner, middle = (0 for _ in shape[1:]), (size // 2 for size in shape[1:])
    x[(0, 3, *middle)] = torch.nan
    x[(1, 0, *corner)] = torch.inf
    x[1, 5, ..., -1] = -torch.inf
    with torch.no_grad():
        y, r = model(x), copy.deepcopy(reference).double()(x.double())
    assert torch.equal(y.isnan(), r.isnan())
    assert torch.equal(y.isinf(), r.isinf())
    finite = r.isfinite()
    assert (y - r)[finite].abs().max() <= 2e-3 * r[finite].abs().max()


@pytest.mark.usefixtures("full_precision")
@pytest.mark.parametrize("name", MODELS)
def test_special_values_reach_the_same_outputs_in_full_precision(name: str, tmp_path: Path) -> None:
    reference, model, shape = pair(name, tmp_path)
    x = torch.randn(3, *shape, device="cuda")
    start, middle = tuple(0 for _ in shape[1:]), tuple(size // 2 for size in shape[1:])
    x[(0, 3 % shape[0], *middle)] = torch.nan
    x[(1, 0, *middle)] = torch.inf
    x[(2, 0, *start)] = torch.inf
    x[(2, shape[0] - 1, *start)] = -torch.inf
    with torch.no_grad():
        y = model(x).cpu()
        r = reference.cpu().double()(x.cpu().double())
    for specials in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(specials(y), specials(r))


IN_HALVES = (
    *("conv", "strided", "dilated", "few_channels", "grouped", "line", "volume", "pixels", "transposed_far"),
    *("transposed_volume", "transposed_rows", "stem", "pairs_of_groups", "pairs_transposed", "six_channels"),
)


@pytest.mark.parametrize("name", IN_HALVES)
def test_halves_round_as_tf32_does(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of the numbers; elements that are not finite, or larger than others promise, are found."""
    monkeypatch.setattr(hopper, "pays_in_halves", lambda *_: True)
    monkeypatch.setattr(precision, "allows_tf32", lambda *_: True)
    monkeypatch.setattr(contraction, "_is_slower", lambda *_: False)
    module, _, shape = MODELS[name]
    size = f"torch.rand(4, {', '.join(map(str, shape))})"
    compiled, reference, model = built(write(tmp_path, "return self.m(x) * 2", f"self.m = {module}", size))
    (plan,) = [step.plan for step in compiled.program.steps if step.kind == "kernel"]
    assert isinstance(plan.hopper, HopperConvPlan)
    assert plan.hopper.in_halves
    type(model).forward.__globals__["_fusegen_rounds"] = lambda *_, **__: 1
    for parameters in zip(reference.parameters(), model.parameters(), strict=True):
        for parameter in parameters:
            parameter.data = untied(parameter.data)
    exact = copy.deepcopy(reference)
    exact.m.weight.data = rounded(exact.m.weight.data)
    exact = exact.double()
    for batch, grown in ((3, 0), (5, 4), (1, 24)):
        x = torch.randn(batch, shape[0], *(size + grown for size in shape[1:]), device="cuda") + 0.5
        x = untied(x * torch.logspace(-6, 4, batch, device="cuda").view(-1, *[1] * len(shape)))
        with torch.no_grad():
            r, y = exact(rounded(x).double()), model(x)
            for one, other in zip(y, r, strict=True):
                assert (one - other).abs().max() <= 2e-5 * other.abs().max()
            assert torch.equal(y, model(x))
            x = torch.randn_like(x)
            x.view(-1)[7], x.view(-1)[-1], x.view(-1)[99] = math.inf, math.nan, 1e9
            r, y = reference(x), model(x)
        assert torch.equal(r.isnan(), y.isnan())
        torch.testing.assert_close(y, r, rtol=5e-3, atol=1e-2, equal_nan=True)  # whatever others are large


IN_PLACE = {
    "conv": ("nn.Conv2d(24, 40, 3, padding=1)", "return self.m(x).relu()", (24, 21, 36)),
    "dilated": ("nn.Conv2d(20, 33, 3, 1, 6, (5, 3))", "return self.m(x) * 2", (20, 30, 40)),
    "grouped": ("nn.Conv2d(40, 60, 3, groups=2)", "return self.m(x).sigmoid()", (40, 14, 20)),
    "streamed": ("nn.Conv2d(68, 264, 3, padding=(0, 2))", "return F.hardswish(self.m(x))", (68, 20, 44)),
    "parts_of_sectors": ("nn.Conv2d(24, 72, 3)", "return self.m(x).sigmoid()", (24, 18, 100)),
    "line": ("nn.Conv1d(32, 64, 9, 1, 4)", "return self.m(x).relu() + 1", (32, 136)),
    "volume": ("nn.Conv3d(17, 24, (2, 3, 2), 1, 1)", "return F.mish(self.m(x))", (17, 6, 11, 12)),
    "pixels": ("nn.Conv2d(48, 200, 1)", "return self.m(x).softmax(1)", (48, 9, 20)),
    "transposed": ("nn.ConvTranspose2d(32, 50, 3, 2, 1, 1)", "return self.m(x).clamp(0, 1) * 2", (32, 13, 20)),
    "transposed_far": (
        "nn.ConvTranspose2d(8, 16, (2, 5), (5, 3), (0, 2), (4, 2))",
        "return self.m(x).relu()",
        (8, 9, 12),
    ),
    "transposed_volume": ("nn.ConvTranspose3d(16, 20, 3, 2, 1)", "return F.mish(self.m(x))", (16, 4, 6, 12)),
    "transposed_rows": ("nn.ConvTranspose2d(40, 130, 4, 2, 1)", "return self.m(x).logsumexp(1) * 3", (40, 12, 12)),
    "every_other": ("nn.Conv2d(36, 72, 3, 2, 1)", "return F.mish(self.m(x))", (36, 29, 44)),
    "every_other_far": ("nn.Conv2d(20, 130, (3, 7), (1, 2), (1, 5), (1, 3))", "return self.m(x) * 2", (20, 14, 76)),
    "every_third": ("nn.Conv2d(20, 33, (3, 4), 3, (0, 2))", "return self.m(x).sigmoid()", (20, 30, 80)),
    "every_fourth": ("nn.Conv2d(16, 24, 4, 4)", "return self.m(x).softmax(1)", (16, 24, 48)),
    "line_of_halves": ("nn.Conv1d(16, 40, 7, 2, 3, 2)", "return self.m(x).relu() + 1", (16, 404)),
    "plane_of_halves": ("nn.Conv2d(70, 40, 1, 2)", "return self.m(x).clamp(0, 1) * 2", (70, 17, 36)),
    "volume_of_halves": ("nn.Conv3d(16, 24, 3, 2, 1)", "return F.mish(self.m(x))", (16, 7, 8, 24)),
}
"""Whose rows a tensor copy can read."""


@pytest.mark.parametrize("name", IN_PLACE)
def test_an_input_is_read_as_it_lies_where_it_can(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "reads_in_place", lambda *_: True)
    monkeypatch.setattr(hopper, "pays_in_halves", lambda *_: False)
    monkeypatch.setattr(contraction, "_is_slower", lambda *_: False)
    module, body, shape = IN_PLACE[name]
    path = write(tmp_path, body, f"self.m = {module}", f"torch.rand(4, {', '.join(map(str, shape))})")
    compiled, reference, model = built(path)
    (plan,) = [step.plan for step in compiled.program.steps if step.kind == "kernel"]
    assert isinstance(plan.hopper, HopperConvPlan)
    assert plan.hopper.alternative
    type(model).forward.__globals__["_fusegen_rounds"] = lambda *_, **__: 1
    exact = copy.deepcopy(reference)
    exact.m.weight.data = rounded(exact.m.weight.data)
    exact = exact.double()

    def check(x: torch.Tensor, in_place: bool) -> None:
        with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            y = model(x)
        ran = [event.key for event in profile.key_averages()]
        assert any("_in_place_kernel" in key for key in ran) == in_place, ran
        r = exact(rounded(x).double())
        assert (y - r).abs().max() <= 2e-5 * r.abs().max()
        assert torch.equal(y, model(x))

    for batch, grown in ((3, 0), (5, 4), (1, 24)):
        x = torch.randn(batch, shape[0], *(size + grown for size in shape[1:]), device="cuda")
        check(untied(x + 0.5), True)
    check(torch.randn(2, shape[0], *(size + 1 for size in shape[1:]), device="cuda"), False)
    flat = torch.randn(2 * math.prod(shape) + 1, device="cuda")
    check(flat[1:].view(2, *shape), False)

    x = torch.randn(2, *shape, device="cuda")
    x[(0, 3, *(size // 2 for size in shape[1:]))] = torch.nan
    x[(1, 0, *(0 for _ in shape[1:]))] = torch.inf
    with torch.no_grad():
        y, r = model(x), copy.deepcopy(reference).double()(x.double())
    assert torch.equal(y.isnan(), r.isnan())
    assert torch.equal(y.isinf(), r.isinf())


def test_a_weight_edited_in_place_is_seen(tmp_path: Path) -> None:
    reference, model, shape = pair("conv", tmp_path)
    x = torch.randn(2, *shape, device="cuda")
    with torch.no_grad():
        first = model(x)
        for module in (reference, model):
            module.m.weight.mul_(-1.5)
        assert not torch.equal(model(x), first)
        assert torch.allclose(model(x), reference(x), rtol=1e-2, atol=1e-2)
