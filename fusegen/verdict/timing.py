"""Clocks: interleaved GPU timing with a cold L2, per-kernel times, host time, first use of a file."""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fusegen.errors import ToolchainError
from fusegen.ir import Frozen
from fusegen.verdict.subject import SEED

FLUSH_BYTES = 256 << 20
"""Written between timed calls: several times the L2 of any GPU."""
HOST_LEAD_CYCLES = 400_000
"""GPU cycles of idling before each flush, so that the host is ahead and its launches are not timed."""


class Timing(Frozen):
    """Milliseconds over all rounds: median, 10th and 90th percentile."""

    median: float
    low: float
    high: float
    samples: int


def summarise(samples: list[float]) -> Timing:
    """The median and the 10th and 90th percentiles of at least one sample."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    return Timing(
        median=statistics.median(ordered),
        low=ordered[round(0.1 * last)],
        high=ordered[round(0.9 * last)],
        samples=len(ordered),
    )


class ColdL2:
    """Writes a buffer larger than the L2, after a pause that lets the host queue what follows."""

    def __init__(self) -> None:
        self.buffer = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def __call__(self) -> None:
        torch.cuda._sleep(HOST_LEAD_CYCLES)  # type: ignore[no-untyped-call]
        self.buffer.zero_()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def interleaved(contestants: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Timing]:
    """Time every contestant once per round, each on a cold L2, the order rotating from round to round."""
    flush = ColdL2()
    names = list(contestants)
    samples: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for turn in range(rounds):
            shift = turn % len(names)
            events = {}
            for name in names[shift:] + names[:shift]:
                start, end = _event(), _event()
                flush()
                start.record()
                contestants[name]()
                end.record()
                events[name] = (start, end)
            torch.cuda.synchronize()
            for name, (start, end) in events.items():
                samples[name].append(start.elapsed_time(end))
    finally:
        if collecting:
            gc.enable()
    return {name: summarise(values) for name, values in samples.items()}


def waited_microseconds(contestants: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median time from the call of each contestant to its end on an idle GPU: what the host takes is part of it."""
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            torch.cuda.synchronize()
            start = time.perf_counter_ns()
            run()
            torch.cuda.synchronize()
            samples[name].append((time.perf_counter_ns() - start) / 1e3)
    return {name: statistics.median(values) for name, values in samples.items()}


def choose_rounds(contestants: Mapping[str, Callable[[], Any]], seconds: float) -> int:
    """Rounds that fit in about ``seconds``, between 20 and 200; calls each contestant three times first."""
    total = 0.0
    for run in contestants.values():
        for _ in range(2):
            run()
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        total += time.perf_counter() - start + 0.5e-3
    return max(20, min(200, int(seconds / total)))


def host_microseconds(run: Callable[[], Any], calls: int = 20, repeats: int = 15) -> float:
    """Median host time of one call, the GPU idle at the start and never waited for."""
    run()
    found = []
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()  # what else the process holds is not this call's cost
    try:
        for _ in range(repeats):
            torch.cuda.synchronize()
            start = time.perf_counter_ns()
            for _ in range(calls):
                run()
            found.append((time.perf_counter_ns() - start) / calls / 1e3)
    finally:
        if collecting:
            gc.enable()
    torch.cuda.synchronize()
    return statistics.median(found)


def kernel_times(run: Callable[[], Any], calls: int = 10) -> dict[str, Timing]:
    """GPU time of every kernel that ``run`` launches, by kernel name, on a cold L2."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    buffer = torch.empty(FLUSH_BYTES // 4, device="cuda")
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        for _ in range(calls):
            buffer.fill_(0.0)
            with torch.profiler.record_function("fusegen_timed"):
                run()
            torch.cuda.synchronize()
    events = profiler.events() or []
    found: dict[str, list[float]] = {}
    for event in events:
        if event.device_type == DeviceType.CUDA and event.name != "fusegen_timed":
            found.setdefault(event.name, []).append(event.time_range.elapsed_us() / 1e3)
    return {name: summarise(values) for name, values in found.items()}


FIRST_USE = """
import json, sys, time, warnings
warnings.filterwarnings("ignore")
import torch
generated, model, seed, evaluation = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "eval"
torch.zeros(1, device="cuda")
arguments = []
scope = {"__name__": "model"}
if model.endswith(".py"):
    exec(compile(open(model).read(), model, "exec"), scope)
    arguments = scope["get_init_inputs"]() if "get_init_inputs" in scope else []
torch.manual_seed(seed)
inputs = torch.load(sys.argv[5], weights_only=True)
inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in inputs]
torch.cuda.synchronize()
start = time.perf_counter()
import importlib.util
spec = importlib.util.spec_from_file_location("generated", generated)
module = importlib.util.module_from_spec(spec)
sys.modules["generated"] = module
spec.loader.exec_module(module)
imported = time.perf_counter()
new = module.ModelNew(**arguments) if isinstance(arguments, dict) else module.ModelNew(*arguments)
new = new.cuda().eval() if evaluation else new.cuda()
with torch.no_grad():
    new(*inputs)
torch.cuda.synchronize()
end = time.perf_counter()
print(json.dumps({"total": end - start, "import": imported - start}))
"""


class FirstUse(Frozen):
    """Seconds from importing a generated file to its first result, in a fresh process after ``import torch``."""

    cold: float
    """With an empty build cache."""
    cached: float
    """With the kernels already built; the median of three processes."""
    cached_import: float
    """The import alone."""


def first_use(generated: Path, model: Path, inputs: tuple[Any, ...], evaluation: bool) -> FirstUse:
    """Measure the first use of ``generated``, a file compiled from ``model``, on ``inputs``."""
    with tempfile.TemporaryDirectory(prefix="fusegen_first_use_") as folder:
        stored = Path(folder) / "inputs.pt"
        torch.save([x.cpu().clone() if isinstance(x, torch.Tensor) else x for x in inputs], stored)
        mode = "eval" if evaluation else "train"
        command = [sys.executable, "-c", FIRST_USE, str(generated), str(model), str(SEED), mode, str(stored)]
        environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(Path(folder) / "cache"), "FUSEGEN_STRICT": "1"}
        runs = []
        for _ in range(4):
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
                raise ToolchainError(f"the first use of {generated.name} failed: {reason}")
            runs.append(json.loads(done.stdout.strip().splitlines()[-1]))
    cold, *cached = runs
    return FirstUse(
        cold=cold["total"],
        cached=statistics.median(run["total"] for run in cached),
        cached_import=statistics.median(run["import"] for run in cached),
    )


def traffic(module: nn.Module, inputs: tuple[Any, ...], outputs: list[torch.Tensor]) -> tuple[int, int]:
    """Bytes that any implementation must read (inputs, parameters) and write (outputs)."""
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    read = sum(t.untyped_storage().nbytes() for t in tensors) + sum(t.nbytes for t in module.parameters())
    return read, sum(t.nbytes for t in outputs)
