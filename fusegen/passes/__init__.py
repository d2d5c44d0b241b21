"""The pipeline: graph in, graph out, each step verified. ``PIPELINE`` is the one place that orders passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fusegen.errors import GraphError
from fusegen.ir import Graph
from fusegen.machines import DEFAULT_TARGET
from fusegen.passes import (
    algebra,
    decompose,
    fuse,
    layouts,
    library,
    mixing,
    recurrent,
    simplify,
    statistics,
    truncation,
    unrolled,
)
from fusegen.passes.rewrite import Numerics, Outcome
from fusegen.verify import verify


@dataclass(frozen=True)
class Pass:
    """``run`` is pure and idempotent; ``numerics`` is the weakest class of what it may do.

    ``run`` takes the graph and the target, which only passes that weigh times look at.
    """

    name: str
    run: Callable[[Graph, str], Outcome]
    numerics: Numerics


def _any_target(run: Callable[[Graph], Outcome]) -> Callable[[Graph, str], Outcome]:
    return lambda graph, target: run(graph)


PIPELINE: tuple[Pass, ...] = (
    # First: what a layer's inputs come to is a product like others, and its bias one for the next pass.
    Pass("recurrent", recurrent.run, Numerics.REASSOCIATES),
    # Loops that a trace has written out, while each step is in the model's own terms.
    Pass("unrolled", unrolled.run, Numerics.REASSOCIATES),
    # A bias inside a convolution would hide the linear map from every rule below.
    Pass("decompose", _any_target(decompose.run), Numerics.EXACT),
    # Before the algebra, so that its patterns meet no no-op reshapes or size-1 reductions.
    Pass("simplify", _any_target(simplify.run), Numerics.EXACT),
    # On whole chains while they are still in the model's own terms; simplifies what it produces.
    Pass("algebra", _any_target(algebra.run), Numerics.REASSOCIATES),
    # After the algebra, which sees norms whole and would join the two steps of a moment; before fusion, which
    # sees reductions.
    Pass("statistics", _any_target(statistics.run), Numerics.REASSOCIATES),
    # After every rule that counts on a product's rows being an axis in place; before fusion, which weighs kernels by
    # what they read.
    Pass("layouts", _any_target(layouts.run), Numerics.EXACT),
    # After the algebra, which knows sums and means of convolutions; before fusion, which finishes products.
    Pass("mixing", mixing.run, Numerics.EXACT),
    # After the algebra, which takes most sums of products inward.
    Pass("truncation", _any_target(truncation.run), Numerics.EXACT),
    # Groups what is left into kernels and changes no op.
    Pass("fuse", fuse.run, Numerics.EXACT),
    # Last: only fusion knows which heavy ops stay with the library.
    Pass("library", _any_target(library.run), Numerics.EXACT),
)


def apply(step: Pass, graph: Graph, target: str = DEFAULT_TARGET) -> Outcome:
    """Run one pass under the pass contract. Raises ``GraphError`` when the pass breaks it."""
    verify(graph)
    outcome = step.run(graph, target)
    verify(outcome.graph)
    before, after = (
        ([(n.name, n.type) for n in g.inputs], [g.node(name).type for name in g.results], [p for p, _ in g.updates])
        for g in (graph, outcome.graph)
    )
    if before != after:
        raise GraphError(f"pass {step.name} changed the graph's inputs or outputs")
    if step.numerics is Numerics.EXACT and not all(e.exact for e in outcome.applied):
        raise GraphError(f"pass {step.name} is declared exact but reassociated")
    return outcome
