"""Convolutions of sm_90a on the CPU: their text, its instructions as functions of ``hopper.h``. Without clusters."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from fusegen.compiler import Compiled
from fusegen.plan.types import KernelPlan
from tests.emulated import Kernel, _library

_HEADER = Path(__file__).with_name("hopper.h")
_MAP = """static bool describe(CUtensorMap& map, const float* x, int64_t batch, const int64_t (&in)[3]) {
    map = {x, {in[2], in[1], in[0], IN, batch * GROUPS}, {box(2), box(1), box(0), CHUNK, 1}, %s};
    return true;
}
"""
_GRID_MAP = """static bool describe(CUtensorMap& map, const float* grid, int64_t pitch, int64_t plane) {
    map = {grid, {pitch * 4, plane / pitch, GRIDS * GROUPS * GROUP_QUADS}, {ROW * 4, SLOTS / ROW, QUADS}};
    map.plane = plane * 4;
    return true;
}
"""


def translated(kernel: str) -> str:
    """A kernel's text without what ``hopper.h`` defines, and without inline assembly."""
    header = _HEADER.read_text()
    if "k16.f32.f16.f16" in kernel:  # of a grid of octets
        kernel = kernel.replace(" multiply(d, ", " multiply_octets(d, ")
    for name in set(re.findall(r"^(?:[\w:&*<>,]+ )+(\w+)\(", header, re.M)):
        head = rf"^(?:template <[^\n]*>\n)?__device__ __forceinline__ [^\n(]*\b{name}"
        kernel = re.sub(head + r"\((?:[^\n]*\}\n|[^\n]*\{\n.*?^\}\n)", "", kernel, flags=re.S | re.M)
    store = r'asm volatile\("st\.shared\.f32 \[%0\], %1;" ::"r"\((.*)\), "f"\((.*)\) : "memory"\);'
    load = r'asm volatile\("ld\.shared\.f32 %0, \[%1\];" : "=f"\((.*)\) : "r"\((.*)\) : "memory"\);'
    kernel = re.sub(store, r"shared_write(\1, \2);", kernel)
    kernel = re.sub(load, r"\1 = shared_read(\2);", kernel)
    kernel = re.sub(r'asm volatile\("(?:|(?:wgmma|griddepcontrol|setmaxnreg|fence)[^\n]*)"[^\n]*\);', ";", kernel)
    kernel = re.sub(
        r"^template <(?:int COLUMNS)?>\nstruct Product(?:;|<\d+> \{\n.*?^\};)\n", "", kernel, flags=re.S | re.M
    )
    kernel = re.sub(r"^using Encode.*?^(?=static bool describe)", "", kernel, flags=re.S | re.M)
    describe = _MAP % ("true" if "CU_TENSOR_MAP_DATA_TYPE_TFLOAT32" in kernel else "false")

    def simulated(found: re.Match[str]) -> str:
        return _GRID_MAP if "float* grid" in found[0] else describe

    return re.sub(r"^static bool describe\(.*?^\}\n", simulated, kernel, flags=re.S | re.M)


class HopperKernel(Kernel):
    """``variant``: ``in_place``, or that of prepared inputs."""

    def __init__(self, compiled: Compiled, plan: KernelPlan, variant: str, folder: Path):
        self.variant = variant if variant == "in_place" else "sm90"
        super().__init__(compiled, plan, folder)

    def compiled(self, compiled: Compiled, folder: Path) -> ctypes.CDLL:
        return _library(compiled, self.name, folder, translated, _HEADER.read_text())
