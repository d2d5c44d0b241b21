"""What a tensor of whole numbers names: the graph that a trace makes of it, and the kernels that fetch it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusegen import interpret
from fusegen.compiler import compile_file
from fusegen.errors import GraphError
from fusegen.inference import infer_gather
from fusegen.ir import DType, EagerOp, GatherOp, SliceOp, TensorType
from fusegen.plan.types import KernelStep
from fusegen.trace import load_model_file
from tests.models import traced, write

INPUTS = "torch.randn(9, 6, 24), torch.randint(0, 6, (3, 5))"
SPELLINGS = {
    "rows": "x[i]",
    "middle": "x[:, i]",
    "from the end": "x[i - 6]",
    "embedding": "F.embedding(i, x[:, 0])",
    "selected": "x.index_select(2, i[0])",
    "two lists": "x[i, i // 2]",
}


def ops_of(path: Path) -> list[type]:
    return [type(node.op) for node in traced(path).graph.nodes]


@pytest.mark.parametrize("name", SPELLINGS)
def test_is_torchs(name: str, tmp_path: Path) -> None:
    """One list of whole numbers names elements; several are left to torch."""
    path = write(tmp_path, f"return {SPELLINGS[name]}", inputs=INPUTS, arguments="x, i")
    graph = traced(path).graph
    assert (GatherOp in ops_of(path)) == (name != "two lists")
    x, i = torch.randn(9, 6, 24), torch.randint(0, 6, (3, 5))
    (found,) = interpret.run(graph, [x, i], {})
    assert torch.equal(found, load_model_file(path).model_class()(x, i))


@pytest.mark.parametrize(
    ("places", "least"),
    [("torch.arange(x.shape[1])", ("x0_1 <= 40",)), ("torch.arange(2, 12, 3)[None]", ()), ("torch.arange(41)", None)],
)
def test_a_range_names_a_part(places: str, least: tuple[str, ...] | None, tmp_path: Path) -> None:
    """Of tables that have it, at any size of a call: longer ones are torch's to refuse."""
    init = "self.e = nn.Embedding(40, 24)"
    path = write(tmp_path, f"return x + self.e({places}).sum()", init, "torch.rand(4, 7)")
    found = ops_of(path)
    assert (SliceOp in found) == (least is not None)
    assert (GatherOp in found) == (least is None)
    if least:
        assert any("x0_1" in condition and "40" in condition for condition in traced(path).graph.constraints)


@pytest.mark.parametrize(
    ("body", "kernels"),
    [
        ("F.layer_norm(F.embedding(i, x[0]), (24,))", 1),
        ("x[0][i].mean(1)", 1),
        ("F.layer_norm(F.embedding(i, x[0].sin()), (24,))", 2),  # or the sine would be taken of every row again
        ("F.embedding(i, x[0])", 0),  # torch's to write
        ("F.linear(F.embedding(i, x[0]), x[0])", 1),  # a product's factor is read again and again
    ],
)
def test_kernels_fetch_what_they_read_once(body: str, kernels: int, tmp_path: Path) -> None:
    found = compile_file(write(tmp_path, f"return {body}", inputs=INPUTS, arguments="x, i"))
    assert sum(isinstance(step, KernelStep) for step in found.program.steps) == kernels
    left = [node for node in found.program.after.nodes if isinstance(node.op, (GatherOp, EagerOp))]
    assert bool(left) == (kernels == 0 or "linear" in body)


def test_types_are_checked() -> None:
    x, numbers = TensorType(dtype=DType.FLOAT32, shape=(4, "n")), TensorType(dtype=DType.INT64, shape=(2, 3))
    assert infer_gather(GatherOp(axis=1), (x, numbers), x).shape == (4, 2, 3)
    with pytest.raises(GraphError, match="positions of type float32"):
        infer_gather(GatherOp(axis=0), (x, x), x)
