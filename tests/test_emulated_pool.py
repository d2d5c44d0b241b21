"""Poolings over long windows, run on the CPU thread by thread, against float64."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fusegen import dims, interpret
from fusegen.compiler import compile_file
from fusegen.plan.details import PoolPlan
from tests.emulated import Kernel, operands_of, steps
from tests.emulated.programs import OnTheCPU
from tests.models import write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]

MODELS = {
    "halves": (
        "F.adaptive_avg_pool1d((x * self.p).sin().flatten(2), 2) + 1",
        [(2, 3, 4, 9), (1, 3, 99, 9), (2, 3, 1201, 9)],
    ),
    "parts_of_planes": (
        "F.adaptive_avg_pool2d(x.abs() * self.p, (2, 3)) * 2",
        [(5, 3, 7, 9), (1, 3, 41, 9), (1, 3, 1801, 9)],
    ),
    "peaks": ("F.adaptive_max_pool2d(x - self.p, (1, 2))", [(2, 3, 5, 9), (2, 3, 90, 9), (1, 3, 1001, 9)]),
    "boxes": (
        "F.avg_pool3d(x.unsqueeze(1) * x.shape[2], (2, 5, 4), (1, 3, 3), (1, 2, 0), True)",
        [(2, 3, 11, 9), (40, 3, 13, 9)],
    ),
    "wide": (
        "F.avg_pool2d(x * self.p, (300, 6), (97, 3), (150, 2), count_include_pad=False)",
        [(2, 3, 299, 9), (1, 3, 400, 9)],
    ),
    "tall": ("F.max_pool2d(x * self.p, (2100, 3), (60, 1), (900, 1), (1, 2)).exp()", [(1, 3, 1700, 9)]),
    "neighbouring_channels": ("F.local_response_norm(x * self.p, 3, 0.5, 0.6, 1.5)", [(2, 3, 5, 9), (1, 3, 8, 9)]),
    "layers": (
        "F.max_pool3d(x * self.p, (3, 1, 1), 1, (1, 0, 0)) + self.p",
        [(2, 3, 5, 9), (1, 3, 8, 9)],
    ),
    "line": ("F.max_pool1d(x.flatten(2), 5000, 700, 2500)", [(1, 3, 1000, 9)]),
    "peaks_over_means": (
        "F.max_pool2d(x * self.p, 2) - F.avg_pool2d(x * self.p, 2).exp()",
        [(2, 3, 6, 9), (40, 3, 7, 9)],
    ),
    "peaks_and_means_at_edges": (
        "F.max_pool2d(x, 3, 1, 1) * F.avg_pool2d(x * self.p, 3, 1, 1, count_include_pad=False) + self.p",
        [(2, 3, 6, 9), (1, 3, 9, 9)],
    ),
    "moments": (
        "F.avg_pool2d(x * x, 7, 1, 3, False, False) - F.avg_pool2d(x * self.p, 7, 1, 3, False, False).square()",
        [(2, 3, 6, 9), (9, 3, 20, 9)],
    ),
    "peaks_and_means_of_parts": (
        "F.adaptive_max_pool2d(x, (2, 3)) - F.adaptive_avg_pool2d(x * self.p, (2, 3))",
        [(5, 3, 7, 9), (1, 3, 41, 9), (1, 3, 1801, 9), (1, 3, 4000, 9)],
    ),
    "peaks_and_means_of_tall": (
        "F.max_pool2d(x, (2100, 3), (60, 1), (900, 1)) + F.avg_pool2d(x, (2100, 3), (60, 1), (900, 1)).exp()",
        [(1, 3, 1700, 9)],
    ),
    "three": (
        "y, w = x[:, :2], ((1, 3), (1, 2))\nreturn F.max_pool2d(y, *w) / (F.max_pool2d(-y, *w) + F.avg_pool2d(y, *w))",
        [(2, 3, 5, 9)],
    ),
}
"""By name: what the forward returns, and shapes of ``x``: the first is the file's."""


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_float64(name: str, tmp_path: Path) -> None:
    body, shapes = MODELS[name]
    body = body if "return" in body else f"return {body}"
    path = write(tmp_path, body, "self.p = nn.Parameter(torch.randn(3, 1, 9))", f"torch.rand{shapes[0]}")
    compiled = compile_file(path)
    (plan,) = steps(compiled, PoolPlan)
    kernel = Kernel(compiled, plan, tmp_path)
    torch.manual_seed(0)
    parameter = torch.randn(3, 1, 9)
    known = operands_of(compiled, plan, {"p": parameter})
    for shape in shapes:
        x = torch.randn(shape) + 0.5
        x[0, 0, 1, 3], x[0, 0, -1, 0], x[-1, 2, 2, 4] = torch.nan, torch.inf, -torch.inf
        operands = [known.get(arg.name, x) for arg in plan.args]
        (y,) = kernel(operands)
        (r,) = interpret.run(kernel.body, [operand.double() for operand in operands], {})
        finite = r.isfinite()
        assert torch.equal(y.isnan(), r.isnan()), shape
        assert torch.equal(y[~finite].nan_to_num(), r[~finite].float().nan_to_num()), shape
        assert (y - r)[finite].abs().max() <= 4e-6 * r[finite].abs().max(), shape


BY_ROWS = {
    "means": ("F.avg_pool2d(x * self.p, 7, 1, 3, count_include_pad=False) * 2", 8, (4, 2, 1)),
    "peaks": ("F.max_pool2d(x, (9, 5), (2, 1), (4, 2))", 8, (4, 2, 1)),
    "spread": ("F.max_pool2d(x.abs() - self.p, 7, 1, 3, 2, True)", 8, (1,)),
    "moments": ("F.avg_pool2d(x * x, 7, 1, 3) - F.avg_pool2d(x * self.p, 7, 1, 3).square()", 8, (2, 1)),
    "three": ("F.avg_pool2d(x * x, 7, 1) - F.avg_pool2d(x, 7, 1) * F.max_pool2d(x + self.p, 7, 1)", 8, (2, 1)),
    "volumes": ("F.avg_pool3d(x.unsqueeze(1), (4, 5, 5), 1, (1, 1, 0))", 8, (1,)),
}
"""By name: what is returned, and what a plan says: results below each other, and the widths of accesses."""


@pytest.mark.parametrize("name", BY_ROWS)
def test_results_share_rows_of_wide_windows(name: str, tmp_path: Path) -> None:
    """Each row is read, and added up, once for all results of a thread whose windows have it."""
    body, results, vectors = BY_ROWS[name]
    path = write(
        tmp_path, f"return {body}", "self.p = nn.Parameter(torch.randn(4, 1, 1))", "torch.rand(64, 4, 256, 64)"
    )
    compiled = compile_file(path)
    (plan,) = steps(compiled, PoolPlan)
    assert isinstance(plan.detail, PoolPlan)
    assert (plan.detail.by_rows, plan.detail.outputs[0], plan.detail.vectors) == (True, results, vectors)
    kernel = Kernel(compiled, plan, tmp_path)
    known = operands_of(compiled, plan, {"p": torch.randn(4, 1, 1)})
    for shape in ((2, 4, 9, 8), (1, 4, 21, 12), (3, 4, 16, 10), (1, 4, 7, 7), (1, 4, 30, 9)):
        x = torch.randn(shape)
        x[0, 0, 1, 3], x[0, 0, -1, 0], x[-1, 2, 2, 4] = torch.nan, torch.inf, -torch.inf
        operands = [known.get(arg.name, x) for arg in plan.args]
        (y,) = kernel(operands)
        (r,) = interpret.run(kernel.body, [operand.double() for operand in operands], {})
        torch.testing.assert_close(y.double(), r, rtol=1e-5, atol=1e-5, equal_nan=True)


PARTS = {
    "gated": ("F.max_pool1d(F.glu(x.flatten(2), 1).sin(), 5, 3)", [(2, 6, 5, 12), (3, 6, 4, 8), (1, 6, 7, 5)]),
    "around_edges": ("F.avg_pool2d(F.glu(x, 1) - self.p, 3, 2, 1)", [(2, 6, 5, 12), (3, 6, 7, 8), (1, 6, 6, 7)]),
    "every_other_item": ("F.max_pool2d(x[:, 3:] * self.p, 2)", [(4, 6, 6, 8), (5, 6, 5, 7)]),
    "items": ("F.max_pool2d(x[1:-1, 1:4] * x[2:, :3], 2)", [(4, 6, 6, 8), (5, 6, 5, 7)]),
    "halves_of_a_size": ("F.avg_pool2d(F.glu(x, 1), 2)", [(4, 6, 6, 8), (1, 10, 5, 7)]),
    "volumes": (
        "F.max_pool3d(F.glu(x.unsqueeze(2), 1), (1, 3, 2), (1, 2, 2), (0, 1, 1))",
        [(2, 6, 5, 12), (1, 6, 5, 7)],
    ),
    "bins": ("F.adaptive_avg_pool1d(F.glu(x.flatten(2), 1), 7) + 1", [(2, 6, 7, 12), (3, 6, 70, 12), (1, 6, 5, 9)]),
    "bins_of_planes": ("F.adaptive_max_pool2d(F.glu(x, 1), (2, 3))", [(2, 6, 7, 12), (1, 6, 99, 36), (1, 6, 5, 9)]),
    "long": ("F.avg_pool2d(F.glu(x, 1), (9, 8), (9, 8))", [(2, 6, 18, 16), (1, 6, 19, 35), (200, 6, 9, 17)]),
    "longer": ("F.max_pool2d(x[:, :3] * x[:, 3:], (90, 3), (40, 1), (40, 1))", [(2, 6, 18, 16), (1, 6, 190, 7)]),
}
"""As above, of slices, whose channels and items lie apart."""


@pytest.mark.parametrize("name", PARTS)
def test_reads_parts_of_tensors_where_they_lie(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEGEN_STRICT", "1")
    body, shapes = PARTS[name]
    path = write(tmp_path, f"return {body}", "self.p = nn.Parameter(torch.rand(3, 1, 1))", f"torch.rand{shapes[0]}")
    compiled = compile_file(path)
    assert [step.kind for step in compiled.program.steps] == ["kernel"]
    played = OnTheCPU(compiled, f"generated_parts_{name}", tmp_path)
    for shape in shapes:
        played(torch.randn(shape))


LINES = {
    "peaks": (
        "F.adaptive_max_pool2d(x.tanh() - self.p, (9, 5)).exp()",
        [
            (2, 3, 150, 33),
            (1, 3, 145, 41),
            (2, 3, 151, 129),
            (1, 3, 160, 301),
            (1, 3, 7, 33),
            (2, 3, 150, 44),
            (1, 3, 171, 20),
        ],
    ),
    "volumes": (
        "F.adaptive_avg_pool3d((x * self.p).unsqueeze(1), (2, 4, 3)) * 2",
        [
            (2, 3, 35, 35),
            (4, 3, 40, 64),
            (1, 3, 31, 290),
            (1, 3, 9, 40),
            (2, 3, 68, 48),
            (2, 3, 65, 20),
            (1, 3, 70, 16),
        ],
    ),
    "peaks_and_means": (
        "F.adaptive_max_pool2d(x, (4, 3)) - F.adaptive_avg_pool2d(x * self.p, (4, 3))",
        [(2, 3, 64, 34), (1, 3, 90, 133), (1, 3, 70, 98), (2, 3, 64, 36), (2, 3, 66, 28)],
    ),
    "parts": (
        "F.adaptive_max_pool2d(F.glu(x, 1), (2, 3))",
        [(2, 6, 33, 34), (1, 6, 99, 65), (1, 6, 40, 66), (2, 6, 34, 24)],
    ),
}
"""As above, of windows of many rows that divide rows unevenly: a block computes a row of results."""


@pytest.mark.parametrize("name", LINES)
def test_windows_of_many_rows_share_what_they_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEGEN_STRICT", "1")
    body, shapes = LINES[name]
    path = write(tmp_path, f"return {body}", "self.p = nn.Parameter(torch.rand(3, 1, 1))", f"torch.rand{shapes[0]}")
    compiled = compile_file(path)
    assert [step.kind for step in compiled.program.steps] == ["kernel"]
    assert all(f"launch_lines<{width}>(args, rows, stream)" in compiled.source for width in (1, 2, 4))
    played = OnTheCPU(compiled, f"generated_lines_{name}", tmp_path)
    for shape in shapes:
        x = torch.randn(shape)
        x[0, 0, 1, 3], x[0, -1, -1, 0] = torch.nan, torch.inf
        played(x)


SPREAD = {
    "lines": ("F.adaptive_avg_pool1d(x / z - y, 10)", [3], 3, (600, 1280, 4000, 120, 605, 60)),
    "line_by_line": ("F.max_pool1d(x * y + z, 4)", [3], 3, (600,)),
    "planes": ("F.avg_pool2d(x * y + z, 3, 1, 1)", [3, 7], 3, (8, 9)),
    "parts_of_planes": ("F.adaptive_max_pool2d(x * y + z, (2, 3))", [3, 7], 3, (24, 12, 10)),
    "channels_of_one": ("F.max_pool2d(x[:, 3:] * x[:, 1:2] + y, 2)", [6, 7], 3, (8, 9)),
}
"""By name: what is returned of ``x``, ``y``, ``z``; axes between items and rows; tensors that have rows; lengths."""


@pytest.mark.parametrize("name", SPREAD)
def test_planes_share_what_they_meet(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``y`` is the same for all channels, ``z`` for all items too: rows of both are read like those of ``x``."""
    monkeypatch.setenv("FUSEGEN_STRICT", "1")
    body, between, tensors, lengths = SPREAD[name]
    shapes = [(2, *between), (2, 1, *between[1:]), tuple(between[1:])]
    inputs = ", ".join(f"torch.rand{(*shape, lengths[0])}" for shape in shapes)
    compiled = compile_file(write(tmp_path, f"return {body}", inputs=inputs, arguments="x, y, z"))
    (plan,) = steps(compiled, PoolPlan)
    assert isinstance(plan.detail, PoolPlan)
    assert len(plan.detail.data) + len(plan.detail.of_column) == tensors
    played = OnTheCPU(compiled, f"generated_spread_{name}", tmp_path)
    for length in lengths:
        played(*(torch.rand(*shape, length) + 0.5 for shape in shapes))


def test_rows_of_parts_may_begin_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one operand lie as those that are pooled, if its planes do not; those of another begin where they may."""
    monkeypatch.setenv("FUSEGEN_STRICT", "1")
    inputs = "torch.rand(2, 6, 5, 8), torch.rand(2, 3, 6, 10)"
    compiled = compile_file(
        write(tmp_path, "return F.max_pool2d(x[:, 3:] * y[:, :, 1:, 2:], 2)", inputs=inputs, arguments="x, y")
    )
    assert [step.kind for step in compiled.program.steps] == ["kernel"]
    played = OnTheCPU(compiled, "generated_parts_elsewhere", tmp_path)
    for rows, columns in ((5, 8), (4, 7), (7, 10)):
        played(torch.randn(2, 6, rows, columns), torch.randn(2, 3, rows + 1, columns + 2))


def test_windows_of_whole_accesses(tmp_path: Path) -> None:
    """Several rows of a window at a time, where all are as wide; other widths, and tensors that are not aligned."""
    compiled = compile_file(
        write(tmp_path, "return F.adaptive_avg_pool2d(x.abs(), (3, 2)) + 1", inputs="torch.rand(2, 3, 14, 24)")
    )
    (plan,) = steps(compiled, PoolPlan)
    kernel = Kernel(compiled, plan, tmp_path)
    few, more, warp = (2, 3, 13, 24), (2, 3, 20, 48), (1, 3, 40, 128)  # threads of a window
    quarter, block = (1, 3, 151, 256), (1, 2, 601, 256)
    shapes = [((40, 3, 14, 24), 0), ((40, 3, 14, 24), 1), ((40, 3, 15, 8), 0), ((40, 3, 12, 12), 0)]
    for shape, offset in [*shapes, *((shape, 0) for shape in (few, more, warp, quarter, block))]:
        x = torch.randn(math.prod(shape) + offset)[offset:].view(shape)
        (y,), (r,) = kernel([x]), interpret.run(kernel.body, [x.double()], {})
        torch.testing.assert_close(y.double(), r, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("size", "number"), [("y.shape[2] // 2", 6), ("x.shape[2] // 4", 6), ("x.shape[2] - 9", 16)])
def test_as_many_windows_as_arithmetic_on_sizes_says(size: str, number: int, tmp_path: Path) -> None:
    """Sizes of the convolution's input do not follow from those of its result, which the kernel reads."""
    body = f"y = self.c(x)\nreturn F.adaptive_avg_pool2d(y, ({size}, 3)) * 2"
    init = "self.c = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False)"
    compiled = compile_file(write(tmp_path, body, init, "torch.rand(2, 3, 12, 10)"))
    (plan,) = steps(compiled, PoolPlan)
    y = torch.randn(2, 4, 13, 5)
    (found,) = Kernel(compiled, plan, tmp_path)([y], *(dims.evaluate(g.size, {"x0_2": 25}) for g in plan.given))
    torch.testing.assert_close(found, F.adaptive_avg_pool2d(y, (number, 3)) * 2)
