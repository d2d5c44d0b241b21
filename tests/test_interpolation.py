"""Interpolation to any size: the places of elements are torch's, in graphs and in kernels."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fusegen import dims, interpret, ops
from fusegen.compiler import compile_file
from fusegen.ir import DType, EagerOp, Graph, InputOp, InterpolateOp, Node, TensorType
from fusegen.plan.details import PointwisePlan
from fusegen.plan.types import KernelStep
from fusegen.trace import load_model_file
from tests.emulated import Kernel, steps
from tests.models import traced, write

MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}


def one_axis(size: int, length: int, **options: Any) -> Graph:
    """Interpolation of the middle one of three axes."""
    x = Node(name="x", op=InputOp(position=0), type=TensorType(dtype=DType.FLOAT32, shape=(2, size, 3)))
    op = InterpolateOp(axis=1, length=length, **options)
    y = Node(name="y", op=op, inputs=("x",), type=ops.infer(op, (x.type,), x.type))
    return Graph(nodes=(x, y), outputs=("y",))


@settings(deadline=None, max_examples=200)
@given(
    st.integers(1, 40),
    st.integers(1, 60),
    st.none() | st.floats(0.2, 4.5),
    st.sampled_from(["linear", "corners", "nearest"]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_one_axis_is_torchs(size: int, length: int, scale: float | None, mode: str, dtype: torch.dtype) -> None:
    """Whatever the sizes; ``scale``: torch is told how many times as long the axis gets, and not its length."""
    if scale is not None:
        length = int(size * scale)
        if length == 0 or mode == "corners":
            return
    options: dict[str, Any] = {"scale": scale, "mode": "nearest"}
    if mode != "nearest":
        options.update(mode="linear", align_corners=mode == "corners")
    x = torch.randn(2, size, 3, dtype=dtype)
    (found,) = interpret.run(one_axis(size, length, **options), [x], {})
    told = {"size": length} if scale is None else {"scale_factor": scale}
    more = {} if mode == "nearest" else {"align_corners": mode == "corners"}
    expected = torch.nn.functional.interpolate(x.mT, mode=options["mode"], **told, **more).mT
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("rank", MODES)
@pytest.mark.parametrize("mode", ["linear", "corners", "nearest"])
def test_axes_one_after_the_other_are_torchs(rank: int, mode: str, tmp_path: Path) -> None:
    """Also of one element and to one, and with sizes that stay."""
    named = "nearest" if mode == "nearest" else MODES[rank]
    options = f"mode={named!r}" + (", align_corners=True" if mode == "corners" else "")
    shapes = [(2, 3, *(6, 4, 5)[:rank]), (2, 3, *(7, 5, 9)[:rank])]
    drawn = ", ".join(f"torch.rand{shape}" for shape in shapes)
    path = write(tmp_path, f"return F.interpolate(x, y.shape[2:], {options})", "pass", drawn, "x, y")
    graph = traced(path).graph
    assert not any(isinstance(node.op, EagerOp) for node in graph.nodes)
    model = load_model_file(path).model_class()
    for before, after in (
        ((6, 4, 5), (7, 5, 9)),
        ((3, 1, 1), (1, 6, 1)),
        ((9, 4, 8), (4, 4, 3)),
        ((5, 6, 7), (5, 6, 7)),
    ):
        for dtype in (torch.float32, torch.float64):
            x, y = (torch.randn(2, 3, *sizes[:rank], dtype=dtype) for sizes in (before, after))
            torch.testing.assert_close(interpret.run(graph, [x, y], {})[0], model(x, y))


@pytest.mark.parametrize(
    ("body", "size", "served"),
    [
        ("F.interpolate(x, scale_factor=1.3, mode='linear')", 5, True),
        ("F.interpolate(x, scale_factor=1.3, mode='linear')", 3, False),  # as long as before: copied on some devices
        ("F.interpolate(x, scale_factor=2.3)", 5, True),
        ("F.interpolate(x, scale_factor=2.3)", 3, False),  # twice as long: an element twice on some devices
        ("F.interpolate(x, scale_factor=1.3)", 3, True),
        ("F.interpolate(x, scale_factor=3.2)", 4, True),  # three times as long, by places of another factor
        ("F.interpolate(x, scale_factor=2.2, mode='linear')", 4, True),
        ("F.interpolate(x.half(), 7)", 3, True),
        ("F.interpolate(x.half(), 7, mode='linear')", 3, False),  # rounded once for all axes
        ("F.interpolate(x[:, None], 7, mode='bicubic')[:, 0]", 3, False),
    ],
)
def test_what_devices_or_types_make_of_it_stays_torchs(body: str, size: int, served: bool, tmp_path: Path) -> None:
    path = write(tmp_path, f"return {body}", inputs=f"torch.rand(2, 4, {size})")
    graph = traced(path).graph
    left = [node.op.target for node in graph.nodes if isinstance(node.op, EagerOp) and "upsample" in node.op.target]
    assert not left if served else len(left) == 1
    x = torch.randn(2, 4, size)
    torch.testing.assert_close(interpret.run(graph, [x], {})[0], load_model_file(path).model_class()(x))


SIZES = [(10, 12, 13, 17), (3, 5, 16, 24), (20, 33, 7, 8), (1, 4, 5, 4), (9, 1, 9, 16), (6, 8, 6, 8), (4, 7, 1, 1)]
"""Heights and widths before and after; the first are the file's."""
BODIES = {
    "bilinear": ("F.interpolate(torch.relu(x), y.shape[2:], mode='bilinear') + y", 1e-5),
    "corners": ("F.interpolate(x, y.shape[2:], mode='bilinear', align_corners=True) * 2", 1e-5),
    "nearest": ("F.interpolate(x, y.shape[2:]) * y", 0.0),
    "one axis": ("F.interpolate(x.flatten(0, 1), y.shape[3], mode='linear') * 2", 1e-5),
    "one side": ("F.interpolate(x, (y.shape[2], x.shape[3]), mode='bilinear') + 1", 1e-5),
    "times three": ("F.interpolate(x, scale_factor=3, mode='bilinear') + 1", 1e-5),
    "times two between corners": ("F.interpolate(x, scale_factor=2, mode='bilinear', align_corners=True)", 1e-5),
    "to numbers": ("F.interpolate(x, (9, 16), mode='bilinear')", 1e-5),
    "padded": ("F.pad(F.interpolate(F.pad(x, (1, 2)), y.shape[2:], mode='bilinear'), (2, 1, 0, 3))", 1e-5),
    "nearest of parts": ("F.pad(F.interpolate(torch.cat([x, x[..., 1:] * 2], 3), y.shape[2:]), (2, 1, 3, 0))", 0.0),
    "turned": ("F.interpolate(x.permute(0, 3, 1, 2), y.shape[2:], mode='bilinear').transpose(1, 2).contiguous()", 1e-5),
    "nearest to numbers": ("F.interpolate(x, (25, 41))", 0.0),
}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("name", BODIES)
def test_kernels_agree_with_torch(name: str, tmp_path: Path) -> None:
    body, bound = BODIES[name]
    drawn = "torch.rand(2, 4, 10, 12), torch.rand(2, 4, 13, 17)"
    path = write(tmp_path, f"return {body}", "pass", drawn, "x, y")
    found = compile_file(path)
    assert all(isinstance(step, KernelStep) for step in found.program.steps)
    (plan,) = steps(found, PointwisePlan)
    kernel, model = Kernel(found, plan, tmp_path), load_model_file(path).model_class()
    for height, width, high, wide in SIZES:
        x, y = torch.randn(2, 4, height, width), torch.randn(2, 4, high, wide)
        sizes = {f"x{i}_{axis}": size for i, data in enumerate((x, y)) for axis, size in enumerate(data.shape)}
        given = [dims.evaluate(size.size, sizes) for size in plan.given]
        data = {"x": x, "y": y}
        (result,) = kernel([data[arg.node] for arg in plan.args], *given)
        torch.testing.assert_close(result, model(x, y), rtol=bound, atol=bound)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("factors", [(1.7, 0.45), (3.3, 2.6), (0.37, 1.1)])
def test_kernels_have_the_places_of_given_factors(mode: str, factors: tuple[float, float], tmp_path: Path) -> None:
    """Of sizes that a trace fixes: ends are rounded down, and places go by the factors."""
    body = f"return F.interpolate(x, scale_factor={factors}, mode='{mode}')"
    path = write(tmp_path, body, inputs="torch.rand(2, 4, 11, 13)")
    found = compile_file(path)
    (plan,) = steps(found, PointwisePlan)
    for seed in range(3):
        x = torch.randn(2, 4, 11, 13, generator=torch.Generator().manual_seed(seed))
        (result,) = Kernel(found, plan, tmp_path)([x])
        bound = 0.0 if mode == "nearest" else 1e-5
        torch.testing.assert_close(result, load_model_file(path).model_class()(x), rtol=bound, atol=bound)


def test_images_of_nothing_are_torchs_to_refuse(tmp_path: Path) -> None:
    body = "return F.interpolate(x, y.shape[2], mode='linear')"
    path = write(tmp_path, body, inputs="torch.rand(2, 3, 5), torch.rand(2, 3, 20)", arguments="x, y")
    assert "x0_2 >= 1" in traced(path).graph.constraints
