"""Whole compiled models on the CPU: every portable kernel's text in its operator's place, each held to float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fusegen import interpret
from fusegen.compiler import Compiled
from fusegen.ir import Graph
from fusegen.plan.types import KernelPlan
from tests.emitted import bodies, hidden_sizes, operators, simulated
from tests.emulated import Kernel

_ROUNDINGS = 256 * 2.0**-24
"""What a result may be off, relative to the largest one, where eager is exact."""


class Played:
    """What the text of a kernel computes, in its operator's place."""

    def __init__(self, compiled: Compiled, plan: KernelPlan, body: Graph, sizes: dict[str, int], folder: Path):
        self.compiled, self.plan, self.body, self.sizes, self.folder = compiled, plan, body, sizes, folder
        self.kernel: Kernel | None = None

    def __call__(self, *args: Any) -> Any:
        operands = [arg.contiguous() for arg in args if isinstance(arg, torch.Tensor)]
        if self.kernel is None:
            self.kernel = Kernel(self.compiled, self.plan, self.folder)
        before = [operand.clone() for operand in operands]
        found = self.kernel(operands, *(arg for arg in args if not isinstance(arg, torch.Tensor)))
        self._compare(found, before[: len(self.body.inputs)])
        for count in self.plan.counts:
            place = [arg.name for arg in self.plan.args].index(count.arg)
            assert operands[place] == before[place] + count.addend
        kept = [result for result, output in zip(found, self.plan.outputs, strict=True) if not output.into]
        return kept if len(kept) > 1 else kept[0]

    def _compare(self, found: Sequence[torch.Tensor], operands: Sequence[torch.Tensor]) -> None:
        hidden = hidden_sizes(self.body, self.sizes)
        own = interpret.run(self.body, operands, {}, hidden)
        exact = interpret.run(self.body, [x.double() if x.is_floating_point() else x for x in operands], {}, hidden)
        for y, e, r in zip(found, own, exact, strict=True):
            finite = r.isfinite()
            assert torch.equal(y[~finite].nan_to_num(7.0), r[~finite].float().nan_to_num(7.0)), self.plan.name
            if finite.any():
                error, eager = (float((v.double() - r.double())[finite].abs().max()) for v in (y, e))
                allowed = 8 * eager + _ROUNDINGS * float(r.double()[finite].abs().max())
                assert error <= allowed, f"{self.plan.name}: off by {error} where {allowed} is allowed"


class OnTheCPU:
    """A compiled model whose portable kernels are played; those that need sm_90a are the interpreter's."""

    def __init__(self, compiled: Compiled, name: str, folder: Path):
        program = compiled.program
        self.inputs = interpret.bound_sizes(program.before)
        self.sizes = dict(program.before.sizes)
        kernels: list[Callable[..., Any]] = [
            stand_in if plan.only_hopper else Played(compiled, plan, body, self.sizes, folder)
            for plan, body, stand_in in zip(program.kernels, bodies(program), operators(program), strict=True)
        ]
        self.model = simulated(compiled, name, kernels).ModelNew()

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """What the generated module makes of its inputs. Raises AssertionError where a kernel's result is wrong."""
        self.sizes.update({size: inputs[i].shape[axis] for size, (i, axis) in self.inputs.items()})
        with torch.no_grad():
            return self.model(*inputs)
