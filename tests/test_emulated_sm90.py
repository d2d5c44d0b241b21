"""Convolutions of sm_90a, run on the CPU thread by thread: their tiles, stores and epilogues against float64."""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from fusegen.compiler import Compiled, compile_file
from fusegen.costs import direct, hopper, library, precision
from fusegen.plan import contraction
from fusegen.plan.details import ContractionPlan, ConvApartPlan, HopperConvPlan
from fusegen.plan.types import KernelPlan
from fusegen.spaces import channels, convpool, convreduce
from fusegen.trace import load_model_file
from tests.emulated import operands_of, steps
from tests.emulated.hopper import HopperKernel
from tests.gpu.test_residual import MODELS, PARAMETERS, Rounded
from tests.models import untied, write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]

CASES = MODELS | {
    "plain": ("nn.Conv2d(20, 33, 3)", "F.hardswish(self.m(x)) * 2", (20, 30, 41)),
    "chain_before": (
        "nn.Conv2d(20, 33, 3, padding=1)",
        "F.hardswish(self.m(torch.where(x > 0.1, x, self.q))) * 2",
        (20, 30, 41),
    ),
    "parts_of_sectors": ("nn.Conv2d(12, 40, 3)", "F.hardswish(self.m(x))", (12, 10, 60)),
    "uneven": ("nn.Conv2d(20, 33, 3)", "F.hardswish(self.m(F.pad(x, (2, 0, 0, 1)))) * 2", (20, 30, 41)),
    "causal": ("nn.Conv1d(16, 40, 3, dilation=4)", "F.hardswish(self.m(F.pad(x, (8, 0)))) * 2", (16, 404)),
    "uneven_halves": ("nn.Conv2d(20, 33, 3, 2)", "F.hardswish(self.m(F.pad(x, (0, 1, 0, 1)))) * 2", (20, 30, 44)),
    "every_other": ("nn.Conv2d(20, 33, 3, 2, 1)", "F.hardswish(self.m(x)) * 2", (20, 30, 44)),
    "every_other_row": ("nn.Conv2d(20, 33, (5, 2), (2, 1), (1, 0))", "F.hardswish(self.m(x)) * 2", (20, 31, 44)),
    "every_third": ("nn.Conv2d(20, 33, (3, 4), 3, (0, 2))", "F.hardswish(self.m(x)) * 2", (20, 30, 80)),
    "every_fourth": ("nn.Conv2d(20, 16, 4, 4, 1)", "F.hardswish(self.m(x)) * 2", (20, 16, 48)),
    "line_of_halves": ("nn.Conv1d(16, 40, 7, 2, 3, 2)", "F.hardswish(self.m(x)) * 2", (16, 404)),
    "plane_of_halves": ("nn.Conv2d(70, 40, 1, 2)", "F.hardswish(self.m(x)) * 2", (70, 17, 36)),
    "volume_of_halves": ("nn.Conv3d(16, 16, 3, 2, 1)", "F.hardswish(self.m(x)) * 2", (16, 7, 8, 24)),
    "abreast_volume": ("nn.Conv3d(20, 13, 3, padding=1)", "F.hardswish(self.m(x)) * 2", (20, 6, 9, 33)),
    "abreast_far": (
        "nn.Conv2d(48, 24, (3, 5), dilation=(1, 2), padding=(0, 4))",
        "F.hardswish(self.m(x)) * 2",
        (48, 10, 41),
    ),
    "abreast_line": ("nn.Conv1d(150, 8, 7)", "F.hardswish(self.m(x)) * 2", (150, 404)),
    "abreast_transposed": ("nn.ConvTranspose3d(17, 16, 3, 1, (1, 0, 1))", "F.mish(self.m(x)) * 2", (17, 5, 7, 18)),
    "abreast_grouped": ("nn.Conv2d(144, 66, 3, (2, 1), 1, groups=3)", "F.hardswish(self.m(x)) * 2", (144, 11, 29)),
    "abreast_channels": ("nn.Conv2d(48, 30, 3, padding=1)", "self.m(x).softmax(1) * 2", (48, 13, 20)),
    "layers_of_rows": ("nn.Conv3d(40, 40, 3)", "F.hardswish(self.m(x)) * 2", (40, 5, 24, 70)),
    "channels": ("nn.Conv2d(24, 40, 3, padding=1)", "(self.m(x) + y).softmax(1) * y", (24, 13, 20), (40, 13, 20)),
    "pairs": ("nn.Conv2d(4, 40, 5, padding=2)", "F.hardswish(self.m(x)) * 2", (4, 19, 26)),
    "pairs_of_halves": ("nn.Conv2d(3, 33, 7, 2, 3)", "F.hardswish(self.m(x)) * 2", (3, 30, 41)),
    "pairs_of_a_volume": ("nn.Conv3d(3, 24, (2, 3, 4), dilation=(1, 1, 2))", "F.mish(self.m(x)) * 2", (3, 4, 9, 33)),
    "pairs_of_groups": ("nn.Conv2d(12, 36, 3, groups=3)", "F.hardswish(self.m(x)) * 2", (12, 10, 29)),
    "pairs_transposed": ("nn.ConvTranspose3d(4, 16, 4, 2, 1)", "F.mish(self.m(x)) * 2", (4, 3, 5, 8)),
    "pairs_as_they_lie": ("nn.Conv2d(3, 40, 3, padding=1)", "F.hardswish(self.m(x)) * 2", (3, 14, 28)),
    "six_as_they_lie": ("nn.Conv2d(6, 33, 5, 2)", "F.hardswish(self.m(x)) * 2", (6, 19, 28)),
    "six_channels": ("nn.Conv2d(6, 33, 5)", "F.hardswish(self.m(x)) * 2", (6, 19, 26)),
}
PAIRS = tuple(name for name in CASES if name.startswith("pairs"))
ABREAST = tuple(name for name in CASES if name.startswith("abreast"))
PREPARED = (
    *ABREAST,
    *PAIRS,
    "six_channels",
    "layers_of_rows",
    "plain",
    "uneven",
    "chain_before",
    "channels",
    "pixels",
    "plane",
    "gated",
    "grouped",
    "of_its_input",
    "of_places",
    "columns",
    "rows",
    "samples",
    "layers",
    "volume",
    "transposed_far",
    "transposed_fifths",
    "transposed_eighths",
    "transposed_sevenths",
    "transposed_volume",
    "transposed_rows",
)
STRIDED = (
    "uneven_halves",
    "every_other",
    "every_other_row",
    "every_third",
    "every_fourth",
    "line_of_halves",
    "plane_of_halves",
    "volume_of_halves",
)
IN_PLACE = (
    "channels",
    "aligned",
    "parts_of_sectors",
    "causal",
    "pixels",
    "plane",
    "rows",
    "samples",
    "dilated",
    "volume",
    "transposed",
    "pairs_as_they_lie",
    "six_as_they_lie",
    *STRIDED,
)


POOLED = {
    "in_place": ("nn.Conv2d(20, 33, 3, padding=1)", "F.max_pool2d(F.hardswish(self.m(x)), 2).tanh()", (20, 21, 36)),
    "uneven_in_place": ("nn.Conv2d(20, 33, 3)", "F.max_pool2d(self.m(F.pad(x, (0, 2, 1, 0))), 2).tanh()", (20, 21, 36)),
    "four_in_place": ("nn.Conv2d(16, 24, 3)", "F.mish(F.avg_pool2d(F.silu(self.m(x)), 4))", (16, 43, 40)),
    "eight_in_place": ("nn.Conv2d(16, 24, 5)", "F.max_pool2d(self.m(x) ** 2, (8, 2))", (16, 41, 52)),
    "grouped_in_place": ("nn.Conv2d(48, 60, 3, groups=3)", "F.max_pool2d(self.m(x).abs(), 2)", (48, 14, 20)),
    "transposed_in_place": ("nn.ConvTranspose2d(16, 24, 3, 1, 1)", "F.max_pool2d(self.m(x).abs(), 2)", (16, 17, 24)),
    "strided_in_place": ("nn.Conv2d(20, 33, 3, 2, 1)", "F.max_pool2d(F.hardswish(self.m(x)), 2).tanh()", (20, 41, 60)),
    "volume_in_place": ("nn.Conv3d(17, 40, 3)", "F.avg_pool3d(self.m(x).sigmoid(), (1, 2, 4))", (17, 7, 11, 24)),
    "prepared": ("nn.Conv2d(20, 33, 3, padding=1)", "F.max_pool2d(F.hardswish(self.m(x)), 2).tanh()", (20, 21, 35)),
    "parts_prepared": ("nn.Conv2d(20, 24, 3, (2, 1), 1)", "F.avg_pool2d(self.m(x).abs(), (3, 2))", (20, 37, 33)),
    "pairs_prepared": ("nn.Conv2d(4, 33, 5)", "F.max_pool2d(F.hardswish(self.m(x)), 2).tanh()", (4, 21, 35)),
    "pairs_of_halves_prepared": ("nn.Conv2d(3, 24, 7, 2, 3)", "F.avg_pool2d(self.m(x).abs(), 2)", (3, 41, 50)),
    "pairs_of_a_volume_prepared": ("nn.Conv3d(3, 16, 3, 1, 1)", "F.max_pool3d(F.silu(self.m(x)), 2)", (3, 7, 11, 19)),
    "six_channels_prepared": ("nn.Conv2d(6, 24, 5)", "F.max_pool2d(self.m(x).abs(), 4)", (6, 28, 41)),
}


def _untied(model: nn.Module) -> nn.Module:
    """``model`` with parameters that TF32 and halves round alike."""
    for parameter in model.parameters():
        parameter.data = untied(parameter.data)
    return model


def agrees(plan: KernelPlan, kernel: HopperKernel, compiled: Compiled, path: Path, inputs: list[torch.Tensor]) -> None:
    """The kernel and the model in float64, of operands rounded to TF32."""
    torch.manual_seed(0)
    model = _untied(load_model_file(path).model_class())
    parameters = operands_of(compiled, plan, dict(model.named_parameters()))
    given = dict(zip((node.name for node in compiled.program.after.inputs), inputs, strict=True))
    (found,) = kernel([parameters[arg.name] if arg.name in parameters else given[arg.node] for arg in plan.args], 1)
    model = model.double()
    model.m = Rounded(model.m)
    with torch.no_grad():
        exact = model(*(value.double() for value in inputs))
    assert (found - exact).abs().max() <= 4e-6 * exact.abs().max()


def _without_costs(monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    """Every convolution in TF32 by the kernel ``variant``, however long it is expected to take."""
    monkeypatch.setattr(direct, "is_small", lambda *_: False)
    monkeypatch.setattr(library, "seconds", lambda *_: math.inf)
    monkeypatch.setattr(precision, "allows_tf32", lambda *_: True)
    monkeypatch.setattr(contraction, "_is_slower", lambda *_: False)
    monkeypatch.setattr(hopper, "reads_in_place", lambda *_: variant == "in_place")
    monkeypatch.setattr(hopper, "pays_in_halves", lambda *_: variant == "halves")


def _played(
    path: Path, variant: str, folder: Path
) -> tuple[nn.Module, Callable[[torch.Tensor, int], list[torch.Tensor]]]:
    """A model, and its one kernel with the model's parameters as a function of the input and an integer argument."""
    compiled = compile_file(path)
    (plan,) = steps(compiled, ContractionPlan)
    kernel, model = HopperKernel(compiled, plan, variant, folder), _untied(load_model_file(path).model_class())
    parameters = operands_of(compiled, plan, dict(model.named_parameters()))
    return model, lambda x, scalar: kernel([parameters.get(arg.name, x) for arg in plan.args], scalar)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        *((name, "sm90") for name in PAIRS if name not in IN_PLACE),
        *((name, "halves") for name in ("plain", "six_channels", "pairs_of_a_volume", "abreast_transposed")),
    ],
)
def test_an_odd_tap_makes_no_nan_of_an_infinity(
    name: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside it in its pair is nothing that multiplies another by zero."""
    _without_costs(monkeypatch, variant)
    module, _, shape = CASES[name]
    path = write(tmp_path, "return self.m(x) * 2", f"self.m = {module}", f"torch.rand(3, {', '.join(map(str, shape))})")
    model, run = _played(path, variant, tmp_path)
    x = torch.zeros(2, *shape)
    x[0, ::2, ..., ::5] = torch.inf
    x[1, 1, ..., ::7] = -torch.inf
    x[1, ..., 3, 4] = torch.nan
    with torch.no_grad():
        exact = model.double()(x.double())
    (found,) = run(x, 1)
    for special in (torch.isnan, torch.isposinf, torch.isneginf):
        assert special(exact).any()
        assert torch.equal(special(found), special(exact))


@pytest.mark.parametrize(
    ("name", "in_halves"),
    [*((name, False) for name in POOLED), *((name, True) for name in POOLED if "prepared" in name)],
)
def test_pooled_results_agree_with_float64(
    name: str, in_halves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "is_small", lambda *_: False)
    monkeypatch.setattr(precision, "allows_tf32", lambda *_: True)
    variant = "sm90" if name.endswith("prepared") else "in_place"
    monkeypatch.setattr(hopper, "pools_in_place", lambda *_: variant == "in_place")
    monkeypatch.setattr(hopper, "pays_in_halves", lambda *_: in_halves)
    monkeypatch.setattr(convpool, "together_or_apart", lambda *_: None)
    module, body, shape = POOLED[name]
    path = write(tmp_path, f"return {body}", f"self.m = {module}", f"torch.rand(3, {', '.join(map(str, shape))})")
    compiled = compile_file(path)
    (plan,) = steps(compiled, ConvApartPlan)
    assert isinstance(plan.hopper, HopperConvPlan)
    assert plan.hopper.in_halves == in_halves
    assert in_halves or (plan.hopper.chunk == 4) == name.startswith("pairs")
    kernel = HopperKernel(compiled, plan, variant, tmp_path)
    for batch in (2, 5):
        agrees(plan, kernel, compiled, path, [untied(torch.randn(batch, *shape))])


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        *((name, variant) for name in PREPARED for variant in ("sm90", "halves")),
        *((name, "in_place") for name in IN_PLACE),
    ],
)
def test_agrees_with_float64(name: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_costs(monkeypatch, variant)
    module, body, *shapes = CASES[name]
    sizes = ", ".join(f"torch.rand(3, {', '.join(map(str, shape))})" for shape in shapes)
    path = write(
        tmp_path,
        f"return {body}",
        f"{PARAMETERS}self.q = nn.Parameter(torch.rand(20, 1, 1) + 0.5)\nself.m = {module}",
        sizes,
        "x, y"[: 3 * len(shapes) - 2],
    )
    compiled = compile_file(path)
    (plan,) = steps(compiled, ContractionPlan)
    assert isinstance(plan.hopper, HopperConvPlan)
    assert bool(plan.hopper.ahead) == (name in MODELS)
    assert plan.hopper.in_halves == (variant == "halves")
    assert variant == "halves" or name not in ABREAST or plan.hopper.abreast > 1
    assert variant == "halves" or (plan.hopper.chunk == 4) == (name in PAIRS)
    kernel = HopperKernel(compiled, plan, variant, tmp_path)
    agrees(plan, kernel, compiled, path, [untied(torch.randn(2, *shape)) for shape in shapes])


@pytest.mark.parametrize("name", ["plain", "abreast_transposed", "line_of_halves"])
def test_halves_hold_numbers_of_any_size(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of any size, one that is zero but for an element, and elements that no other promises."""
    _without_costs(monkeypatch, "halves")
    module, _, shape = CASES[name]
    sizes = f"torch.rand(3, {', '.join(map(str, shape))})"
    path = write(tmp_path, "return self.m(x) * 2", f"self.m = {module}", sizes)
    model, run = _played(path, "halves", tmp_path)
    scales = torch.tensor([1e-30, 1e20, 1.0, 1.0, 0.0])
    x = untied(torch.randn(5, *shape) * scales.view(-1, *[1] * len(shape)))
    x[2].view(-1)[77], x[3].view(-1)[15], x[4].view(-1)[-3] = 1e9, -1e12, 3e-20  # the second is looked at
    with torch.no_grad():
        model.m.bias.zero_()
        exact = 2 * Rounded(model.m.double())(x.double())
    (found,) = run(x, 1)
    assert found.isfinite().all()
    for one, other, size in zip(found, exact, (1e-30, 1e20, 1.0, 1.0, 3e-20), strict=True):
        unreached = other.abs() < 1e2 * size
        assert (one - other)[unreached].abs().max() <= 4e-6 * other[unreached].abs().max()
        assert ((one - other).abs() <= 1e-3 * other.abs() + 1e-5 * size).all()  # what one reaches is in plain fp32


OF_SAMPLES = {
    "groups": ("nn.Conv2d(20, 36, 3)", 3, "nn.GroupNorm(3, 36)", (20, 14, 19)),
    "channels": ("nn.Conv2d(24, 40, 3, padding=1)", 40, "nn.InstanceNorm2d(40)", (24, 13, 20)),
    "all": ("nn.Conv3d(20, 136, 1)", 1, "nn.GroupNorm(1, 136)", (20, 3, 5, 4)),
    "small_samples": ("nn.Conv2d(20, 24, 3)", 12, "nn.GroupNorm(12, 24)", (20, 5, 8)),
    "phases": ("nn.ConvTranspose2d(16, 24, 4, 2, 1)", 4, "nn.GroupNorm(4, 24)", (16, 7, 9)),
    "kinds": ("nn.ConvTranspose1d(16, 30, 5, 3)", 2, "nn.GroupNorm(2, 30)", (16, 31)),
    "abreast": ("nn.Conv2d(50, 24, 3)", 4, "nn.GroupNorm(4, 24)", (50, 9, 15)),
    "pairs": ("nn.Conv2d(3, 24, 5, 2)", 4, "nn.GroupNorm(4, 24)", (3, 19, 25)),
    "means": ("nn.Conv2d(24, 40, 3, padding=1)", 40, "lambda y: y - y.mean((2, 3), keepdim=True)", (24, 13, 20)),
    "means_of_all": ("nn.Conv2d(24, 44, 3)", 1, "lambda y: y - y.mean((1, 2, 3), keepdim=True)", (24, 7, 9)),
}
"""By name: the convolution, groups, the norm and the shape of a sample."""


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        *((name, variant) for name in OF_SAMPLES for variant in ("sm90", "halves")),
        *((name, "in_place") for name in ("channels", "all", "means")),
    ],
)
def test_statistics_of_samples(name: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the result: of every sample's groups of channels, however tiles lie over samples."""
    _without_costs(monkeypatch, variant)
    monkeypatch.setattr(channels, "pays", lambda *_: True)
    module, groups, norm, shape = OF_SAMPLES[name]
    init = f"self.m, self.n = {module}, {norm}"
    path = write(tmp_path, "return self.n(self.m(x)).tanh()", init, f"torch.rand(3, {', '.join(map(str, shape))})")
    model, kernel = _played(path, variant, tmp_path)
    for batch in (2, 5):
        x = untied(torch.randn(batch, *shape) + torch.randn(batch, *[1] * len(shape)))
        found, mean, *root = kernel(x, 3)
        with torch.no_grad():
            exact = Rounded(model.m.double())(x.double())
        by_group = exact.reshape(batch, groups, -1)
        assert (found - exact).abs().max() <= 4e-6 * exact.abs().max()
        torch.testing.assert_close(mean.double().flatten(1), by_group.mean(2), rtol=2e-6, atol=2e-6)
        deviation = (by_group.var(2, correction=0) + 1e-5).rsqrt()
        assert len(root) == ("means" not in name)
        for one in root:
            torch.testing.assert_close(one.double().flatten(1), deviation, rtol=2e-6, atol=0.0)


EXPONENTIALS = {
    "conv": ("nn.Conv2d(20, 36, 3)", (20, 14, 19)),
    "channels": ("nn.Conv2d(24, 40, 3, padding=1)", (24, 13, 20)),
    "small_samples": ("nn.Conv3d(20, 24, 3)", (20, 4, 5, 6)),
    "abreast": ("nn.Conv2d(50, 24, 3)", (50, 9, 15)),
    "phases": ("nn.ConvTranspose2d(16, 24, 4, 2, 1)", (16, 7, 9)),
    "kinds": ("nn.ConvTranspose1d(16, 30, 5, 3)", (16, 31)),
}


@pytest.mark.parametrize(
    ("name", "variant"),
    [*((name, variant) for name in EXPONENTIALS for variant in ("sm90", "halves")), ("channels", "in_place")],
)
def test_sums_of_exponentials(name: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far from one, and of results that are infinite or NaN; of samples of one value and of less than a tile."""
    _without_costs(monkeypatch, variant)
    monkeypatch.setattr(convreduce, "LEAST_POSITIONS", 1)
    monkeypatch.setattr(convreduce, "together_or_apart", lambda *_: None)
    module, shape = EXPONENTIALS[name]
    axes = tuple(range(2, len(shape) + 1))
    size = f"torch.rand(3, {', '.join(map(str, shape))})"
    path = write(tmp_path, f"return torch.logsumexp(self.m(x) * 3, {axes})", f"self.m = {module}", size)
    model, kernel = _played(path, variant, tmp_path)
    for batch in (1, 5):
        x = untied(torch.randn(batch, *shape) * torch.logspace(-1, 3, batch).view(-1, *[1] * len(shape)))
        special = x.clone()
        special[0, :, *(0 for _ in axes)], special[-1, :, *(1 for _ in axes)] = torch.nan, torch.inf
        for data in (x, special, x * 0 - 700):
            (found,) = kernel(data, 1)
            with torch.no_grad():
                exact = torch.logsumexp(Rounded(copy.deepcopy(model.m).double())(data.double()) * 3, axes)
            torch.testing.assert_close(found.double(), exact, rtol=4e-6, atol=4e-6, equal_nan=True)
