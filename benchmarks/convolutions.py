"""Lone convolutions: the library's call against a kernel. ``hopper.py`` and ``contractions.py`` are fitted to it.

python benchmarks/convolutions.py build FOLDER      plans and compiles a kernel for every case; no GPU
python benchmarks/convolutions.py time FOLDER OUT   checks and times them; OUT is a JSON file
python benchmarks/convolutions.py fit OUT           the recorded times beside the expected ones; no GPU
"""

from __future__ import annotations

import copy
import ctypes
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fusegen.compiler import optimise  # noqa: E402
from fusegen.costs import contractions, library  # noqa: E402
from fusegen.emit import kernels  # noqa: E402
from fusegen.emit.render import environment  # noqa: E402
from fusegen.ir import Graph, Node, RegionOp  # noqa: E402
from fusegen.machines import machine  # noqa: E402
from fusegen.plan.details import Detail  # noqa: E402
from fusegen.plan.types import KernelPlan, KernelStep, Program  # noqa: E402
from fusegen.trace import trace  # noqa: E402
from fusegen.verdict import timing  # noqa: E402

COMMAND = ("nvcc", "-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a")
LIBRARY = ("-Xcompiler", "-fPIC", "-shared", "-cudart", "shared")
SOURCE = """#include <cuda_runtime.h>
#include <cstdint>
#include <type_traits>
namespace {{
{helpers}
}}
namespace conv {{
{kernel}
}}
"""


@dataclass(frozen=True)
class Case:
    """A convolution of cubes: x is [batch, inputs, *size]."""

    batch: int
    inputs: int
    size: tuple[int, ...]
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 0
    transposed: bool = False
    output_padding: int = 0
    dilation: int = 1
    groups: int = 1

    @property
    def name(self) -> str:
        """``conv2d_64x32x128x128_64_k3_s2_p1``: what differs from a plain convolution is named."""
        head = f"conv{'_transpose' if self.transposed else ''}{len(self.size)}d"
        shape = "x".join(map(str, (self.batch, self.inputs, *self.size)))
        extra = {"s": self.stride - 1, "p": self.padding, "op": self.output_padding, "d": self.dilation - 1}
        named = [f"{key}{value + (key in ('s', 'd'))}" for key, value in extra.items() if value]
        named += [f"g{self.groups}"] if self.groups > 1 else []
        return "_".join([head, shape, str(self.outputs), f"k{self.kernel}", *named])

    def module(self) -> nn.Module:
        kind = getattr(nn, f"Conv{'Transpose' if self.transposed else ''}{len(self.size)}d")
        extra = {"output_padding": self.output_padding} if self.transposed else {}
        module: nn.Module = kind(
            self.inputs,
            self.outputs,
            self.kernel,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            bias=False,
            **extra,
        )
        return module


CASES = (
    Case(128, 16, (64, 64), 32, 3, padding=1),
    Case(64, 16, (128, 128), 32, 3),
    Case(16, 32, (256, 256), 64, 3),
    Case(128, 32, (32, 32), 64, 3),
    Case(64, 64, (64, 64), 64, 3, padding=1),
    Case(128, 64, (56, 56), 128, 3),
    Case(16, 64, (128, 128), 128, 3, padding=1),
    Case(32, 128, (56, 56), 256, 3, padding=1),
    Case(128, 128, (32, 32), 128, 3, padding=1),
    Case(16, 128, (128, 128), 128, 3),
    Case(64, 24, (100, 100), 48, 3),
    Case(128, 16, (30, 30), 16, 3),
    Case(128, 256, (16, 16), 256, 3, padding=1),
    Case(64, 512, (14, 14), 512, 3, padding=1),
    Case(64, 64, (64, 64), 256, 1),
    Case(32, 256, (28, 28), 512, 1),
    Case(16, 128, (128, 128), 64, 1),
    Case(64, 32, (64, 64), 64, 5, padding=2),
    Case(16, 64, (128, 128), 64, 5),
    Case(32, 32, (64, 64), 64, 7, padding=3),
    Case(64, 64, (112, 112), 64, 3, 2, 1),
    Case(64, 32, (128, 128), 128, 3, 2),
    Case(32, 128, (56, 56), 256, 3, 2, 1),
    Case(16, 32, (64, 64), 32, 3, padding=2, dilation=2),
    Case(32, 64, (64, 64), 64, 3, padding=1, groups=4),
    Case(16, 16, (16, 32, 32), 32, 3, padding=1),
    Case(16, 16, (24, 64, 64), 32, 3),
    Case(8, 32, (32, 32, 32), 64, 3),
    Case(4, 64, (16, 32, 32), 64, 3, padding=1),
    Case(32, 16, (16, 64, 64), 16, 3),
    Case(128, 64, (64, 64), 128, 4, 2, 1, True, 1),
    Case(24, 64, (128, 128), 64, 3, 2, 1, True, 1),
    Case(64, 32, (32, 32), 64, 4, 2, 1, True),
    Case(16, 128, (32, 32), 64, 3, 1, 1, True),
    Case(32, 64, (64, 64), 128, 3, 1, 0, True),
    Case(16, 32, (128, 128), 16, 3, 2, 1, True, 1),
    Case(128, 128, (16, 16), 64, 5, 2, 0, True),
    Case(16, 32, (16, 32, 32), 64, 3, 2, 1, True),
    Case(16, 64, (8, 16, 16), 32, 4, 2, 1, True),
    Case(8, 16, (16, 32, 32), 16, 3, 1, 1, True),
    Case(16, 32, (16, 16, 16), 16, 3, 2, 1, True, 1),
    Case(64, 64, (4096,), 128, 3, padding=1),
    Case(32, 32, (16384,), 64, 9),
    Case(128, 3, (128, 128), 16, 3),
    Case(128, 3, (128, 128), 64, 3, padding=1),
    Case(32, 3, (224, 224), 64, 7, 2, 3),
    Case(128, 8, (128, 128), 64, 3),
    Case(64, 8, (256, 256), 24, 3),
    Case(64, 12, (128, 128), 48, 3),
    Case(128, 4, (64, 64), 32, 5, padding=2),
    Case(16, 3, (16, 64, 64), 16, 3),
    Case(16, 4, (16, 64, 64), 32, 3),
    Case(32, 8, (16, 32, 32), 32, 3, padding=1),
    Case(16, 3, (64, 64), 16, 3, 2, 1, True),
    Case(16, 3, (16, 32, 32), 16, 3, 2, 1, True),
    Case(128, 8, (32, 32), 16, 4, 2, 1, True),
)


def planned(case: Case) -> Program:
    """The program of the convolution alone, in a kernel of its own whatever the library takes."""
    with torch.device("meta"):
        module, x = case.module(), torch.zeros(case.batch, case.inputs, *case.size)
    graph = trace(module, (x,), Path(__file__)).graph
    with mock.patch.object(contractions, "refusal", return_value=None):
        return optimise(graph, "sm_90", False, lambda stage: None)[0]


def detail_of(plan: KernelPlan, portable: bool = False) -> Detail:
    """What the kernel's template takes; ``portable``: not Hopper's, where there is one."""
    return (None if portable else plan.hopper) or plan.detail


def write(plan: KernelPlan, detail: Detail, source: Path) -> None:
    """The kernel's source, and beside it how it is called."""
    env = environment()
    body = env.get_template(f"{detail.template}.cu.j2").render(plan=plan, detail=detail)
    helpers = "\n".join(kernels.helper_functions(body, kernels._helpers(env)))
    source.write_text(SOURCE.format(helpers=helpers, kernel=body))
    bindings = [(binding.arg, binding.axis) for binding in plan.bindings]
    call = {"name": plan.name, "tf32": plan.hopper is not None, "bindings": bindings}
    source.with_suffix(".json").write_text(json.dumps(call))


def written(case: Case, folder: Path) -> Path:
    """The source of the case's only kernel."""
    (step,) = planned(case).steps
    assert isinstance(step, KernelStep)
    source = folder / f"{case.name}.cu"
    write(step.plan, detail_of(step.plan), source)
    return source


def build(source: Path) -> None:
    subprocess.run([*COMMAND, *LIBRARY, str(source), "-o", str(source.with_suffix(".so"))], check=True)


class Kernel:
    """A compiled case, called through its launcher."""

    def __init__(self, name: str, folder: Path):
        call = json.loads((folder / f"{name}.json").read_text())
        library = ctypes.CDLL(str(folder / f"{name}.so"))
        self.launch, workspace = library[call["name"]], library[call["name"] + "_workspace"]
        workspace.restype = ctypes.c_int64
        self.bindings, self.bytes, self.tf32 = call["bindings"], workspace, call["tf32"]
        self.memory = torch.empty(0)

    def __call__(self, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> None:
        sizes = [ctypes.c_int64((x, w)[arg].shape[axis]) for arg, axis in self.bindings]
        if self.memory.numel() == 0:
            self.memory = torch.empty(self.bytes(*sizes), dtype=torch.uint8, device="cuda")
        tensors = [ctypes.c_void_p(t.data_ptr()) for t in (x, w, y, self.memory)]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        assert self.launch(*tensors, *sizes, ctypes.c_int64(1), stream) == 0


def rounded(t: torch.Tensor) -> torch.Tensor:
    """To TF32: nearest, ties away from zero."""
    return ((t.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Milliseconds of both (``biased``: the library's with a bias), and relative errors of a sample against float64.

    ``error``: the kernel's, on operands rounded to TF32 where it rounds them; ``library_error`` shows whether
    the library rounds its own.
    """
    module, x = case.module().cuda(), torch.randn(case.batch, case.inputs, *case.size, device="cuda")
    kernel, w = Kernel(case.name, folder), next(module.parameters()).detach()
    y = module(x)
    exact = copy.deepcopy(module).double()
    r = exact(x[-1:].double())
    library_error = float((y[-1:] - r).norm() / r.norm())
    found = torch.full_like(y, torch.nan)
    kernel(x, w, found)
    if kernel.tf32:
        next(exact.parameters()).data = rounded(w).double()
        r = exact(rounded(x[-1:]).double())
    error = float((found[-1:] - r).norm() / r.norm())
    biased = copy.deepcopy(module)
    biased.bias = nn.Parameter(torch.ones(case.outputs, device="cuda"))
    contestants = {"library": lambda: module(x), "biased": lambda: biased(x), "kernel": lambda: kernel(x, w, y)}
    times = timing.interleaved(contestants, min(timing.choose_rounds(contestants, 0.25), 40))
    checks = {"error": error, "library_error": library_error, "written": bool(found.isfinite().all())}
    return {**checks, **{name: time.median for name, time in times.items()}}


def expected(case: Case) -> tuple[float, float]:
    """Expected milliseconds of the library's call and of the kernel."""
    program, sm90 = planned(case), machine("sm_90")
    body, node = heavy(program)
    kernel = contractions.kernel_seconds(body, node, False, sm90)
    return 1e3 * library.seconds(body, node, sm90), 1e3 * kernel


def heavy(program: Program) -> tuple[Graph, Node]:
    region = next(node.op for node in program.after.nodes if isinstance(node.op, RegionOp))
    return region.body, next(node for node in region.body.nodes if node.op.kind == "conv")


def fit(path: Path) -> None:
    rows = json.loads(path.read_text())["cases"]
    wrong: dict[str, list[float]] = {"library": [], "kernel": []}
    for case in CASES:
        if case.name not in rows:
            continue
        row = rows[case.name]
        text = case.name.ljust(48)
        for name, seconds in zip(wrong, expected(case), strict=True):
            text += f" {name} {row[name]:7.3f} expected {seconds:7.3f} ({seconds / row[name]:5.2f})"
            wrong[name].append(seconds / row[name])
        print(text, f"{row['library'] / row['kernel']:6.2f}x")
    for name, ratios in wrong.items():
        print(name, "expected over measured, deciles:", [round(q, 2) for q in statistics.quantiles(ratios, n=10)])


def main() -> None:
    command, path = sys.argv[1], Path(sys.argv[2])
    if command == "build":
        path.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(build, [written(case, path) for case in CASES]))
    elif command == "time":
        found: dict[str, Any] = {}
        with torch.no_grad():
            for case in CASES:
                found[case.name] = measure(case, path)
                print(case.name, found[case.name], flush=True)
                torch.cuda.empty_cache()
                result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": found}
                Path(sys.argv[3]).write_text(json.dumps(result, indent=1) + "\n")
    else:
        fit(path)


if __name__ == "__main__":
    main()
