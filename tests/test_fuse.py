"""Fusion and planning: what shares a kernel, what does not and why, and how sizes reach a kernel."""

from __future__ import annotations

import re
import shutil
from itertools import product
from pathlib import Path

import pytest
import torch

from fusegen import dims
from fusegen.compiler import compile_file, optimise
from fusegen.errors import MismatchError, TargetError
from fusegen.ir import DType, PointwiseOp, RegionOp, SoftmaxOp, TensorType
from fusegen.plan import row_reduce, sharing, stream
from fusegen.plan.details import ContractionPlan, DirectConvPlan, GemmPlan, PoolPlan, RowReducePlan, RowStreamPlan
from fusegen.plan.rowprogram import TensorArg
from fusegen.plan.sizes import Sizes, UnboundSize
from fusegen.plan.types import EagerStep, KernelStep, Program
from fusegen.proof import prove
from tests.emulated.programs import OnTheCPU
from tests.models import traced, write


def program(
    tmp_path: Path,
    body: str,
    init: str = "pass",
    inputs: str = "torch.rand(4, 8, 6, 5)",
    arguments: str = "x",
) -> Program:
    graph = traced(write(tmp_path, body, init, inputs, arguments)).graph
    result, _ = optimise(graph, "sm_90", False, lambda stage: None)
    return result


def templates(found: Program) -> list[str]:
    return [step.plan.detail.template if isinstance(step, KernelStep) else "torch" for step in found.steps]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return torch.softmax(x, 1) * 2", ["row_reduce"]),
        ("return (x - x.mean(1, keepdim=True)) / (x.square().sum(1, keepdim=True) + 1).sqrt()", ["row_reduce"]),
        ("return torch.logsumexp(x, 1).tanh()", ["row_reduce"]),
        ("return x.exp() + x.flip(1)", ["pointwise"]),
        ("return x.diff(dim=2).abs().sum(2)", ["reduce_views"]),  # no copies of the parts
        ("return x.relu() * 2 + 1", ["pointwise"]),
        ("y = x.exp()\nreturn y, y.sum(1)", ["row_reduce"]),  # two results of one kernel
        ("return x.max(1)[0].softmax(2)", ["row_reduce", "row_reduce"]),  # rows along two different axes
        ("return x.flatten(1)", ["torch"]),
        ("y = x.flatten(1).softmax(1)\nreturn y[:, :, None] - y[:, None]", ["row_stream", "pointwise"]),
        ("y = x.flatten(1).cumsum(1)\nreturn (y[:, :, None] - y[:, None]).exp()", ["scan", "pointwise"]),
        ("return ((x * 2).cumsum(1) + x.flip(1).cumsum(1).flip(1)).tanh()", ["scan"]),
        ("y = x.cumsum(1)\nreturn y, y * 2 - x.cumprod(1)", ["scan"]),
        ("return x.cumsum(1).cumsum(1)", ["scan", "scan"]),  # the second needs a whole first
        ("return x.cumsum(1) + x.cumsum(2)", ["scan", "scan"]),
        ("return x.cumsum(1).softmax(1)", ["scan", "row_reduce"]),
        ("return x.permute(0, 2, 3, 1).flatten(1).cumsum(1) + 1", ["pointwise", "scan"]),  # in the order of a copy
        ("return x[:, :, 1:].permute(0, 2, 3, 1).flatten(1).cumsum(1) + 1", ["pointwise", "scan"]),  # and of a part
        ("return (x > 0.5).cumsum(1)", ["pointwise", "torch"]),  # integers
        ("return x.double().cumsum(1), x.half().cumsum(1)", ["torch"] * 4),
    ],
)
def test_what_shares_a_kernel(body: str, expected: list[str], tmp_path: Path) -> None:
    assert templates(program(tmp_path, body)) == expected


@pytest.mark.parametrize(("rows", "kernel"), [(64, "gemm_simt"), (8192, "contraction")])
@pytest.mark.parametrize(("by_rows", "after"), [(True, "pointwise"), (False, "torch")])
def test_a_product_stores_in_its_own_order(rows: int, kernel: str, by_rows: bool, after: str, tmp_path: Path) -> None:
    """Results stored one by one where a permutation puts them take longer than a kernel behind it; a view is free."""
    inputs = f"torch.rand({rows}, 64), torch.rand(1, {rows})"
    body = f"return self.m(x).square().T{'.contiguous()' if by_rows else ''} - y"
    path = write(tmp_path, body, "self.m = nn.Linear(64, 192)", inputs, "x, y")
    assert templates(compile_file(path).program) == [kernel, after]


@pytest.mark.parametrize(
    ("init", "body"),
    [
        ("pass", "return torch.softmax(x.masked_fill(flags, -1e4), 1)"),
        ("pass", "return (x * flags).sum((0, 2, 3))"),
        ("pass", "return torch.max_pool2d(x * flags, 2)"),
        ("pass", "return torch.max_pool2d(x * flags, 2).sum(1)"),
        ("pass", "return (torch.max_pool2d(x, 2) * flags[:, :, :12]).amax(1)"),
        ("self.conv = nn.Conv2d(8, 8, 1)", "return self.conv(x).masked_fill(flags, 0.5).relu()"),
        ("self.conv = nn.Conv2d(8, 8, 3, padding=1, groups=8)", "return self.conv(x).masked_fill(flags, 0.5).relu()"),
        ("self.conv = nn.Conv2d(8, 64, 1)", "return (self.conv(x) * flags).mean((2, 3))"),
        ("self.linear = nn.Linear(32, 48)", "return torch.where(flags, self.linear(x), 1.0).relu()"),
    ],
)
def test_kernels_read_what_they_have_types_for(init: str, body: str, tmp_path: Path) -> None:
    inputs = "torch.rand(16, 8, 24, 32), torch.rand(16, 1, 24, 1) > 0.5"
    found = program(tmp_path, body, init, inputs, "x, flags")
    for plan in found.kernels:
        flags = {arg.name for arg in plan.args if arg.type.dtype is not DType.FLOAT32}
        assert plan.detail.template in ("pointwise", "reduce_views", "row_reduce", "row_stream") or not flags, (
            plan.computes
        )
    assert any(arg.type.dtype is DType.BOOL for plan in found.kernels for arg in plan.args)


def test_a_value_that_is_read_outside_stays_outside(tmp_path: Path) -> None:
    found = program(tmp_path, "y = x.exp()\nreturn y.sum(1), y.flip(1)")
    assert templates(found) == ["row_reduce", "torch"]
    step = found.steps[0]
    assert isinstance(step, KernelStep)
    assert step.outputs == ("exp", "sum_1")


def test_a_kernel_does_not_read_what_follows_from_its_own_results(tmp_path: Path) -> None:
    found = program(tmp_path, "y = x.exp()\nreturn y.sum(1, keepdim=True) * y.sort(1)[0]")
    assert templates(found) == ["pointwise", "torch", "torch", "row_reduce"]


def test_rows_too_long_for_registers_are_streamed(tmp_path: Path) -> None:
    found = program(tmp_path, "return x.softmax(1)", inputs="torch.rand(2, 5000, 3)")
    assert templates(found) == ["row_stream"]


@pytest.mark.parametrize(
    ("body", "init", "expected"),
    [
        ("return F.relu(self.n(x * 2)) + 1", "self.n = nn.GroupNorm(2, 8)", ["row_stream"]),
        ("y = x.relu()\nreturn self.n(y) + y", "self.n = nn.InstanceNorm2d(8)", ["row_stream"]),
        # running statistics and the count of batches are updated by the kernel
        ("return self.n(x.tanh()).relu()", "self.n = nn.BatchNorm2d(8)", ["row_stream"]),
        # the count of values comes from the halved sizes, which is all that the kernel sees
        ("return self.n(F.max_pool2d(x, 2)).relu()", "self.n = nn.BatchNorm2d(8)", ["pool", "row_stream"]),
        # statistics over other axes than the mean after it: two kernels read x, none writes the norm's result
        ("return self.n(x.tanh()).relu().mean((2, 3))", "self.n = nn.BatchNorm2d(8)", ["row_stream"] * 2),
        ("return self.n(x.relu()).sigmoid().mean((2, 3))", "self.n = nn.GroupNorm(2, 8)", ["row_stream"] * 2),
        ("return x.flatten(2).softmax(-1).view_as(x) * x", "pass", ["row_stream"]),
        ("return F.normalize(x.flatten(1), dim=1)", "pass", ["row_stream"]),
        ("return self.n(x.flatten(2).mean(2)).relu()", "self.n = nn.GroupNorm(2, 8)", ["row_stream", "row_reduce"]),
        # sums over parts of a row read it once; a small part is better read alone
        (
            "return x[:, 1:].sum(1) + x[:, :-1].sum(1) * x[:, 1::3].relu().sum(1)",
            "pass",
            ["row_stream", "reduce_views"],
        ),
        ("y = x[:, :2]\nreturn y.sum(1)", "pass", ["reduce_views"]),
    ],
)
def test_norms_and_what_is_around_them_share_kernels(body: str, init: str, expected: list[str], tmp_path: Path) -> None:
    assert templates(program(tmp_path, body, init)) == expected


def streamed(found: Program, index: int = -1) -> RowStreamPlan:
    step = found.steps[index]
    assert isinstance(step, KernelStep)
    assert isinstance(step.plan.detail, RowStreamPlan)
    return step.plan.detail


def test_a_row_of_a_group_norm_holds_its_channels(tmp_path: Path) -> None:
    """Scale and shift are read by channel: the position along the row over a plane, a quotient that is named."""
    detail = streamed(program(tmp_path, "return self.n(x).relu()", "self.n = nn.GroupNorm(2, 8)"))
    assert (detail.outer, detail.before, detail.middle, detail.run) == ("2*batch", 1, 1, "4*height*width")
    assert not detail.strided
    assert [divider.divisor for divider in detail.rows.dividers] == ["height*width"]
    scale = [operand.index for operand in detail.rows.operands if operand.arg.startswith("p")]
    assert scale == ["(outer % 2) * 4 + (q0)"] * 2
    assert [reduction.fn for phase in detail.rows.phases for reduction in phase.reductions] == ["var"]
    assert len(detail.kept) == 1  # read for the statistics, and for the result


def test_a_row_of_a_batch_norm_is_split_around_the_channels(tmp_path: Path) -> None:
    detail = streamed(program(tmp_path, "return self.n(x).relu()", "self.n = nn.BatchNorm2d(8)"))
    assert (detail.outer, detail.before, detail.middle, detail.run) == (1, "batch", 8, "height*width")
    assert {store.per_element for store in detail.rows.stores} == {True, False}
    assert all(store.index == "middle" for store in detail.rows.stores if not store.per_element)


def test_what_one_sweep_computes_the_next_computes_again(tmp_path: Path) -> None:
    phases = streamed(program(tmp_path, "return (x * 2).tanh().flatten(2).softmax(2)")).rows.phases
    assert [[reduction.fn for reduction in phase.reductions] for phase in phases] == [["exponentials"], []]
    for phase in phases:
        assert any("tanhf" in statement.expr for statement in phase.elements)
        assert not any(statement.array for statement in phase.elements)


def test_only_what_the_first_sweep_reads_is_kept(tmp_path: Path) -> None:
    """It fills shared memory; what a later one reads first stays in memory."""
    body = "return self.n(self.n(x) + x.cumsum(0))"
    detail = streamed(program(tmp_path, body, "self.n = nn.GroupNorm(2, 8)"))
    data = {operand.name for operand in detail.rows.operands if operand.vector == "source"}
    loads = [data.intersection(phase.loads) for phase in detail.rows.phases]
    assert set(detail.kept) == loads[0]
    assert loads[0] < loads[1] == loads[2] == data


@pytest.mark.parametrize(
    ("body", "double"),
    [
        ("self.n(x).mean((2, 3))", True),
        ("centered(x.mean((2, 3)))", True),
        ("x.mean((2, 3)).softmax(1)", False),  # more than arithmetic
        ("centered(x)", False),  # of data
        ("centered(F.max_pool2d(x, 8))", False),  # pooled data
    ],
)
def test_arithmetic_on_statistics_is_in_double(body: str, double: bool, tmp_path: Path) -> None:
    """It costs nothing, and sums over channels may leave little of their terms."""
    forward = f"def centered(v): return v - v.mean(1, keepdim=True)\nreturn {body}"
    found = program(tmp_path, forward, "self.n = nn.GroupNorm(2, 8)", "torch.rand(4, 8, 64, 64)")
    details = [step.plan.detail for step in found.steps if isinstance(step, KernelStep)]
    rows = [detail for detail in details if isinstance(detail, RowReducePlan)]
    assert rows
    assert all(detail.double == double for detail in rows)


@pytest.mark.parametrize(
    ("body", "kernels"),
    [
        ("x.sum(0).mean()", 1),
        ("x.exp().mean(0).sum()", 1),
        ("x.abs().amax(1).amax()", 1),
        ("(x.log_softmax(1) * x).sum(1).mean()", 2),  # a row of the softmax has its sum
        ("(x - x.mean(1, True)).square().sum(1).mean(0)", 2),
        ("x.softmax(1).amax(1).amax(0)", 2),
    ],
)
def test_reductions_of_reductions_stay_with_the_rows_that_they_are_of(body: str, kernels: int, tmp_path: Path) -> None:
    found = compile_file(write(tmp_path, f"return {body}", "self.n = None", "torch.rand(50, 70)")).program
    assert [isinstance(step, KernelStep) for step in found.steps] == [True] * kernels


@pytest.mark.parametrize(("features", "double"), [(17, True), (1000, True), (70_000, False)])
def test_sums_of_few_weights_are_rounded_once(features: int, double: bool, tmp_path: Path) -> None:
    path = write(tmp_path, "return self.l(x).mean((0, 1))", f"self.l = nn.Linear(64, {features})", "torch.rand(30, 64)")
    program = compile_file(path).program
    sums = [step.plan for step in program.steps if isinstance(step, KernelStep)]
    weights = [plan.detail for plan in sums if [arg.node for arg in plan.args] == ["p_l_weight"]]
    assert [isinstance(detail, RowReducePlan) and detail.double for detail in weights] == [double]
    data = [plan.detail for plan in sums if any(arg.node == "x" for arg in plan.args)]
    assert not any(isinstance(detail, RowReducePlan) and detail.double for detail in data)


@pytest.mark.parametrize("norm", ["BatchNorm2d(8)", "GroupNorm(2, 8)"])
def test_a_mean_that_others_are_subtracted_from_keeps_what_rounding_took(norm: str, tmp_path: Path) -> None:
    """Means that a norm compares differ by little more than they are rounded by; one sweep finds both."""
    found = program(tmp_path, "return self.n(x).mean((2, 3))", f"self.n = nn.{norm}", "torch.rand(4, 8, 64, 65)")
    first = next(step.plan.detail for step in found.steps if isinstance(step, KernelStep))
    assert isinstance(first, RowStreamPlan)
    (reduction,) = [reduction for phase in first.rows.phases for reduction in phase.reductions]
    assert reduction.fn == "var"
    assert {store.value for store in first.rows.stores} == {
        f"row.{name}[i]" for name in (reduction.name, reduction.second, reduction.rest)
    }


@pytest.mark.parametrize(
    ("body", "kernels", "last"),
    [
        (
            "return F.relu(F.max_pool2d(self.c(x) * 2, 2)).flatten(1) @ self.w",
            ["contraction", "pool", "gemm_simt"],
            "relu",
        ),
        ("return F.pixel_shuffle(F.relu(self.c(x)), 4)", ["contraction", "pointwise"], "relu"),  # turned by a kernel
        ("return F.gelu(self.c(x)).view(8, 4, 4, -1)", ["contraction"], "gelu"),
    ],
)
def test_a_view_of_what_a_larger_kernel_writes_is_left_outside(
    body: str, kernels: list[str], last: str, tmp_path: Path
) -> None:
    init = "self.c, self.w = nn.Conv2d(64, 16, 3, padding=1), nn.Parameter(torch.randn(16 * 48 * 48, 16))"
    found = program(tmp_path, body, init, "torch.rand(8, 64, 96, 96)")
    assert [name for name in templates(found) if name != "torch"] == kernels
    regions = [n.op for n in found.after.nodes if isinstance(n.op, RegionOp)]
    (computed,) = [region for region in regions if any(n.op == PointwiseOp(fn=last) for n in region.body.nodes)]
    assert computed.template == kernels[-2:][0]


@pytest.mark.parametrize(("function", "times"), [("pow(self.e)", 1), ("sigmoid()", 2)])
def test_what_takes_longer_than_memory_is_computed_once(function: str, times: int, tmp_path: Path) -> None:
    """A general power is written and read again; a sigmoid is computed wherever it is read."""
    forward = f"p = (x + 1).{function}\nreturn p - p.sum(2, keepdim=True) + p.transpose(1, 2)"
    found = program(tmp_path, forward, "self.e = nn.Parameter(torch.rand(8, 1, 1))", "torch.rand(8, 512, 512)").after
    computed = [node for node in found.every_node if node.op == PointwiseOp(fn=function.partition("(")[0])]
    assert len(computed) == times


@pytest.mark.parametrize("module", ["nn.Conv2d(64, 128, 3, padding=1)", "nn.Conv2d(64, 128, 3, padding=1, groups=4)"])
def test_a_mean_over_channels_leaves_one_in_plain_fp32(module: str, tmp_path: Path) -> None:
    """Its kernel has the activation too, although the channels' axis is gone by then."""
    found = program(tmp_path, "return F.gelu(self.c(x).mean(1))", f"self.c = {module}", "torch.rand(64, 64, 64, 64)")
    assert templates(found) == ["row_reduce", "row_reduce", "conv_direct"]


@pytest.mark.parametrize(
    ("body", "first"),
    [
        ("return self.n(F.silu(self.c(x)))", "silu"),  # whose rows are read twice
        ("return F.avg_pool2d(self.n(torch.tanh(self.c(x))), 2)", "tanh"),  # statistics, and a pooling
        ("return F.silu(self.c(x)).mean((1, 2))", None),  # once, by rows that are read once
        ("return self.n(F.silu(self.c(x) + y))", None),  # beside data of every element
        ("return self.n(F.silu(self.c(x).permute(0, 1, 3, 2)))", None),
    ],
)
def test_a_product_computes_once_what_others_would_do_twice(body: str, first: str | None, tmp_path: Path) -> None:
    init = "self.c, self.n = nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16)"
    inputs = "torch.rand(8, 3, 96, 96), torch.rand(8, 16, 96, 96)"
    found = program(tmp_path, body, init, inputs, "x, y")
    products = [n for n in found.after.nodes if isinstance(n.op, RegionOp) and n.op.template.startswith("con")]
    computed = {n.op.fn for n in products for n in n.op.body.nodes if isinstance(n.op, PointwiseOp)}
    assert computed - {"add"} == ({first} if first else set())


@pytest.mark.parametrize(
    ("other", "before"),
    [("self.p.reshape(256)", True), ("y.transpose(1, 2).reshape(8, 2048, 256)", False)],
)
def test_what_comes_before_a_product_has_one_tensor_of_its_shape(other: str, before: bool, tmp_path: Path) -> None:
    """Whatever shape the others begin with: a value of the data is told its feature, and no row."""
    init = "self.p, self.m = nn.Parameter(torch.rand(4, 64)), nn.Linear(256, 256)"
    inputs = "torch.rand(8, 2048, 256), torch.rand(8, 4, 2048, 64)"
    found = program(tmp_path, f"return self.m(x + {other})", init, inputs, "x, y")
    hopper = found.kernels[-1].hopper
    assert isinstance(hopper, GemmPlan)
    assert (hopper.before is not None) == before


def test_a_norm_whose_parts_meet_is_not_written(tmp_path: Path) -> None:
    body = "a, b = self.n(x).chunk(2, 1)\nreturn a * torch.sigmoid(b)"
    found = program(tmp_path, body, "self.n = nn.GroupNorm(4, 16)", "torch.rand(8, 16, 90, 90)")
    assert templates(found) == ["row_stream", "pointwise"]
    (statistics, _) = (step.plan for step in found.steps if isinstance(step, KernelStep))
    assert all(dims.product(output.shape) == dims.product(("batch", 4)) for output in statistics.outputs)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return torch.softmax(x, -1).sum((1, 2))", 0),
        ("return (torch.log_softmax(x, 2) * 2).amax(1)", 0),
        ("return torch.softmax(x, -1).sum((1, 3))", 1),  # along its own axis, too
        ("y = torch.softmax(x, -1)\nreturn y, y.sum(1)", 1),
        ("return torch.softmax(x[:2], -1).sum(1)", 1),  # few elements
        ("return torch.softmax(self.c(x), 1).sum((2, 3))", 1),  # in the convolution's kernel
    ],
)
def test_a_softmax_that_is_only_reduced_is_not_written(body: str, expected: int, tmp_path: Path) -> None:
    found = program(tmp_path, body, "self.c = nn.Conv2d(8, 16, 3, padding=1)", "torch.rand(32, 8, 128, 128)")
    regions = [node.op.body.nodes for node in found.after.nodes if isinstance(node.op, RegionOp)]
    assert sum(isinstance(node.op, SoftmaxOp) for nodes in regions for node in nodes) == expected


@pytest.mark.parametrize(
    "body",
    [
        "return self.c(x).mean((2, 3)) - self.c(y).mean((2, 3))",  # whose weights are added up alike
        "return self.c(x).mean((2, 3)) * self.d(x).mean((2, 3))",  # whose data is
        "return self.c(x).mean((0, 2, 3)) * self.c(x).sum((0, 2, 3))[:, None]",
    ],
)
def test_sums_that_two_products_need_are_each_one_s_own(body: str, tmp_path: Path) -> None:
    init = "self.c, self.d = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(3, 16, 3, padding=1)"
    inputs = "torch.rand(8, 3, 40, 40), torch.rand(8, 3, 40, 40)"
    found = program(tmp_path, body, init, inputs, "x, y")
    assert templates(found).count("window_sum") == 2
    assert "torch" not in templates(found)
    compile_file(tmp_path / "model.py")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return self.n(x.chunk(2, -1)[1])", ["row_reduce"]),
        ("u, v = x.chunk(2, -1)\nreturn u * self.n(v)", ["row_reduce"]),
        ("u, v = x.chunk(2, -1)\nreturn self.n(v), u.sigmoid() * v", ["row_reduce", "pointwise"]),
        ("return self.n(x[:, 1:5, :32])", ["row_reduce"]),
        ("return x[..., 3:].softmax(-1)", ["row_stream"]),  # of any length
        ("return x[:, 1:5].softmax(1)", ["row_reduce"]),
        ("return x[..., ::2].softmax(-1)", ["torch", "row_stream"]),  # no neighbours
        ("return self.n(x.relu().chunk(2, -1)[1])", ["pointwise", "row_reduce"]),
        ("return self.m(x[3:7])", ["torch", "row_reduce"]),  # a view that nothing copies
    ],
)
def test_rows_read_parts_where_they_lie(body: str, expected: list[str], tmp_path: Path) -> None:
    found = program(tmp_path, body, "self.n = nn.LayerNorm(32)\nself.m = nn.LayerNorm(64)", "torch.rand(16, 8, 64)")
    assert templates(found) == expected
    if "torch" not in expected:
        shapes = [
            found.after.node(arg.node).type.shape
            for s in found.steps
            if isinstance(s, KernelStep)
            for arg in s.plan.args
        ]
        assert not [shape for shape in shapes if len(shape) == 3 and shape[1:] != found.after.inputs[0].type.shape[1:]]


SIBLINGS = {
    "return x.relu() * y, x.sigmoid() + 1": ["pointwise"],
    "return x * y, z * y": ["pointwise"],
    "return x.relu(), x.square(), x + y": ["pointwise"],
    "return x.exp() > 1, x.sigmoid()": ["pointwise"],
    "return x.log_softmax(3), x.mean(3)": ["row_reduce"],
    "return x.mean(3), x.log_softmax(3), x.amax(3)": ["row_reduce"],
    "return x.mean((0, 2, 3)), x.relu() + y": ["row_stream"],
    "return (x * y).sum(3), (x * z).sum(3)": ["row_stream"],
    "return x.relu(), y.sigmoid()": ["pointwise", "pointwise"],  # of different data
    "return x.relu() + y, x[:, :1] * 2": ["pointwise", "pointwise"],  # of different sizes
    "return x.softmax(3), y.softmax(3)": ["row_reduce", "row_reduce"],
    "return x.softmax(3), (x * 2).softmax(3)": ["row_reduce", "row_reduce"],  # a kernel holds one result in registers
    "return x.softmax(3), x.mean(2)": ["row_reduce", "row_stream"],  # rows of different axes
    "return x * self.p, y * self.p": ["pointwise", "pointwise"],  # a parameter alone is read at once
    "a = x * y\nreturn a, a.msort() * y": ["pointwise", "torch", "pointwise"],  # one comes before the other
}


@pytest.mark.parametrize("body", SIBLINGS)
def test_kernels_of_the_same_data_are_one(body: str, tmp_path: Path) -> None:
    sizes = ", ".join(["torch.randn(4, 6, 9, 40)"] * 3)
    found = program(tmp_path, body, "self.p = nn.Parameter(torch.ones(40))", sizes, "x, y, z")
    assert templates(found) == SIBLINGS[body]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("body", [body for body, expected in SIBLINGS.items() if len(expected) == 1])
def test_kernels_that_are_one_agree_with_float64(body: str, tmp_path: Path) -> None:
    inputs = [torch.randn(4, 6, 9, 40) for _ in range(3)]
    sizes = ", ".join(["torch.randn(4, 6, 9, 40)"] * 3)
    path = write(tmp_path, body, "self.p = nn.Parameter(torch.ones(40))", sizes, "x, y, z")
    OnTheCPU(compile_file(path), "generated_siblings", tmp_path)(*inputs)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return torch.cat([x], 1).softmax(-1)", ["row_reduce"]),
        ("return torch.cat([x], 1)", ["torch"]),  # a result of its own
        ("return torch.cat([x], 1).transpose(0, 1)", ["torch", "torch"]),
    ],
)
def test_a_join_of_one_tensor_is_that_tensor(body: str, expected: list[str], tmp_path: Path) -> None:
    assert templates(program(tmp_path, body, inputs="torch.rand(16, 8, 64)")) == expected


@pytest.mark.parametrize("body", ["return x.sum() != 0", "return (x > 0.5).any()", "return x.amax() > 0.5"])
def test_a_truth_value_of_all_elements_is_a_kernel_after_their_reduction(body: str, tmp_path: Path) -> None:
    assert templates(program(tmp_path, body)) == ["row_stream", "pointwise"]


def test_a_permuted_result_of_elementwise_ops_stays_a_view(tmp_path: Path) -> None:
    found = program(tmp_path, "return (x.relu() + 1).permute(0, 2, 3, 1)")
    assert templates(found) == ["pointwise", "torch"]


@pytest.mark.parametrize(
    ("init", "body", "expected"),
    [
        ("self.c = nn.Conv2d(8, 16, 3)", "return self.c(x)", ["conv_direct"]),  # too small for tensor cores
        ("self.c = nn.Conv2d(8, 16, 3, groups=4)", "return self.c(x)", ["conv_direct"]),  # too narrow for tensor cores
        ("self.l = nn.Linear(5, 7)", "return self.l(x)", ["gemm_simt"]),  # small
        ("self.l = nn.Linear(5, 700)", "return self.l(x)", ["torch"]),
        ("self.l = nn.Linear(5, 7)", "return self.l(x).relu()", ["gemm_simt"]),  # which saves a pass
        ("self.b = nn.Parameter(torch.ones(1))\nself.l = nn.Linear(5, 7, bias=False)", "return self.l(x) + self.b",
         ["gemm_simt"]),  # one number for all features is no bias of the library's
    ],
)  # fmt: skip
def test_a_lone_bias_is_added_by_the_product(init: str, body: str, expected: list[str], tmp_path: Path) -> None:
    assert templates(program(tmp_path, body, init)) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return F.max_pool2d((x * self.s).relu(), 2).tanh() + self.s", ["pool"]),  # a chain on either side
        ("return F.avg_pool2d(x, 3, 1, 1) * x", ["pool"]),  # a tensor of the result's shape after it
        ("y = x + 1\nreturn F.max_pool2d(y, 2), y", ["pointwise", "pool"]),  # what is written anyway is read back
        ("return F.max_pool2d(F.gelu(x), 3, 1, 1)", ["pointwise", "pool"]),  # costly to evaluate for every window
        ("return F.max_pool2d(F.gelu(x), 2)", ["pool"]),
        ("return F.avg_pool2d(F.max_pool2d(x, 2), 3, 1)", ["pool", "pool"]),
        ("return F.max_pool2d(x, 2).softmax(1)", ["pool", "row_reduce"]),
        ("return F.adaptive_avg_pool2d(x, (3, 4)).relu()", ["pool"]),
        ("return F.max_pool1d(x[0], 2, ceil_mode=True)", ["torch", "pool"]),  # its data's views are free
        ("return F.avg_pool3d(x.unsqueeze(1), 2)", ["pool"]),
        ("return F.max_pool2d(self.c(x).relu(), 2)", ["conv_direct", "pool"]),
    ],
)
def test_what_shares_a_kernel_with_a_pooling(body: str, expected: list[str], tmp_path: Path) -> None:
    init = "self.s = nn.Parameter(torch.ones(8, 1, 1))\nself.c = nn.Conv2d(8, 12, 3, 2)"
    assert templates(program(tmp_path, body, init, "torch.rand(4, 8, 12, 17)")) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return F.max_pool2d(x, 2).softmax(1)", ["row_reduce"]),
        ("return F.avg_pool2d(x.relu() * self.s, 3, 2, 1).amax(1)", ["row_reduce"]),  # the chain before it, too
        ("return F.max_pool2d(x, 3, 1, 1, ceil_mode=True).softmax(1)", ["row_reduce"]),
        ("return F.max_pool2d(x, 2).abs().amax((0, 1))", ["row_stream"]),
        ("return F.max_pool2d(x, 2)[:, :9].softmax(1)", ["pool", "row_reduce"]),
        ("y = F.max_pool2d(x, 2)\nreturn y.softmax(1), y", ["pool", "row_reduce"]),  # written anyway
        ("return F.max_pool2d(F.gelu(x), 3, 1, 1).softmax(1)", ["pointwise", "pool", "row_reduce"]),  # costly again
        ("return F.max_pool2d(x, 4).softmax(1)", ["pool", "row_reduce"]),  # long windows
        ("return F.adaptive_avg_pool2d(x, 32).softmax(1)", ["pool", "row_reduce"]),  # of different sizes
        ("return F.avg_pool2d(x, 3, 2, 1, count_include_pad=False).amax(1)", ["pool", "row_reduce"]),
        ("return F.instance_norm(F.max_pool2d(x, 2))", ["pool", "row_stream"]),  # rows read more than once
        ("return F.max_pool2d(x, 2).amax((2, 3))", ["pool", "row_stream"]),  # divisions would find its windows
        ("return F.max_pool2d(self.c(x), 2).softmax(1)", ["conv_apart", "row_reduce"]),  # by the convolution's kernel
    ],
)
def test_reductions_read_the_windows_of_a_pooling(body: str, expected: list[str], tmp_path: Path) -> None:
    init = "self.c = nn.Conv2d(32, 32, 3)\nself.s = nn.Parameter(torch.rand(32, 1, 1))"
    assert templates(program(tmp_path, body, init, "torch.rand(32, 32, 66, 66)")) == expected


@pytest.mark.parametrize("strided", [False, True])
def test_rows_of_windows_fit_a_block(strided: bool) -> None:
    for length, taken in product(range(1, 1025), range(1, 10)):
        threads, rows = row_reduce.split(length, 1, strided, False, taken)
        assert threads * rows <= 1024


@pytest.mark.parametrize(
    ("init", "body", "statistics"),
    [
        ("nn.GroupNorm(2, 8)", "F.max_pool2d(self.n(x) * 2, 2)", "row_stream"),
        ("nn.InstanceNorm2d(8)", "F.avg_pool2d(self.n(x).tanh(), 2)", "row_stream"),
        ("nn.LayerNorm(64)", "F.avg_pool2d(self.n(x), 2)", "row_reduce"),
    ],
)
def test_a_pooling_normalises_what_it_reads(init: str, body: str, statistics: str, tmp_path: Path) -> None:
    """The normalised tensor is never written: one kernel finds the statistics, the pooling applies them."""
    found = program(tmp_path, f"return {body}", f"self.n = {init}", "torch.rand(4, 8, 32, 64)")
    assert templates(found) == [statistics, "pool"]
    first, second = found.steps
    assert isinstance(first, KernelStep)
    assert all(dims.numel(found.after.shape(name), found.after.sizes) < 4 * 8 * 32 * 64 / 32 for name in first.outputs)
    assert isinstance(second, KernelStep)
    detail = second.plan.detail
    assert isinstance(detail, PoolPlan)
    roots = [s.name for phase in detail.before.phases for s in phase.scalars if "rsqrt" in s.expr]
    assert roots
    assert set(roots) <= set(detail.of_row if "Layer" in init else detail.of_plane)  # not once for every element
    assert bool(detail.of_column) == ("Layer" in init)  # its scale and shift


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = self.c(x)\nreturn (self.m(y) - self.a(y)).softmax(1)", ["contraction", "pool", "row_reduce"]),
        (
            "y = self.c(x)\nreturn (F.hardswish(self.m(y) - self.a(y)).flatten(2)).mT @ self.w",
            ["contraction", "pool", "gemm_views"],
        ),
        ("return self.m(x) - self.a(x) * self.a(x.exp())", ["pool"]),
        ("y = self.a(x)\nreturn self.m(x) - y, y", ["pool", "pool"]),  # written anyway
        ("return self.m(x) - F.avg_pool2d(x, 2, ceil_mode=True)", ["pool", "pool"]),  # other windows
        ("return self.m(x) - self.a(x.cumsum(3) * self.s)", ["pool", "scan", "pool"]),  # of other data
        ("return self.m(x) - self.a(F.pad(x, (0, 1, 0, 1)))", ["pool", "pointwise", "pool"]),  # of other data, too
        ("return F.avg_pool2d(x, 3, 2, 1) - F.avg_pool2d(x, 3, 2, 1, False, False)", ["pool", "pool"]),  # other counts
        ("return self.m(self.a(x)) - self.a(self.m(x))", ["pool"] * 4),  # one of another
    ],
)
def test_one_kernel_for_poolings_of_the_same_windows(body: str, expected: list[str], tmp_path: Path) -> None:
    init = "self.c, self.w = nn.Conv2d(32, 64, 3), nn.Parameter(torch.rand(64, 24))"
    init += "\nself.s = nn.Parameter(torch.rand(32, 1, 1))\nself.m, self.a = nn.MaxPool2d(2), nn.AvgPool2d(2)"
    assert templates(program(tmp_path, body, init, "torch.rand(32, 32, 66, 66)")) == expected


def test_bias_and_activation_run_along_the_channels(tmp_path: Path) -> None:
    found = program(tmp_path, "return self.c(x).relu()", "self.c = nn.Conv2d(8, 16, 3)")
    assert templates(found) == ["conv_direct"]
    step = found.steps[0]
    assert isinstance(step, KernelStep)
    assert isinstance(step.plan.detail, DirectConvPlan)
    assert [o.index for o in step.plan.detail.after.operands] == ["l"]


def test_partial_and_shared_means_do_not_collapse(tmp_path: Path) -> None:
    init = "self.c = nn.Conv2d(8, 16, 3)"
    for body, reason in (
        ("return self.c(x).mean(3)", "us direct"),  # too small to pay
        ("y = self.c(x)\nreturn y.mean((2, 3)), y.relu()", "read elsewhere"),
    ):
        found = program(tmp_path, body, init)
        assert "window_sum" not in templates(found)
        assert any(reason in refusal.reason for refusal in found.refusals), found.refusals


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("self.c(x).amin(2)", "expected to take"),
        ("self.c(x).logsumexp(2)", "other axes than the contraction's channels"),
        ("self.c(x).softmax(2).amax(2)", "no elementwise work after the convolution alone"),
        ("self.c(x).softmax(1).amax(0)", "reduces other axes than the rest of the kernel"),
    ],
)
def test_a_result_that_is_written_to_be_reduced_says_why(body: str, reason: str, tmp_path: Path) -> None:
    found = program(tmp_path, f"return {body}", "self.c = nn.Conv2d(64, 128, 3)", "torch.rand(16, 64, 32, 32)")
    assert len(templates(found)) > 1
    assert any(reason in refusal.reason for refusal in found.refusals), found.refusals


def test_a_mean_over_everything_collapses_its_spatial_part(tmp_path: Path) -> None:
    found = program(tmp_path, "return self.c(2 * x).mean((1, 2, 3))", "self.c = nn.Conv2d(8, 16, 3, stride=2)")
    assert templates(found) == ["window_sum"]


@pytest.mark.parametrize("tail", ["", " * self.p"])
def test_the_channels_of_a_convolution_that_has_collapsed_are_summed_after_it(tail: str, tmp_path: Path) -> None:
    init = "self.c = nn.Conv1d(16, 96, 5, 2, 1, 2)\nself.p = nn.Parameter(torch.randn(96, 1))"
    body = f"return (-((self.c(x) + 0.5){tail}) - 2).mean((1, 2))"
    found = program(tmp_path, body, init, "torch.rand(32, 16, 4398)")
    assert templates(found)[0] == "window_sum"
    assert all(step.kind == "kernel" for step in found.steps)


def test_sizes_of_a_kernel_follow_from_its_operands() -> None:
    arg = TensorArg(
        name="x0", node="x", type=TensorType.model_validate({"dtype": "float32", "shape": ["x0_0", 3, "2*x0_2 + 1"]})
    )
    sizes = Sizes((arg,))
    assert [b.name for b in sizes.bindings] == ["batch", "width"]
    assert sizes.local("2*x0_2 + 1") == "width"
    assert sizes.local("x0_2 + 4") == "((width - 1) // 2) + 4"
    assert sizes.checks((arg,)) == ((0, 1, 3),)
    with pytest.raises(UnboundSize):
        sizes.local("x0_3")


def test_sizes_of_a_kernel_are_multiples_of_those_of_its_operands() -> None:
    tokens = "(x0_2 // 4)*(x0_3 // 4) + 1"
    arg = TensorArg(
        name="x0", node="x", type=TensorType.model_validate({"dtype": "float32", "shape": ["x0_0", tokens, 192]})
    )
    sizes = Sizes((arg,))
    assert sizes.local(dims.mul(tokens, 192)) == "192*channels"
    assert sizes.local(dims.mul(dims.mul(tokens, tokens), "x0_0")) == "batch*channels*channels"
    with pytest.raises(UnboundSize):
        sizes.local(dims.mul(tokens, "x0_2"))


def test_sizes_that_are_rounded_divide_each_other() -> None:
    assert dims.exact_quotient("8*(x0_2 // 2)*(x0_3 // 2)", "2*(x0_2 // 2)") == "4*(x0_3 // 2)"
    assert dims.exact_quotient("2*(x0_2 // 2)", "x0_2") is None


def test_views_between_pooled_sizes_stay_inside_a_kernel(tmp_path: Path) -> None:
    body = "y = F.avg_pool2d(x, 2)\nreturn y.flatten(2).softmax(2).view(y.shape) * self.s"
    found = program(tmp_path, body, "self.s = nn.Parameter(torch.ones(8, 1, 1))", "torch.rand(4, 8, 14, 18)")
    assert templates(found) == ["pool", "row_stream"]


def test_a_size_that_no_operand_has_is_an_argument(tmp_path: Path) -> None:
    """The count of a batch norm's elements, where its statistics come from those of every image."""
    body, init = "return self.n(self.c(x)).mean((2, 3))", "self.c = nn.Conv2d(8, 16, 3)\nself.n = nn.BatchNorm2d(16)"
    found = program(tmp_path, body, init, "torch.rand(16, 8, 30, 40)")
    given = [given.size for step in found.steps if isinstance(step, KernelStep) for given in step.plan.given]
    count = "4*x0_0 - 2*x0_0*x0_2 - 2*x0_0*x0_3 + x0_0*x0_2*x0_3"
    assert given == [count, f"{count} - 1"]
    assert sum(isinstance(step, EagerStep) for step in found.steps) == 0


def test_the_proof_finds_a_wrong_rewrite(tmp_path: Path) -> None:
    """Off by one anywhere: a graph whose region uses another constant must not pass."""
    found = program(tmp_path, "return self.c(x).mean((2, 3)) * 3", "self.c = nn.Conv2d(8, 16, 3, padding=1)")
    assert prove(found.before, found.after).worst < 1e-9
    after = found.after
    region = next(node for node in after.nodes if isinstance(node.op, RegionOp))
    assert isinstance(region.op, RegionOp)
    wrong = []
    for node in region.op.body.nodes:
        if node.op.kind == "window_sum":
            node = node.replace(op=node.op.replace(mean=False))
        wrong.append(node)
    body = region.op.body.replace(nodes=tuple(wrong))
    nodes = tuple(n.replace(op=n.op.replace(body=body)) if n.name == region.name else n for n in after.nodes)  # type: ignore[call-arg]
    with pytest.raises(MismatchError, match="differs from the model"):
        prove(found.before, after.replace(nodes=nodes))


def test_an_unknown_target_is_refused_before_tracing(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="sm_70") as raised:
        compile_file(tmp_path / "not_even_there.py", target="sm_70")
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    "body",
    [
        "y = self.c(x)\nreturn y - y.mean((0, 2, 3), keepdim=True)",  # the convolution is computed anyway
        "return self.c(x).mean((0, 2, 3))",
    ],
)
def test_a_mean_over_batch_and_space_reaches_a_fixpoint(body: str, tmp_path: Path) -> None:
    found = program(tmp_path, body, "self.c = nn.Conv2d(8, 16, 9)", "torch.rand(2, 8, 12, 12)")
    assert all("window" not in event.identity for event in found.rewrites)
    assert prove(found.before, found.after).worst < 1e-9


@pytest.mark.parametrize(
    "body",
    ["return torch.softmax(x, 1) * 2", "y = x.exp()\nreturn y, y.sum(1), (y / 2).tanh()"],
)
def test_a_region_without_a_plan_goes_back_to_torch(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise UnboundSize("no size")

    monkeypatch.setattr(sharing, "plan_region", fails)
    found = program(tmp_path, body)
    assert set(templates(found)) == {"torch"}
    assert any(refusal.reason == "no size" for refusal in found.refusals)
    assert prove(found.before, found.after).worst == 0


def test_a_convolution_of_rounded_sizes_finds_its_own(tmp_path: Path) -> None:
    init = "self.c = nn.ConvTranspose2d(64, 64, 3, stride=2, padding=1, output_padding=1)"
    body = "return torch.tanh(self.c(F.avg_pool2d(x, 2)))"
    found = program(tmp_path, body, init, "torch.rand(16, 64, 64, 64)")
    assert templates(found) == ["pool", "contraction"]
    step = found.steps[1]
    assert isinstance(step, KernelStep)
    assert step.plan.outputs[0].shape == ("batch", 64, "2*height", "2*width")


@pytest.mark.parametrize(("groups", "expected"), [(1, ["contraction"]), (2, ["contraction", "row_reduce"])])
def test_a_row_of_all_channels_does_not_span_groups(groups: int, expected: list[str], tmp_path: Path) -> None:
    """A block of the contraction has the channels of one group."""
    init = f"self.m = nn.Conv2d(8, 16, 3, groups={groups})"
    found = program(tmp_path, "return self.m(x).sigmoid().prod(1)", init, "torch.rand(64, 8, 64, 64)")
    assert templates(found) == expected


@pytest.mark.parametrize(
    ("conv", "inputs", "exact"),
    [
        ("nn.Conv2d(8, 64, 3)", "torch.rand(32, 8, 64, 64)", True),  # eager is in full fp32
        ("nn.ConvTranspose2d(8, 16, 4, stride=2)", "torch.rand(64, 8, 64, 64)", False),  # by size: asked at run time
        ("nn.Conv2d(64, 128, 3)", "torch.rand(32, 64, 64, 64)", False),
    ],
)
def test_a_convolution_is_exact_where_eager_is(conv: str, inputs: str, exact: bool, tmp_path: Path) -> None:
    (step,) = program(tmp_path, "return self.c(x)", f"self.c = {conv}", inputs).steps
    assert isinstance(step, KernelStep)
    assert isinstance(step.plan.detail, ContractionPlan)
    assert step.plan.detail.precise == exact
    assert (step.plan.hopper is None) == exact


@pytest.mark.parametrize(
    ("init", "body", "expected"),
    [
        ("nn.Conv2d(8, 96, 3)", "return F.gelu(self.c(x))[:, 1:] * 2", ["torch", "torch", "contraction"]),
        ("nn.Conv2d(8, 96, 3)", "return (self.c(x) * 2)[3:]", ["torch", "contraction"]),
        ("nn.Conv2d(8, 96, 3)", "y = self.c(x)\nreturn y.relu()[:, 1:], y", ["contraction", "pointwise", "torch"]),
        ("nn.Conv2d(8, 96, 3)", "return self.c(x).relu()[:, :, 1:]", ["contraction", "torch"]),
    ],
)
def test_a_part_of_a_convolution_is_a_convolution(init: str, body: str, expected: list[str], tmp_path: Path) -> None:
    found = program(tmp_path, body, f"self.c = {init}", "torch.rand(32, 8, 64, 63)")
    assert templates(found) == expected


def test_a_part_of_what_cudnn_may_round_is_taken_afterwards(tmp_path: Path) -> None:
    found = program(
        tmp_path, "return self.c(x).relu()[:, 1:]", "self.c = nn.Conv2d(32, 64, 3)", "torch.rand(8, 32, 40, 40)"
    )
    (step,) = (step for step in found.steps if isinstance(step, KernelStep))
    assert step.plan.outputs[0].shape[1] == 64
    assert any("TF32" in refusal.reason for refusal in found.refusals)


def test_operands_of_every_result_follow_a_convolution_of_few_products(tmp_path: Path) -> None:
    """Read as results are stored one by one, or, before a reduction, as products lie."""
    init = "self.c = nn.Conv2d(128, 128, 1)\nself.p = nn.Parameter(torch.randn(16, 128, 101, 73))"
    found = program(tmp_path, "return (self.c(x) / self.p.abs()).tanh()", init, "torch.rand(16, 128, 101, 73)")
    assert templates(found) == ["contraction"]
    found = program(tmp_path, "return (self.c(x) / self.p.abs()).softmax(1)", init, "torch.rand(16, 128, 101, 73)")
    assert templates(found) == ["contraction"]


def test_a_norm_is_not_computed_as_products_lie(tmp_path: Path) -> None:
    """Each result would read the mean and the variance of its channel and sample: the norm's kernel has them once."""
    body = "z = x.tanh()\nreturn F.normalize(F.instance_norm(z) + self.c(x), dim=1)"
    found = program(tmp_path, body, "self.c = nn.Conv1d(96, 96, 1)", "torch.rand(24, 96, 4001)")
    kernels = {step.plan.detail.template: step.plan for step in found.steps if isinstance(step, KernelStep)}
    assert "row_stream" in kernels
    shapes = [arg.type.shape for name, plan in kernels.items() if name == "contraction" for arg in plan.args]
    assert not any(isinstance(shape[0], str) and shape[-1] == 1 for shape in shapes)


def test_a_convolution_among_terms_that_one_axis_of_is_summed_is_not_computed(tmp_path: Path) -> None:
    """Permuted, too: sums of the input, and a convolution of what is left of it."""
    init = "self.c = nn.Conv2d(8, 64, 1)\nself.p = nn.Parameter(torch.rand(64, 96, 8, 96))"
    found = program(
        tmp_path, "return (self.c(x).permute(1, 2, 0, 3) + self.p).sum(1)", init, "torch.rand(8, 8, 96, 96)"
    )
    assert "axis_sum" in templates(found)
    sizes = [step.plan.args[0].type.shape for step in found.steps if isinstance(step, KernelStep)]
    assert (8, 64, 96, 96) not in sizes


def test_threads_of_a_row_follow_its_length() -> None:
    """A thread has several accesses on their way, unless there are too few elements for all threads."""
    lengths = (16, 64, 100, 768, 4096, 5000, 8192)
    shared = {length: row_reduce.split(length, 1 << 16, False, True)[0] for length in lengths}
    assert shared == {16: 4, 64: 8, 100: 8, 768: 64, 4096: 256, 5000: 256, 8192: 256}
    assert row_reduce.split(768, 16, False, True)[0] == 128
    assert row_reduce.split(3, 1 << 20, True, True) == (1, 128)


def test_rows_are_held_in_registers() -> None:
    """Where they are many, of some elements for each thread; several by a thread, where no elements are stored."""

    def held(
        length: int, stored: bool = True, operands: int = 1, count: int = 1024, twice: bool = False
    ) -> tuple[int, ...] | None:
        found = stream._held(count, length, operands, kept=stored, stored=stored, twice=twice)
        return found and (found.vec, found.parts, found.slots, found.rows)

    assert [held(length) for length in (49, 64, 196, 1024)] == [
        (1, 16, 4, 1),
        (4, 16, 1, 1),
        (4, 32, 2, 1),
        (4, 64, 4, 1),
    ]
    assert [held(length) for length in (16384, 16388, 8191, 8193)] == [(4, 512, 8, 1), None, (1, 512, 16, 1), None]
    assert (held(8192, operands=2), held(8196, operands=2)) == ((4, 512, 4, 1), None)
    assert [held(length, False) for length in (3, 32, 62, 126)] == [
        (1, 1, 3, 2),
        (4, 8, 1, 2),
        (2, 16, 2, 2),
        (2, 32, 2, 2),
    ]
    assert [held(length, False, twice=True) for length in (62, 126, 127)] == [
        (2, 8, 4, 2),
        (2, 16, 4, 2),
        (1, 16, 8, 2),
    ]
    assert held(49, twice=True) == held(49)
    assert (held(256, False), held(260, False)) == ((4, 32, 2, 2), None)
    assert held(64, count=256) is None


def test_padding_is_written_once(tmp_path: Path) -> None:
    """Torch fills the result and then copies into it."""
    (step,) = program(tmp_path, "return F.pad(x, (1, 2))", "pass", "torch.rand(70, 9)").steps
    assert isinstance(step, KernelStep)


def test_a_kernel_has_room_for_four_scans(tmp_path: Path) -> None:
    body = "a, b, c, d, e, f = [(x * i).cumsum(0).tanh() for i in range(1, 7)]\nreturn a * b * c * d * e * f"
    plans = [step.plan for step in program(tmp_path, body, "pass", "torch.rand(70, 9)").steps]
    assert [len(plan.detail.rows.phases[0].scans) for plan in plans] == [1, 1, 4]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return torch.cat([x, x], 1)", "joined by torch"),
        ("return x.flip(1)", "copied by torch"),
        ("return x[:, 1:]", "its result is laid out in another way than the data: a view is free"),
        ("return torch.ones_like(x)", "one number throughout"),
    ],
)
def test_what_torch_does_is_said(body: str, reason: str, tmp_path: Path) -> None:
    (step,) = program(tmp_path, body).steps
    assert isinstance(step, EagerStep)
    assert step.reason == reason


def test_a_product_that_takes_its_bias_back_keeps_its_reason(tmp_path: Path) -> None:
    path = write(tmp_path, "return self.c(x.half())", "self.c = nn.Linear(32, 32).half()", "torch.rand(16, 64, 32, 32)")
    last = compile_file(path, target="sm_80").program.steps[-1]
    assert isinstance(last, EagerStep)
    assert re.match("the library's matrix product: .*sm_90 only", last.reason)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return F.linear(x, self.w).sum(1)", ["torch", "row_reduce"]),  # of the weight's rows, by torch
        ("return F.linear(x, self.w).softmax(1) * 2", ["torch"] * 3),
        ("return torch.cat([x.relu(), F.linear(x, self.w)], 1).exp()", ["pointwise", "torch", "torch", "pointwise"]),
        ("return x[:, :0].amax(0) + 1", ["torch"] * 3),
    ],
)
def test_what_has_no_elements_is_left_to_torch(body: str, expected: list[str], tmp_path: Path) -> None:
    found = program(tmp_path, body, "self.w = nn.Parameter(torch.empty(0, 8))", "torch.rand(4, 8)")
    assert templates(found) == expected
