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
