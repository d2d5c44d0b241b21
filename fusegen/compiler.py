"""The whole compilation: model file in, generated module text out. Writes nothing."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from torch import nn

from fusegen import passes, proof, tuning
from fusegen.emit import emit_module
from fusegen.errors import ModelFileError
from fusegen.ir import Graph, RuleApplied, RuleRefused
from fusegen.machines import DEFAULT_TARGET, machine
from fusegen.passes import library
from fusegen.plan import make_program
from fusegen.plan.types import Program
from fusegen.trace import TracedModel, instantiate, load_model_file, trace
from fusegen.verify import from_json

Progress: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class Stage:
    """The graph after one pass, and what the pass did and refused."""

    name: str
    graph: Graph
    applied: tuple[RuleApplied, ...] = ()
    refused: tuple[RuleRefused, ...] = ()


@dataclass(frozen=True)
class Compiled:
    """A compilation: the program, the generated module's text, every stage, and how long it took."""

    program: Program
    source: str
    stages: tuple[Stage, ...]
    proof: proof.Proof
    notes: tuple[str, ...]
    seconds: float
    choices: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """Decision points that a measurement may settle: candidates and the seconds expected of them (``tuning.py``)."""


def _silent(stage: str) -> None:
    pass


def _run_passes(graph: Graph, target: str, progress: Progress = _silent) -> tuple[Stage, ...]:
    stages = [Stage("trace", graph)]
    for step in passes.PIPELINE:
        progress(step.name)
        outcome = passes.apply(step, stages[-1].graph, target)
        stages.append(Stage(step.name, outcome.graph, outcome.applied, outcome.refused))
    return tuple(stages)


def optimise(graph: Graph, target: str, evaluation: bool, progress: Progress) -> tuple[Program, tuple[Stage, ...]]:
    """Run the pipeline and plan. Raises ``GraphError`` when a pass breaks its contract."""
    stages = _run_passes(graph, target, progress)
    progress("plan")
    refused = dict.fromkeys(event for stage in stages for event in stage.refused)
    program = make_program(
        graph,
        stages[-1].graph,
        rewrites=tuple(event for stage in stages for event in stage.applied),
        refusals=library.renamed(stages[-2].graph, stages[-1].graph, refused),
        target=target,
        evaluation=evaluation,
    )
    return program, stages


def _finish(
    traced: TracedModel | Graph,
    source_text: str | None,
    title: str,
    target: str,
    evaluation: bool,
    progress: Progress,
    started: float,
) -> Compiled:
    graph = traced if isinstance(traced, Graph) else traced.graph
    program, stages = optimise(graph, target, evaluation, progress)
    progress("prove")
    proven = proof.prove(program.before, program.after)
    progress("emit")
    text = emit_module(program, traced, source_text, title)
    notes = traced.notes if isinstance(traced, TracedModel) else ()
    return Compiled(program, text, stages, proven, notes, time.perf_counter() - started)


def compile_file(
    model: Path,
    *,
    target: str = DEFAULT_TARGET,
    evaluation: bool = False,
    progress: Progress = _silent,
    pins: Mapping[str, str] | None = None,
) -> Compiled:
    """Compile a model file, or an operator-graph description (``.json``). Runs the file's Python.

    ``evaluation`` compiles for eval mode; without it, for the modes that the constructor leaves. ``progress`` is told
    each stage as it begins. ``pins`` settle decision points; by default, as the tuning file beside the model says.
    Raises a ``FusegenError`` whose class says what is wrong.
    """
    machine(target)  # a wrong target is known before any work
    with tuning.choices(tuning.read_pins(model, target) if pins is None else pins) as settled:
        compiled = _compile_file(model, target, evaluation, progress)
    if unknown := settled.unknown():
        raise ModelFileError(
            f"{tuning.pins_path(model).name} pins what this model does not have: {', '.join(unknown)}",
            hint="run `fusegen bench --tune` again, or delete the file",
        )
    tuned = tuple(f"tuned: {point} = {label}" for point, label in settled.pins.items())
    return replace(compiled, notes=compiled.notes + tuned, choices=settled.seen)


def _compile_file(model: Path, target: str, evaluation: bool, progress: Progress) -> Compiled:
    started = time.perf_counter()
    if model.suffix == ".json":
        progress("read")
        try:
            text = model.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileError(f"cannot read {model}: {error}") from error
        graph = from_json(text, model.name)
        return compile_graph(graph, model.name, target=target, evaluation=evaluation, progress=progress)
    progress("trace")
    loaded = load_model_file(model)
    module, inputs = instantiate(loaded)
    if evaluation:
        module.eval()  # else in the modes that the constructor leaves: parts of it may be frozen
    traced = trace(module, inputs, loaded.path)
    return _finish(traced, loaded.source, model.name, target, not module.training, progress, started)


def compile_graph(
    graph: Graph, title: str, *, target: str = DEFAULT_TARGET, evaluation: bool = False, progress: Progress = _silent
) -> Compiled:
    """Compile an operator graph. The generated ``ModelNew`` declares its parameters itself."""
    machine(target)
    return _finish(graph, None, title, target, evaluation, progress, time.perf_counter())


def compile_model(model: nn.Module, example_inputs: tuple[object, ...], *, target: str = DEFAULT_TARGET) -> Compiled:
    """Compile a module whose class is defined in a source file, in the mode (train or eval) that it is in.

    The generated ``ModelNew`` takes the class's own constructor arguments.
    """
    started = time.perf_counter()
    cls = type(model)
    try:
        path = Path(inspect.getfile(cls)).resolve()
        source = path.read_text(encoding="utf-8")
    except (OSError, TypeError) as error:
        raise ModelFileError(
            f"the source of {cls.__name__} is not in a file", hint="define the class in a .py file"
        ) from error
    traced = trace(model, example_inputs, path)
    return _finish(traced, source, path.name, target, not model.training, _silent, started)
