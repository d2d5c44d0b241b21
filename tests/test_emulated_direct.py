"""Convolutions of groups of few channels, their kernels run on the CPU thread by thread, against float64."""

from __future__ import annotations

import math
import random
import shutil
from pathlib import Path

import pytest
import torch

from fusegen.compiler import Compiled, compile_file
from fusegen.costs import direct, direct_shared, direct_tiles, library
from fusegen.plan.details import DirectConvPlan, HopperConvPlan
from fusegen.spaces import convsweep
from fusegen.trace import load_model_file
from tests.emulated import Emulated
from tests.models import write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]

MODELS = {
    "depthwise": ("nn.Conv2d(6, 6, 3, padding=1, groups=6)", (6, 7, 12)),
    "unevenly_padded": ("nn.Sequential(nn.ZeroPad2d((0, 1, 2, 0)), nn.Conv2d(6, 6, 3, 2, groups=6))", (6, 8, 12)),
    "causal": ("nn.Sequential(nn.ConstantPad1d((6, 0), 0.0), nn.Conv1d(8, 8, 3, dilation=3, groups=8))", (8, 44)),
    "many_inputs": ("nn.Conv2d(40, 6, 3, padding=1, groups=2)", (40, 6, 8)),
    "many_outputs": ("nn.Conv2d(4, 32, 3, 2, dilation=2, groups=2)", (4, 11, 14)),
    "odd_outputs": ("nn.ConvTranspose1d(6, 33, 2, 3, groups=3)", (6, 13)),
    "transposed": ("nn.ConvTranspose2d(6, 6, 4, 2, 1, groups=6)", (6, 5, 8)),
    "phases": ("nn.ConvTranspose2d(32, 8, 1, 3, groups=2)", (32, 5, 7)),
    "phases_of_several_taps": ("nn.ConvTranspose2d(8, 12, (7, 4), (3, 2), (2, 1), (1, 1), groups=2)", (8, 5, 6)),
    "phases_far": ("nn.ConvTranspose2d(4, 10, (5, 2), (6, 4), (3, 0), (5, 3), groups=2, dilation=(4, 3))", (4, 4, 5)),
    "phases_along_volumes": ("nn.ConvTranspose3d(4, 6, (3, 2, 4), 3, 1, 2, groups=2)", (4, 3, 4, 5)),
    "runs_of_warps": ("nn.ConvTranspose2d(4, 6, 2, 3, groups=2)", (4, 2, 45)),
    "points": ("nn.Conv3d(16, 24, 1)", (16, 3, 5, 4)),
    "points_transposed": ("nn.ConvTranspose3d(12, 20, 1)", (12, 3, 5, 7)),
    "groups_in_turns": ("nn.Conv1d(96, 24, 5, groups=4)", (96, 40)),
    "transposed_in_turns": ("nn.ConvTranspose2d(72, 4, 3, 2, groups=2)", (72, 5, 8)),
    "volumes_in_turns": ("nn.ConvTranspose3d(64, 6, 2, 2, dilation=2, groups=2)", (64, 3, 4, 5)),
    "line": ("nn.ConvTranspose1d(16, 10, 9, 5, 3, 1, groups=2)", (16, 11)),
}
"""By name: the module, and the shape of one sample."""


def agrees(
    module: str,
    body: str,
    shape: tuple[int, ...],
    folder: Path,
    kind: type[Emulated] = Emulated,
    batch: int = 2,
    more: int = 3,
) -> Emulated:
    """A model's kernel, compared with float64 at the sizes of the file and others, operands rounded and not."""
    path = write(folder, f"return {body}", f"self.m = {module}", f"torch.rand({batch}, {', '.join(map(str, shape))})")
    compiled = compile_file(path)
    torch.manual_seed(0)
    kernel = kind(compiled, dict(load_model_file(path).model_class().named_parameters()), folder)
    assert isinstance(kernel.detail, DirectConvPlan)
    for size in (shape, (shape[0], *(size + more for size in shape[1:]))):
        x = torch.randn(3, *size) + 0.5
        x[(0, -1, *(0 for _ in size[1:]))], x[(1, 0, *(n // 2 for n in size[1:]))] = torch.nan, torch.inf
        for tf32 in (True, False) if kernel.plan.tf32 else (False,):
            (y,), (r,) = kernel.of(x, tf32), kernel.exact(x, tf32)
            assert torch.equal(y.isnan(), r.isnan()), (size, tf32)
            finite = r.isfinite()
            assert torch.equal(y[~finite].nan_to_num(), r[~finite].float().nan_to_num())
            assert (y - r)[finite].abs().max() <= 4e-6 * r[finite].abs().max(), (size, tf32)
    return kernel


class InFp32(Emulated):
    """The plain kernel beside one for tensor cores in TF32."""

    variant = "fp32"

    def __init__(self, compiled: Compiled, parameters: dict[str, torch.Tensor], folder: Path):
        super().__init__(compiled, parameters, folder)
        assert isinstance(self.plan.hopper, HopperConvPlan)
        assert isinstance(self.plan.hopper.in_fp32, DirectConvPlan)
        self.detail = self.plan.hopper.in_fp32

    def of(self, x: torch.Tensor, tf32: bool) -> list[torch.Tensor]:
        return self([self.parameters.get(arg.name, x) for arg in self.plan.args], 0)


@pytest.mark.parametrize(
    ("module", "shape", "result"),
    [
        ("nn.Conv2d(6, 6, 3, padding=1, groups=6)", (6, 7, 12), (6, 7, 12)),
        ("nn.Conv2d(6, 6, 3, groups=6)", (6, 7, 13), (6, 5, 11)),
        ("nn.ConvTranspose3d(4, 4, 2, 2, groups=4)", (4, 2, 3, 5), (4, 4, 6, 10)),
        ("nn.Conv1d(4, 8, 3, padding=1, groups=4)", (4, 14), (8, 14)),
        ("nn.Conv3d(16, 12, 1)", (16, 3, 4, 5), (12, 3, 4, 5)),  # its positions as one line
        ("nn.ConvTranspose2d(6, 20, 1)", (6, 4, 7), (20, 4, 7)),
        ("nn.Conv2d(8, 4, 1, groups=2)", (8, 5, 5), (4, 5, 5)),
    ],
)
def test_operands_that_differ_along_some_axes(
    module: str, shape: tuple[int, ...], result: tuple[int, ...], tmp_path: Path
) -> None:
    columns, rows, places = (result[0], *(1 for _ in result[2:]), result[-1]), (*result[:-1], 1), (1, *result[1:])
    init = [
        module,
        *(f"self.{n} = nn.Parameter(torch.randn({s}))" for n, s in zip("crp", (columns, rows, places), strict=True)),
    ]
    agrees("\n".join(init), "(self.m(x) * self.c + self.r).abs() - self.p", shape, tmp_path, more=0)


@pytest.mark.parametrize(
    ("module", "shape", "own", "body"),
    [
        ("nn.Conv2d(6, 6, 3, padding=1, groups=6)", (6, 7, 12), (84,), "F.gelu(self.m(x)).flatten(2) - self.p"),
        ("nn.Conv2d(6, 6, 3, groups=6)", (6, 7, 13), (330,), "F.gelu(self.m(x).flatten(1)) * self.p"),
        ("nn.Conv2d(6, 6, 3, groups=6)", (6, 7, 13), (6, 1), "F.gelu(self.m(x).flatten(2)) * self.p"),
        ("nn.Conv2d(9, 1, 3)", (9, 7, 13), (5, 1), "self.m(x).squeeze(1).tanh() * self.p"),
        ("nn.Conv1d(9, 1, 3)", (9, 14), (12,), "self.m(x).squeeze(1).tanh() * self.p"),
    ],
)
def test_results_whose_axes_are_joined(
    module: str, shape: tuple[int, ...], own: tuple[int, ...], body: str, tmp_path: Path
) -> None:
    agrees(f"{module}\nself.p = nn.Parameter(torch.randn({own}))", body, shape, tmp_path, more=0)


@pytest.mark.parametrize("bias", [False, True])
def test_the_kernel_for_full_fp32_beside_one_in_tf32_agrees_with_float64(bias: bool, tmp_path: Path) -> None:
    module = f"nn.Conv2d(96, 8, 3, stride=3, padding=2, bias={bias})"
    agrees(module, "self.m(x).tanh()", (96, 13, 31), tmp_path, InFp32, batch=200)


@pytest.fixture(autouse=True)
def _whatever_the_library_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "seconds", lambda *_: math.inf)


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_float64(name: str, tmp_path: Path) -> None:
    kernel = agrees(MODELS[name][0], "F.hardswish(self.m(x)) * 2", MODELS[name][1], tmp_path)
    assert isinstance(kernel.detail, DirectConvPlan)
    assert any(any(tile.phased) for tile in kernel.detail.tiles) or not name.startswith("phases")
    assert kernel.detail.tiles[0].shares > 1 or not name.endswith("in_turns")


REDUCTIONS = {
    "depthwise": ("nn.Conv2d(6, 6, 3, padding=1, groups=6)", "F.hardswish(self.m(x)).mean((2, 3)) * 2", (6, 7, 12)),
    "several_channels": ("nn.Conv2d(40, 6, 3, padding=1, groups=2)", "self.m(x).abs().sum((2, 3), True)", (40, 6, 8)),
    "parts": ("nn.Conv2d(4, 14, 2, groups=2)", "(self.m(x) / -1.5).amax((2, 3)).tanh()", (4, 41, 41)),
    "transposed": ("nn.ConvTranspose2d(6, 6, 4, 2, 1, groups=6)", "self.m(x).relu().amax((2, 3))", (6, 5, 8)),
    "phases": ("nn.ConvTranspose2d(32, 8, 1, 3, groups=2)", "self.m(x).square().mean((2, 3))", (32, 5, 7)),
    "volume": ("nn.ConvTranspose3d(4, 6, (3, 2, 4), 3, 1, 2, groups=2)", "self.m(x).amin((2, 3, 4))", (4, 3, 4, 5)),
    "line": ("nn.Conv1d(8, 8, 5, 2, 2, groups=8)", "(self.m(x) * 2).sin().mean(2)", (8, 1311)),
    "operands": (
        "nn.Conv2d(6, 6, 3, padding=1, groups=6)",
        "(self.m(x) * self.q).relu().sum((2, 3)) - self.r",
        (6, 7, 12),
    ),
    "product": ("nn.Conv1d(8, 8, 5, 2, 2, groups=8)", "self.m(x).cos().prod(2) * 2", (8, 31)),
    "prologue": ("nn.Conv2d(6, 6, 3, 1, 1, groups=6)", "self.m(x.abs() * 2 + 1).tanh().mean((2, 3))", (6, 7, 12)),
    "places": ("nn.Conv2d(6, 6, 3, 1, 1, groups=6)", "(self.m(x) - self.p).abs().mean((2, 3)) + 1", (6, 7, 12)),
    "turned": ("nn.Conv2d(6, 12, 3, groups=6)", "F.gelu(self.m(x)).mean((2, 3)).T", (6, 7, 12)),
}
"""By name: the module ``self.m``, what the forward returns, the shape of one sample."""


def test_rows_that_share_no_lines_share_weights(tmp_path: Path) -> None:
    """Where an access is of one element, which some result of the thread multiplies, there are as many weights."""
    module = "nn.Conv2d(6, 6, (1, 11), (1, 2), (0, 15), (1, 3), groups=6)"
    kernel = agrees(module, "self.m(x)", (6, 6, 25), tmp_path, batch=6000)
    assert isinstance(kernel.detail, DirectConvPlan)
    assert kernel.detail.tiles[-1].results == (1, 2, 1)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_over_all_positions_agree_with_float64(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convsweep, "together_or_apart", lambda *_: None)
    module, body, shape = REDUCTIONS[name]
    own = "self.q = nn.Parameter(torch.randn(6, 1, 1))\nself.r = nn.Parameter(torch.randn(6))"
    own += "\nself.p = nn.Parameter(torch.randn(7, 12))"
    detail = agrees(f"{module}\n{own}", body, shape, tmp_path, more=0 if name == "places" else 3).detail
    assert isinstance(detail, DirectConvPlan)
    assert detail.reduction
    assert name != "parts" or any(detail.outputs % tile.outputs for tile in detail.tiles)


OVER_CHANNELS = {
    "mean": ("nn.Conv2d(5, 4, 3, padding=1)", "F.leaky_relu(self.m(x)).mean(1, keepdim=True) * 2", (5, 7, 12)),
    "maximum": ("nn.Conv1d(5, 4, 5, dilation=2)", "torch.maximum(self.m(x), self.q).amax(1)", (5, 18)),
    "softmax": ("nn.Conv2d(20, 3, 3)", "F.log_softmax(self.m(x) * 2, 1) - self.s", (20, 9, 14)),
    "several": ("nn.ConvTranspose2d(12, 3, 4, 2, 1)", "(self.m(x).softmax(1) + self.c).logsumexp(1)", (12, 5, 6)),
    "variance": ("nn.Conv3d(4, 6, 2)", "self.m(x).var(1, unbiased=False).sqrt()", (4, 3, 4, 5)),
    "prologue": ("nn.Conv2d(5, 3, 3, 1, 1)", "self.m(x.relu() + 0.5).prod(1)", (5, 6, 7)),
    "points": ("nn.Conv2d(6, 3, 1)", "self.m(x).softmax(1)", (6, 5, 8)),
}
"""The same, reductions over the channels, which a thread has."""


@pytest.mark.parametrize("name", OVER_CHANNELS)
def test_reductions_over_channels_agree_with_float64(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "is_small", lambda *_: True)
    module, body, shape = OVER_CHANNELS[name]
    own = "self.s = nn.Parameter(torch.randn(3, 1, 12))\nself.c = nn.Parameter(torch.randn(3, 1, 1))"
    own += "\nself.q = nn.Parameter(torch.randn(1, 4, 10))"
    more = 0 if "self.s" in body or "self.q" in body else 3
    detail = agrees(f"{module}\n{own}", body, shape, tmp_path, more=more).detail
    assert isinstance(detail, DirectConvPlan)
    assert any(phase.reductions for phase in detail.after.phases)


def random_module(rng: random.Random) -> tuple[str, tuple[int, ...]]:
    """A grouped transposed convolution and the shape of a sample."""
    rank, groups = rng.randint(1, 3), rng.randint(2, 3)
    stride, dilation, kernel = ([rng.randint(1, most) for _ in range(rank)] for most in (4, 3, 4))
    padding = [rng.randint(0, d * (k - 1) // 2) for d, k in zip(dilation, kernel, strict=True)]
    more = [rng.randint(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True)]
    channels = groups * rng.randint(1, 4), groups * rng.randint(1, 7)
    text = f"nn.ConvTranspose{rank}d{channels}"[:-1]
    structure = f"{kernel}, {stride}, {padding}, {more}, {groups}, {rng.random() < 0.5}, {dilation}"
    return f"{text}, {structure})", (channels[0], *(rng.randint(4, 6) for _ in range(rank)))


@pytest.mark.parametrize("seed", range(12))
def test_random_transposed_convolutions_agree_with_float64(seed: int, tmp_path: Path) -> None:
    module, shape = random_module(random.Random(seed))
    agrees(module, "self.m(x).abs() - 1", shape, tmp_path)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        ("nn.Conv1d(16, 16, 2, 3)", (16, 40)),
        ("nn.ConvTranspose2d(12, 3, 1, 3, 0, 2)", (12, 7, 9)),
        ("nn.Conv2d(130, 3, 3, 2, 1)", (130, 5, 8)),  # weights of several chunks, channels of several threads
        ("nn.ConvTranspose3d(20, 3, 3, 2, 1, 1)", (20, 3, 4, 6)),
        ("nn.ConvTranspose1d(40, 1, 9, 16, 1, 3)", (40, 21)),
    ],
)
def test_small_convolutions_of_one_group_agree_with_float64(
    module: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    agrees(module, "self.m(x).tanh()", shape, tmp_path)


@pytest.mark.parametrize(
    ("module", "shape", "uneven"),
    [
        ("nn.Conv2d(24, 25, 1)", (24, 5, 6), True),
        ("nn.Conv2d(3, 16, 3, 2)", (3, 7, 9), False),
        ("nn.Conv1d(16, 22, 2)", (16, 15), True),
        ("nn.ConvTranspose2d(6, 9, 2)", (6, 3, 5), True),
    ],
)
@pytest.mark.parametrize("kept", [False, True])
def test_parts_of_many_channels_agree_with_float64(
    module: str, shape: tuple[int, ...], uneven: bool, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of threads that compute some of the channels each: weights read one by one, or from shared memory."""
    monkeypatch.setattr(direct_shared, "MOST_OUTPUTS", 0)
    monkeypatch.setattr(direct_tiles, "_CHANNELS", 0 if kept else 99)
    monkeypatch.setattr(direct_tiles, "_FILLED", 60)
    monkeypatch.setattr(direct, "is_small", lambda *_: True)
    detail = agrees(module, "self.m(x).tanh()", shape, tmp_path).detail
    assert isinstance(detail, DirectConvPlan)
    assert any(1 < tile.outputs < detail.outputs for tile in detail.tiles)
    assert any(detail.outputs % tile.outputs for tile in detail.tiles) == uneven
    assert (detail.chunk > 0) == kept


@pytest.mark.parametrize("module", ["nn.Conv2d(100, 3, 3, padding=1)", "nn.ConvTranspose2d(40, 5, 3, 2, 1)"])
@pytest.mark.parametrize("shares", [(1,), (4, 8)])
def test_weights_in_shared_memory_agree_with_float64(
    module: str, shares: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks of channels, by a thread for each tile and by several."""
    monkeypatch.setattr(direct_shared, "_SHARES", shares)
    monkeypatch.setattr(direct_shared, "_KEPT", 16 * 60)
    monkeypatch.setattr(direct, "is_small", lambda *_: True)
    detail = agrees(module, "self.m(x).tanh()", (int(module.split("(")[1].split(",")[0]), 5, 8), tmp_path).detail
    assert isinstance(detail, DirectConvPlan)
    assert detail.tiles[0].shares in shares
    assert 0 < detail.chunk < detail.inputs
