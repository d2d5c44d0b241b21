"""Elementwise work behind views: which of it is a kernel, and what that kernel computes, on the CPU."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch

from fusegen import dims, interpret
from fusegen.compiler import Compiled, compile_file
from fusegen.costs import attention, contractions, direct, viewproduct
from fusegen.ir import RegionOp, ReshapeOp
from fusegen.plan import views
from fusegen.plan.details import PointwisePlan
from fusegen.plan.types import EagerStep, KernelStep
from tests.chains import Chain, operand, reshaping, scalar, unary
from tests.emulated import Kernel, steps
from tests.models import write

SHAPE = "torch.rand(4, 6, 10, 8)"


def compiled(tmp_path: Path, body: str, inputs: str = SHAPE, arguments: str = "x") -> Compiled:
    return compile_file(write(tmp_path, body, "self.p = nn.Parameter(torch.rand(6, 1, 1))", inputs, arguments))


def kinds(found: Compiled) -> list[str]:
    return [step.plan.detail.template if isinstance(step, KernelStep) else "torch" for step in found.program.steps]


@pytest.mark.parametrize(
    "body",
    {
        "permuted": "return (x.permute(0, 2, 3, 1) * 2).contiguous()",
        "regrouped": "return torch.tanh(x).reshape(x.shape[0], 3, 2, 10, 8).transpose(1, 2).reshape(-1, 60) + 1",
        "part": "return torch.relu(x[:, 1:4, ::2])",
        "joined": "return torch.cat([x * 2, torch.tanh(x)], 1)",
        "padded": "return F.pad(torch.exp(x), (1, 2, 0, 3), value=0.5)",
        "rolled": "return torch.roll(x, 1, 1) + self.p",
        "rolled both ways": "return torch.roll(x, (2, -3), (2, 3)) + self.p",
        "rolled alone": "return torch.roll(x, (2, -3), (2, 3))",
        "flipped": "return x.flip(3) + x.flip(1, 2) * 2",
        "reflected": "return F.pad(torch.exp(x), (1, 2, 0, 3), mode='reflect')",
        "continued": "return F.pad(x, (1, 2, 0, 3), mode='replicate') + self.p",
        "around": "return F.pad(x, (1, 2, 3, 1), mode='circular') * 2",
        "repeated": "return torch.relu(x).repeat(1, 1, 2, 3)",
        "nearest": "return F.interpolate(torch.relu(x), scale_factor=2)",
        "nearest to other sizes": "return F.interpolate(torch.relu(x), (7, 25)) + 1",
        "nearest by another factor": "return F.interpolate(x, scale_factor=1.7)",
        "nearest to sizes of the call": "return F.interpolate(x, (x.shape[2] // 2, 3 * x.shape[3] - 1))",
        "bilinear to other sizes": "return F.interpolate(torch.relu(x), (7, 25), mode='bilinear') * 2",
        "bilinear by another factor": "return F.interpolate(x, scale_factor=(0.7, 3), mode='bilinear')",
        "bilinear between corners": "return self.p + nn.Upsample(None, 2, 'bilinear', align_corners=True)(x)",
        "linear": "return F.interpolate(x.flatten(2), x.shape[3], mode='linear')",
        "trilinear": "return F.interpolate(x[None], (5, 13, 4), mode='trilinear')",
        "of one element": "return F.interpolate(x[:, :, :1, :1] * 2, x.shape[2:], mode='bilinear') * x",
        "spread": "return (x + self.p).unsqueeze(2).expand(-1, -1, 3, -1, -1) * x.unsqueeze(2)",
        "windows": "return x.unfold(3, 4, 4).reshape(x.shape[0], -1, 4).permute(0, 2, 1).reshape(x.shape[0], -1) * 2",
        "shared": "y = x.permute(0, 2, 3, 1)\nreturn y[..., :2] * 2, y[..., 2:] + 1",
    }.values(),
)
def test_one_kernel_for_each_result(body: str, tmp_path: Path) -> None:
    found = compiled(tmp_path, body, "torch.rand(4, 6, 10, 8)")
    assert set(kinds(found)) == {"pointwise"}
    assert len(found.program.steps) == len(found.program.after.outputs)


@pytest.mark.parametrize(
    ("body", "kernels"),
    [
        ("x.diff().abs().mean()", ["reduce_views"]),
        ("(x[:, :, 1:] - x[:, :, :-1]).square().sum((1, 2, 3)).sqrt()", ["reduce_views"]),
        ("(x[:, :, None] - x[:, :, :, None]).abs().amax(-1)", ["reduce_views"]),
        ("torch.cat([x, x * 2], 1).exp().sum(1)", ["reduce_views"]),
        ("torch.stack([x, x * 2], 1).amax(1).sum(-1)", ["row_stream"]),  # the larger one of both, element by element
        ("(x[..., 1:] - x[..., :-1]).softmax(-1)", ["row_stream"]),  # parts that it reads where they lie
        ("(x[..., 1:] - x[..., :-1]).logsumexp(-1)", ["row_stream"]),
    ],
)
def test_reductions_read_from_behind_views(body: str, kernels: list[str], tmp_path: Path) -> None:
    assert kinds(compiled(tmp_path, f"return {body}", "torch.rand(4, 6, 10, 8)")) == kernels


def test_what_is_viewed_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that read the product from behind its views and torch's own read the same tensor."""
    monkeypatch.setattr(contractions, "refusal", lambda *_: "the library's")
    monkeypatch.setattr(viewproduct, "seconds", lambda body, *_: 1.0 if body.name == "matmul" else -1.0)
    monkeypatch.setattr(attention, "seconds", lambda *_: 1.0)
    path = write(
        tmp_path,
        """
        q, k, v = self.qkv(x).reshape(x.shape[0], 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return ((q * 0.5) @ k.mT).softmax(-1) @ v
        """,
        "self.qkv = nn.Linear(8, 24)",
        "torch.rand(5, 6, 8)",
    )
    regions = [node.op for node in compile_file(path).program.after.nodes if isinstance(node.op, RegionOp)]
    assert [region.template for region in regions].count("gemm_views") == 1
    for body in (region.body for region in regions):
        views = [body.node(name) for name in body.outputs if isinstance(body.node(name).op, ReshapeOp)]
        assert not any(view.inputs[0] in body.outputs for view in views)


def views_of(rng: random.Random) -> str:
    """Two to five views of ``y``, [batch, 6, 4, 8], one after the other."""
    text, shape = "y", [-1, 6, 4, 8]  # -1: the batch, or what it is merged into
    for _ in range(rng.randint(2, 5)):
        kinds = ("permute", "split", "merge", "slice", "expand", "unfold")
        kind, axis = rng.choice(kinds), rng.randrange(len(shape))
        if kind == "permute":
            order = rng.sample(range(len(shape)), len(shape))
            text, shape = f"{text}.permute({', '.join(map(str, order))})", [shape[i] for i in order]
        elif kind == "slice" and shape[axis] > 2:
            start, step = rng.randint(0, 1), rng.randint(1, 2)
            text = f"{text}[{':, ' * axis}{start}::{step}]"
            shape[axis] = (shape[axis] - start - 1) // step + 1
        elif kind == "expand":
            text = f"{text}.unsqueeze({axis}).expand({'-1, ' * axis}3, {'-1, ' * (len(shape) - axis)})"
            shape.insert(axis, 3)
        elif kind == "unfold" and shape[axis] > 4:
            size, step = rng.randint(2, 3), rng.randint(1, 2)
            text = f"{text}.unfold({axis}, {size}, {step})"
            shape[axis] = (shape[axis] - size) // step + 1
            shape.append(size)
        elif kind == "split" and shape[axis] > 2 and shape[axis] % 2 == 0:
            shape[axis : axis + 1] = [2, shape[axis] // 2]
            text = f"{text}.reshape({', '.join(map(str, shape))})"
        elif kind == "merge" and axis + 1 < len(shape):
            pair = shape[axis : axis + 2]
            shape[axis : axis + 2] = [-1 if -1 in pair else pair[0] * pair[1]]
            text = f"{text}.reshape({', '.join(map(str, shape))})"
    return text


def test_what_elements_have_in_common_is_written_where_computing_it_takes_longer(tmp_path: Path) -> None:
    """25 shifts of a function are read of it, and of what no function was taken of where they lie."""
    shifts = " + ".join(f"y[:, {i}:{i} + 252, {j}:{j} + 252]" for i in range(5) for j in range(5))
    dear = compiled(tmp_path, f"y = F.gelu(torch.tanh(x))\nreturn {shifts}", "torch.rand(40, 256, 256)")
    assert kinds(dear) == ["pointwise", "pointwise"]
    cheap = compiled(tmp_path, f"y = x * 2\nreturn {shifts}", "torch.rand(40, 256, 256)")
    assert kinds(cheap) == ["pointwise"]


def test_few_numbers_are_read_many_times(tmp_path: Path) -> None:
    """Splines: of each number every basis function, by knots."""
    basis = """
b = ((x.unsqueeze(-1) >= self.k[:-1]) & (x.unsqueeze(-1) < self.k[1:])).to(x.dtype)
for i in range(1, 4):
    left = (x.unsqueeze(-1) - self.k[:-i - 1]) / (self.k[i:-1] - self.k[:-i - 1])
    right = (self.k[i + 1:] - x.unsqueeze(-1)) / (self.k[i + 1:] - self.k[1:-i])
    b = left * b[..., :-1] + right * b[..., 1:]
return b
"""
    init = "self.register_buffer('k', torch.linspace(-1, 1, 15))"
    found = kinds(compile_file(write(tmp_path, basis, init, "torch.rand(4096, 128)")))
    assert [kind for kind in found if kind != "torch"] == ["pointwise"]  # its slices are views


def test_views_of_views_are_one(tmp_path: Path) -> None:
    """By strides of a kernel's result, at other sizes too; what would divide sizes stays as it is."""
    by_strides = 0
    for seed in range(40):
        text = views_of(random.Random(seed))
        path = write(tmp_path, f"y = torch.relu(x * 2)\nreturn y, {text}", "pass", "torch.randn(3, 6, 4, 8)")
        found = compile_file(path).program
        kernels = [step for step in found.steps if isinstance(step, KernelStep)]
        if [kernel.outputs for kernel in kernels] != [("relu",)]:
            continue  # the views are part of a kernel, which copies
        calls = [step for step in found.steps if isinstance(step, EagerStep)]
        by_strides += any("as_strided" in step.expr for step in calls)
        for batch in (3, 5, 1):
            y = torch.randn(batch, 6, 4, 8)
            values = {"torch": torch, "v_relu": y, **{f"x0_{axis}": size for axis, size in enumerate(y.shape)}}
            for step in calls:
                values[f"v_{step.output}"] = eval(step.expr, values)
            result, expected = values[f"v_{found.after.outputs[1]}"], eval(text, {"y": y})
            assert torch.equal(result, expected), (text, batch)
            assert result.stride() == expected.stride() or batch == 1, (text, result.stride(), expected.stride())
    assert by_strides >= 10


def test_views_alone_stay_views(tmp_path: Path) -> None:
    found = compiled(tmp_path, "y = torch.relu(x)\nreturn y.permute(0, 2, 3, 1)[:, 1:]")
    assert kinds(found) == ["pointwise", "torch"]


@pytest.mark.parametrize("body", ["return torch.cat([x, x], 1)", "return x.tril()"])
def test_one_copy_is_left_to_torch(body: str, tmp_path: Path) -> None:
    assert set(kinds(compiled(tmp_path, body))) == {"torch"}


def test_a_mask_of_a_constant_is_a_kernel(tmp_path: Path) -> None:
    mask = "torch.full(x.shape[-2:], -torch.inf, device=x.device).triu(1)"
    assert kinds(compiled(tmp_path, f"return (x + {mask}).softmax(-1)")) == ["pointwise", "row_reduce"]


def test_what_a_heavy_kernel_can_do_stays_with_it(tmp_path: Path) -> None:
    """The activation belongs to the pooling's kernel; joining its results writes them once more at most."""
    body = "return torch.cat([torch.tanh(F.max_pool2d(x, 2)), F.avg_pool2d(x, 2)], 1)"
    assert kinds(compiled(tmp_path, body)) == ["pool", "pool", "torch"]


def test_the_bias_of_a_librarys_convolution_goes_with_what_joins_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its own, it would be a pass more: the library adds it after its products."""
    monkeypatch.setattr(contractions, "kernel_seconds", lambda *_, **__: 1.0)
    monkeypatch.setattr(direct, "takes", lambda *_: False)
    path = write(
        tmp_path,
        "return torch.cat([self.a(x), self.b(x), x], 1)",
        "self.a = nn.Conv2d(6, 32, 3, padding=1)\nself.b = nn.Conv2d(6, 32, 1)",
        "torch.rand(4, 6, 10, 8)",
    )
    found = compile_file(path)
    assert kinds(found) == ["torch", "torch", "pointwise"]
    texts = [step.expr for step in found.program.steps if isinstance(step, EagerStep)]
    assert all("bias" not in text for text in texts)


def runs(found: Compiled) -> object:
    (plan,) = steps(found, PointwisePlan)
    assert isinstance(plan.detail, PointwisePlan)
    return plan.detail.run


@pytest.mark.parametrize(
    ("body", "run"),
    [
        ("return torch.cat([x * 2, torch.tanh(x)], 1)", "height*width"),
        ("return torch.cat([x * 2, (x[:, :, :1] * self.p).expand_as(x)], 1)", "width"),
        ("return torch.cat([x, x * 2], 3)", None),  # where a part ends is no multiple of anything
        ("return (x.relu() + x[:, :, :1, :1] * self.p) * x[:1, :1]", "height*width"),
        ("return torch.cat([x.permute(0, 2, 3, 1), x.permute(0, 2, 3, 1) * 2], 1)", "channels"),
        ("return torch.cat([x[..., 1:], x[..., 1:] * 2], 1)", "width - 1"),  # they may begin anywhere
    ],
)
def test_runs(body: str, run: str | None, tmp_path: Path) -> None:
    """Between their multiples, positions are computed once for several elements."""
    assert runs(compiled(tmp_path, body)) == run


@pytest.mark.parametrize(("at", "run"), [(8, 24), (10, None)])
def test_accesses_that_lie_in_one_part(at: int, run: int | None, tmp_path: Path) -> None:
    """Of what is turned by halves, or padded by whole accesses, conditions are the same for all of an access."""
    body = f"y = x * self.p\nreturn torch.cat([-x[..., {at}:], x[..., :{at}]], 2) * y.sigmoid()"
    path = write(tmp_path, body, "self.p = nn.Parameter(torch.randn(24))", "torch.rand(5, 6, 24)")
    assert runs(compile_file(path)) == run


def test_positions_are_divided_once_for_the_elements_of_an_access(tmp_path: Path) -> None:
    """Whatever the sizes: the digits of an element's number count from there, those of a moved place do not."""
    (plan,) = steps(compiled(tmp_path, "return torch.cat([x * self.p, x[:, :, 1:].relu()], 2)"), PointwisePlan)
    assert isinstance(plan.detail, PointwisePlan)
    counted = {digit.name: (digit.stride, digit.size) for digit in plan.detail.counted}
    assert ("width", "2*height - 1") in counted.values()
    assert (1, "width") in counted.values()
    positions = plan.detail.rows.positions
    assert {position.name for position in positions if position.expr.startswith("index")} == set(counted)
    assert len(positions) > len(counted)


def test_a_bias_behind_which_the_result_is_regrouped_goes_with_the_product(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "return self.m(x).view(16384, 2, 8, 4).permute(0, 2, 1, 3)",
        "self.m = nn.Linear(64, 64)",
        "torch.rand(16384, 64)",
    )
    found = compile_file(path)
    texts = [step.expr for step in found.program.steps if isinstance(step, EagerStep)]
    assert len(texts) == len(found.program.steps)
    assert sum("linear(" in text for text in texts) == 1


def some_views(rng: random.Random) -> Chain:
    """Views and elementwise ops in any order; at the end one that writes."""
    chain = Chain(rng)
    shape = (rng.randint(2, 4), rng.choice((4, 6)), rng.randint(3, 6), rng.choice((4, 5)))
    chain.values.append((chain.input(shape), shape))
    for _ in range(rng.randint(3, 7)):
        rng.choice((unary, scalar, operand, reshaping, reshaping, reshaping))(chain)
    chain.then("{x} * 2.0", chain.shape)
    return chain


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("seed", range(24))
def test_agrees_with_float64(seed: int, tmp_path: Path) -> None:
    found = compile_file(some_views(random.Random(seed)).write(tmp_path))
    plans = steps(found, PointwisePlan)
    graph = found.program.after
    for plan in plans:
        kernel = Kernel(found, plan, tmp_path)
        for grow in (0, 1):
            sizes = {name: size + grow for name, size in graph.sizes.items()}
            try:
                shapes = [[dims.evaluate(d, sizes) for d in arg.type.shape] for arg in plan.args]
                operands = [torch.randn(shape) for shape in shapes]
                exact = interpret.run(kernel.body, [x.double() for x in operands], {})
            except RuntimeError:  # the model does not take these sizes
                continue
            for y, r in zip(kernel(operands), exact, strict=True):
                torch.testing.assert_close(y.double(), r, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "expected"),
    {
        "a result of eager's layout": ("return torch.tanh(x.permute(0, 2, 3, 1)) * 2", ["pointwise", "torch"]),
        "with what has the same order": (
            "y = x.permute(0, 2, 3, 1)\nreturn torch.tanh(y) * y + self.p[:, 0, 0]",
            ["pointwise", "torch"],
        ),
        "with what has another": ("return x.permute(0, 2, 3, 1) + x.reshape(-1, 10, 8, 6)", ["pointwise"]),
        "a result by rows": ("return torch.tanh(x.permute(0, 2, 3, 1).contiguous())", ["pointwise"]),
        "to a view that needs rows": ("return torch.tanh(x.permute(0, 2, 3, 1)).reshape(-1, 6)", ["pointwise"]),
    }.values(),
)
def test_functions_are_computed_where_the_data_lies(body: str, expected: list[str], tmp_path: Path) -> None:
    assert kinds(compiled(tmp_path, body)) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    {
        "a view": ("return torch.relu(x).permute(0, 2, 3, 1)", ["pointwise", "torch"]),
        "by rows, with the work before it": ("return torch.relu(x).permute(0, 2, 3, 1).contiguous()", ["pointwise"]),
        "by rows, behind a kernel": (
            "return x.softmax(1).permute(0, 2, 3, 1).contiguous()",
            ["row_reduce", "pointwise"],
        ),
        "whole rows": ("return x.softmax(1).transpose(0, 1).contiguous()", ["row_reduce", "pointwise"]),
        "part": ("return x.softmax(1)[:, 2:].contiguous()", ["row_reduce", "torch"]),
        "one row": (
            "return x.softmax(1).sum((1, 2), keepdim=True).permute(0, 3, 1, 2)",
            ["row_reduce", "row_stream", "torch"],
        ),
        "first rows": ("return x.softmax(1)[1:]", ["row_reduce", "torch"]),
        "part of elementwise work": ("return torch.relu(x)[:, 2:].contiguous()", ["pointwise"]),
    }.values(),
)
def test_what_eager_lays_out_by_rows_is(body: str, expected: list[str], tmp_path: Path) -> None:
    found = compiled(tmp_path, body)
    assert kinds(found) == expected
    copies = [".contiguous()" in step.expr for step in found.program.steps if isinstance(step, EagerStep)]
    assert copies == [".contiguous()" in body] * len(copies)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize(
    ("body", "turned"),
    {
        "batched": ("return (x.permute(0, 2, 1) * 2).contiguous()", 1),
        "all axes": ("return (x.permute(2, 1, 0).relu() + self.p[0]).contiguous()", 1),
        "beside one that is not": ("return x.transpose(1, 2) * (x.reshape(x.shape[0], x.shape[2], -1) + 1)", 1),
        "two": ("return (x.transpose(1, 2) * torch.exp(x * 2).transpose(1, 2) + 1).contiguous()", 1),
        "part": ("return torch.tanh(x[:, 1:].transpose(1, 2)).contiguous()", 1),
        "padded": ("return F.pad(x, (1, 2)).transpose(1, 2).reshape(-1, x.shape[1]) * 2", 1),
        "alone": ("return x.softmax(1).transpose(1, 2).contiguous()", 1),
        "in order": ("return torch.cat([x, x * 2], 1)", 0),
        "flipped": ("return x.flip(2) + x.flip(0, 1) * 2", 0),
        "flipped and turned": ("return (x.flip(1).transpose(1, 2) * 2).contiguous()", 1),
        "reflected": ("return F.pad(x[None], (3, 2, 1, 4), mode='reflect')[0] + 1", 0),
        "around": ("return F.pad(x[None], (3, 2, 0, 4), mode='circular')[0] + 1", 0),
        "held": ("return F.pad(x[None], (3, 2, 0, 4), mode='replicate')[0] + 1", 0),
        "bilinear": ("return F.interpolate(x[:, None], scale_factor=(2, 4), mode='bilinear')[:, 0] + 1", 0),
        "rolled": ("return torch.roll(x, (5, -3), (1, 2)) * 2", 0),
        "lower triangle": ("return (x.transpose(1, 2).tril(1) * 2).contiguous()", 1),
        "upper triangle": ("return torch.triu(x, -2) + x.exp().tril(-3)", 0),
        "mask": (
            "future = torch.ones(*x.shape[1:], dtype=torch.bool, device=x.device).triu(1)\n"
            "return x.masked_fill(future, -1.0)",
            0,
        ),
    }.values(),
)
def test_operands_in_another_order_are_turned_on_chip(
    body: str, turned: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "_LEAST_TURNED", 0)
    found = compiled(tmp_path, body, "torch.rand(20, 36, 41)")
    (plan,) = steps(found, PointwisePlan)
    assert isinstance(plan.detail, PointwisePlan)
    tile = plan.detail.tile
    assert len(tile.operands if tile else ()) == turned
    kernel = Kernel(found, plan, tmp_path)
    for batch, height, width in ((20, 36, 41), (16, 36, 16), (3, 36, 64), (17, 36, 5)):
        sizes = dict(zip(("x0_0", "x0_1", "x0_2"), (batch, height, width), strict=True))
        operands = [torch.randn([dims.evaluate(d, sizes) for d in arg.type.shape]) for arg in plan.args]
        exact = interpret.run(kernel.body, [x.double() for x in operands], {})
        for y, r in zip(kernel(operands), exact, strict=True):
            torch.testing.assert_close(y.double(), r, rtol=1e-5, atol=1e-5)


def test_offsets_of_a_larger_operand_are_wide(tmp_path: Path) -> None:
    """A small part of a tensor of more than 2^31 elements."""
    found = compiled(tmp_path, "return x[:, :2].permute(0, 2, 1) * 2", "torch.empty(8, 2048, 200)")
    (plan,) = steps(found, PointwisePlan)
    assert isinstance(plan.detail, PointwisePlan)
    sizes = {binding.name: (2**14, 2048, 200)[binding.axis] for binding in plan.bindings}
    assert [dims.evaluate(dim, sizes) for dim in plan.detail.reach] == [2**14 * 2048 * 200]
    assert f"{dims.cpp(plan.detail.reach[0])} <= INT32_MAX" in found.source
