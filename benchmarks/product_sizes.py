"""Products of every size by every kernel that has them, and by the library.

``python benchmarks/product_sizes.py OUT.json [--kernels FOLDER] [--build] [--rounds N]``: a grid of rows, features and
inputs, of weights stored [features, inputs] and of batches. A way is a choice of ``fusegen``'s planner that is pinned:
one library of kernels each, for sizes known only at the call. ``--build`` compiles them into FOLDER and measures
nothing. What ``fusegen/costs/gemm.py`` expects of times is fitted to these.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from products import Case  # noqa: E402

from fusegen.compiler import Compiled, compile_file  # noqa: E402
from fusegen.doctor import use_environment_tools  # noqa: E402
from fusegen.plan.types import KernelPlan, KernelStep  # noqa: E402
from fusegen.verdict.timing import interleaved  # noqa: E402

MOST_FLOPS = 1.2e10
ODD = [(1, 1, 1, 1), (1, 33, 129, 65), (1, 100, 77, 203), (1, 203, 300, 1001)]
"""Tails on every axis: for the errors."""
KINDS = {
    "linear": Case((300, 700), (500, 700), "torch.matmul(a, b.T)"),
    "batch": Case((3, 300, 700), (3, 700, 500), "torch.bmm(a, b)"),
}
GRIDS = {
    "linear": ODD
    + [
        (1, rows, outputs, inputs)
        for rows, outputs, inputs in product(
            (16, 64, 128, 256, 394, 1024, 2048, 4096, 16384),
            (64, 128, 256, 512, 1000, 2048, 4096),
            (64, 128, 256, 512, 1024, 2048, 4096),
        )
    ],
    "batch": [(3, *size[1:]) for size in ODD]
    + [
        (matrices, rows, outputs, inputs)
        for matrices, rows, (outputs, inputs) in product(
            (4, 16, 96), (64, 256, 512), ((64, 64), (128, 128), (512, 64), (64, 512), (512, 512), (512, 2048))
        )
    ],
}


@dataclass(frozen=True)
class Way:
    """How a product is computed: the pins, and constants of the kernel that are replaced."""

    rows: str
    tile: str
    replaced: tuple[tuple[str, str], ...] = ()


def _in_place(rows: int, least: int = 2) -> Way:
    replaced = () if least == 2 else (("LEAST_CHUNKS = 2;", f"LEAST_CHUNKS = {least};"),)
    return Way("in place", f"{rows} rows", replaced)


WAYS = {
    "in place, 32": _in_place(32),
    "in place, 64": _in_place(64),
    "in place, 64, short": _in_place(64, 1),
    "in place, 64, long": _in_place(64, 4),
    "prepared, 96": Way("prepared", "96 rows"),
    "prepared, 192": Way("prepared", "192 rows"),
}


def pinned(path: Path, wanted: Mapping[str, str]) -> tuple[Compiled, dict[str, str]]:
    """A model compiled as ``wanted``: labels by the last word of their points; and the pins that it took.

    Each choice may lead to further ones.
    """
    pins: dict[str, str] = {}
    for _ in range(3):
        found = compile_file(path, pins=pins)
        pins = {p: wanted[kind] for p, labels in found.choices.items() if wanted.get(kind := p.split()[-1]) in labels}
    return found, pins


def compiled(kind: str, way: Way, folder: Path) -> Compiled:
    """The product ``kind`` computed by ``way``."""
    path = folder / f"{kind}.py"
    path.write_text(KINDS[kind].text)
    return pinned(path, {"by": "kernel", "rows": way.rows, "tile": way.tile})[0]


def plan_of(found: Compiled) -> KernelPlan:
    (step,) = found.program.steps
    assert isinstance(step, KernelStep), step
    return step.plan


def build(kind: str, name: str, folder: Path) -> None:
    """A shared library of one way."""
    home = folder / f"{kind} {name}".replace(" ", "_").replace(",", "")
    if (home / "k.so").exists():
        return
    home.mkdir(parents=True, exist_ok=True)
    found = compiled(kind, WAYS[name], home)
    match = re.search(r'^_fusegen_CUDA_SOURCE = r"""\n(.*?)"""', found.source, re.S | re.M)
    assert match
    text = match[1]
    for old, new in WAYS[name].replaced:
        assert old in text
        text = text.replace(old, new)
    (home / "k.cu").write_text(text)
    (home / "plan.json").write_text(plan_of(found).model_dump_json())
    command = ["nvcc", "-std=c++17", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "-shared", "-Xcompiler=-fPIC"]
    subprocess.run([*command, "-o", "k.so", "k.cu"], cwd=home, check=True)
    (home / "k.cu").unlink()


class Kernel:
    """A way's launcher: called with both factors and the tensor that its result goes to."""

    def __init__(self, home: Path) -> None:
        self.plan = KernelPlan.model_validate_json((home / "plan.json").read_text())
        library = ctypes.CDLL(str(home / "k.so"))
        self.launch = library[self.plan.name]
        self.size = library[f"{self.plan.name}_workspace"] if self.plan.workspace else None
        if self.size is not None:
            self.size.restype = ctypes.c_int64

    def bind(self, a: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> Callable[[], int]:
        operands = [{"a": a, "b": b}[arg.node] for arg in self.plan.args]
        sizes = [ctypes.c_int64(operands[binding.arg].shape[binding.axis]) for binding in self.plan.bindings]
        scratch = [torch.empty(self.size(*sizes), dtype=torch.uint8, device="cuda")] if self.size else []
        if self.plan.counters:
            scratch.append(torch.zeros(1 << 20, dtype=torch.int32, device="cuda"))
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (*operands, y, *scratch)]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        call = partial(self.launch, *pointers, *sizes, ctypes.c_int64(0), stream)
        call.keep = (operands, scratch)  # type: ignore[attr-defined]
        return call


def measure(kind: str, size: tuple[int, int, int, int], kernels: dict[str, Kernel], rounds: int) -> dict[str, Any]:
    """Times of a size in microseconds, and the largest error over the largest result."""
    matrices, rows, outputs, inputs = size
    batch = () if kind == "linear" else (matrices,)
    a = torch.rand(*batch, rows, inputs, device="cuda") - 0.3
    b = torch.randn(*batch, *((outputs, inputs) if kind == "linear" else (inputs, outputs)), device="cuda")
    right = b.T if kind == "linear" else b
    y = torch.empty(*batch, rows, outputs, device="cuda")
    truth = torch.matmul(a.double(), right.double())
    runs: dict[str, Callable[[], Any]] = {"library": partial(torch.matmul, a, right, out=y)}
    runs |= {name: kernel.bind(a, b, y) for name, kernel in kernels.items()}
    errors = {}
    for name, run in runs.items():
        y.fill_(float("nan"))
        status = run()
        torch.cuda.synchronize()
        if name != "library" and status:
            raise RuntimeError(f"{kind} {size} by {name}: error {status}")
        errors[name] = float((y - truth).square().mean().sqrt() / truth.square().mean().sqrt())
    timed = interleaved(runs, rounds)
    micros = {name: round(timing.median * 1e3, 2) for name, timing in timed.items()}
    rms = {name: float(f"{error:.2g}") for name, error in errors.items()}
    return {"kind": kind, "size": size, "microseconds": micros, "rms": rms}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kernels", type=Path, help="folder of built kernels")
    parser.add_argument("--build", action="store_true", help="build them only")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--workers", type=int, default=16)
    options = parser.parse_args()
    use_environment_tools()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.kernels or Path(temporary)
        pairs = list(product(KINDS, WAYS))
        if options.build or not options.kernels:
            with ThreadPoolExecutor(options.workers) as pool:
                list(pool.map(lambda pair: build(pair[0], pair[1], folder), pairs))
        if options.build:
            return 0
        homes = {(k, n): folder / f"{k} {n}".replace(" ", "_").replace(",", "") for k, n in pairs}
        kernels = {pair: Kernel(home) for pair, home in homes.items()}
    entries: list[dict[str, Any]] = []
    for kind, grid in GRIDS.items():
        ways = {name: kernel for (of, name), kernel in kernels.items() if of == kind}
        for size in grid:
            if 2.0 * size[0] * size[1] * size[2] * size[3] <= MOST_FLOPS:
                entries.append(measure(kind, size, ways, options.rounds))
        facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "products": entries}
        options.out.write_text(json.dumps(facts) + "\n")
    worst = {n: max(e["rms"].get(n, 0) for e in entries) for n in entries[0]["rms"]}
    print("largest relative rms error", worst)
    return 0


if __name__ == "__main__":
    sys.exit(main())
