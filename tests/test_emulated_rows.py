"""Kernels of rows of any length, run on the CPU thread by thread, against float64."""

from __future__ import annotations

import math
import shutil
from itertools import product
from math import prod
from pathlib import Path

import pytest
import torch

from fusegen import interpret
from fusegen.compiler import compile_file
from fusegen.plan import row_reduce
from fusegen.plan.details import PointwisePlan, RowReducePlan, RowStreamPlan
from fusegen.plan.types import KernelStep
from tests.emulated import Kernel, kernel_of, operands_of, steps
from tests.models import write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]

MODELS = {
    "a_thread_to_a_row": ("torch.prod(x * 0.5, 0) * 3", [(8, 40, 29, 4), (8, 41, 9, 3), (3, 40, 29, 4), (8, 2, 3, 4)]),
    "logsumexp": ("torch.logsumexp(x - 0.25, 2) / 3", [(11, 20, 7, 20), (9, 5, 21, 26), (2, 3, 150, 24)]),
    "statistics": ("(x - x.mean(2, True)) / x.var(2, keepdim=True).add(1e-5).sqrt()", [(11, 20, 7, 20), (3, 4, 6, 9)]),
    "whole_planes": ("x.flatten(2).softmax(-1).view_as(x) * x", [(2, 2, 96, 96), (1, 2, 100, 93), (40, 10, 3, 5)]),
    "one_channel": ("F.batch_norm(x, None, None, training=True)", [(8, 1, 7, 139), (3, 1, 5, 20)]),
    "odd_runs": (
        "(lambda z: z - z.pow(3).mean((1, 3), True))"
        "((x - x.mean((1, 3), True)) / (x.var((1, 3), keepdim=True) + 1).sqrt())",
        [(3, 20, 15, 37), (1, 5, 3, 7), (9, 60, 3, 65), (2, 300, 2, 37), (40, 9, 16, 5), (3, 20, 15, 36)],
    ),
    "norm": ("F.instance_norm(x)", [(2, 2, 90, 52), (1, 3, 71, 73), (30, 20, 6, 6)]),
    "maxima_of_short_rows": ("x.amax(-1).tanh()", [(20, 20, 4, 14), (20, 20, 4, 16), (40, 20, 4, 35)]),
    "norms_of_small_planes": ("F.instance_norm(x)", [(40, 20, 7, 7), (40, 20, 8, 8), (20, 30, 5, 9), (60, 20, 9, 9)]),
    "several_rows_of_pairs": ("x.relu().sum(-1)", [(20, 20, 4, 62), (20, 20, 4, 46), (40, 20, 4, 33), (20, 10, 4, 20)]),
    "a_warp_to_a_row": ("torch.logsumexp(x - 0.25, -1) / 3", [(20, 10, 4, 196), (20, 10, 4, 180), (20, 10, 4, 90)]),
    "warps_to_a_row": ("x.flatten(2).softmax(-1).view_as(x) * x", [(40, 15, 24, 36), (40, 15, 20, 30), (40, 15, 3, 5)]),
    "truth_values": (
        "torch.where((x > 2).any(-1, keepdim=True), torch.nanmean(x, -1, keepdim=True), (x < 1.5).all(-1, True) * x)",
        [(20, 10, 4, 196), (20, 10, 4, 30), (3, 2, 4, 5)],
    ),
    "odd_planes": ("F.instance_norm(x)", [(40, 15, 25, 29), (40, 15, 24, 28), (20, 10, 9, 9)]),
}
"""By name: what the forward returns, and shapes of ``x``: the first is the file's."""


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_float64(name: str, tmp_path: Path) -> None:
    body, shapes = MODELS[name]
    kernel = kernel_of(body, f"torch.rand{shapes[0]}", RowStreamPlan, tmp_path)
    for shape, special in product(shapes, (0.0, torch.inf)):
        x = torch.randn(shape) + 0.5
        x[0, 0, 0, 0] = special
        (y,), (r,) = kernel([x]), interpret.run(kernel.body, [x.double()], {})
        finite = r.isfinite()
        assert torch.equal(y.isnan(), r.isnan()), shape
        assert torch.equal(y[~finite].nan_to_num(), r[~finite].float().nan_to_num()), shape
        assert torch.allclose(
            y[finite].double(), r[finite], rtol=0, atol=4e-6 * float(r.nan_to_num(0, 0, 0).abs().max())
        ), shape


WRITTEN_SUMS = {
    "log_sum": "p = x.amax(-1, keepdim=True)\nreturn (p + (x - p).exp().sum(-1, keepdim=True).log()).squeeze(-1)",
    "beside_a_softmax": "p = x.amax(-1, keepdim=True)\nreturn (x - p).exp().sum(-1, True) * torch.softmax(x, -1)",
    "softmax": "e = (x - x.amax(-1, keepdim=True)).exp()\nreturn e / e.sum(-1, keepdim=True)",
    "maximum_last": "p = x.amax(-1, keepdim=True)\nreturn torch.logsumexp(x, -1) + (x - p).exp().sum(-1) * x.amax(-1)",
}


@pytest.mark.parametrize("name", WRITTEN_SUMS)
def test_a_maximum_and_the_sum_of_what_it_leaves_take_one_sweep(name: str, tmp_path: Path) -> None:
    """Also of rows of nothing but -inf, of which such a sum is no number."""
    compiled = compile_file(write(tmp_path, WRITTEN_SUMS[name], "", "torch.rand(3, 5, 40000)"))
    (plan,) = steps(compiled, RowStreamPlan)
    assert isinstance(plan.detail, RowStreamPlan)
    assert [[r.fn for r in phase.reductions] for phase in plan.detail.rows.phases if phase.reductions] == [
        ["exponentials"]
    ]
    kernel = Kernel(compiled, plan, tmp_path)
    for shape in ((3, 5, 40000), (1, 2, 40000), (9, 11, 40000)):
        x = torch.randn(shape) * 3
        x[0, 0, :2], x[0, 1] = -torch.inf, -torch.inf
        (y,), (r,) = kernel([x]), interpret.run(kernel.body, [x.double()], {})
        assert torch.equal(y.isnan(), r.isnan()), shape
        assert torch.allclose(y.double(), r, rtol=2e-6, atol=1e-6, equal_nan=True), shape


@pytest.mark.parametrize(("length", "template"), [(16_384, "row_stream"), (12_288, "row_reduce")])
def test_long_rows_of_exponentials_are_read_in_one_sweep(length: int, template: str, tmp_path: Path) -> None:
    compiled = compile_file(write(tmp_path, "return torch.logsumexp(x, 1)", "", f"torch.rand(64, {length})"))
    (step,) = compiled.program.steps
    assert isinstance(step, KernelStep)
    assert step.plan.detail.template == template


WEIGHTED = {
    "strided": ("(x.softmax(1) * x.abs()).sum(1), x.argmax(1)", [(3, 200, 5, 8), (2, 200, 3, 3), (1, 200, 2, 2)]),
    "twice": (
        "((p := (2 * x).softmax(-1)) * x).sum(-1, True) + (x * x * p).sum(-1, True)",
        [(3, 5, 1, 40_000), (1, 2, 1, 40_000), (9, 11, 1, 40_000)],
    ),
    "held": ("(x.softmax(-1) * x.abs()).sum(-1), x.argmax(-1)", [(20, 40, 3, 62), (20, 41, 3, 62), (1, 2, 1, 62)]),
    "planes": ("(x.flatten(2).softmax(-1) * x.flatten(2).abs()).sum(-1)", [(2, 2, 196, 196), (1, 3, 200, 193)]),
}
"""By name: what the forward returns, and shapes of ``x``: the first is the file's."""


@pytest.mark.parametrize("name", WEIGHTED)
def test_softmaxes_that_are_weighed_and_added_up_take_one_sweep(name: str, tmp_path: Path) -> None:
    body, shapes = WEIGHTED[name]
    compiled = compile_file(write(tmp_path, f"return {body}", "", f"torch.rand{shapes[0]}"))
    (plan,) = steps(compiled, RowStreamPlan)
    assert isinstance(plan.detail, RowStreamPlan)
    assert sum(bool(phase.reductions) for phase in plan.detail.rows.phases) == 1
    kernel = Kernel(compiled, plan, tmp_path)
    for shape, special in product(shapes, (0.0, torch.inf, -torch.inf)):
        x = torch.randn(shape) + 0.5
        x[0, 0, 0, 0] = special
        if special == -torch.inf:
            x[0] = special
        for y, r in zip(kernel([x]), interpret.run(kernel.body, [x.double()], {}), strict=True):
            assert torch.equal(y.isnan(), r.isnan()), shape
            assert torch.allclose(y.double(), r.double(), rtol=4e-6, atol=4e-6, equal_nan=True), shape


@pytest.mark.parametrize(
    "body",
    [
        "(p := x.softmax(-1)), (p * x.abs()).sum(-1)",
        "(x.softmax(-1) * x.softmax(-1).square()).sum(-1)",
        "(x.softmax(-1) * (x - x.mean(-1, True))).sum(-1)",
        "(x.softmax(-1) * x.abs()).amax(-1)",
        "(x.log_softmax(-1) * x.abs()).sum(-1)",
    ],
)
def test_softmaxes_that_are_read_otherwise_take_two(body: str, tmp_path: Path) -> None:
    (plan,) = steps(compile_file(write(tmp_path, f"return {body}", "", "torch.rand(3, 5, 40000)")), RowStreamPlan)
    assert isinstance(plan.detail, RowStreamPlan)
    assert sum(bool(phase.reductions) for phase in plan.detail.rows.phases) == 2


def test_a_place_along_a_row_joins_arithmetic(tmp_path: Path) -> None:
    compiled = compile_file(write(tmp_path, "return x.abs().sum(1) + x.argmax(1)", "", "torch.rand(3, 20, 5, 8)"))
    (plan,) = steps(compiled, RowStreamPlan)
    x = torch.randn(3, 20, 5, 8)
    (y,) = Kernel(compiled, plan, tmp_path)([x])
    assert torch.equal(y, x.argmax(1).float())


@pytest.mark.parametrize("channels", [12, 20, 100])
def test_strided_rows_are_stored_as_rows(channels: int, tmp_path: Path) -> None:
    """A norm over channels whose result has them last, in whole accesses and where rows begin between two."""
    body = f"return F.layer_norm(x.permute(0, 2, 3, 1), ({channels},)) * 2"
    compiled = compile_file(write(tmp_path, body, "", f"torch.rand(3, {channels}, 6, 5)"))
    (plan,) = steps(compiled, RowReducePlan)
    assert isinstance(plan.detail, RowReducePlan)
    assert plan.detail.turned
    kernel = Kernel(compiled, plan, tmp_path)
    for shape in [(3, channels, 6, 5), (2, channels, 8, 4), (1, channels, 1, 1), (1, channels, 31, 12)]:
        x = torch.randn(shape)
        (y,), (r,) = kernel([x]), interpret.run(kernel.body, [x.double()], {})
        assert torch.allclose(y.double(), r, rtol=0, atol=1e-5), shape


BESIDE = {
    "data": ("(x * F.silu(y)).softmax(1)", (20, 6, 10), 1),
    "parameter": ("(x + self.q).softmax(1).sum(1)", None, 1),
    "part": ("(x + y[:, 20:40]).softmax(1) * y[:, :20]", (40, 6, 10), 2),
    "other_columns": ("(x + y).softmax(1)", (20, 6, 1), 0),
}
"""By name: what the forward returns, the shape of ``y`` behind its samples, and how many operands are read so."""


@pytest.mark.parametrize("name", BESIDE)
def test_strided_rows_of_several_tensors(name: str, tmp_path: Path) -> None:
    """Whole accesses read what has the columns of the rows, wherever their number allows."""
    body, own, vectors = BESIDE[name]
    init = "self.q = nn.Parameter(torch.randn(20, 1, 1) + torch.randn(20, 6, 10))"
    arguments = "x" if own is None else "x, y"
    inputs = "torch.rand(300, 20, 6, 10)" + ("" if own is None else f", torch.rand{(300, *own)}")
    compiled = compile_file(write(tmp_path, f"return {body}", init, inputs, arguments))
    (plan,) = steps(compiled, RowReducePlan)
    assert isinstance(plan.detail, RowReducePlan)
    assert len(plan.detail.vectors) == vectors
    kernel = Kernel(compiled, plan, tmp_path)
    q = torch.randn(20, 6, 10)
    for samples, width in ((300, 10), (2, 10), (3, 9), (1, 1)):
        if own is None and width != 10:
            continue
        x = torch.randn(samples, 20, 6, width)
        y = torch.randn(samples, *(own or (1, 1, 1)))[..., :width]
        operands = [{"x": x, "y": y}.get(arg.node, q).contiguous() for arg in plan.args]
        (z,), (r,) = kernel(operands), interpret.run(kernel.body, [v.double() for v in operands], {})
        assert torch.allclose(z.double(), r, rtol=0, atol=1e-6), (samples, width)


CROPPED = {
    "data": "torch.logsumexp((x[:, :, 3:-2, 1:-4] + self.q).clamp(-0.5, 2), 1, True)",
    "beside": "(x[:, :, :-1, 5:] * 2 + y).softmax(1)",
    "flags": "torch.where(x[:, :, 1:, 2:-3], y, 0).logsumexp(1)",
}


@pytest.mark.parametrize("name", CROPPED)
def test_strided_rows_of_what_is_cut(name: str, tmp_path: Path) -> None:
    """Where they lie is found once, not for every element."""
    init, flags = "self.q = nn.Parameter(torch.randn(20, 1, 1))", name == "flags"
    several = "y" in CROPPED[name]
    inputs = f"torch.rand(300, 20, 8, 13){' > 0.5' if flags else ''}{', torch.rand(300, 20, 7, 8)' if several else ''}"
    compiled = compile_file(write(tmp_path, f"return {CROPPED[name]}", init, inputs, "x, y" if several else "x"))
    (plan,) = steps(compiled, RowReducePlan)
    assert isinstance(plan.detail, RowReducePlan)
    nodes = {arg.name: arg.node for arg in plan.args}
    assert [nodes[own.arg] for own in plan.detail.rows.operands if own.per_element and own.divides] == ["x"]
    kernel = Kernel(compiled, plan, tmp_path)
    q = torch.randn(20, 1, 1)
    for samples, height, width in ((300, 8, 13), (3, 7, 20), (1, 6, 6)):
        x, y = torch.randn(samples, 20, height, width), torch.randn(samples, 20, height - 1, width - 5)
        given = {"x": x > 0 if flags else x, "y": y}
        operands = [given.get(arg.node, q) for arg in plan.args]
        doubles = [v if v.dtype is torch.bool else v.double() for v in operands]
        (z,), (r,) = kernel(operands), interpret.run(kernel.body, doubles, {})
        assert torch.allclose(z.double(), r, rtol=0, atol=2e-6), (samples, height, width)


def test_angles_of_any_size(tmp_path: Path) -> None:
    """Sines and cosines of small, large and huge angles, to two units in the last place, and of no number."""
    compiled = compile_file(write(tmp_path, "return x.sin(), x.cos()", "", "torch.rand(64, 1000)"))
    (plan,) = steps(compiled, PointwisePlan)
    kernel = Kernel(compiled, plan, tmp_path)
    for size in (1e-30, 1.0, 1e3, 105_000.0, 106_000.0, 1e9, 1e38):
        x = torch.randn(64, 1000).clamp(-3, 3) * size
        x[0, :4] = torch.tensor([0.0, torch.inf, -torch.inf, torch.nan])
        x[1, :4] = torch.tensor([torch.pi, torch.pi / 2, 105_615.0, -0.0])
        for y, r in zip(kernel([x]), (x.double().sin(), x.double().cos()), strict=True):
            assert torch.equal(y.isnan(), r.isnan())
            assert (y - r).nan_to_num().abs().le(2.0 * torch.finfo().eps * r.abs().nan_to_num() + 1e-38).all(), size
    sine, _ = kernel([torch.full((1, 1000), -0.0)])
    assert sine.signbit().all()


def test_text_of_costly_elements_is_bounded(tmp_path: Path) -> None:
    """Sines of 64 strided elements are shared by several threads, whose text is written out for each element."""
    parts = []
    for fn in ("abs", "sin"):
        body = f"y = x.{fn}()\nreturn y / (y * y).mean(1, keepdim=True).sqrt()"
        (plan,) = steps(compile_file(write(tmp_path, body, "", "torch.rand(16, 64, 7500)")), RowReducePlan)
        assert isinstance(plan.detail, RowReducePlan)
        parts.append(plan.detail.parts)
    assert parts == [(1, 8), (2, 8)]


def test_operands_of_a_quotient_that_changes_within_an_access(tmp_path: Path) -> None:
    """Those of the channels of a group, whose planes begin and end anywhere in an access, or several times in one."""
    init = "self.n = nn.GroupNorm(3, 24)\nnn.init.normal_(self.n.weight)\nnn.init.normal_(self.n.bias)"
    compiled = compile_file(write(tmp_path, "return F.silu(self.n(x))", init, "torch.rand(4, 24, 25, 29)"))
    (plan,) = steps(compiled, RowStreamPlan)
    kernel = Kernel(compiled, plan, tmp_path)
    torch.manual_seed(0)
    known = operands_of(compiled, plan, {"n.weight": torch.randn(24), "n.bias": torch.randn(24)})
    for size in [(25, 29), (25, 28), (5, 1), (1, 3), (2, 1), (1, 1), (60, 61)]:
        for samples in (4, 150):
            x = torch.randn(samples if size != (60, 61) else 2, 24, *size) + 0.5
            operands = [known.get(arg.name, x) for arg in plan.args]
            (y,), (r,) = kernel(operands), interpret.run(kernel.body, [operand.double() for operand in operands], {})
            torch.testing.assert_close(y.double(), r, rtol=1e-5, atol=2e-5)


PLACES = {
    "last": ("(x * 2).argmax(-1)", [(20, 10, 4, 62), (20, 10, 3, 46), (40, 10, 4, 700), (3, 10, 4, 5)]),
    "strided": ("x.abs().argmin(1)", [(8, 40, 29, 4), (3, 77, 5, 3), (2, 1200, 3, 5)]),
    "strided_of_four": ("x.argmax(0, keepdim=True)", [(9, 20, 7, 20), (70, 4, 4, 12)]),
    "planes": ("x.flatten(2).argmax(-1)", [(2, 2, 96, 96), (1, 2, 100, 93), (40, 10, 3, 5)]),
    "runs": ("x.transpose(0, 1).flatten(1).argmax(1)", [(8, 3, 7, 139), (3, 5, 5, 20), (2, 3, 1, 3)]),
    "held": ("x.argmax(-1)", [(20, 40, 3, 62), (20, 40, 3, 63), (20, 40, 3, 40), (900, 1, 1, 7)]),
    "held_by_a_warp": ("x.abs().argmin(-1)", [(20, 10, 4, 196), (20, 10, 4, 180)]),
    "held_by_warps": ("x.flatten(2).softmax(-1).argmax(-1)", [(40, 15, 24, 36), (40, 15, 20, 30), (40, 15, 3, 5)]),
    "all": ("x.sin().argmin()", [(2, 3, 40, 29), (1, 1, 7, 5)]),
}


@pytest.mark.parametrize("name", PLACES)
def test_finds_the_first_extreme(name: str, tmp_path: Path) -> None:
    """Of equal elements, which there are many of, the first; of all NaN the first."""
    body, shapes = PLACES[name]
    kernel = kernel_of(body, f"torch.rand{shapes[0]}", RowStreamPlan, tmp_path)
    torch.manual_seed(0)
    for shape, special in product(shapes, (0.0, torch.inf, -torch.inf, torch.nan)):
        x = torch.randint(-3, 4, shape) / 2
        x[torch.rand(shape) < 0.01] = special
        (y,), (r,) = kernel([x]), interpret.run(kernel.body, [x], {})
        assert torch.equal(y, r), (shape, special)


NORMS = {
    "stream": ("F.instance_norm(x)", lambda n: (2, 1, n)),
    "stream_held": ("F.instance_norm(x)", lambda n: (600, 1, n)),
    "stream_of_runs": ("F.batch_norm(x, None, None, training=True)", lambda n: (2, 3, n)),
    "stream_strided": ("F.batch_norm(x.flatten(1), None, None, training=True)", lambda n: (n, 1, 4)),
    "double": ("F.layer_norm(x, ({},))", lambda n: (2, 3, n)),
    "double_strided": ("(x - x.mean(1, True)) / (x.var(1, keepdim=True) + 0.1)", lambda n: (2, n, 5)),
}
"""What the forward returns, and the shape of data for about ``n`` elements to a row."""


@pytest.mark.parametrize("name", NORMS)
def test_equal_elements_are_their_mean(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamed, or as statistics of statistics: a norm makes exactly zero of them, as in eager."""
    monkeypatch.setattr(row_reduce, "_in_double", lambda _: True)
    body, shape_of = NORMS[name]
    for n in (7, 96, 1000):
        shape = shape_of(n)
        folder = tmp_path / str(n)
        folder.mkdir()
        compiled = compile_file(write(folder, f"return {body.format(n)}", inputs=f"torch.rand{shape}"))
        (plan,) = steps(compiled, (RowStreamPlan, RowReducePlan))
        assert isinstance(plan.detail, RowStreamPlan) == name.startswith("stream")
        kernel = Kernel(compiled, plan, folder)
        for value in (0.1, 1e15, -1e-20):
            (y,) = kernel([torch.full(shape, value)])
            assert torch.equal(y, torch.zeros_like(y)), (n, value)


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_scales_of_channels_and_other_alignments(offset: int, tmp_path: Path) -> None:
    path = write(tmp_path, "return F.silu(self.n(x)) + x", "self.n = nn.GroupNorm(2, 4)", "torch.rand(260, 4, 5, 8)")
    compiled = compile_file(path)
    (plan,) = steps(compiled, RowStreamPlan)
    assert isinstance(plan.detail, RowStreamPlan)
    assert plan.detail.held
    kernel = Kernel(compiled, plan, tmp_path)
    known = operands_of(compiled, plan, {"n.weight": torch.randn(4), "n.bias": torch.randn(4)})
    for shape in [(260, 4, 5, 8), (270, 4, 7, 5), (3, 4, 5, 8)]:
        x = torch.randn(prod(shape) + offset)[offset:].view(shape)
        operands = [known.get(arg.name, x) for arg in plan.args]
        (y,), (r,) = kernel(operands), interpret.run(kernel.body, [operand.double() for operand in operands], {})
        torch.testing.assert_close(y.double(), r, rtol=1e-5, atol=1e-5)


FEW = {
    "pairs": "(x.abs() + self.q).unflatten(-1, (4, 2)).amax(-1).sigmoid()",
    "elements": "F.normalize(x.mul(self.q).unflatten(-1, (2, 4)), dim=-1)",
    "sums": "x.unflatten(-1, (4, 2)).sum(-1).mul(self.q)",
    "less_their_mean": "(lambda z: z - z.mean(-1, True))(x.unflatten(-1, (2, 4)))",
}


@pytest.mark.parametrize("name", FEW)
def test_rows_of_few_elements_lie_together(name: str, tmp_path: Path) -> None:
    """A thread has several of them; where their number leaves some over, or they begin elsewhere, one."""
    body, init = FEW[name], "self.q = nn.Parameter(torch.randn(6, 1, 1))"
    compiled = compile_file(write(tmp_path, f"return {body}", init, "torch.rand(300, 6, 10, 8)"))
    plans = [step.plan for step in compiled.program.steps if isinstance(step, KernelStep)]
    (plan,) = (p for p in plans if isinstance(p.detail, RowReducePlan) and p.detail.together)
    kernel = Kernel(compiled, plan, tmp_path)
    for samples, offset in ((300, 0), (7, 0), (3, 1)):
        given = []
        for arg in plan.args:
            shape = [samples if size == 300 else size for size in map(int, kernel.body.shape(arg.node))]
            given.append((torch.randn(math.prod(shape) + offset)[offset:] + 0.5).view(shape))
        found, exact = kernel(given), interpret.run(kernel.body, [v.double() for v in given], {})
        for y, r in zip(found, exact, strict=True):
            torch.testing.assert_close(y.double(), r, rtol=1e-5, atol=1e-5)


def test_an_operand_along_strided_rows(tmp_path: Path) -> None:
    """Few short rows, many of them, and longer ones: each with an instantiation of its own."""
    inputs = "torch.rand(5, 8), torch.rand(5, 1)"
    compiled = compile_file(write(tmp_path, "return (x / (a.abs() + 1)).sum(0)", inputs=inputs, arguments="x, a"))
    (plan,) = steps(compiled, RowStreamPlan)
    kernel = Kernel(compiled, plan, tmp_path)
    for sizes in [(5, 8), (3, 1), (128, 30), (37, 2111), (300, 40), (6000, 4)]:
        given = {"x": torch.randn(sizes), "a": torch.randn(sizes[0], 1)}
        operands = [given[arg.node] for arg in plan.args]
        (y,), (r,) = kernel(operands), interpret.run(kernel.body, [operand.double() for operand in operands], {})
        torch.testing.assert_close(y.double(), r, rtol=1e-5, atol=1e-4)


def test_sums_of_few_elements_are_rounded_once(tmp_path: Path) -> None:
    """What is left of one is small; at run time there may be many, in several blocks."""
    compiled = compile_file(
        write(
            tmp_path,
            "return ((x - 0.75) * a).mean((0, 1)) / 3",
            inputs="torch.rand(5, 1), torch.rand(5, 9)",
            arguments="a, x",
        )
    )
    (plan,) = steps(compiled, RowStreamPlan)
    assert isinstance(plan.detail, RowStreamPlan)
    assert plan.detail.double
    kernel = Kernel(compiled, plan, tmp_path)
    for rows in (1, 5, 40, 3000, 20000):
        x, a = torch.rand(rows, 9) + 0.25, torch.randn(rows, 1)
        operands = [{"x": x, "a": a}[arg.node] for arg in plan.args]
        (y,), (r,) = kernel(operands), interpret.run(kernel.body, [operand.double() for operand in operands], {})
        assert torch.allclose(y.double(), r, rtol=1e-7, atol=0), rows


FLAGGED = {
    "causal": ("torch.softmax(x.masked_fill(flags, -1e4), -1)", (1, 1, 7, 20)),
    "padding": ("torch.softmax(torch.where(flags, x, -9.0), -1)", (6, 1, 1, 20)),
    "of_every_element": ("(torch.where(flags, x, 2 * x) * x).mean((2, 3), keepdim=True) + x", (6, 12, 7, 20)),
    "of_a_row": ("torch.where(flags, x.amax((2, 3), keepdim=True) - x, x)", (6, 12, 1, 1)),
    "along_strided_rows": ("(x * flags).logsumexp(1, keepdim=True) - x", (1, 12, 1, 1)),
    "of_every_row": ("(x * flags).sum(0)", (6, 12, 7, 20)),
    "of_long_rows": ("(x * ~flags).flatten(1).softmax(-1)", (6, 1, 7, 20)),
}
"""By name: what the forward returns, and the shape of its truth values."""


@pytest.mark.parametrize("name", FLAGGED)
def test_truth_values_beside_the_data(name: str, tmp_path: Path) -> None:
    body, shape = FLAGGED[name]
    sizes = (6, 12, 7, 20)
    inputs = f"torch.rand{sizes}, torch.rand{shape} > 0.5"
    compiled = compile_file(write(tmp_path, f"return {body}", inputs=inputs, arguments="x, flags"))
    (plan,) = steps(compiled, (RowStreamPlan, RowReducePlan))
    kernel = Kernel(compiled, plan, tmp_path)
    torch.manual_seed(1)
    given = {"x": torch.randn(sizes), "flags": torch.rand(shape) > 0.5}
    operands = [given[arg.node] for arg in plan.args]
    (y,), (r,) = (
        kernel(operands),
        interpret.run(kernel.body, [t.double() if t.is_floating_point() else t for t in operands], {}),
    )
    torch.testing.assert_close(y.double(), r.double(), rtol=1e-5, atol=1e-5)
