"""Golden files: every spec's output, byte for byte, and what nvcc makes of it.

``pytest tests/test_golden.py --update-golden`` rewrites what differs and fails, so that no run that
wrote a golden file passes: review the difference, then run again.
"""

from __future__ import annotations

import difflib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fusegen.compiler import compile_file
from fusegen.emit import write_atomic
from tests.variants import ROOT, SPECS

TARGETS = [f"-gencode=arch=compute_{target},code=sm_{target}" for target in ("80", "90a")]
NVCC = shutil.which("nvcc")


@pytest.mark.parametrize("spec", SPECS)
def test_golden(spec: str, update_golden: bool) -> None:
    golden = ROOT / "generated" / f"{spec}.py"
    text = compile_file(ROOT / "specs" / f"{spec}.py").source
    known = golden.read_text() if golden.exists() else ""
    if text == known:
        return
    difference = "\n".join(difflib.unified_diff(known.splitlines(), text.splitlines(), "golden", "now", lineterm=""))
    if update_golden:
        write_atomic(golden, text)
    pytest.fail(f"{'rewrote' if update_golden else 'differs from'} {golden.name}:\n{difference[:5000]}")


def test_no_golden_without_a_spec() -> None:
    assert sorted(path.stem for path in (ROOT / "generated").glob("*.py")) == SPECS


def cuda_source(spec: str) -> str:
    """The CUDA text of a golden file."""
    return cuda_text((ROOT / "generated" / f"{spec}.py").read_text())


def cuda_text(generated: str) -> str:
    """The CUDA text of a generated file."""
    found = re.search(r'^_fusegen_CUDA_SOURCE = r"""\n(.*?)"""', generated, re.S | re.M)
    assert found, "it has no kernel"
    return found[1]


@pytest.mark.parametrize("spec", SPECS)
def test_kernels_await_the_ones_before_them(spec: str) -> None:
    """They come to the multiprocessors while those still run."""
    cuda = re.sub("//.*", "", cuda_source(spec))
    assert "<<<" not in cuda
    assert cuda.count("cudaLaunchKernelEx(") == 1  # where every launch lets them
    kernels = re.findall(r"^__global__ .*?\) ?\{\n(.*?)^\}", cuda, re.S | re.M)
    assert len(kernels) == cuda.count("__global__")
    for kernel in kernels:
        before, waits, _ = kernel.partition("await_previous();")
        before = re.sub(r"^    const auto \w+ = \[&\].*?^    \};", "", before, flags=re.S | re.M)  # called later
        assert waits or "griddepcontrol.wait" in kernel
        assert not waits or not re.search(r"__ldg|load_\w+\(|copy_\w+<|fetch\(", before), before


def nvcc_flags(spec: str) -> list[str]:
    """What a golden file asks of nvcc beside its targets."""
    found = re.search(r"extra_cuda_cflags=\[(.*), \*targets\]", (ROOT / "generated" / f"{spec}.py").read_text())
    assert found, f"{spec} has no kernel"
    return re.findall(r'"(.*?)"', found[1])


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
@pytest.mark.parametrize("spec", SPECS)
def test_compiles_without_spills(spec: str, tmp_path: Path) -> None:
    """For both targets by one command, as a generated file is built."""
    source = tmp_path / "kernels.cu"
    source.write_text(cuda_source(spec))
    options = ["-std=c++17", *nvcc_flags(spec), *TARGETS, "-Xptxas", "-v", "-c", "-o", str(tmp_path / "k.o")]
    command = [str(NVCC), *options, str(source)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "warning" not in run.stderr, run.stderr
    kernels = re.findall(r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores", run.stderr, re.S)
    assert kernels
    # A few values of a tile wait on the stack while its products run: in Hopper's asynchronous kernels, and
    # (run<true>) in full fp32. So does what the ends of runs need where they are aligned to nothing (resident<1, ...>,
    # stream_0<1>): a third block to a multiprocessor is worth more.
    # And in a volume, loads of lines are moved ahead of what the registers hold; so is one of 25 strided window sums,
    # and so are those of boxes while sums of products wait. A few elements of scanned tiles wait there, so that
    # two blocks of 512 threads share a multiprocessor. Of attention, so that two of 256 do.
    limits = {
        "_sm90_": 96,
        "runILb1E": 72,
        "residentILi1E": 160,
        "residentILi4E": 24,
        "stream_0ILi1E": 24,
        "_conv_boxes_": 48,
        "_conv_direct_": 64,
        "_window_sum_": 4,
        "_scan_": 64,
        "_attention_": 64,
    }
    allowed = {name: max([0, *(limit for part, limit in limits.items() if part in name)]) for name, _ in kernels}
    assert [k for k in kernels if int(k[1]) > allowed[k[0]]] == []
