"""Convolutions with their input prepared and read in place (``conv_sm90.cu.j2``), kernels against each other.

python benchmarks/in_place.py build FOLDER [MODEL.py ...]   plans and compiles both kernels wherever there are both, of
                                                            the models below if none is named; no GPU
python benchmarks/in_place.py time FOLDER OUT               compares and times them, taking turns, and the library's
                                                            call for a convolution below; OUT is a JSON file
"""

from __future__ import annotations

import ctypes
import json
import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from side_by_side import model_text  # noqa: E402

from fusegen import dims  # noqa: E402
from fusegen.compiler import compile_file  # noqa: E402
from fusegen.costs import hopper, library  # noqa: E402
from fusegen.emit import kernels  # noqa: E402
from fusegen.emit.render import environment  # noqa: E402
from fusegen.ir import Graph  # noqa: E402
from fusegen.plan.details import HopperConvPlan  # noqa: E402
from fusegen.plan.types import KernelPlan, KernelStep  # noqa: E402
from fusegen.spaces import channels  # noqa: E402
from fusegen.verdict import timing  # noqa: E402

Model = tuple[str, str, tuple[int, ...]]
"""The convolution ``self.c``, what the forward returns, the shape of ``x``."""


def _one_tap(batch: int, inputs: int, size: int, outputs: int) -> dict[str, Model]:
    """1x1 and ReLU, and 1x1 whose kernel finds the statistics of a norm."""
    conv, shape = f"nn.Conv2d({inputs}, {outputs}, 1, bias={{}})", (batch, inputs, size, size)
    norm = "F.batch_norm(self.c(x), None, None, training=True)"
    name = f"{batch}x{inputs}x{size}x{size}_{outputs}"
    return {
        f"{name}_relu": (conv.format(True), "self.c(x).relu()", shape),
        f"{name}_norm": (conv.format(False), f"{norm}.relu()", shape),
    }


ONE_TAP = (
    (64, 64, 56, 256),
    (64, 256, 56, 64),
    (64, 512, 28, 128),
    (64, 128, 28, 512),
    (64, 1024, 14, 256),
    (64, 256, 14, 1024),
    (32, 32, 112, 64),
    (32, 96, 112, 24),
    (32, 144, 56, 24),
    (16, 480, 14, 192),
    (64, 16, 128, 32),
    (64, 64, 64, 256),
    (32, 256, 28, 512),
    (16, 128, 128, 64),
    (16, 512, 28, 256),
)
MODELS: dict[str, Model] = {name: model for case in ONE_TAP for name, model in _one_tap(*case).items()} | {
    "hardswish_max2_mish": (
        "nn.Conv2d(64, 128, 3)",
        "F.mish(F.max_pool2d(F.hardswish(self.c(x)), 2))",
        (32, 64, 128, 128),
    ),
    "sub_hardswish_max2_mish": (
        "nn.Conv2d(64, 128, 3)",
        "F.mish(F.max_pool2d(F.hardswish(self.c(x) - 0.5), 2))",
        (96, 64, 96, 96),
    ),
    "silu_mean4_mish": ("nn.Conv2d(32, 64, 3)", "F.mish(F.avg_pool2d(F.silu(self.c(x)), 4))", (64, 32, 128, 128)),
    "silu_max2": ("nn.Conv2d(128, 256, 3, padding=1)", "F.max_pool2d(F.silu(self.c(x)), 2)", (32, 128, 56, 56)),
    "gelu_max2": ("nn.Conv2d(16, 32, 3, padding=1)", "F.max_pool2d(F.gelu(self.c(x)), 2)", (64, 16, 128, 128)),
    "relu_max2": ("nn.Conv2d(64, 64, 3, padding=1)", "F.max_pool2d(F.relu(self.c(x)), 2)", (10, 64, 224, 224)),
    "transposed_max2": (
        "nn.ConvTranspose2d(64, 64, 3, 1, 1)",
        "F.hardtanh(F.max_pool2d(self.c(x), 2))",
        (64, 64, 128, 128),
    ),
    "silu_max2_small": ("nn.Conv2d(64, 128, 3)", "F.max_pool2d(F.silu(self.c(x)), 2)", (64, 64, 60, 60)),
}

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


def written(folder: Path) -> list[Path]:
    """The models above as files."""
    for name, (conv, body, shape) in MODELS.items():
        (folder / f"{name}.py").write_text(model_text(f"self.c = {conv}", f"return {body}", shape))
    return [folder / f"{name}.py" for name in MODELS]


def build(folder: Path, models: list[Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in models or written(folder):
        always = mock.patch.multiple(hopper, reads_in_place=lambda *_: True, pools_in_place=lambda *_: True)
        kernels_only = mock.patch.object(library, "seconds", return_value=math.inf)
        with always, kernels_only, mock.patch.object(channels, "pays", return_value=True):
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
            given = arguments(compiled.stages[-1].graph, step.plan) | {"model": path.stem}
            (folder / f"{name}.json").write_text(json.dumps(given))


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
        if given["model"] in MODELS:
            conv, _, shape = MODELS[given["model"]]
            x = next(t for t in operands if t.shape == shape)
            calls["library"] = partial(eval(conv, {"nn": torch.nn}).cuda().requires_grad_(False), x)
        times = timing.interleaved(calls, rounds=40)
        found[path.stem] = {"apart": max(apart), **{kind: own.model_dump() for kind, own in times.items()}}
        print(path.stem, found[path.stem])
        out.write_text(json.dumps({"device": torch.cuda.get_device_name(), "cases": found}, indent=1))


if __name__ == "__main__":
    if sys.argv[1] == "build":
        build(Path(sys.argv[2]), [Path(spec) for spec in sys.argv[3:]])
    else:
        measure(Path(sys.argv[2]), Path(sys.argv[3]))
