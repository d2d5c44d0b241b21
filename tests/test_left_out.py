"""What is read where it lies, computed again or written once: constants, turned data, comparisons, small factors."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusegen.ir import AdaptivePoolOp, ConvOp, MatmulOp, PointwiseOp
from fusegen.plan.types import KernelStep, Program
from tests.emitted import bodies
from tests.test_fuse import program, templates


def kinds(found: Program) -> set[type]:
    """Of all ops, those in kernels too."""
    return {type(node.op) for graph in (found.after, *bodies(found)) for node in graph.nodes}


HEADS = """m = x > 0.5
a, b = x.sum(1, keepdim=True), x.sum(0).view(-1, 1)
first = torch.where(m, F.leaky_relu(a + b.T), -9e15 * torch.ones_like(x)).softmax(1)
second = torch.where(m, F.leaky_relu(a - b.T), -9e15 * torch.ones_like(x)).softmax(1)
return first, second"""
MASKED = "x, y, z", "torch.rand(8, 8, 512, 64), torch.rand(8, 512, 512), torch.rand(8, 512, 1)"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (HEADS, ["row_reduce", "row_stream", "row_reduce", "row_reduce"]),  # no sum of two vectors is written
        ("y = (x > 0.5).float()\nreturn torch.maximum(y, y.t()).sum(1)", ["reduce_views"]),
        ("return (x + torch.eye(96, device=x.device)).square().sum(1)", ["reduce_views"]),
        ("y = x + x.t() + torch.eye(96, device=x.device)\nreturn y / y.sum(1, True)", ["pointwise", "row_reduce"]),
    ],
)
def test_what_is_no_tensor_of_its_own_is_not_copied(body: str, expected: list[str], tmp_path: Path) -> None:
    assert templates(program(tmp_path, body, inputs="torch.rand(96, 96)")) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return (x.softmax(1) * n.view(1, -1, 1, 1)).sum(1)", ["pointwise", "row_reduce"]),
        ("return (2 * x.softmax(1) * (n.float() / 64).view(1, -1, 1, 1)).sum(1)", ["pointwise", "row_reduce"]),
        ("return (x * n.view(1, -1, 1, 1)).sum(1)", ["reduce_views"]),  # no softmax that would be written
    ],
)
def test_positions_that_a_softmax_weighs_are_written_once(body: str, expected: list[str], tmp_path: Path) -> None:
    found = program(tmp_path, f"n = torch.arange(64, device=x.device)\n{body}", inputs="torch.rand(4, 64, 24, 32)")
    assert templates(found) == expected


def test_a_quotient_of_less_than_a_product_has_results_is_not_computed_for_each(tmp_path: Path) -> None:
    names, inputs = MASKED
    apart = program(tmp_path, "return x @ x.transpose(-1, -2) * (y / z.sqrt())", inputs=inputs, arguments=names)
    assert templates(apart) == ["gemm_sm90", "pointwise"]
    beside = program(tmp_path, "return x @ x.transpose(-1, -2) * y + z.sum()", inputs=inputs, arguments=names)
    assert "pointwise" not in templates(beside)


@pytest.mark.parametrize(
    ("body", "init", "inputs"),
    [
        (
            "return self.c(x.mean((2, 3), keepdim=True)).relu()",
            "self.c = nn.Conv2d(64, 32, 1)",
            "torch.rand(8, 64, 9, 9)",
        ),
        ("return self.c(x).tanh()", "self.c = nn.Conv2d(64, 16, 4)", "torch.rand(8, 64, 4, 4)"),
        ("return self.c(x[:, :, None, None])", "self.c = nn.ConvTranspose2d(64, 32, 4, 2)", "torch.rand(8, 64)"),
    ],
)
def test_convolutions_of_all_of_an_image_are_products(body: str, init: str, inputs: str, tmp_path: Path) -> None:
    ops = kinds(program(tmp_path, body, init, inputs))
    assert ConvOp not in ops
    assert MatmulOp in ops


def test_a_convolution_of_part_of_an_image_stays_one(tmp_path: Path) -> None:
    found = program(tmp_path, "return self.c(x)", "self.c = nn.Conv2d(64, 16, 4, padding=1)", "torch.rand(8, 64, 4, 4)")
    assert ConvOp in kinds(found)


def test_functions_of_few_elements_are_computed_once(tmp_path: Path) -> None:
    """Not again for every row; a cheap one is, and one that each row has a value of."""
    inputs = "torch.rand(64, 12, 256, 64), torch.rand(256, 64)"
    assert templates(program(tmp_path, "return x * y.tan()", inputs=inputs, arguments="x, y")) == ["pointwise"] * 2
    assert templates(program(tmp_path, "return x * y.abs()", inputs=inputs, arguments="x, y")) == ["pointwise"]
    assert templates(program(tmp_path, "return x * y[:, :1].tan()", inputs=inputs, arguments="x, y")) == ["pointwise"]


def test_a_sum_that_others_need_is_the_convolution_s(tmp_path: Path) -> None:
    """A residual block before its norm: the next block adds the same sum."""
    body = "y = self.c(x) + x\nreturn self.d(F.relu(y * self.p)) + y"
    init = (
        "self.c, self.d = (nn.Conv2d(32, 32, 3, padding=1) for _ in 'cd')\nself.p = nn.Parameter(torch.rand(32, 1, 1))"
    )
    found = program(tmp_path, body, init, "torch.rand(32, 32, 64, 64)")
    first = found.steps[0]
    assert isinstance(first, KernelStep)
    assert [arg.node for arg in first.plan.outputs] == ["add"]


def test_what_follows_a_softmax_is_its_kernel_s_before_a_pooling(tmp_path: Path) -> None:
    found = program(tmp_path, "return F.avg_pool2d(x.softmax(1) * x.sigmoid(), 2)", inputs="torch.rand(8, 64, 80, 80)")
    rows, pool = found.steps
    assert isinstance(rows, KernelStep)
    assert isinstance(pool, KernelStep)
    assert pool.plan.detail.template == "pool"
    assert len(pool.inputs) == 1


@pytest.mark.parametrize(
    ("body", "first", "last"),
    [
        ("F.max_pool2d(F.gelu(self.c(x)), 3, 2, 1)", ["add", "gelu"], []),
        ("F.avg_pool2d(F.silu(self.c(x) + x), 3, 1, 1).tanh()", ["add", "add", "silu"], ["tanh"]),
        ("F.avg_pool2d(self.l(x).tanh(), 3, 1)", ["add", "tanh"], []),
        ("F.max_pool2d(F.relu(self.c(x)), 3, 2, 1)", [], ["add", "relu"]),  # memory hides it
        ("F.adaptive_avg_pool2d(F.gelu(self.c(x)), (7, 5))", [], ["add", "gelu"]),  # few elements are in two windows
    ],
)
def test_functions_before_overlapping_windows_are_the_convolution_s(
    body: str, first: list[str], last: list[str], tmp_path: Path
) -> None:
    init = "self.c, self.l = nn.Conv2d(64, 64, 3, padding=1), nn.Linear(80, 96)"
    found = program(tmp_path, f"return {body}", init, "torch.rand(8, 64, 80, 80)")
    functions = [[n.op.fn for n in kernel.nodes if isinstance(n.op, PointwiseOp)] for kernel in bodies(found)]
    assert functions == [first, last]


def test_functions_before_overlapping_windows_stay_where_others_need_the_convolution(tmp_path: Path) -> None:
    body = "y = self.c(x)\nreturn F.max_pool2d(y.tanh(), 3, 2, 1), y"
    found = program(tmp_path, body, "self.c = nn.Conv2d(64, 64, 3, padding=1)", "torch.rand(8, 64, 80, 80)")
    assert templates(found) == ["contraction", "pool"]


def test_parts_of_normalised_data_are_computed_where_they_are_read(tmp_path: Path) -> None:
    body = "a, b = F.instance_norm(F.relu(self.c(x))).chunk(2, 1)\nreturn torch.logsumexp(a - b, -1)"
    found = program(tmp_path, body, "self.c = nn.Conv1d(32, 64, 5)", "torch.rand(16, 32, 4096)")
    assert set(templates(found)) == {"contraction", "row_stream"}


def test_parts_of_normalised_data_that_were_joined_are_computed_where_they_are_read(tmp_path: Path) -> None:
    init = "self.a, self.b, self.n = nn.Conv2d(8, 32, 3), nn.Conv2d(8, 32, 3), nn.BatchNorm2d(64)"
    body = (
        "a, b = self.n(torch.cat([self.a(x), self.b(x)], 1)).chunk(2, 1)\nreturn F.adaptive_max_pool2d(a.maximum(b), 5)"
    )
    found = program(tmp_path, body, init, "torch.rand(64, 8, 66, 66)")
    (pool,) = (kernel for kernel in bodies(found) if any(isinstance(n.op, AdaptivePoolOp) for n in kernel.nodes))
    shape = pool.node(pool.outputs[0]).type.shape[:2]
    data = [n for n in pool.inputs if n.type.rank == 4 and n.type.shape[:2] == shape]
    assert len(data) == 2


def test_functions_of_the_same_data_are_reduced_before_they_are_joined(tmp_path: Path) -> None:
    body = "return torch.cat([x.tanh(), x.exp() * 2, x.relu()], 1).mean((2, 3), keepdim=True)"
    assert templates(program(tmp_path, body, inputs="torch.rand(16, 32, 90, 90)")) == ["row_stream"]


def test_what_lies_between_two_products_is_the_first_one_s(tmp_path: Path) -> None:
    init = "self.a, self.b = nn.Linear(256, 768), nn.Linear(768, 256)"
    found = program(tmp_path, "return x + self.b(F.gelu(self.a(x)))", init, "torch.rand(8, 196, 256)")
    functions = [[n.op.fn for n in body.nodes if isinstance(n.op, PointwiseOp)] for body in bodies(found)]
    assert functions == [["add", "gelu"], ["add", "add"]]


def test_what_lies_in_another_order_than_what_it_is_added_to_is_turned_before_rows_are_read(tmp_path: Path) -> None:
    body = "x = x + y.transpose(1, 2)\nreturn x, F.layer_norm(x, (256,))"
    found = program(tmp_path, body, inputs="torch.rand(8, 160, 256), torch.rand(8, 256, 160)", arguments="x, y")
    assert templates(found) == ["pointwise", "row_reduce"]


def test_attention_reads_rows_in_the_order_that_they_lie(tmp_path: Path) -> None:
    init = "self.l = nn.TransformerEncoderLayer(256, 4, 768, 0.0, 'gelu', batch_first=True, norm_first=True)"
    product, attention = ["row_reduce", "contraction"], ["attention", "contraction"]
    whole = [*product, *attention, *product, "contraction"]
    found = program(tmp_path, "return self.l(x)", init, "torch.rand(8, 196, 256)")
    assert (templates(found), [step for step in found.steps if step.kind != "kernel"]) == (whole, [])
    tokens = "x = torch.cat((x.flatten(2).transpose(1, 2), x[:, :, :1, 0].mT), 1)\nreturn self.l(x)"
    planes = program(tmp_path, tokens, init, "torch.rand(8, 256, 14, 14)")
    assert templates(planes)[-len(whole) :] == whole
    init = "self.a, self.n = nn.MultiheadAttention(256, 8, batch_first=True), nn.LayerNorm(256)"
    found = program(tmp_path, "return self.n(x + self.a(x, x, x)[0])", init, "torch.rand(8, 128, 256)")
    written = ["contraction", "attention", "contraction", "row_reduce"]
    assert (templates(found), len(found.steps)) == (written, len(written))


def test_rows_that_would_be_written_across_their_result_are_turned_first(tmp_path: Path) -> None:
    body = "x = F.gelu(F.layer_norm(x.flatten(2).transpose(1, 2), (64,)))\nreturn x - x.mean(1, True)"
    found = program(tmp_path, body, inputs="torch.rand(64, 64, 64, 64)")
    assert templates(found) == ["row_reduce", "pointwise", "row_stream"]


UPSAMPLED = "F.interpolate(self.c(x), scale_factor=2, mode='bilinear')"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"return self.n({UPSAMPLED})", ["contraction", "pointwise", "row_stream"]),
        (f"return {UPSAMPLED}.softmax(1)", ["contraction", "pointwise", "row_reduce"]),
        (f"return {UPSAMPLED}.exp().sum(3)", ["contraction", "reduce_views"]),  # which reads neighbours where they lie
    ],
)
def test_of_an_interpolation_its_result_is_written_and_no_neighbour(
    body: str, expected: list[str], tmp_path: Path
) -> None:
    init = "self.c = nn.Conv2d(8, 24, 3)\nself.n = nn.BatchNorm2d(24)"
    assert templates(program(tmp_path, body, init, "torch.rand(16, 8, 57, 61)")) == expected
