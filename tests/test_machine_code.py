"""What the assembler makes of products that read their first operand from registers."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fusegen.compiler import compile_file
from tests.models import write
from tests.test_golden import cuda_source, cuda_text

NVCC, DUMP = shutil.which("nvcc"), shutil.which("cuobjdump")

pytestmark = pytest.mark.slow
needs_both = pytest.mark.skipif(not (NVCC and DUMP), reason="needs nvcc and cuobjdump")

_WRITES_NONE = re.compile(r"(ST|BAR|SYNCS|RED|BRA|WARPGROUP|HGMMA|ISETP|FSETP|PLOP3|UTMA|UBLKCP|R2UR|CALL|NOP)")
_WIDTHS = {".64": 2, ".WIDE": 2, ".128": 4}


def machine_code(binary: Path) -> dict[str, list[tuple[int, str]]]:
    """By kernel of a library or cubin for sm_90: addresses and instructions."""
    dump = subprocess.run([str(DUMP), "-sass", str(binary)], capture_output=True, text=True, check=True).stdout
    kernels = re.findall(r"Function : (\w+)\n(.*?)(?=Function :|\Z)", dump, re.S)
    lines = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", re.M)
    return {name: [(int(at, 16), text) for at, text in lines.findall(body)] for name, body in kernels}


def _loops(code: list[tuple[int, str]]) -> list[list[str]]:
    """The instructions of every loop with such a product."""
    places = {address: place for place, (address, _) in enumerate(code)}
    found = []
    for last, (_, text) in enumerate(code):
        target = re.search(r"\bBRA\b.* 0x([0-9a-f]+)", text)
        first = places.get(int(target[1], 16)) if target else None
        if first is not None and first < last:
            found.append([text for _, text in code[first : last + 1]])
    return [loop for loop in found if any(map(_first_operand, loop))]


def _first_operand(text: str) -> set[int]:
    product = re.search(r"HGMMA\S* R\d+, R(\d+),", text)
    return set(range(int(product[1]), int(product[1]) + 4)) if product else set()


def _written(text: str) -> set[int]:
    name, _, operands = re.sub(r"^@!?U?P\d+\s+", "", text).partition(" ")
    register = re.match(r"\s*R(\d+)\b", operands)
    if register is None or _WRITES_NONE.match(name):
        return set()
    width = max((count for part, count in _WIDTHS.items() if part in name), default=1)
    return set(range(int(register[1]), int(register[1]) + width))


@needs_both
@pytest.mark.parametrize(
    "spec", ["conv_hardswish_relu", "conv_inverted_residual", "conv_transpose3d_pool_clamp", "linear_gelu_scale"]
)
def test_what_products_on_the_way_read_is_not_written(spec: str, tmp_path: Path) -> None:
    """Loads for the next products run while these read their operands; the assembler does not hold them up."""
    source, cubin = tmp_path / "kernel.cu", tmp_path / "kernel.cubin"
    source.write_text(cuda_source(spec))
    subprocess.run([str(NVCC), "-O2", "-arch=sm_90a", "-cubin", "-o", cubin, source], capture_output=True, check=True)
    loops = [(name, loop) for name, code in machine_code(cubin).items() for loop in _loops(code)]
    assert loops
    for name, loop in loops:
        read: set[int] = set()
        for text in (*loop, *loop):
            if "WARPGROUP.DEPBAR" in text and "gsb0, 0x0" in text:
                read = set()
            assert not _written(text) & read, (name, text)
            read |= _first_operand(text)


WIDENED = {
    "one_input": ("nn.Conv2d(1, 32, 3, padding=1, bias=False)", "torch.rand(32, 1, 32, 100)"),
    "three_inputs": ("nn.Conv2d(3, 16, 3, padding=1, bias=False)", "torch.rand(8, 3, 64, 64)"),
    "groups": ("nn.Conv2d(8, 64, 3, padding=1, groups=2, bias=False)", "torch.rand(8, 8, 64, 64)"),
    "phases": ("nn.ConvTranspose2d(8, 12, (7, 4), (3, 2), (2, 1), (1, 1), groups=2)", "torch.rand(8, 8, 15, 36)"),
}


@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
@pytest.mark.parametrize("name", WIDENED)
def test_no_index_is_widened_after_many_sums(name: str, tmp_path: Path) -> None:
    """Sums of a 32-bit index and several constants, each made 64 bits, are shifts left and right in PTX, and ptxas 13.0
    took some of them for one another: channels 2, 3 and 6 of every 8 had the weights of their neighbours."""
    module, inputs = WIDENED[name]
    compiled = compile_file(write(tmp_path, "return self.m(x)", f"self.m = {module}", inputs))
    source, ptx = tmp_path / "kernel.cu", tmp_path / "kernel.ptx"
    source.write_text(cuda_text(compiled.source))
    subprocess.run([str(NVCC), "-O3", "-arch=sm_90a", "-ptx", "-o", ptx, source], capture_output=True, check=True)
    for kernel in ptx.read_text().split(".entry")[1:]:
        sums = re.findall(r"add\.s64\s+%rd\d+, (%rd\d+), (-?\d+);", kernel)
        shifted = [register for register, number in sums if int(number) and int(number) % 2**32 == 0]
        assert all(shifted.count(register) <= 2 for register in shifted), shifted


@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
@pytest.mark.parametrize("parts", ["1", "2"])
def test_lines_of_long_kernels_are_in_registers(parts: str, tmp_path: Path) -> None:
    """However the compiler splits its work: lines in memory took 142 us for 31 taps, and take 34."""
    module = "nn.Conv1d(64, 64, 31, padding=15, groups=64)"
    compiled = compile_file(write(tmp_path, "return self.m(x).relu()", f"self.m = {module}", "torch.rand(2, 64, 4000)"))
    source, cubin = tmp_path / "kernel.cu", tmp_path / "kernel.cubin"
    source.write_text(cuda_text(compiled.source))
    options = ["-O3", "-std=c++17", "-arch=sm_90a", "--split-compile", parts, "-Xptxas", "-v", "-cubin"]
    built = subprocess.run([str(NVCC), *options, "-o", cubin, source], capture_output=True, text=True, check=True)
    frames = re.findall(r"(\d+) bytes stack frame", built.stderr)
    assert len(frames) == 3
    assert set(frames) == {"0"}
