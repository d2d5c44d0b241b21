"""Measuring a model's candidates, one decision point after the other (``fusegen bench --tune``)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from fusegen.compiler import Compiled, compile_file
from fusegen.emit import write_atomic
from fusegen.errors import FusegenError, MismatchError, ToolchainError
from fusegen.ir import Frozen
from fusegen.tuning import Pins, pins_path
from fusegen.verdict.check import run_set
from fusegen.verdict.subject import Subject, model_subject, strict
from fusegen.verdict.timing import choose_rounds, interleaved

GAIN = 0.02
"""Share of the time by which a candidate must beat the best so far: less is noise."""


class Candidate(Frozen):
    """One candidate of a decision point. ``ms`` is None where it does not compile, and ``reason`` says why."""

    point: str
    label: str
    ms: float | None
    reason: str | None = None


class TuneReport(Frozen):
    """Every candidate that was measured, and what is pinned: nothing where the planner's choice is the fastest."""

    model: str
    target: str
    before_ms: float
    after_ms: float
    candidates: tuple[Candidate, ...]
    pinned: dict[str, str]


Measure = Callable[[Compiled], float]


def search(model: str, target: str, build: Callable[[dict[str, str]], Compiled], measure: Measure) -> TuneReport:
    """Settle the points in the order in which the planner meets them, each with the earlier ones settled."""
    pinned: dict[str, str] = {}
    compiled = build(pinned)
    first = best = measure(compiled)
    measured: list[Candidate] = []
    for point, candidates in compiled.choices.items():
        labels = tuple(candidates)
        measured.append(Candidate(point=point, label=labels[0], ms=best))
        for label in labels[1:]:
            try:
                ms = measure(build({**pinned, point: label}))
            except MismatchError:
                raise
            except FusegenError as error:
                measured.append(Candidate(point=point, label=label, ms=None, reason=str(error)))
                continue
            measured.append(Candidate(point=point, label=label, ms=ms))
            if ms < best * (1 - GAIN):
                best, pinned[point] = ms, label
    return TuneReport(
        model=model, target=target, before_ms=first, after_ms=best, candidates=tuple(measured), pinned=pinned
    )


def _measure(subject: Callable[[Path], Subject], folder: Path, seconds: float) -> Measure:
    """Time a compilation on the GPU, cold L2, after holding its results on the file's inputs to the oracle."""

    def measure(compiled: Compiled) -> float:
        path = folder / f"candidate_{abs(hash(compiled.source)):x}.py"
        write_atomic(path, compiled.source)
        found = subject(path)
        inputs = found.inputs_on("cuda")
        reference, generated = (found.build(f, "cuda") for f in (found.reference, found.generated))
        result = run_set("the file's inputs", (reference, generated), inputs)
        if not result.passed:
            raise MismatchError(f"a candidate is wrong: {result}", hint="this is a defect of fusegen")

        def run() -> None:
            with torch.no_grad():
                generated(*inputs)

        contestants = {"generated": run}
        return interleaved(contestants, choose_rounds(contestants, seconds))["generated"].median

    return measure


def tune(model: Path, *, target: str, evaluation: bool, seconds: float) -> TuneReport:
    """Measure the candidates of a model file on this machine's GPU and write its tuning file."""
    if not torch.cuda.is_available():
        raise ToolchainError("tuning needs a CUDA GPU", hint="`fusegen doctor` says what is missing")

    def build(pins: dict[str, str]) -> Compiled:
        return compile_file(model, target=target, evaluation=evaluation, pins=pins)

    with tempfile.TemporaryDirectory(prefix="fusegen_") as folder, strict():
        measure = _measure(lambda path: model_subject(model, path, evaluation), Path(folder), seconds)
        report = search(model.name, target, build, measure)
    pins = Pins(target=target, choices=report.pinned)
    write_atomic(pins_path(model), pins.model_dump_json(indent=1) + "\n")
    return report
