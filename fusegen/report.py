"""What the commands print: rich tables for people, JSON for programs, errors as one message."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fusegen.ir import Frozen, RuleApplied, RuleRefused
from fusegen.plan import cost
from fusegen.plan.types import EagerStep, KernelStep, Program
from fusegen.printer import format_graph

if TYPE_CHECKING:
    from fusegen.compiler import Compiled
    from fusegen.doctor import Diagnosis
    from fusegen.errors import FusegenError
    from fusegen.verdict.bench import BenchReport
    from fusegen.verdict.check import CheckReport
    from fusegen.verdict.tune import TuneReport

VIEWS = ("reshape", "permute", "expand", "getitem")
"""Ops that launch nothing."""

MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "missing": "[red]missing[/]"}


class LibraryCall(Frozen):
    """An op that stays with torch, and why."""

    node: str
    call: str
    reason: str


class CompileSummary(Frozen):
    """What a compile did."""

    model: str
    output: str | None
    target: str
    evaluation: bool
    nodes: int
    kernels: tuple[str, ...]
    library_calls: tuple[LibraryCall, ...]
    rewrites: tuple[RuleApplied, ...]
    refusals: tuple[RuleRefused, ...]
    bytes_before: int
    bytes_after: int
    flops_before: int
    flops_after: int
    predicted_seconds: float
    roofline_seconds: float
    compile_seconds: float
    notes: tuple[str, ...]


def summarise(compiled: Compiled, model: Path, output: Path | None) -> CompileSummary:
    """The summary of a compile."""
    program: Program = compiled.program
    calls = [
        step
        for step in program.steps
        if isinstance(step, EagerStep) and program.after.node(step.output).op.kind not in VIEWS
    ]
    return CompileSummary(
        model=str(model),
        output=str(output) if output else None,
        target=program.target,
        evaluation=program.evaluation,
        nodes=sum(1 for node in program.before.nodes if node.op.kind not in ("input", "param", "const")),
        kernels=tuple(s.plan.name for s in program.steps if isinstance(s, KernelStep)),
        library_calls=tuple(LibraryCall(node=step.output, call=step.comment, reason=step.reason) for step in calls),
        rewrites=program.rewrites,
        refusals=program.refusals,
        bytes_before=program.bytes_before,
        bytes_after=program.bytes_after,
        flops_before=program.flops_before,
        flops_after=program.flops_after,
        predicted_seconds=cost.predict(program),
        roofline_seconds=cost.floor(program),
        compile_seconds=compiled.seconds,
        notes=compiled.notes,
    )


def console() -> Console:
    """Standard output; as wide as the tables where it is not a terminal."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 132)


def print_json(value: BaseModel | dict[str, Any]) -> None:
    """One JSON document on standard output and nothing else."""
    print(value.model_dump_json(indent=2) if isinstance(value, BaseModel) else json.dumps(value, indent=2))


def quantity(value: float, unit: str) -> str:
    """``1.07 GB``: three significant digits and a decimal prefix."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def duration(seconds: float) -> str:
    """Milliseconds, or microseconds below 0.1 ms."""
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.3g} µs"


def _line(path: Path, number: int) -> str:
    """Line ``number`` of a file, or nothing when it has no such line."""
    try:
        return path.read_text(encoding="utf-8").splitlines()[number - 1].strip()
    except (OSError, UnicodeDecodeError, IndexError):
        return ""


def error_text(error: FusegenError, model: Path | None) -> str:
    """One message: what went wrong, at which node and source line, and what to do."""
    lines = [f"error: {error.message}"]
    if error.node:
        lines.append(f"  node: {error.node}")
    if error.source:
        lines.append(f"  at:   {error.source}")
        name, _, number = error.source.rpartition(":")
        if model is not None and name == model.name and number.isdigit():
            lines.append(f"        {_line(model, int(number))}".rstrip())
    if error.hint:
        lines.append(f"  hint: {error.hint}")
    return "\n".join(lines)


def _pairs(title: str, first: str, second: str, rows: list[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, header_style="dim")
    table.add_column(first, overflow="fold")
    table.add_column(second, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def print_summary(summary: CompileSummary) -> None:
    """The table that ends ``fusegen compile``."""
    out = console()
    table = Table(title=f"{Path(summary.model).stem} for {summary.target}", title_justify="left", header_style="dim")
    for column in ("", "before", "after"):
        table.add_column(column, justify="left" if not column else "right")
    after = f"{len(summary.kernels)} kernel{'s' * (len(summary.kernels) != 1)}"
    if summary.library_calls:
        after += f" + {len(summary.library_calls)} library call{'s' * (len(summary.library_calls) != 1)}"
    table.add_row("graph nodes → kernels", str(summary.nodes), after)
    table.add_row("bytes moved", quantity(summary.bytes_before, "B"), quantity(summary.bytes_after, "B"))
    table.add_row("arithmetic", quantity(summary.flops_before, "FLOP"), quantity(summary.flops_after, "FLOP"))
    fraction = summary.roofline_seconds / summary.predicted_seconds if summary.predicted_seconds else 1.0
    table.add_row(
        "predicted time / roofline",
        "",
        f"{duration(summary.predicted_seconds)} / {duration(summary.roofline_seconds)} ({fraction:.0%})",
    )
    out.print(table)
    if summary.rewrites:
        out.print(_pairs("rewrites applied", "rule", "at node", [(r.identity, r.node) for r in summary.rewrites]))
    if summary.library_calls:
        out.print(_pairs("left to torch", "node", "because", [(c.node, c.reason) for c in summary.library_calls]))
    for note in summary.notes:
        out.print(f"note: {escape(note)}", soft_wrap=True)
    if summary.output:
        out.print(f"wrote {summary.output} in {summary.compile_seconds:.1f} s, its rewrites proven", soft_wrap=True)


def explanation(compiled: Compiled) -> dict[str, Any]:
    """The JSON form of ``fusegen explain``."""
    program = compiled.program
    stages = [
        {
            "name": stage.name,
            "graph": stage.graph.model_dump(mode="json"),
            "applied": [event.model_dump(mode="json") for event in stage.applied],
            "refused": [event.model_dump(mode="json") for event in stage.refused],
        }
        for stage in compiled.stages
    ]
    steps = [step.model_dump(mode="json") for step in program.steps]
    return {"stages": stages, "steps": steps, "decisions": compiled.choices}


def print_explanation(compiled: Compiled) -> None:
    """The graph after each pass, what each rule did or why it refused, and the kernels."""
    out = console()
    for stage in compiled.stages:
        out.rule(f"after {stage.name}", align="left")
        for done in stage.applied:
            out.print(f"  [green]applied[/] {escape(done.identity)} at {done.node}", soft_wrap=True)
        for kept in stage.refused:
            why = f"{escape(kept.identity)} at {kept.node}: {escape(kept.reason)}"
            out.print(f"  [yellow]refused[/] {why}", soft_wrap=True)
        out.print(escape(format_graph(stage.graph)), soft_wrap=True)
    if compiled.choices:
        out.rule("decisions, the chosen first unless a tuning file pins another", align="left")
    for point, candidates in compiled.choices.items():
        expected = (f"{label} ({duration(s)})" if s else label for label, s in candidates.items())
        out.print(f"  {escape(point)}: {escape('; '.join(expected))}", soft_wrap=True)
    out.rule("program", align="left")
    for step in compiled.program.steps:
        if isinstance(step, KernelStep):
            moved = f"{quantity(step.bytes, 'B')}, {quantity(step.flops, 'FLOP')}"
            out.print(f"[bold]{step.plan.name}[/] ({step.plan.detail.template}; {moved})")
            for line in step.plan.computes:
                out.print(f"    {escape(line)}", soft_wrap=True)
        else:
            out.print(f"[bold]torch[/] {escape(step.comment)}: {escape(step.reason)}", soft_wrap=True)


def print_check(report: CheckReport) -> None:
    """The errors of every output on every input set, and the verdict."""
    out = console()
    out.print(
        f"{report.model}: rewrite proof [green]holds[/] "
        f"({report.proof.rounds} rounds in float64, largest relative difference {report.proof.worst:.1e})"
    )
    if report.device is None:
        out.print(
            "[yellow]no GPU:[/] only the rewrite proof was run. The generated kernels were not run; "
            "nothing is claimed about them."
        )
        return
    table = Table(title=f"errors against float64 on {report.device}", title_justify="left", header_style="dim")
    table.add_column("inputs")
    table.add_column("result")
    for column in ("max: generated", "eager", "allowed", "RMS: generated", "eager", "ratio"):
        table.add_column(column, justify="right")
    table.add_column("")
    groups = [(group.name, group) for group in report.sets]
    groups += [(f"contraction alone: {group.name}", group) for group in report.alone]
    for name, group in groups:
        for o in group.outputs:
            ratio = "-" if o.ratio is None else f"{o.ratio:.2g}"
            verdict = "[green]ok[/]" if o.passed else "[red]MISMATCH[/]"
            if o.wrong_specials:
                verdict += f" ({o.wrong_specials} NaN/Inf)"
            figures = (o.max_generated, o.max_eager, o.max_allowed, o.rms_generated, o.rms_eager)
            table.add_row(name, o.output, *(f"{f:.2e}" for f in figures), ratio, verdict)
    out.print(table)
    if report.eager_class:
        kind = "TF32" if report.eager_class.uses_tf32 else "fp32"
        out.print(
            f"eager's convolutions run in the {kind} class: relative error {report.eager_class.tf32:.1e} "
            f"with TF32 allowed, {report.eager_class.fp32:.1e} without"
        )
        if any(o.max_tf32 is not None and o.max_tf32 > o.max_eager for _, group in groups for o in group.outputs):
            out.print("where cuDNN chose fp32 although TF32 is permitted, the error allowed is that of TF32 arithmetic")
    for what, value in (("same seed, same state_dict", report.same_state), ("repeats bitwise", report.repeatable)):
        out.print(f"{what}: {'[green]yes[/]' if value else '[red]NO[/]'}")
    out.print("[green]passed[/]" if report.passed else "[red]FAILED[/]")


def print_bench(report: BenchReport) -> None:
    """The times side by side."""
    out = console()
    title = f"{report.model} {', '.join(report.inputs)} on {report.gpu}, torch {report.torch}"
    table = Table(title=title, title_justify="left", header_style="dim")
    table.add_column("cold L2, GPU time")
    for column in ("median", "10-90%", "generated is"):
        table.add_column(column, justify="right")
    for name, timing in report.ms.items():
        if name == "roofline":
            note = f"{report.roofline_fraction:.0%} of it"
        else:
            note = f"{report.speedups[name]:.3g}x faster" if name in report.speedups else ""
        spread = f"{timing.low * 1e3:.4g}-{timing.high * 1e3:.4g} µs"
        table.add_row(name, f"{timing.median * 1e3:.4g} µs", spread, note)
    for name, reason in report.failed.items():
        table.add_row(name, "failed", "", escape(reason))
    out.print(table)
    moved = f"read {quantity(report.compulsory_read_bytes, 'B')}, write {quantity(report.compulsory_write_bytes, 'B')}"
    out.print(f"roofline: a kernel that only moves the bytes it must ({moved})")
    out.print(f"probes: streaming read {report.read_gbps:.0f} GB/s, copy {report.copy_gbps:.0f} GB/s")
    for kernel in report.kernels:
        out.print(f"{kernel.name}: {kernel.ms.median * 1e3:.4g} µs, {kernel.gigabytes_per_second:.0f} GB/s")
    out.print("host time per call, grad mode on: " + ", ".join(f"{k} {v:.1f} µs" for k, v in report.host_us.items()))
    if report.first_use:
        out.print(f"first use: {report.first_use.cold:.2f} s cold, {report.first_use.cached:.2f} s cached")


def print_tune(report: TuneReport) -> None:
    """Every candidate's time, and what is pinned."""
    table = Table(title=f"candidates of {report.model} on {report.target}", title_justify="left", header_style="dim")
    for column in ("decision", "candidate", "cold L2", ""):
        table.add_column(column)
    for candidate in report.candidates:
        pinned = report.pinned.get(candidate.point) == candidate.label
        time = escape(candidate.reason or "") if candidate.ms is None else f"{candidate.ms * 1e3:.4g} µs"
        table.add_row(candidate.point, escape(candidate.label), time, "[green]pinned[/]" if pinned else "")
    out = console()
    out.print(table)
    out.print(f"{report.before_ms * 1e3:.4g} µs as planned, {report.after_ms * 1e3:.4g} µs as pinned")


def print_doctor(diagnosis: Diagnosis) -> None:
    """One row per finding."""
    table = Table(header_style="dim")
    for column in ("", "found", "", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in diagnosis.findings:
        table.add_row(finding.name, escape(finding.value), MARKS[finding.status], escape(finding.hint))
    console().print(table)
