"""Large constant sizes become symbols where nothing depends on the number, and proofs use that."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusegen import compiler, interpret
from fusegen.compiler import compile_file
from fusegen.errors import MismatchError
from fusegen.generalise import generalise
from fusegen.ir import ConstOp
from fusegen.passes import decompose
from fusegen.passes.rewrite import Rule
from tests.models import traced, write

LINEAR = "self.l = nn.Linear(96, 128)"


def shapes(body: str, init: str, inputs: str, folder: Path) -> dict[str, tuple[int | str, ...]]:
    graph = generalise(traced(write(folder, body, init, inputs)).graph)
    return {node.name: node.type.shape for node in graph.nodes if not isinstance(node.op, ConstOp)}


def test_tied_axes_share_a_symbol(tmp_path: Path) -> None:
    found = shapes("return self.l(x).relu()", LINEAR, "torch.rand(4, 96)", tmp_path)
    columns, length = found["p_l_weight"]
    assert {columns, length} == {"k0", "k1"}
    assert found["x"][1] == length
    assert found["p_l_bias"] == (columns,) == found["relu"][1:]


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("return self.l(x).view(-1, 8, 16).softmax(1)", "linear"),  # eight groups of sixteen: the number matters
        ("return torch.cumsum(self.l(x), 1)", "linear"),  # torch's own op: unknown
    ],
)
def test_a_size_that_an_op_depends_on_stays(body: str, kept: str, tmp_path: Path) -> None:
    found = shapes(body, LINEAR, "torch.rand(4, 96)", tmp_path)
    assert found[kept][1] == 128
    assert isinstance(found["x"][1], str)


def test_channels_of_a_convolution_stay(tmp_path: Path) -> None:
    found = shapes("return self.c(x)", "self.c = nn.Conv1d(96, 128, 3)", "torch.rand(4, 96, 10)", tmp_path)
    assert found["p_c_weight"] == (128, 96, 3)
    assert found["x"][1] == 96


def test_it_means_the_same(tmp_path: Path) -> None:
    graph = traced(write(tmp_path, "return self.l(x).tanh().mean(1)", LINEAR, "torch.rand(4, 96)")).graph
    general = generalise(graph)
    x, w, b = torch.randn(4, 96), torch.randn(128, 96), torch.randn(128)
    params = {"l.weight": w, "l.bias": b}
    assert torch.equal(*(interpret.run(g, [x], params, general.sizes)[0] for g in (graph, general)))


def large(folder: Path) -> Path:
    body = "return torch.relu(self.l(x) * 2 + 1)"
    return write(folder, body, "self.l = nn.Linear(4096, 2048)", "torch.rand(4, 4096)")


def test_large_parameters_are_proven_at_small_sizes(tmp_path: Path) -> None:
    found = compile_file(large(tmp_path)).proof
    assert all(max(sizes.values()) < 100 for sizes in found.sizes)
    assert any("k0" in sizes for sizes in found.sizes)


def test_a_wrong_rule_does_not_get_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (right,) = (rule for rule in decompose.RULES if rule.identity.startswith("matmul(x, w, b)"))
    wrong = Rule(right.identity, right.pattern, lambda m: m.add(m.root.op, m["x"], m["w"]), right.numerics)
    monkeypatch.setattr(decompose, "RULES", (wrong,))
    with pytest.raises(MismatchError, match="differs"):
        compile_file(large(tmp_path))


def test_other_rewrites_at_general_sizes_are_proven_at_the_models_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "AFFORDABLE", 0)
    monkeypatch.setattr(compiler, "generalise", lambda graph: graph.replace(nodes=graph.nodes[:0], outputs=()))
    path = write(tmp_path, "return self.l(x).relu()", LINEAR, "torch.rand(4, 96)")
    assert all("k0" not in sizes for sizes in compile_file(path).proof.sizes)
