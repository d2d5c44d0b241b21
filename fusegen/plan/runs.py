"""Consecutive steps that one operator does, so that the host leaves Python once for all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from fusegen import dims
from fusegen.interpret import bound_sizes
from fusegen.ir import Graph
from fusegen.machines import machine
from fusegen.plan.cost import step_seconds
from fusegen.plan.types import EagerStep, KernelStep, Program, Step

_LAUNCH, _CALL = 10e-6, 40e-6
"""Seconds of a slow host for a kernel and its result's memory, and for a call of a library; fast ones take half
(h200-steps-as-one.json, h200-graphs.json)."""
_LEAST_LAUNCHES = 8
"""Of a run that is worth a graph: to look for it and to copy its results takes 20 to 30 us."""

_SYMBOL = re.compile(r"\bx\d+_\d+\b")


@dataclass(frozen=True)
class Run:
    """Steps that follow each other: kernels, and calls to torch that the glue can make."""

    steps: tuple[Step, ...]
    results: tuple[str, ...]
    """What others need of them."""
    replayed: bool
    """True when a GPU waits for the host, unless it is handed all launches at once."""


def outputs(step: Step) -> tuple[str, ...]:
    """The nodes that a step computes."""
    return step.outputs if isinstance(step, KernelStep) else (step.output,)


def symbols(step: Step) -> list[str]:
    """The size symbols that the glue needs for a step, besides what its operands show."""
    texts = step.given if isinstance(step, KernelStep) else (step.native,)
    return list(dict.fromkeys(symbol for text in texts for symbol in _SYMBOL.findall(text)))


def _may_join(step: Step, graph: Graph, shown: Set[str]) -> bool:
    """True for what the glue can do with the sizes ``shown`` by the inputs."""
    if isinstance(step, EagerStep) and not step.native:
        return False
    asked = symbols(step)
    if isinstance(step, KernelStep) and step.plan.tf32 == "conv":  # its precision is asked for by its operands' sizes
        asked += dims.symbols(size for name in step.inputs for size in graph.node(name).type.shape)
    return shown >= set(asked)


def grouped(program: Program, left_out: Iterable[str] = ()) -> list[Step | Run]:
    """The steps in order, without those of the nodes ``left_out``; where several launches may be a run, as one.

    A view that others need than the steps of its run ends the run: operators return memory of their own.
    """
    steps = [step for step in program.steps if not set(outputs(step)).intersection(left_out)]
    shown = bound_sizes(program.after).keys()
    joins = {i for i, step in enumerate(steps) if _may_join(step, program.after, shown)}
    while True:
        spans = _spans(joins)
        escaping = {
            i
            for first, last in spans
            for i in range(first, last)
            if isinstance(step := steps[i], EagerStep)
            and step.view
            and step.output in _needed(program, steps[:first] + steps[last:])
        }
        if not escaping:
            break
        joins -= escaping
    found: list[Step | Run] = []
    done = 0
    for first, last in spans:
        run = steps[first:last]
        launches = [step for step in run if isinstance(step, KernelStep) or not step.view]
        if len(launches) < 2 or not any(isinstance(step, KernelStep) for step in run):
            continue
        needed = _needed(program, steps[last:])
        results = tuple(name for step in run for name in outputs(step) if name in needed)
        found += [*steps[done:first], Run(tuple(run), results, _waits(program, launches, results))]
        done = last
    return found + steps[done:]


def _waits(program: Program, launches: Sequence[Step], results: Sequence[str]) -> bool:
    """Whether launches are expected to keep the host longer than the GPU, with copies of ``results``, as traced."""
    graph, rates = program.after, machine(program.target)
    host = sum(_LAUNCH if isinstance(step, KernelStep) else _CALL for step in launches)
    types = (graph.node(name).type for name in results)
    copied = sum(2 * dims.numel(type_.shape, graph.sizes) * type_.dtype.bytes / rates.bandwidth for type_ in types)
    return len(launches) >= _LEAST_LAUNCHES and host > copied + sum(step_seconds(program, step) for step in launches)


def _spans(joins: set[int]) -> list[tuple[int, int]]:
    """[first, last) of every stretch of ``joins``."""
    spans: list[tuple[int, int]] = []
    for i in sorted(joins):
        if spans and spans[-1][1] == i:
            spans[-1] = (spans[-1][0], i + 1)
        else:
            spans.append((i, i + 1))
    return spans


def _needed(program: Program, others: Sequence[Step]) -> set[str]:
    return {name for step in others for name in step.inputs} | set(program.after.results)
