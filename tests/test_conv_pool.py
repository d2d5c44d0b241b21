"""Poolings in the epilogue of a convolution: what joins, how windows are cut into patches and parts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fusegen.compiler import Compiled, compile_file
from fusegen.costs import hopper
from fusegen.costs.hopper_taps import Taps, Windows
from fusegen.plan.details import ContractionPlan, ConvApartPlan, HopperConvPlan
from fusegen.plan.types import KernelPlan, KernelStep
from tests.models import write


def _compiled(
    tmp_path: Path, body: str, module: str = "nn.Conv2d(64, 64, 3)", x: str = "64, 64, 66, 66", tuned: str | None = None
) -> Compiled:
    shapes = {"s": "64, 1, 1", "g": "64, 64", "v": "8, 1, 1, 1"}
    parameters = [f"self.{name} = nn.Parameter(torch.randn({shape}))" for name, shape in shapes.items()]
    init = "\n".join([f"self.c = {module}", *parameters])
    path = write(tmp_path, f"return {body}", init, f"torch.empty({x})")
    if tuned:
        path.with_suffix(".tuned.json").write_text(tuned)
    return compile_file(path)


def _templates(compiled: Compiled) -> list[str]:
    return [step.plan.detail.template if isinstance(step, KernelStep) else "torch" for step in compiled.program.steps]


def _plan(compiled: Compiled) -> KernelPlan:
    (step,) = compiled.program.steps
    assert isinstance(step, KernelStep)
    return step.plan


def test_a_part_of_a_window_reads_what_its_output_does() -> None:
    """Random kernels, strides, paddings, dilations, windows: exactly the products of the definition."""
    rng = random.Random(0)
    for _ in range(2000):
        kernel, stride, dilation, parts = rng.randint(1, 5), rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 5)
        padding, size = rng.randint(0, 4), rng.randint(1, 30)
        output = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        if output < parts:
            continue
        taps = Taps(kernel, stride, padding, dilation, False, parts)
        bases = output // parts
        pitch = taps.pitch(size, bases)
        for base in range(bases):
            for part, moved in enumerate(taps.moved):
                found = set()
                for residue, shifts in taps.shifts.items():
                    grid, further = moved[residue]
                    for shift in shifts:
                        k, rest = divmod(taps.step * shift + residue, dilation)
                        assert rest == 0
                        assert shift + further <= taps.reach
                        owner, slot = divmod(pitch + base + shift + further, pitch)  # in the second of two samples
                        i = slot * taps.in_step + taps.in_origin + grid
                        if 0 <= i < size:
                            assert owner == 1, "a tap reads another sample"
                            found.add((k, i))
                position = (base * parts + part) * stride - padding
                defined = {(k, position + k * dilation) for k in range(kernel)}
                assert found == {(k, i) for k, i in defined if 0 <= i < size}


@pytest.mark.parametrize(
    ("kernel", "within", "parts"),
    [
        ((2, 2), (2, 2), (1, 1, 1)),
        ((4, 8), (4, 8), (1, 1, 1)),
        ((3, 2), (1, 2), (1, 3, 1)),
        ((2, 2, 2), (2, 2), (2, 1, 1)),
        ((4,), (1, 4), (1, 1, 1)),
        ((16,), (1, 1), (1, 1, 16)),
    ],
)
def test_windows_lie_in_patches_or_are_computed_in_parts(
    kernel: tuple[int, ...], within: tuple[int, int], parts: tuple[int, int, int]
) -> None:
    windows = Windows.of(kernel)
    assert (windows.within, windows.parts) == (within, parts)
    rows, columns = windows.patch(40, 40)
    assert rows * columns == 64
    assert rows % within[0] == columns % within[1] == 0


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("F.mish(F.max_pool2d(F.hardswish(self.c(x)) * self.s, 2))", ["conv_apart"]),
        ("F.avg_pool2d(F.silu(self.c(x)), 4)", ["conv_apart"]),
        ("F.max_pool2d(F.silu(self.c(x)), 2).mean((2, 3))", ["conv_apart", "row_stream"]),
        # windows that overlap, reach past the result, or an operand with values of its own for every position
        ("F.max_pool2d(F.silu(self.c(x)), 3, 2)", ["contraction", "pool"]),
        ("F.max_pool2d(F.silu(self.c(x)), 2, 2, 1)", ["contraction", "pool"]),
        ("F.max_pool2d(F.silu(self.c(x)), 2, ceil_mode=True)", ["contraction", "pool"]),
        ("F.max_pool2d(F.silu(self.c(x)) * self.g, 2)", ["contraction", "pool"]),
        # one that a view pairs with groups of channels
        (
            "(F.max_pool2d(F.silu(self.c(x)), 2).unflatten(1, (8, -1)) * self.v).tanh().flatten(1, 2)",
            ["contraction", "pool"],
        ),
    ],
)
def test_what_a_convolution_pools_itself(body: str, expected: list[str], tmp_path: Path) -> None:
    assert _templates(_compiled(tmp_path, body)) == expected


def test_windows_of_three_are_left_to_a_kernel_of_their_own(tmp_path: Path) -> None:
    """Their parts read the input again and again; ``explain`` names both times."""
    compiled = _compiled(tmp_path, "F.max_pool2d(F.silu(self.c(x)), 3)")
    assert _templates(compiled) == ["contraction", "pool"]
    expected = compiled.choices["max_pool2d in"]
    assert list(expected) == ["a kernel of its own", "the convolution's kernel"]  # the chosen first


def test_a_tuning_file_may_pin_either(tmp_path: Path) -> None:
    pins = '{"target": "sm_90", "choices": {"max_pool2d in": "a kernel of its own"}}'
    compiled = _compiled(tmp_path, "F.max_pool2d(F.silu(self.c(x)), 2)", tuned=pins)
    assert _templates(compiled) == ["contraction", "pool"]


def test_one_kernel_on_hopper_and_two_elsewhere(tmp_path: Path) -> None:
    compiled = _compiled(tmp_path, "F.max_pool2d(F.silu(self.c(x)), 2)")
    plan = _plan(compiled)
    assert isinstance(plan.detail, ConvApartPlan)
    assert [part.detail.template for part in plan.parts] == ["contraction", "pool"]
    assert all(part.hopper is None for part in plan.parts)
    assert isinstance(plan.hopper, HopperConvPlan)
    assert plan.hopper.window is not None
    assert (plan.hopper.window.within, plan.hopper.window.patch, len(plan.hopper.window.parts)) == ((2, 2), (8, 8), 1)


def test_few_channels_are_pooled_in_full_fp32(tmp_path: Path) -> None:
    compiled = _compiled(tmp_path, "F.max_pool2d(F.silu(self.c(x)), 2)", "nn.Conv2d(8, 64, 3)", "64, 8, 130, 130")
    plan = _plan(compiled)
    assert isinstance(plan.detail, ConvApartPlan)
    assert isinstance(plan.hopper, HopperConvPlan)
    assert plan.detail.conv.precise
    assert plan.hopper.precise


def test_layers_of_a_volume_are_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "pooled_seconds", lambda *_: 0.0)
    compiled = _compiled(
        tmp_path, "F.avg_pool3d(F.silu(self.c(x)), (3, 2, 2))", "nn.Conv3d(32, 64, 3, (2, 1, 1))", "2, 32, 26, 18, 18"
    )
    plan = _plan(compiled).hopper
    assert isinstance(plan, HopperConvPlan)
    assert plan.window is not None
    assert plan.window.divisor == 12
    assert plan.stride == (6, 1, 1)  # input layers from the start of a window to that of the next
    found: list[set[int]] = []
    for part in plan.window.parts:
        layers = set()
        for residue, taps in zip(plan.residues, part, strict=True):
            rows = plan.tap_rows[residue.first_row :][: residue.rows]
            layers |= {6 * (taps.shift[0] + z) + plan.window.grids[taps.grid][0] for z, _ in rows}
        found.append(layers)
    assert found == [{0, 1, 2}, {2, 3, 4}, {4, 5, 6}]


def test_other_machines_pool_apart(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "return F.max_pool2d(F.silu(self.c(x)), 2)",
        "self.c = nn.Conv2d(64, 64, 3)",
        "torch.empty(64, 64, 66, 66)",
    )
    compiled = compile_file(path, target="sm_80")
    assert "conv_apart" not in _templates(compiled)


VOLUME = ("nn.ConvTranspose3d(3, 64, 3, 2, 1, 1)", "16, 3, 16, 32, 32")


@pytest.mark.parametrize(("fn", "divisor"), [("max", 8), ("avg", 8)])
def test_the_phases_of_a_transposed_convolution_are_pooled_where_they_are_computed(
    fn: str, divisor: int, tmp_path: Path
) -> None:
    compiled = _compiled(tmp_path, f"F.{fn}_pool3d(F.silu(self.c(x)), 2).tanh()", *VOLUME)
    plan = _plan(compiled)
    assert isinstance(plan.detail, ContractionPlan)
    assert plan.detail.sweep is not None
    assert (plan.detail.sweep.fn, plan.detail.sweep.divisor) == ("max" if fn == "max" else "mean", divisor)
    assert plan.hopper is None
    assert compiled.program.bytes_after < 1.1 * 4 * 16 * 16 * 32 * 32 * (3 + 64)  # its input and what is pooled


@pytest.mark.parametrize("windows", ["3", "4", "(1, 2, 2)", "2, 2, 1", "2, 1"])
def test_other_windows_of_a_transposed_convolution_are_left_to_a_kernel_of_their_own(
    windows: str, tmp_path: Path
) -> None:
    compiled = _compiled(tmp_path, f"F.max_pool3d(F.silu(self.c(x)), {windows})", *VOLUME)
    assert _templates(compiled) == ["contraction", "pool"]


def test_phases_that_the_asynchronous_kernel_computes_faster_are_pooled_apart(tmp_path: Path) -> None:
    compiled = _compiled(
        tmp_path, "F.max_pool2d(F.silu(self.c(x)), 2)", "nn.ConvTranspose2d(64, 64, 4, 2, 1)", "32, 64, 64, 64"
    )
    assert _templates(compiled) == ["contraction", "pool"]


def test_other_machines_pool_phases_too(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "return F.max_pool2d(F.silu(self.c(x)), 2)",
        "self.c = nn.ConvTranspose2d(64, 64, 4, 2, 1)",
        "torch.empty(32, 64, 64, 64)",
    )
    assert _templates(compile_file(path, target="sm_80")) == ["contraction"]
