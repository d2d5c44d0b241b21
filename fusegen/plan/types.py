"""What the planner decides and the templates render: frozen, complete, free of choices."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from fusegen.dims import Dim
from fusegen.ir import Frozen, Graph, RuleApplied, RuleRefused
from fusegen.plan.details import Detail
from fusegen.plan.rowprogram import (
    Binding,
    Count,
    Given,
    OutputArg,
    TensorArg,
)


class KernelPlan(Frozen):
    """One kernel: signature, run-time sizes, and the constants and statements of its template."""

    name: str
    """C and operator name: ``k0_window_sum``."""
    node: str
    args: tuple[TensorArg, ...]
    bindings: tuple[Binding, ...]
    checks: tuple[tuple[int, int, Dim], ...]
    """(arg, axis, expected size over binding names) for every axis that is not a binding."""
    outputs: tuple[OutputArg, ...]
    given: tuple[Given, ...]
    counts: tuple[Count, ...] = ()
    detail: Detail
    hopper: Detail | None = None
    """What runs in place of ``detail`` on compute capability 9.0: a kernel that needs sm_90a instructions."""
    parts: tuple[KernelPlan, ...] = ()
    """Kernels that the launcher of ``detail`` calls one after the other."""
    computes: tuple[str, ...]
    """Printed graph nodes, for the kernel's comment."""
    again: tuple[str, ...] = ()
    """Other regions that the same kernel computes."""
    counters: Dim | None = None
    """Count (over binding names) of zero-initialised uint32 counters that the kernel leaves at zero."""
    tf32: Literal["conv", "matmul", "never"] | None = None
    """The torch setting that the kernel's last argument ``int64_t tf32`` reports: 1 where it permits TF32; "never": 0
    whatever torch permits."""
    only_hopper: bool = False
    """True when ``detail`` itself needs sm_90a: on other devices the reference forward runs."""
    aligned: tuple[str, ...] = ()
    """Operands that the kernel reads by tensor copies: at 16-byte addresses."""
    workspace: bool = False
    """True when ``<name>_workspace(sizes...)`` tells how many scratch bytes the launch needs."""

    @property
    def results(self) -> tuple[OutputArg, ...]:
        """The outputs that the operator returns."""
        return tuple(output for output in self.outputs if not output.into and not output.part)

    @property
    def written(self) -> tuple[str, ...]:
        """The operands that it writes."""
        return (*(output.into for output in self.outputs if output.into), *(count.arg for count in self.counts))

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the run-time sizes that the launcher has."""
        return (*(binding.name for binding in self.bindings), *(given.name for given in self.given))

    @property
    def scalars(self) -> tuple[str, ...]:
        """Names of the operator's integer arguments, which follow its tensors."""
        return (*(given.name for given in self.given), *(["tf32"] if self.tf32 else []))


class Part(Frozen):
    """Where a kernel's result is written: into the tensor ``whole``, from the channel ``first`` on."""

    whole: str
    first: int


class KernelStep(Frozen):
    """Call a generated kernel: ``outputs = name(*inputs)``."""

    kind: Literal["kernel"] = "kernel"
    plan: KernelPlan
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    given: tuple[str, ...] = ()
    """Sizes, over the graph's symbols, for those that the plan is given."""
    updates: tuple[str, ...] = ()
    """Paths of the buffers that it updates."""
    part: Part | None = None
    """Of its only result, which is none of ``outputs`` then."""
    bytes: int
    flops: int


class EagerStep(Frozen):
    """Call torch: ``output = expr``.

    ``expr`` is Python over ``v_<node>`` for each node of ``inputs`` and over size symbols
    (``x0_2``: axis 2 of model input 0), which the caller binds.
    """

    kind: Literal["eager"] = "eager"
    expr: str
    native: str = ""
    """The same as C++ over ``v_<node>`` and size symbols, where the glue can call it."""
    view: bool = False
    """True where the output may be the memory of an input."""
    written_later: bool = False
    """True where the output is memory that later steps fill, part by part."""
    inputs: tuple[str, ...]
    output: str
    comment: str
    reason: str
    bytes: int
    flops: int


Step: TypeAlias = Annotated[KernelStep | EagerStep, Field(discriminator="kind")]


class Program(Frozen):
    """Everything the emitter needs."""

    before: Graph
    after: Graph
    steps: tuple[Step, ...]
    rewrites: tuple[RuleApplied, ...]
    refusals: tuple[RuleRefused, ...]
    bytes_before: int
    flops_before: int
    bytes_after: int
    flops_after: int
    target: str
    evaluation: bool
    """Compiled for eval mode."""

    @property
    def kernels(self) -> tuple[KernelPlan, ...]:
        """The plan of every kernel, in the order of its first step."""
        return tuple({step.plan.name: step.plan for step in self.steps if isinstance(step, KernelStep)}.values())
