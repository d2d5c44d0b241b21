"""``check`` itself on the GPU: operator-graph descriptions, and the part before a flattening op."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusegen.check import CheckReport, check
from fusegen.compiler import compile_file
from fusegen.emit import write_atomic
from fusegen.ir import to_json
from tests.gpu.cases import COLLAPSED, STRIDED, TAIL
from tests.variants import small

pytestmark = pytest.mark.gpu


def checked(model: Path) -> CheckReport:
    compiled = compile_file(model)
    generated = model.parent / "generated.py"
    write_atomic(generated, compiled.source)
    return check(compiled, model, generated)


@pytest.mark.parametrize("name", [COLLAPSED, TAIL])
def test_a_graph_description(name: str, tmp_path: Path) -> None:
    description = tmp_path / "graph.json"
    description.write_text(to_json(compile_file(small(name, tmp_path)).program.before))
    found = checked(description)
    assert found.device is not None
    assert found.passed, found
    assert bool(found.alone) == (name == TAIL)


@pytest.mark.parametrize("name", [STRIDED, TAIL])
def test_the_contraction_alone(name: str, tmp_path: Path) -> None:
    found = checked(small(name, tmp_path))
    assert len(found.alone) == len(found.sets)
    assert found.passed, found
