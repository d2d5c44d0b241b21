"""Every golden file against float64, and against inputs that a kernel may not expect."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from fusegen import compile_file
from fusegen.emit import write_atomic
from fusegen.verdict.check import ProofResult, check_numerics, compare
from fusegen.verdict.subject import call, load_generated
from tests.gpu.cases import COLLAPSED, FEW, SPATIAL, TAIL, VOLUME, WINDOWED, agrees, case
from tests.variants import SPECS, small

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", SPECS)
def test_every_input_set_is_within_tolerance(name: str) -> None:
    found = check_numerics(case(name).subject(), ProofResult(rounds=0, worst=0.0), torch.device("cuda"), True)
    assert found.passed, found


@pytest.mark.parametrize("name", [COLLAPSED, TAIL])
def test_compiling_a_variant_on_this_machine(name: str, tmp_path: Path) -> None:
    spec = small(name, tmp_path)
    write_atomic(tmp_path / "out.py", compile_file(spec).source)
    reference, _ = case(name).pair()
    generated = load_generated(tmp_path / "out.py")(*case(name).loaded.get_init_inputs()).cuda()
    generated.load_state_dict(reference.state_dict())
    agrees(reference, generated, case(name).x())


@pytest.mark.parametrize("name", FEW)
def test_other_sizes_run_without_building_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, generated = case(name).pair()
    generated(case(name).x())

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", forbidden)
    first = SPATIAL[case(name).rank]
    for batch, spatial in ((1, first), (7, tuple(s + 5 for s in first)), (2, tuple(2 * s for s in reversed(first)))):
        agrees(reference, generated, case(name).x(batch, spatial))


@pytest.mark.parametrize("name", [COLLAPSED, WINDOWED, TAIL])
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (2, 3), (257, 5)])
def test_small_and_lopsided_images(name: str, size: tuple[int, int]) -> None:
    reference, generated = case(name).pair()
    try:
        generated(case(name).x(2, size))
    except RuntimeError as error:
        if "reference forward" not in str(error):
            raise
        pytest.skip(f"the golden file leaves this size to the reference: {error}")
    agrees(reference, generated, case(name).x(2, size))


@pytest.mark.parametrize("name", SPECS)
def test_an_empty_batch_gives_an_empty_result(name: str) -> None:
    reference, generated = case(name).pair()
    inputs = case(name).inputs(case(name).x())
    empty = case(name).inputs(inputs[0][:0])
    with torch.no_grad():
        try:
            expected = reference(*empty).shape
        except Exception as error:  # some ops of torch refuse it
            with pytest.raises(type(error)):
                generated(*empty)
        else:
            found = generated(*empty).shape
            for mine, theirs in zip(generated.buffers(), reference.buffers(), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
            assert found == expected == (0, *reference(*inputs).shape[1:])


@pytest.mark.parametrize("name", [COLLAPSED, WINDOWED])
def test_a_batch_beyond_the_grid_limit_of_y(name: str) -> None:
    reference, generated = case(name).pair()
    x = case(name).x(70_000, (2, 3))
    agrees(reference, generated, x)


def test_more_than_two_billion_elements() -> None:
    reference, generated = case(COLLAPSED).pair()
    x = torch.empty(1, 64, 5800, 5800, device="cuda").normal_(0.5)
    assert x.numel() > 2**31
    with torch.no_grad():
        y = generated(x)
    conv: Any = reference.conv_transpose
    sums = torch.stack([x[0, c].sum(dtype=torch.float64) for c in range(64)])
    mean = sums @ conv.weight.double().sum((2, 3)) / (5802 * 5802) + conv.bias.double()
    bias: Any = reference.bias
    expected = 10 * torch.logsumexp(mean + bias.double().flatten(), 0)
    assert abs(float(y) - float(expected)) <= 1e-5 * abs(float(expected))


def _layouts(x: torch.Tensor) -> dict[str, torch.Tensor]:
    flat = torch.empty(x.numel() + 1, device="cuda")
    wide = torch.empty(*x.shape[:-1], 2 * x.shape[-1], device="cuda")
    views = {
        "transposed": x.transpose(-1, -2).contiguous().transpose(-1, -2),
        "every other column": wide[..., ::2].copy_(x),
        "off 16-byte alignment": flat[1:].view(x.shape).copy_(x),
        "expanded": x[:1].expand(x.shape),
        "batch last": x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
        "channels last": x.to(memory_format=torch.channels_last),
        "a slice of the batch": torch.cat([x, x])[1 : 1 + x.shape[0]],
    }
    assert views["off 16-byte alignment"].data_ptr() % 16 != 0
    return views


@pytest.mark.parametrize("name", [COLLAPSED, WINDOWED, TAIL, "conv_strided_pool_softmax"])
def test_every_memory_layout(name: str) -> None:
    reference, generated = case(name).pair()
    for x in _layouts(case(name).x(5)).values():
        agrees(reference, generated, x)


def test_channels_last_volumes() -> None:
    reference, generated = case(VOLUME).pair()
    agrees(reference, generated, case(VOLUME).x().to(memory_format=torch.channels_last_3d))


SUMS_WEIGHTS = (
    "conv_channel_mean_gelu",
    "conv_pool_sigmoid_sum",
    "conv_transpose3d_depth_mean_softmax",
    "conv_transpose3d_pool_clamp",
    "conv_transpose_row_mean",
    "linear_pool_gelu_max",
    "linear_sum_logsumexp",
    "linear_token_mean_softplus",
)
"""Weights that meet the same input are added up first: infinity times weights of both signs is NaN in eager,
and an infinity of the sum's sign here (docs/architecture.md says so)."""


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("special", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinities_come_out_as_in_eager(name: str, special: float) -> None:
    reference, generated = case(name).pair()
    x = case(name).x(4)
    middle = tuple(s // 2 for s in x.shape[2:])
    x[(0, 1, *middle)] = special
    x[(1, 2, *(0 for _ in middle))] = special
    x[(2, 0, *middle)] = special
    x[(2, 0, *(m - 1 for m in middle))] = -special
    inputs = case(name).inputs(x)
    y, e = (call(model, tuple(inputs))[0] for model in (generated, reference))
    exact = (value.double() if value.is_floating_point() else value for value in inputs)
    r = call(reference.double(), tuple(exact))[0]
    # Where eager's own specials are not those of its arithmetic (cuDNN's transforms spread them), nothing is owed.
    owed = (e.isnan() == r.isnan()) & (e.isinf() == r.isinf())
    assert owed[3].all()
    if name in SUMS_WEIGHTS and math.isinf(special):
        owed &= r.isfinite()
    found = compare("output", *(torch.where(owed, value, 0.0) for value in (y, e, r)))
    assert found.wrong_specials == 0, (y, e)


@pytest.mark.parametrize("name", FEW)
def test_repeats_are_bitwise_equal(name: str) -> None:
    _, generated = case(name).pair()
    x = case(name).x(9, tuple(4 * s for s in SPATIAL[case(name).rank]))
    with torch.no_grad():
        first = generated(x)
        assert all(torch.equal(generated(x), first) for _ in range(10))
