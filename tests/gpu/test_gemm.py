"""Matrix products with every kind of epilogue, at sizes that leave tails on every axis."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from fusegen.compiler import compile_file
from fusegen.costs import library, narrow, simt, tensor_gemm
from fusegen.emit import write_atomic
from fusegen.trace import load_model_file
from fusegen.verdict.subject import load_generated
from tests.gpu.cases import agrees, tf32_products
from tests.models import write

pytestmark = pytest.mark.gpu

CASES = {  # inputs, outputs, forward
    "store": (200, 300, "return F.gelu(self.linear(x)) * 1.5"),
    "odd": (203, 77, "z = self.linear(x).sigmoid()\nreturn z * self.row + z"),
    "bare": (129, 513, "return self.linear(x)"),
    "residual": (256, 256, "return x + self.linear(x).tanh() * x"),
    "logsumexp": (192, 600, "return torch.logsumexp(self.linear(x) * 3, 1) / 4"),
    "reductions": (192, 300, "z = self.linear(x)\nreturn z.amax(1) + z.amin(1) * z.mean(1)"),
    "softmax": (190, 100, "return torch.softmax(self.linear(x), 1) * 2"),
    "norm": (64, 96, "z = self.linear(x)\nreturn (z - z.mean(1, keepdim=True)) / (z.var(1, keepdim=True) + 1).sqrt()"),
    "groups": (192, 304, "return F.group_norm(self.linear(x).tanh(), 19, self.row) + self.row"),
    "group_sums": (192, 384, "z = self.linear(x).view(-1, 3, 128)\nreturn z.amax(2) * z.mean(2)"),
    "deep": (5000, 130, "return F.relu(self.linear(x)).sum(1)"),
}


NARROW = {  # a kernel of their own, in fp32 whatever the settings
    "narrow": (256, 16, "return F.relu(self.linear(x))"),
    "narrow_odd": (203, 10, "return torch.logsumexp(self.linear(x), 1)"),
    "narrow_softmax": (1000, 3, "z = self.linear(x)\nreturn torch.softmax(z * self.row, 1) + z"),
    "narrow_norm": (512, 30, "z = self.linear(x)\nreturn (z - z.mean(1, keepdim=True)) * z.var(1, keepdim=True)"),
    "narrow_one": (77, 1, "return self.linear(x).sigmoid() * 2"),
    "narrow_deep": (3000, 12, "z = self.linear(x)\nreturn (z * z).sum(1)"),
}
HALF = {
    "half_gelu": (256, 264, "return F.gelu(self.linear(x)) * 1.5"),
    "half_odd": (72, 301, "return F.silu(self.linear(x)) * self.row"),
    "half_residual": (512, 512, "return x + self.linear(x).tanh() * x"),
    "half_tail": (200, 328, "return F.relu(self.linear(x)) - 1"),
    "half_truth": (64, 64, "return torch.where(self.linear(x) > 0, self.row, 2.0)"),
}


PORTABLE = ("store", "odd", "bare", "residual", "softmax", "norm")
"""Cases that the kernel for any device computes too."""
IN_PLACE = (*PORTABLE, "groups", "group_sums")
"""Cases that need no row of features beyond a tile."""
IN_FP32 = ("store", "odd", "bare", "residual")
"""Cases of no reduction."""
WHOLE_ROWS = ("softmax", "norm", "logsumexp", "reductions", "narrow_odd", "narrow_softmax")
"""Cases whose rows are reduced."""
LAYOUTS = {
    "linear": "self.linear(x)",  # weights [outputs, inputs]
    "weights": "(x @ self.w + self.linear.bias)",  # [inputs, outputs]
}


@dataclass(frozen=True)
class Pair:
    """A reference and the module generated from it, with the same parameters, for rows of so many inputs."""

    reference: nn.Module
    generated: nn.Module
    inputs: int
    dtype: torch.dtype


def make(
    case: tuple[int, int, str],
    layout: str,
    folder: Path,
    dtype: str = "float32",
    portable: bool = False,
    rows: int = 130,
) -> Pair:
    inputs, outputs, body = case
    init = f"self.linear = nn.Linear({inputs}, {outputs}, dtype=torch.{dtype})\n"
    init += f"self.w = nn.Parameter(torch.randn({inputs}, {outputs}, dtype=torch.{dtype}) / {inputs**0.5})\n"
    init += f"self.row = nn.Parameter(torch.randn({outputs}, dtype=torch.{dtype}))"
    body = body.replace(LAYOUTS["linear"], LAYOUTS[layout])
    path = write(folder, body, init, f"torch.rand({rows}, {inputs}, dtype=torch.{dtype})")
    compiled = compile_file(path)
    assert {step.kind for step in compiled.program.steps} == {"kernel"}
    source = compiled.source
    if portable:  # as on any other device, under names of its own
        assert "return major == 9;" in source
        source = source.replace("return major == 9;", "return false;")
        source = re.sub(r"\bfusegen_([0-9a-f]{16})\b", r"fusegen_portable_\1", source)
    write_atomic(folder / "generated.py", source)
    torch.manual_seed(0)
    reference = load_model_file(path).model_class().cuda()
    generated = load_generated(folder / "generated.py")().cuda()
    generated.load_state_dict(reference.state_dict())
    return Pair(reference, generated, inputs, getattr(torch, dtype))


FORMS = {"prepared": tuple(CASES), "in_place": IN_PLACE, "portable": PORTABLE}


@pytest.fixture(
    params=[(name, layout, form) for form, names in FORMS.items() for name in names for layout in LAYOUTS],
    ids="-".join,
)
def pair(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """The product in a kernel whatever its size."""
    name, layout, form = request.param
    monkeypatch.setattr(tensor_gemm, "seconds", lambda *_: 0.0)
    monkeypatch.setattr(tensor_gemm, "in_place_seconds", lambda *_: -1.0 if form == "in_place" else math.inf)
    return make(CASES[name], layout, tmp_path, portable=form == "portable")


@pytest.fixture(params=[(name, layout) for name in NARROW for layout in LAYOUTS], ids="-".join)
def narrow_pair(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """The same for few features."""
    monkeypatch.setattr(narrow, "seconds", lambda *_: 1e-12)
    name, layout = request.param
    return make(NARROW[name], layout, tmp_path)


@pytest.fixture(
    params=[
        (name, layout, dtype)
        for name in HALF
        for layout in LAYOUTS
        for dtype in ("bfloat16", "float16")
        if layout == "linear" or HALF[name][1] % 8 == 0  # else rows of the weights are not aligned
    ],
    ids="-".join,
)
def half_pair(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """The same in 16-bit floats."""
    monkeypatch.setattr(tensor_gemm, "half_seconds", lambda *_: 0.0)
    name, layout, dtype = request.param
    return make(HALF[name], layout, tmp_path, dtype)


def agrees_at_every_height(pair: Pair, heights: tuple[int, ...]) -> None:
    for rows in heights:
        x = torch.randn(rows, pair.inputs, device="cuda") * 3 + torch.randn(rows, 1, device="cuda")
        x = x.to(pair.dtype)
        agrees(pair.reference, pair.generated, x)
        with torch.no_grad():
            assert torch.equal(pair.generated(x), pair.generated(x))


def same_special_values(pair: Pair, x: torch.Tensor) -> None:
    x[5, 1], x[129, 0] = float("inf"), float("nan")
    with torch.no_grad():
        expected, found = pair.reference(x), pair.generated(x)
    assert torch.equal(expected.isnan(), found.isnan())
    assert torch.equal(expected.isinf(), found.isinf())


TRIANGLES = {
    "upper": ("(a @ b).triu()", [((700, 200), (200, 900)), ((33, 200), (200, 70)), ((1300, 200), (200, 300))]),
    "lower": ("(torch.relu(a @ b) * 2).tril(-5) + 1", [((1100, 130), (130, 1100)), ((70, 130), (130, 500))]),
    "far": ("(a @ b).triu(400) - c", [((300, 96), (96, 520), (520,)), ((800, 96), (96, 300), (300,))]),
    "of_a_batch": ("(a @ b.mT).tril(3)", [((6, 260, 64), (6, 300, 64)), ((3, 30, 64), (3, 700, 64))]),
}
"""By name: what the forward returns, and the shapes of its inputs."""


@pytest.mark.parametrize("form", ["prepared", "in place", "in plain fp32"])
@pytest.mark.parametrize("name", TRIANGLES)
def test_triangles_whatever_lies_on_their_other_side(name: str, form: str, tmp_path: Path) -> None:
    body, shapes = TRIANGLES[name]
    drawn = ", ".join(f"torch.rand{shape}" for shape in shapes[0])
    path = write(tmp_path, f"return {body}", inputs=drawn, arguments=", ".join("abc"[: len(shapes[0])]))
    compiled = compile_file(path, pins={"matmul rows": form, "matmul by": "kernel"})
    assert [step.kind for step in compiled.program.steps] == ["kernel"]
    write_atomic(tmp_path / "generated.py", compiled.source)
    reference, generated = load_model_file(path).model_class(), load_generated(tmp_path / "generated.py")()
    for found in shapes:
        inputs = [torch.randn(shape, device="cuda") for shape in found]
        agrees(reference, generated, tuple(inputs))
        assert torch.equal(generated(*inputs), generated(*inputs))
        inputs[0].view(-1)[5], inputs[1].view(-1)[-3] = float("inf"), float("nan")
        expected, result = reference(*inputs), generated(*inputs)
        assert torch.equal(expected.isnan(), result.isnan())
        assert torch.equal(expected.isinf(), result.isinf())


def test_agrees_at_every_height_and_twice_alike(pair: Pair) -> None:
    agrees_at_every_height(pair, (1, 7, 64, 65, 130, 1000))


def test_scales_and_special_values(pair: Pair) -> None:
    x = torch.randn(130, pair.inputs, device="cuda")
    for scale in (1e-30, 1e20):
        agrees(pair.reference, pair.generated, x * scale)
    x[0] = 0
    same_special_values(pair, x)


def test_tf32_where_torch_permits_it(pair: Pair) -> None:
    x = torch.randn(130, pair.inputs, device="cuda")
    with torch.no_grad():
        accurate = pair.generated(x)
        with tf32_products():
            agrees(pair.reference, pair.generated, x)
            assert not torch.equal(accurate, pair.generated(x))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_that_several_warps_share(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "seconds", lambda *_: math.inf)
    pair = make((190, 250, "return torch.softmax(self.linear(x), 1) * 2"), layout, tmp_path)  # the portable kernel's
    agrees_at_every_height(pair, (1, 64, 65, 1000))


def test_few_features_agree_at_every_height_and_twice_alike(narrow_pair: Pair) -> None:
    agrees_at_every_height(narrow_pair, (1, 7, 64, 65, 130, 1000))


@pytest.mark.parametrize(
    ("name", "layout", "rows"), [(name, layout, rows) for name in IN_FP32 for layout in LAYOUTS for rows in (2, 130)]
)
def test_in_plain_fp32_at_every_height_and_twice_alike(
    name: str, layout: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced with few rows, whose blocks differ from those of many."""
    monkeypatch.setattr(simt, "seconds", lambda *_: -1.0)
    pair = make(CASES[name], layout, tmp_path, rows=rows)
    agrees_at_every_height(pair, (1, 2, 7, 64, 65, 130, 1000))
    test_scales_and_special_values(pair)


@pytest.mark.parametrize(
    ("name", "layout", "rows"),
    [(name, layout, rows) for name in WHOLE_ROWS for layout in LAYOUTS for rows in (2, 130)],
)
def test_whole_rows_in_plain_fp32_at_every_height_and_twice_alike(
    name: str, layout: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks, or clusters of them, reduce the rows that they have computed."""
    monkeypatch.setattr(simt, "row_seconds", lambda *_: -1.0)
    pair = make({**CASES, **NARROW}[name], layout, tmp_path, rows=rows)
    agrees_at_every_height(pair, (1, 2, 7, 64, 65, 130, 1000))
    test_scales_and_special_values(pair)


def test_few_features_at_every_scale_and_special_values(narrow_pair: Pair) -> None:
    test_scales_and_special_values(narrow_pair)


def test_16_bit_floats(half_pair: Pair) -> None:
    agrees_at_every_height(half_pair, (1, 7, 128, 257, 1000))
    x = torch.randn(130 * half_pair.inputs + 1, device="cuda").to(half_pair.dtype)[1:].view(130, -1)
    agrees(half_pair.reference, half_pair.generated, x)  # at an address that tensor copies cannot read
    same_special_values(half_pair, x.clone())
