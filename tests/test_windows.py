"""Sliding windows: views whose elements are read where they lie, and convolutions where a matrix meets them."""

from __future__ import annotations

import math
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fusegen import dims, guards, interpret, ops
from fusegen.compiler import Compiled, compile_file
from fusegen.errors import GraphError
from fusegen.ir import ConvOp, DType, EagerOp, Graph, InputOp, InterpolateOp, MatmulOp, Node, TensorType, UnfoldOp
from fusegen.passes.algebra import window_products
from fusegen.plan.details import PointwisePlan, ViewReducePlan
from fusegen.plan.types import KernelStep
from fusegen.trace import load_model_file
from tests.emulated import Kernel, steps
from tests.models import traced, write


def one_axis(length: int, op: UnfoldOp) -> Graph:
    x = Node(name="x", op=InputOp(position=0), type=TensorType(dtype=DType.FLOAT32, shape=(2, length, 3)))
    y = Node(name="y", op=op, inputs=("x",), type=ops.infer(op, (x.type,), x.type))
    return Graph(nodes=(x, y), outputs=("y",))


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 6), st.integers(1, 4))
def test_element_k_of_window_i(length: int, size: int, step: int, dilation: int) -> None:
    extent = dilation * (size - 1) + 1
    count = max(length - extent + step, 0) // step
    op = UnfoldOp(axis=1, count=count, size=size, step=step, dilation=dilation)
    with pytest.raises(GraphError, match="windows lie inside"):
        one_axis(length, op.replace(count=count + 1))
    if not count:
        return
    x = torch.arange(6 * length).reshape(2, length, 3)
    (found,) = interpret.run(one_axis(length, op), [x], {})
    windows = [x[:, i : i + extent : dilation] for i in range(0, length - extent + 1, step)]
    assert torch.equal(found, torch.stack(windows, 1))


@pytest.mark.parametrize(
    ("body", "least"),
    [
        ("F.unfold(x, (3, 1), dilation=(2, 1), padding=(1, 0))", (1, 1, 3, 1)),
        ("x.unfold(2, 3, 2)", (1, 1, 3, 1)),
        ("x.unfold(3, 4, 4) * 2", (1, 1, 1, 4)),
    ],
)
def test_sizes_without_a_window_are_torchs_to_refuse(body: str, least: tuple[int, ...], tmp_path: Path) -> None:
    """And no others are: with windows side by side too, whatever is left behind the last one."""
    graph = traced(write(tmp_path, f"return {body}", inputs="torch.rand(2, 3, 8, 9)")).graph
    assert not any(isinstance(node.op, EagerOp) for node in graph.nodes)
    for shape in (least, (2, 5, 9, 11), (2, 5, 12, 16)):
        assert guards.all_hold(graph.constraints, {f"x0_{axis}": size for axis, size in enumerate(shape)}), shape
    for axis, size in enumerate(least):
        if size > 1:
            sizes = {f"x0_{i}": least[i] - (i == axis) for i in range(4)}
            assert not guards.all_hold(graph.constraints, sizes)


def kinds(found: Compiled) -> list[str]:
    return [s.plan.detail.template if isinstance(s, KernelStep) else "torch" for s in found.program.steps]


def compiled(tmp_path: Path, body: str, inputs: str = "torch.rand(2, 4, 10, 12)", init: str = "pass") -> Compiled:
    arguments = ", ".join("xyz"[: inputs.count("torch.rand")])
    return compile_file(write(tmp_path, f"return {body}", init, inputs, arguments))


@pytest.mark.parametrize(
    ("body", "expected"),
    {
        "columns": ("F.unfold(x, 3)", ["pointwise"]),
        "columns of padded images": ("F.unfold(torch.relu(x), 3, padding=1, stride=2)", ["pointwise"]),
        "windows alone are a view": ("x.unfold(2, 3, 1)", ["torch", "torch"]),
        "frames": ("x.unfold(3, 5, 2) * x[..., :5].unsqueeze(3)", ["pointwise"]),
        "means": ("x.unfold(2, 3, 2).unfold(3, 3, 2).mean((-1, -2))", ["reduce_views"]),
        "largest": ("torch.relu(x).unfold(3, 5, 1).amax(-1)", ["reduce_views"]),
    }.values(),
)
def test_nothing_writes_windows_before_they_are_needed(body: str, expected: list[str], tmp_path: Path) -> None:
    assert kinds(compiled(tmp_path, body)) == expected


SHAPES = [(2, 4, 10, 12), (1, 2, 7, 8), (3, 4, 9, 33), (2, 6, 16, 7), (1, 4, 8, 64)]
BODIES = {
    "columns": "F.unfold(x, 3, padding=1)",
    "columns of strided windows": "F.unfold(x.sigmoid(), (2, 3), dilation=(3, 2), padding=(1, 2), stride=(2, 3))",
    "columns without padding": "F.unfold(x, (5, 1), stride=(1, 2))",
    "side by side": "F.unfold(x * 2, (3, 2), stride=(3, 2))",
    "frames": "x.unfold(3, 4, 2) * x[..., :4].unsqueeze(3)",
    "windows of windows": "x.unfold(2, 5, 1).unfold(4, 2, 2) * 2",
    "windows of parts": "x[..., 1:].flip(3).unfold(3, 4, 3).exp()",
    "windows of joined": "torch.cat([x, x * 2], 3).unfold(3, 7, 5) + 1",
    "padded windows": "F.pad(x.unfold(2, 3, 2), (1, 2, 0, 1), value=2.0)",
    "reversed windows": "x.unfold(3, 4, 1).flip(4).flip(3) * 2",
    "windows of wide rows": "x.flatten(2).unfold(2, 32, 1).transpose(2, 3).contiguous()",
    "around": "F.pad(x, (2, 2, 1, 1), mode='circular').unfold(2, 3, 1).unfold(3, 5, 1) * 2",
    "of interpolated": "F.interpolate(x, (9, 14), mode='bilinear').unfold(3, 3, 2) * 2",
}
FOLDS = {
    "overlapping": ("F.fold(x, (11, 14), (4, 3), padding=(1, 0), stride=(2, 1))", (2, 36, 60)),
    "side by side": ("F.fold(x * 2, (9, 8), (3, 2), stride=(3, 2))", (2, 12, 12)),
    "with gaps": ("F.fold(x, (11, 9), (2, 1), stride=(4, 2), padding=(0, 1)) + 1", (2, 6, 18)),
    "dilated": ("F.fold(x, (9, 8), (2, 3), dilation=(3, 2), padding=(1, 0))", (2, 12, 32)),
    "of what was unfolded": ("F.fold(F.unfold(x, 4, stride=2), x.shape[2:], 4, stride=2) * 2", (2, 3, 10, 12)),
}
SUMS = {
    "involution": "(F.unfold(x, 3, padding=1).unflatten(1, (2, -1, 9)) * F.unfold(x.exp(), 3, padding=1)"
    ".unflatten(1, (2, -1, 9))[:, :, :1]).sum(3)",
    "means": "x.unfold(2, 3, 2).unfold(3, 3, 2).mean((-1, -2))",
    "largest": "F.pad(x, (2, 0), value=-torch.inf).unfold(3, 3, 1).amax(-1) * 2",
    "along windows": "x.unfold(3, 4, 2).square().sum(3)",
    "of dilated": "(F.unfold(x, (3, 2), dilation=2).unflatten(1, (-1, 6)) * 3).sum(2)",
}


def agrees(found: Compiled, plan_type: type, tmp_path: Path, shapes: Sequence[tuple[int, ...]] = tuple(SHAPES)) -> None:
    """At every size that the graph stands for."""
    (plan,) = steps(found, plan_type)
    kernel = Kernel(found, plan, tmp_path)
    for shape in shapes:
        x, sizes = torch.randn(shape), {f"x0_{axis}": size for axis, size in enumerate(shape)}
        graph = found.program.after
        fits = (
            len(shape) == graph.inputs[0].type.rank
            and tuple(dims.evaluate(size, sizes) for size in graph.inputs[0].type.shape) == shape
        )
        if fits and guards.all_hold(graph.constraints, sizes):
            (result,) = kernel([x], *(dims.evaluate(size.size, sizes) for size in plan.given))
            (exact,) = interpret.run(kernel.body, [x.double()], {})
            between = any(isinstance(node.op, InterpolateOp) for node in kernel.body.nodes)
            error = 1e-4 if between else 1e-5  # places of float32, and of float64
            torch.testing.assert_close(result.double(), exact, rtol=error, atol=error)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("name", BODIES)
def test_kernels_read_windows(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"return {BODIES[name]}", inputs="torch.rand(2, 4, 10, 12)")
    found = compile_file(path)
    assert kinds(found)[0] == "pointwise"
    agrees(found, PointwisePlan, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("name", FOLDS)
def test_kernels_add_up_windows(name: str, tmp_path: Path) -> None:
    body, shape = FOLDS[name]
    found = compile_file(write(tmp_path, f"return {body}", inputs=f"torch.rand{shape}"))
    assert kinds(found) == ["pointwise"]
    agrees(found, PointwisePlan, tmp_path, [shape, (1, *shape[1:]), (3, 5, 14, 16)])


@settings(deadline=None, max_examples=25)
@given(st.randoms(use_true_random=False))
def test_folds_are_torchs(rng: random.Random) -> None:
    """Whatever the windows; those that many windows have an element of, or with gaps, are left to torch."""
    kernel, stride, dilation, padding, extent = (
        [rng.randint(low, high) for _ in range(2)] for low, high in ((1, 4), (1, 4), (1, 2), (0, 2), (0, 7))
    )
    pairs = list(zip(kernel, dilation, padding, extent, strict=True))
    sizes = [max(1, d * (k - 1) + 1 - 2 * p) + more for k, d, p, more in pairs]
    counts = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, (k, d, p, _), s in zip(sizes, pairs, stride, strict=True)]
    x = torch.randn(2, 3 * math.prod(kernel), math.prod(counts))
    body = f"return F.fold(x, {sizes}, {kernel}, dilation={dilation}, padding={padding}, stride={stride})"
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), body, inputs=f"torch.rand{tuple(x.shape)}")
        (found,) = interpret.run(traced(path).graph, [x], {})
        torch.testing.assert_close(found, load_model_file(path).model_class()(x))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("name", SUMS)
def test_kernels_reduce_windows(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"return {SUMS[name]}", inputs="torch.rand(2, 4, 10, 12)")
    agrees(compile_file(path), ViewReducePlan, tmp_path)


PRODUCTS = {
    "columns": ("F.unfold(x, 3, padding=1).transpose(1, 2) @ self.w.view(8, -1).t()", (8, 4, 3, 3), ((1, 1), (1, 1))),
    "dilated columns": (
        "F.linear(F.unfold(x, (3, 2), dilation=(2, 3), padding=(2, 0)).mT, self.w)",
        (8, 24),
        ((1, 1), (2, 3)),
    ),
    "strided windows": (
        "F.linear(x.unfold(3, 2, 3).unfold(2, 3, 2).permute(0, 3, 2, 5, 1, 4).flatten(3), self.w)",
        (8, 24),
        ((2, 3), (1, 1)),
    ),
    "a matrix before columns": ("self.w.view(8, -1) @ F.unfold(x, 3, padding=1)", (8, 4, 3, 3), ((1, 1), (1, 1))),
    "patches": ("F.linear(F.unfold(x, 4, stride=4).transpose(1, 2), self.w)", (8, 64), ((4, 4), (1, 1))),
    "patches by windows": (
        "F.linear(x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2), self.w)",
        (8, 64),
        ((4, 4), (1, 1)),
    ),
    "channels last": ("F.linear(x.unfold(2, 3, 1).permute(0, 2, 3, 1, 4).flatten(3), self.w)", (8, 12), ((1,), (1,))),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_with_windows_are_convolutions(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any size, as long as there is a window."""
    monkeypatch.setattr(window_products, "_pays", lambda *_: None)
    body, weight, (stride, dilation) = PRODUCTS[name]
    path = write(tmp_path, f"return {body}", f"self.w = nn.Parameter(torch.randn{weight})", "torch.rand(2, 4, 10, 12)")
    found, model = compile_file(path), load_model_file(path).model_class()
    after = found.program.after
    (conv,) = (node.op for node in after.every_node if isinstance(node.op, ConvOp))
    assert (conv.stride, conv.dilation, conv.precise) == (stride, dilation, True)
    assert not any(isinstance(node.op, (MatmulOp, UnfoldOp)) for node in after.every_node)
    for shape in ((2, 4, 10, 12), (3, 4, 11, 21), (1, 4, 7, 9)):
        x = torch.randn(shape, dtype=torch.float64)
        (result,) = interpret.run(after, [x], {"w": model.w.double()})
        torch.testing.assert_close(result, model.double()(x))


@pytest.mark.parametrize(
    "body",
    [
        "F.linear(x.reshape(2, -1, 2, 24).flatten(2), self.w)",  # rows as they lie
        "F.linear(x.flatten(1).unfold(1, 48, 5), self.w)",
        "F.linear(F.unfold(x, (3, 4)).transpose(1, 2).relu(), self.w)",
        "(lambda y: F.linear(y, self.w).sum() + y.exp())(F.unfold(x, (3, 4)).transpose(1, 2))",
        "F.linear(F.pad(F.unfold(x, (3, 4)).transpose(1, 2), (0, 0, 1, 1)), self.w)",
    ],
)
def test_other_products_stay(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_products, "_pays", lambda *_: None)
    path = write(tmp_path, f"return {body}", "self.w = nn.Parameter(torch.randn(8, 48))", "torch.rand(2, 4, 10, 12)")
    assert not any(isinstance(node.op, ConvOp) for node in compile_file(path).program.after.every_node)
