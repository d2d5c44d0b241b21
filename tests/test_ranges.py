"""Bounds of what is computed, whatever the inputs are."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fusegen.passes import decompose, simplify
from fusegen.passes.algebra import ranges
from tests.models import traced, write


@pytest.mark.parametrize(
    ("result", "least"),
    [
        ("x.abs() / x.abs().amax(1, True)", 0.0),
        ("x.exp() / (x.relu() + 1e-3)", 0.0),
        ("x.square().mean(1) + 1", 1.0),
        ("x.abs().sum(1).sqrt()", 0.0),
        ("x.relu() / x.relu().sum(1, True)", -math.inf),  # a sum of -0
        ("x.abs() / x", -math.inf),
        ("x.abs() - x.relu()", -math.inf),
        ("x + x.abs()", -math.inf),
    ],
)
def test_what_is_never_negative(result: str, least: float, tmp_path: Path) -> None:
    graph = simplify.run(decompose.run(traced(write(tmp_path, f"return {result}")).graph).graph).graph
    assert ranges.of(graph, graph.node(graph.outputs[0]))[0] == least
