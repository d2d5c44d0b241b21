"""Models in 16-bit floats: elementwise chains and heavy products have kernels, the rest stays with torch."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fusegen.compiler import Compiled, compile_file
from fusegen.costs import tensor_gemm
from fusegen.plan.types import KernelStep
from tests.models import write

DTYPES = ("bfloat16", "float16")


def compiled(tmp_path: Path, body: str, layer: str, shape: str, dtype: str = "bfloat16", target: str = "") -> Compiled:
    path = write(tmp_path, body, f"self.layer = {layer}.to(torch.{dtype})", f"torch.rand({shape}, dtype=torch.{dtype})")
    return compile_file(path, target=target or "sm_90")


def steps(found: Compiled) -> list[str]:
    """The template of every kernel, and ``torch`` for every other step."""
    return [s.plan.detail.template if isinstance(s, KernelStep) else "torch" for s in found.program.steps]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_heavy_product_and_what_follows_it_are_one_kernel(tmp_path: Path, dtype: str) -> None:
    found = compiled(tmp_path, "return F.gelu(self.layer(x)) * 2", "nn.Linear(4096, 4096)", "4096, 4096", dtype)
    assert steps(found) == ["gemm_half_sm90"]


@pytest.mark.parametrize(
    ("layer", "shape", "target"),
    [
        ("nn.Linear(4096, 4096)", "4096, 4096", "sm_80"),
        ("nn.Linear(4100, 4096)", "4096, 4100", "sm_90"),  # rows that tensor copies cannot read
        ("nn.Linear(64, 64)", "64, 64", "sm_90"),
        ("nn.Conv2d(64, 64, 3)", "16, 64, 32, 32", "sm_90"),
    ],
)
def test_other_heavy_ops_stay_with_the_library_and_the_chain_is_a_kernel(
    tmp_path: Path, layer: str, shape: str, target: str
) -> None:
    found = compiled(tmp_path, "return F.gelu(self.layer(x)) * 2", layer, shape, target=target)
    assert steps(found) == ["torch", "pointwise"]


def test_the_bias_alone_goes_back_into_the_library_call(tmp_path: Path) -> None:
    found = compiled(tmp_path, "return self.layer(x)", "nn.Linear(4096, 4096)", "4096, 4096")
    assert steps(found) == ["torch"]


@pytest.mark.parametrize(
    "body",
    [
        "return torch.softmax(self.layer(x), 1)",
        "return self.layer(x).mean((2, 3))",
        "return F.max_pool2d(self.layer(x), 2)",
        "return F.instance_norm(self.layer(x))",
    ],
)
def test_reductions_norms_and_poolings_stay_with_torch(tmp_path: Path, body: str) -> None:
    found = compiled(tmp_path, body, "nn.Conv2d(8, 16, 3)", "4, 8, 9, 9")
    assert set(steps(found)) == {"torch"}


def test_sums_are_not_moved_among_rounded_values(tmp_path: Path) -> None:
    found = compiled(tmp_path, "return self.layer(x).mean((2, 3))", "nn.Conv2d(8, 16, 3)", "4, 8, 9, 9")
    assert all(event.exact for event in found.program.rewrites)
    assert any("rounded in other places" in refusal.reason for refusal in found.program.refusals)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("return F.mish(self.layer(x)) * 2", 512),
        ("return self.layer(x).sigmoid()", 301),
        ("return x + self.layer(x).tanh() * x", 256),
        ("return self.layer(x) > 0.5", 256),
    ],
)
def test_compiles_without_spills(
    dtype: str, body: str, outputs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_gemm, "half_seconds", lambda *_: 0.0)
    found = compiled(tmp_path, body, f"nn.Linear(256, {outputs})", "200, 256", dtype)
    source = re.search(r'^_fusegen_CUDA_SOURCE = r"""\n(.*?)"""', found.source, re.S | re.M)
    assert source
    (tmp_path / "k.cu").write_text(source[1])
    off = [f"-D__CUDA_NO_{name}__" for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_CONVERSIONS")]
    target = "-gencode=arch=compute_90a,code=sm_90a"
    command = ["nvcc", "-std=c++17", "-O3", target, *off, "-Xptxas", "-v", "-c", "k.cu", "-o", "k.o"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert set(re.findall(r"(\d+) bytes spill stores", run.stderr)) == {"0"}
    assert "C75" not in run.stderr  # products serialized, or fences added by the compiler
    assert "warning" not in run.stderr, run.stderr
