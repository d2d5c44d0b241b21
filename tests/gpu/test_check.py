"""``check`` itself on the GPU: operator-graph descriptions, and the part before a flattening op."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusegen.compiler import compile_file
from fusegen.emit import write_atomic
from fusegen.ir import to_json
from fusegen.verdict.check import CheckReport, check
from tests.gpu.cases import COLLAPSED, STRIDED, TAIL
from tests.variants import variant

pytestmark = pytest.mark.gpu


def model(name: str, folder: Path) -> Path:
    """A spec at sizes that give errors enough to compare."""
    sizes = {"length": 131} if name == STRIDED else {"height": 33, "width": 29}
    return variant(name, folder, batch_size=16, **sizes)


def failures(found: CheckReport) -> list[object]:
    """What a report has against the module."""
    outputs = [(s.name, o) for s in (*found.sets, *found.alone) for o in s.outputs if not o.passed]
    return [*outputs, *([] if found.same_state and found.repeatable else [found.same_state, found.repeatable])]


def checked(model: Path) -> CheckReport:
    compiled = compile_file(model)
    generated = model.parent / "generated.py"
    write_atomic(generated, compiled.source)
    return check(compiled, model, generated)


@pytest.mark.parametrize("name", [COLLAPSED, TAIL])
def test_a_graph_description(name: str, tmp_path: Path) -> None:
    description = tmp_path / "graph.json"
    description.write_text(to_json(compile_file(model(name, tmp_path)).program.before))
    found = checked(description)
    assert found.device is not None
    assert failures(found) == []
    assert found.passed
    assert bool(found.alone) == (name == TAIL)


@pytest.mark.parametrize("name", [STRIDED, TAIL])
def test_the_contraction_alone(name: str, tmp_path: Path) -> None:
    found = checked(model(name, tmp_path))
    assert len(found.alone) == len(found.sets)
    assert failures(found) == []
    assert found.passed
