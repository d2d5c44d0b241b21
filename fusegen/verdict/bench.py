"""Times side by side in one run: eager, torch.compile, the generated module, and the memory roofline."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import computed_field
from torch import nn

from fusegen.errors import ToolchainError
from fusegen.ir import Frozen
from fusegen.plan.types import KernelStep, Program
from fusegen.verdict.probes import Probe
from fusegen.verdict.subject import Subject, call, call_generated, open_subject, strict
from fusegen.verdict.timing import (
    FirstUse,
    Timing,
    choose_rounds,
    first_use,
    host_microseconds,
    interleaved,
    kernel_times,
)
from fusegen.verdict.timing import traffic as compulsory_traffic

if TYPE_CHECKING:
    from fusegen.compiler import Compiled

PEAK_BYTES = 1 << 30
"""Size of the streaming-read and copy probes."""


class KernelTime(Frozen):
    """One generated kernel inside the module: its time, and what the planner says it moves."""

    name: str
    ms: Timing
    bytes: int
    flops: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def gigabytes_per_second(self) -> float:
        return self.bytes / self.ms.median / 1e6


class BenchReport(Frozen):
    """What was run, on what, and how long it took. All times are GPU milliseconds on a cold L2."""

    model: str
    inputs: tuple[str, ...]
    gpu: str
    capability: str
    torch: str
    cuda: str
    tf32_convolutions: bool
    tf32_matmul: bool
    rounds: int
    ms: dict[str, Timing]
    """By contestant: eager, torch.compile, generated, and ``roofline``, a kernel that only moves the bytes."""
    failed: dict[str, str]
    """Contestants that could not run, and why."""
    read_gbps: float
    copy_gbps: float
    """Streaming-read and copy bandwidth (read plus written) of 1 GiB buffers in the same rounds."""
    compulsory_read_bytes: int
    compulsory_write_bytes: int
    kernels: tuple[KernelTime, ...]
    host_us: dict[str, float]
    """Host microseconds of one forward call, grad mode on, on two rows: the GPU keeps up with the host."""
    first_use: FirstUse | None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def roofline_fraction(self) -> float:
        """Time of the roofline probe over the generated module's."""
        return self.ms["roofline"].median / self.ms["generated"].median

    @computed_field  # type: ignore[prop-decorator]
    @property
    def speedups(self) -> dict[str, float]:
        """Times over the generated module's."""
        ours = self.ms["generated"].median
        others = (name for name in self.ms if name not in ("generated", "roofline"))
        return {name: self.ms[name].median / ours for name in others}


@contextmanager
def _fresh_compiler() -> Iterator[None]:
    """torch.compile without what earlier models left behind, and leaving nothing behind."""
    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()


def _compiled(reference: nn.Module, inputs: tuple[Any, ...], mode: str | None) -> Callable[[], Any]:
    compiled = torch.compile(reference, mode=mode) if mode else torch.compile(reference)
    call(compiled, inputs)

    def run() -> None:
        with torch.no_grad():
            compiled(*inputs)

    return run


def _eager(module: nn.Module, inputs: tuple[Any, ...]) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            module(*inputs)

    return run


def _few_rows(generated: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Two rows of every input, which run the same kernels; ``inputs`` where those do not fit the model."""
    few = tuple(x[:2].clone() if isinstance(x, torch.Tensor) and x.dim() else x for x in inputs)
    try:
        call(generated, few)
    except RuntimeError:
        return inputs
    return few


def _kernels(program: Program, run: Callable[[], Any]) -> tuple[KernelTime, ...]:
    """Times of the generated kernels, matched to the planner's steps by name."""
    if not program.kernels:
        return ()
    measured = kernel_times(run)
    found = []
    for plan in program.kernels:
        steps = [step for step in program.steps if isinstance(step, KernelStep) and step.plan.name == plan.name]
        times = [timing for name, timing in measured.items() if plan.name in name]
        if not times:
            continue
        # A plan of several launches counts as one, and so do its steps.
        total = times[0].replace(
            **{part: len(steps) * sum(getattr(timing, part) for timing in times) for part in ("median", "low", "high")}
        )
        moved, flops = (sum(getattr(step, what) for step in steps) for what in ("bytes", "flops"))
        found.append(KernelTime(name=plan.name, ms=total, bytes=moved, flops=flops))
    return tuple(found)


def bench_subject(
    subject: Subject, program: Program, *, max_autotune: bool, seconds: float, cold_start: tuple[Path, Path] | None
) -> BenchReport:
    """Time ``subject`` on the GPU. ``cold_start``: (generated file, model file) to measure the first use of."""
    inputs = subject.inputs_on("cuda")
    reference = subject.build(subject.reference, "cuda")
    generated = subject.build(subject.generated, "cuda")
    outputs = call_generated(generated, inputs)
    read, written = compulsory_traffic(reference, inputs, outputs)
    del outputs

    # Before torch.compile joins: its worker processes would take the processor from the host's work.
    few = _few_rows(generated, inputs)
    host_us = {
        "eager": host_microseconds(lambda: reference(*few)),
        "generated": host_microseconds(lambda: generated(*few)),
    }
    contestants: dict[str, Callable[[], Any]] = {"eager": _eager(reference, inputs)}
    failed: dict[str, str] = {}
    modes: dict[str, str | None] = {"torch.compile": None}
    if max_autotune:
        modes["max-autotune"] = "max-autotune-no-cudagraphs"  # graphs would copy the input on every call
    for name, mode in modes.items():
        try:
            contestants[name] = _compiled(subject.build(subject.reference, "cuda"), inputs, mode)
        except Exception as error:  # a competitor that cannot run is a result, not a failure of the bench
            failed[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    contestants["generated"] = _eager(generated, inputs)
    probes = {"roofline": Probe(read, written), "read": Probe(PEAK_BYTES), "copy": Probe(PEAK_BYTES, PEAK_BYTES)}
    contestants.update(probes)

    rounds = choose_rounds(contestants, seconds)
    ms = interleaved(contestants, rounds)
    read_gbps, copy_gbps = (probes[name].bytes / ms.pop(name).median / 1e6 for name in ("read", "copy"))
    kernels = _kernels(program, contestants["generated"])
    started = first_use(*cold_start, few, subject.evaluation) if cold_start else None
    major, minor = torch.cuda.get_device_capability()
    return BenchReport(
        model=subject.name,
        inputs=tuple(
            f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" if isinstance(x, torch.Tensor) else repr(x)
            for x in inputs
        ),
        gpu=torch.cuda.get_device_name(),
        capability=f"sm_{major}{minor}",
        torch=torch.__version__,
        cuda=str(torch.version.cuda),
        tf32_convolutions=torch.backends.cudnn.allow_tf32,
        tf32_matmul=torch.backends.cuda.matmul.allow_tf32,
        rounds=rounds,
        ms=ms,
        failed=failed,
        read_gbps=read_gbps,
        copy_gbps=copy_gbps,
        compulsory_read_bytes=read,
        compulsory_write_bytes=written,
        kernels=kernels,
        host_us=host_us,
        first_use=started,
    )


def bench(
    compiled: Compiled,
    model: Path,
    generated: Path,
    *,
    max_autotune: bool = False,
    seconds: float = 2.0,
    measure_first_use: bool = True,
) -> BenchReport:
    """Time the file ``generated`` from ``model`` against eager and torch.compile. Needs a GPU."""
    if not torch.cuda.is_available():
        raise ToolchainError("bench needs a CUDA GPU", hint="`fusegen doctor` says what is missing")
    program = compiled.program
    with _fresh_compiler(), strict():
        subject = open_subject(model, generated, program.before, program.evaluation)
        return bench_subject(
            subject,
            program,
            max_autotune=max_autotune,
            seconds=seconds,
            cold_start=(generated, model) if measure_first_use else None,
        )
