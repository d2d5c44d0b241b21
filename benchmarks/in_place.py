"""Convolutions of specs with their input prepared and read in place (``conv_sm90.cu.j2``), kernels against each other.

python benchmarks/in_place.py build FOLDER specs/*.py   plans and compiles both kernels wherever there are both; no GPU
python benchmarks/in_place.py time FOLDER OUT           compares and times them, taking turns; OUT is a JSON file
"""

from __future__ import annotations

import ctypes
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fusegen import dims  # noqa: E402
from fusegen.compiler import compile_file  # noqa: E402
from fusegen.costs import hopper  # noqa: E402
from fusegen.emit import kernels  # noqa: E402
from fusegen.emit.render import environment  # noqa: E402
from fusegen.ir import Graph  # noqa: E402
from fusegen.plan.details import HopperConvPlan  # noqa: E402
from fusegen.plan.types import KernelPlan, KernelStep  # noqa: E402
from fusegen.verdict import timing  # noqa: E402

COMMAND = ("nvcc", "-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-Xcompiler", "-fPIC", "-shared")
HEADERS = ("cuda.h", "cuda_runtime.h", "cstdint", "type_traits")


def source(plan: KernelPlan, detail: HopperConvPlan) -> str:
    env = environment()
    alone = plan.replace(name="kernel", detail=detail, hopper=None, parts=())
    body = env.get_template("conv_sm90.cu.j2").render(plan=alone, detail=detail)
    helpers = "\n".join(kernels.helper_functions(body, kernels._helpers(env)))
    includes = "".join(f"#include <{header}>\n" for header in HEADERS)
    return f"{includes}namespace {{\n{helpers}\n}}\nnamespace conv {{\n{body}\n}}\n"


def arguments(graph: Graph, plan: KernelPlan) -> dict[str, Any]:
    """Shapes of the operands and results at the traced sizes, and the values of the run-time sizes."""
    sizes = {b.name: dims.evaluate(plan.args[b.arg].type.shape[b.axis], graph.sizes) for b in plan.bindings}
    given = {g.name: dims.evaluate(g.size, graph.sizes) for g in plan.given}
    return {
        "operands": [[dims.evaluate(size, graph.sizes) for size in arg.type.shape] for arg in plan.args],
        "results": [[dims.evaluate(size, sizes | given) for size in output.shape] for output in plan.outputs],
        "sizes": list(sizes.values()),
        "given": list(given.values()),
    }


def build(folder: Path, specs: list[Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in specs:
        with mock.patch.object(hopper, "reads_in_place", return_value=True):
            compiled = compile_file(path)
        for step in compiled.program.steps:
            detail = step.plan.hopper if isinstance(step, KernelStep) else None
            if not isinstance(step, KernelStep) or not isinstance(detail, HopperConvPlan) or not detail.alternative:
                continue
            name = f"{path.stem}-{step.plan.name}"
            for kind, own in (("prepared", detail), ("in_place", detail.alternative)):
                text = folder / f"{name}-{kind}.cu"
                text.write_text(source(step.plan, own))
                subprocess.run([*COMMAND, text, "-o", text.with_suffix(".so")], check=True)
            (folder / f"{name}.json").write_text(json.dumps(arguments(compiled.stages[-1].graph, step.plan)))


def loaded(path: Path, given: dict[str, Any], operands: list[torch.Tensor]) -> tuple[Callable[[], None], Any]:
    """A call of a built kernel, and its results."""
    library = ctypes.CDLL(str(path))
    sizes = [ctypes.c_int64(size) for size in given["sizes"]]
    library.kernel_workspace.restype = ctypes.c_int64
    workspace = torch.empty(library.kernel_workspace(*sizes), dtype=torch.uint8, device="cuda")
    results = [torch.full(shape, math.nan, device="cuda") for shape in given["results"]]
    tensors = [ctypes.c_void_p(t.data_ptr()) for t in (*operands, *results, workspace)]
    numbers = [*sizes, *(ctypes.c_int64(size) for size in given["given"]), ctypes.c_int64(1)]

    def call() -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if status := library.kernel(*tensors, *numbers, stream):
            raise RuntimeError(f"{path.name}: CUDA error {status}")

    return call, results


def measure(folder: Path, out: Path) -> None:
    found = {}
    for path in sorted(folder.glob("*.json")):
        given = json.loads(path.read_text())
        torch.manual_seed(0)
        operands = [
            torch.randn(shape, device="cuda") / max(1, math.prod(shape[1:])) ** 0.5 for shape in given["operands"]
        ]
        calls, results = {}, {}
        for kind in ("prepared", "in_place"):
            calls[kind], results[kind] = loaded(folder / f"{path.stem}-{kind}.so", given, operands)
            calls[kind]()
        apart = [
            ((a - b).abs().max() / a.abs().max()).item()
            for a, b in zip(results["prepared"], results["in_place"], strict=True)
        ]
        times = timing.interleaved(calls, rounds=100)
        found[path.stem] = {"apart": max(apart), **{kind: own.model_dump() for kind, own in times.items()}}
        print(path.stem, found[path.stem])
        out.write_text(json.dumps({"device": torch.cuda.get_device_name(), "cases": found}, indent=1))


if __name__ == "__main__":
    if sys.argv[1] == "build":
        build(Path(sys.argv[2]), [Path(spec) for spec in sys.argv[3:]])
    else:
        measure(Path(sys.argv[2]), Path(sys.argv[3]))
