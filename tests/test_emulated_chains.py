"""Random models, every portable kernel of which runs on the CPU thread by thread, held to float64."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch

from fusegen.compiler import compile_file
from fusegen.trace import load_model_file
from tests.chains import chain
from tests.emulated.programs import OnTheCPU
from tests.models import write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]
CHAINS, BATCHES = 48, 12


@pytest.mark.parametrize("batch", range(BATCHES))
def test_kernels_agree_with_float64(batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEGEN_STRICT", "1")
    for seed in range(2000 + batch, 2000 + CHAINS, BATCHES):
        check(seed, tmp_path)


def test_an_only_output_channel(tmp_path: Path) -> None:
    body = "y = self.m(x)\nreturn y.mean((2, 3)) * self.p + 1, y.sum((2, 3)).prod(0)"
    init = "self.m = nn.ConvTranspose2d(8, 1, 4, 1, 1)\nself.p = nn.Parameter(torch.randn(1, 1))"
    path = write(tmp_path, body, init, "torch.rand(2, 8, 5, 6)")
    y, total = OnTheCPU(compile_file(path), "generated_channel", tmp_path)(torch.rand(3, 8, 5, 6))
    assert (y.shape, total.shape) == ((3, 1), (1,))


@pytest.mark.parametrize("shape", [(8, 32), (9, 33)])
def test_a_parameter_before_and_after_a_reduction(shape: tuple[int, int], tmp_path: Path) -> None:
    body = "y = x * self.p\nreturn y * torch.rsqrt(y.square().mean(1, keepdim=True) + 1) + self.p"
    path = write(tmp_path, body, f"self.p = nn.Parameter(torch.rand({shape[1]}))", f"torch.rand{shape}")
    y = OnTheCPU(compile_file(path), "generated_twice", tmp_path)(torch.randn(shape))
    assert y.shape == shape


@pytest.mark.parametrize(
    ("body", "kernel", "given"),
    [
        ("return torch.relu(y.transpose(0, 1).contiguous() + 1)", "pointwise", 2),
        ("return torch.relu(y.transpose(0, 1)).sum(0)", "row_stream", 2),
        ("return (y.transpose(0, 1) * 2).softmax(0)", "row_reduce", 0),  # of a result of its own
        ("return y.amax(2).tanh()", "gemm_sm90", 2),  # of rows that the product's own kernel reduces
    ],
)
def test_sizes_that_are_axes_of_no_operand(body: str, kernel: str, given: int, tmp_path: Path) -> None:
    """A product of rows that are two axes in one: what follows has both."""
    split = "y = (x.flatten(0, 1) @ self.w).unflatten(0, x.shape[:2])\n"
    path = write(tmp_path, split + body, "self.w = nn.Parameter(torch.randn(300, 70))", "torch.rand(40, 50, 300)")
    compiled = compile_file(path)
    played = OnTheCPU(compiled, "generated_sizes", tmp_path)
    for shape in ((40, 50, 300), (3, 7, 300)):
        played(torch.rand(shape))
    last = compiled.program.kernels[-1]
    assert last.detail.template == kernel
    assert len(last.given) == given
    assert sum(step.kind == "eager" for step in compiled.program.steps) == 1  # the view


JOINED = {  # layer, what the forward returns, input: what the channels, features or positions of a head come to, joined
    "channels": ("nn.ConvTranspose2d(1, 12, 3, padding=1)", "y.prod(1, True), y.sum(1, True) * 2], 3", "2, 1, 8, 9"),
    "direct": ("nn.Conv2d(3, 4, 3, padding=1)", "y.amax(1, True), y.mean(1, True).exp()], 1", "3, 3, 40, 44"),
    "positions": ("nn.Conv2d(20, 33, 3)", "y.amax((2, 3)), F.relu(y).mean((2, 3))], 1", "2, 20, 9, 12"),
    "one_axis": ("nn.Conv2d(20, 33, 3)", "y.amax(2), y.amin(2).abs()], 2", "2, 20, 9, 12"),
    "line": ("nn.Conv1d(16, 24, 5)", "y.softmax(1).amax(1), y.amin(1)], -1", "2, 16, 70"),
    "volume": ("nn.Conv3d(3, 16, 3)", "y.logsumexp(1, True), y.amax(1, True)], 2", "2, 3, 6, 7, 12"),
    "features": ("nn.Linear(40, 70)", "y.amax(1, True), y.logsumexp(1, True)], 1", "33, 40"),
    "two_factors": ("nn.Linear(300, 130)", "y.amax(1), F.gelu(y).sum(1)], 0", "150, 300"),
    "batches": ("nn.Linear(24, 9)", "y.amin(2), y.std(2)], 1", "4, 50, 24"),
    "windows": ("nn.ConvTranspose2d(6, 10, 3, 2)", "y.mean((2, 3)).amax(1), y.mean((2, 3)).sum(1)], 0", "3, 6, 9, 8"),
}


@pytest.mark.parametrize("name", JOINED)
def test_what_rows_of_a_head_come_to_is_joined(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEGEN_STRICT", "1")
    layer, joined, shape = JOINED[name]
    path = write(tmp_path, f"y = self.m(x)\nreturn torch.cat([{joined})", f"self.m = {layer}", f"torch.randn({shape})")
    compiled = compile_file(path)
    assert all(step.kind == "kernel" for step in compiled.program.steps)
    played = OnTheCPU(compiled, f"generated_joined_{name}", tmp_path)
    x = torch.randn(*map(int, shape.split(",")))
    played(x)
    played(torch.cat([x, x[:1]]))


def check(seed: int, folder: Path) -> None:
    """The model of a seed, at the sizes of its file and, where it takes others, at twice the batch and one more."""
    model = chain(random.Random(seed))
    own = folder / str(seed)
    own.mkdir()
    path = model.write(own)
    torch.manual_seed(seed)
    inputs = load_model_file(path).get_inputs()
    try:
        played = OnTheCPU(compile_file(path), f"generated_{seed}", own)
        played(*inputs)
        batches = {x.shape[0] for x in inputs}
        if len(batches) == 1 and all(f"x{i}_0" in played.sizes for i in range(len(inputs))):
            try:
                played(*(torch.cat([x, x, x[:1]]) for x in inputs))
            except RuntimeError as error:
                if "sizes do not satisfy" not in str(error):
                    raise
    except Exception as error:
        error.add_note(model.text())
        raise


def test_a_pooling_to_a_size_that_rounds(tmp_path: Path) -> None:
    """No axis of its operands gives it: it is an argument of the kernel."""
    body = "y = self.c(x)\nreturn F.adaptive_avg_pool2d(y, (y.shape[2] // 2, 3)) * 2"
    path = write(tmp_path, body, "self.c = nn.Conv2d(3, 4, 3, 2, 1)", "torch.rand(2, 3, 16, 14)")
    model = OnTheCPU(compile_file(path), "generated_pooling", tmp_path)
    for height, pooled in ((16, 4), (21, 5)):
        assert model(torch.rand(2, 3, height, 14)).shape == (2, 4, pooled, 3)


@pytest.mark.parametrize("start", ["-x.shape[1] // 2", "(2 - x.shape[1]) // 2", "-(x.shape[1] // 2)"])
def test_a_part_that_begins_at_a_quotient_of_what_is_negative(start: str, tmp_path: Path) -> None:
    """Which Python rounds down, and C++ to zero."""
    path = write(tmp_path, f"return (x[:, {start}:] + 1).relu()", inputs="torch.rand(2, 8, 6)")
    model = OnTheCPU(compile_file(path), "generated_part", tmp_path)
    reference = load_model_file(path).model_class()
    for length in (8, 9, 13):
        x = torch.randn(2, length, 6)
        assert torch.equal(model(x), reference(x))


@pytest.mark.parametrize("norm", ["BatchNorm2d(64)", "GroupNorm(8, 64)", "InstanceNorm2d(64)"])
def test_statistics_of_a_convolution_in_a_pass_of_their_own(norm: str, tmp_path: Path) -> None:
    """A warp has a short channel, a block a long one, in accesses of one element and of four; samples share blocks."""
    init = f"self.c = nn.Conv2d(40, 64, 3, padding=1)\nself.n = nn.{norm}"
    path = write(tmp_path, "return torch.tanh(self.n(self.c(x)))", init, "torch.rand(3, 40, 48, 48)")
    compiled = compile_file(path, pins={"statistics of conv2d by": "the convolution"})
    assert "launch_sweep" in compiled.source
    model = OnTheCPU(compiled, "generated_statistics", tmp_path)
    for samples, height, width in ((2, 48, 44), (1, 51, 43), (19, 5, 8), (9, 5, 7)):
        model(torch.randn(samples, 40, height, width) + 0.5)
