"""Lone convolutions of few output channels: the library's call against every kernel that could compute them.

python benchmarks/few_outputs.py build FOLDER      plans and compiles the kernels of every case; no GPU
python benchmarks/few_outputs.py time FOLDER OUT   checks and times them; OUT is a JSON file
"""

from __future__ import annotations

import copy
import ctypes
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from convolutions import SOURCE, Case, build, rounded

from fusegen.compiler import optimise
from fusegen.costs import contractions, direct
from fusegen.emit import kernels
from fusegen.emit.render import environment
from fusegen.plan.types import KernelPlan, KernelStep
from fusegen.trace import trace
from fusegen.verdict import timing

CASES = (
    Case(8, 128, (137, 81), 3, 3, 3, 2, True, 2, dilation=2),
    Case(32, 96, (78, 130), 3, 5, 2, 0, True),
    Case(8, 64, (25, 33, 28), 3, 3, 2, 0, True),
    Case(16, 64, (128, 128), 3, 4, 2, 1, True),
    Case(32, 64, (64, 64), 8, 3, 2, 1, True, 1),
    Case(16, 64, (256, 256), 3, 3, 1, 1),
    Case(8, 128, (43, 64), 3, 5, 2),
    Case(32, 96, (79, 31), 8, 3, 3, 2),
    Case(64, 32, (32, 256), 16, 3, 3, 2),
    Case(64, 64, (56, 56), 8, 3, 2, 1),
    Case(32, 32, (128, 128), 16, 4, 4),
    Case(16, 16, (128, 128), 8, 5, 2),
    Case(32, 48, (63, 63), 10, 3, 2, 1),
    # more products than a few: 16 outputs of as many positions as memory allows
    Case(128, 64, (16384,), 16, 1, 2),
    Case(16, 256, (16384,), 3, 5, 2, dilation=2),
    Case(32, 64, (112, 112), 16, 1, 2),
    Case(32, 64, (112, 112), 16, 1),
    Case(32, 128, (56, 56), 8, 1),
    Case(64, 32, (64, 64), 16, 3, 1, 1),
    Case(16, 64, (128, 128), 12, 3, 1, 1),
    Case(32, 24, (112, 112), 16, 3, 2, 1),
    Case(8, 32, (16, 64, 64), 16, 3, 1, 1),
    Case(64, 64, (4096,), 16, 3, 1, 1),
)
KINDS = ("contraction", "direct")


def planned(case: Case, kind: str) -> KernelPlan:
    """The kernel of the convolution alone, of a kind, whatever is expected of it."""
    with torch.device("meta"):
        module, x = case.module(), torch.zeros(case.batch, case.inputs, *case.size)
    graph = trace(module, (x,), Path(__file__)).graph
    with (
        mock.patch.object(contractions, "refusal", return_value=None),
        mock.patch.object(direct, "refusal", return_value=None),
        mock.patch.object(direct, "takes", return_value=kind == "direct"),
    ):
        (step,) = optimise(graph, "sm_90", False, lambda stage: None)[0].steps
    assert isinstance(step, KernelStep)
    return step.plan


def name(case: Case, kind: str) -> str:
    return f"{case.name}_by_{kind}"


def write(case: Case, kind: str, folder: Path) -> Path:
    """The kernel's source, and beside it how it is called."""
    plan, env = planned(case, kind), environment()
    detail = plan.detail
    body = env.get_template(f"{detail.template}.cu.j2").render(plan=plan, detail=detail)
    source = folder / f"{name(case, kind)}.cu"
    helpers = "\n".join(kernels.helper_functions(body, kernels._helpers(env)))
    source.write_text(SOURCE.format(helpers=helpers, kernel=body))
    call = {
        "name": plan.name,
        "workspace": plan.workspace,
        "tf32": plan.tf32 is not None,
        "bindings": [(binding.arg, binding.axis) for binding in plan.bindings],
    }
    source.with_suffix(".json").write_text(json.dumps(call))
    return source


class Kernel:
    """A compiled case, called through its launcher."""

    def __init__(self, case: Case, kind: str, folder: Path, x: torch.Tensor, w: torch.Tensor):
        call = json.loads((folder / f"{name(case, kind)}.json").read_text())
        library = ctypes.CDLL(str(folder / f"{name(case, kind)}.so"))
        self.launch, self.tf32 = library[call["name"]], call["tf32"]
        self.sizes = [ctypes.c_int64((x, w)[arg].shape[axis]) for arg, axis in call["bindings"]]
        self.given = [x, w]
        self.memory = []
        if call["workspace"]:
            workspace = library[call["name"] + "_workspace"]
            workspace.restype = ctypes.c_int64
            self.memory = [torch.empty(workspace(*self.sizes), dtype=torch.uint8, device="cuda")]

    def __call__(self, y: torch.Tensor, tf32: bool) -> None:
        tensors = [ctypes.c_void_p(t.data_ptr()) for t in (*self.given, y, *self.memory)]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        more = [ctypes.c_int64(tf32)] if self.tf32 else []
        assert self.launch(*tensors, *self.sizes, *more, stream) == 0


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Milliseconds, and relative errors of a sample against float64 on operands rounded where a kernel rounds them."""
    module, x = case.module().cuda(), torch.randn(case.batch, case.inputs, *case.size, device="cuda")
    w = next(module.parameters()).detach()
    last = copy.deepcopy(module).double()
    exact = {False: last(x[-1:].double())}
    next(last.parameters()).data = rounded(w).double()
    exact[True] = last(rounded(x[-1:]).double())
    y = module(x)
    found: dict[str, Any] = {"library_error": float((y[-1:] - exact[False]).norm() / exact[False].norm())}
    contestants: dict[str, Any] = {"library": lambda: module(x)}
    for kind in KINDS:
        if not (folder / f"{name(case, kind)}.so").exists():
            continue
        kernel = Kernel(case, kind, folder, x, w)
        for tf32 in (True, False) if kernel.tf32 else (False,):
            label = kind if tf32 else f"{kind}_fp32"
            result = torch.full_like(y, torch.nan)
            kernel(result, tf32)
            found[f"{label}_error"] = float((result[-1:] - exact[tf32]).norm() / exact[tf32].norm())
            assert result.isfinite().all(), (case.name, label)
            contestants[label] = partial(kernel, y, tf32)
    times = timing.interleaved(contestants, min(timing.choose_rounds(contestants, 0.25), 40))
    return {**found, **{contestant: time.median for contestant, time in times.items()}}


def main() -> None:
    command, folder = sys.argv[1], Path(sys.argv[2])
    if command == "build":
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(build, [write(case, kind, folder) for case in CASES for kind in KINDS]))
        return
    found: dict[str, Any] = {}
    with torch.no_grad():
        for case in CASES:
            found[case.name] = measure(case, folder)
            print(case.name, found[case.name], flush=True)
            torch.cuda.empty_cache()
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": found}
    Path(sys.argv[3]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
