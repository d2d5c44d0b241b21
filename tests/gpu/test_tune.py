"""``bench --tune`` on the GPU: candidates are built, held to the tolerance, timed, and the winner is pinned."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusegen.compiler import compile_file
from fusegen.tuning import pins_path
from fusegen.verdict.tune import tune
from tests.models import write

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("inputs", [64, 3])
def test_every_candidate_is_measured_and_the_winner_pinned(inputs: int, tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "return self.m(x).relu() * 2",
        f"self.m = nn.Conv2d({inputs}, 96, 3)",
        f"torch.rand(16, {inputs}, 64, 64)",
    )
    planned = compile_file(path)
    found = tune(path, target="sm_90", evaluation=False, seconds=0.2)
    assert {c.point for c in found.candidates} == set(planned.choices)
    assert all(c.ms is not None or c.reason for c in found.candidates)
    assert found.after_ms <= found.before_ms
    assert pins_path(path).is_file()
    tuned = compile_file(path)
    assert (tuned.source == planned.source) == (not found.pinned)
