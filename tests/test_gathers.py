"""What a tensor of whole numbers names: the graph that a trace makes of it, and the kernels that fetch it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusegen import interpret
from fusegen.compiler import compile_file
from fusegen.errors import GraphError
from fusegen.inference import infer_gather, infer_gather_elements
from fusegen.ir import DType, EagerOp, GatherElementsOp, GatherOp, SliceOp, TensorType
from fusegen.plan.types import EagerStep, KernelStep
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
    "two from the end": "x[:, i - 6, 5 - i]",
    "three lists": "x[i[:, :1], i[:1], i.int() * 4]",
    "in lines": "x[torch.arange(x.shape[0])[:, None, None], i]",
    "in places": "x[:3, :5].gather(2, i[:, :, None])",
    "in places, left out": "torch.gather(x, 1, i[:, :, None].expand(3, 5, 7))",
    "in places, spread": "torch.take_along_dim(x, i[:1, :4, None], 1)",
    "in places, of all": "torch.take_along_dim(x, i)",
    "in every place": "x[torch.arange(x.size(0))[:, None], torch.arange(x.size(1)), i.sum().expand(x.shape[:2]) % 9]",
    "in every row": "x[torch.arange(x.shape[0]), i.sum().expand(x.shape[0]) % 6]",
    "in every column": "x[:, torch.arange(x.shape[1]), i.sum().expand(x.shape[1]) % 24]",
    "in some rows": "x[torch.arange(3), i[:, 0]]",
}
LEFT = {"in places, of all"}
JOINED = {"in lines", "in some rows"}


def ops_of(path: Path) -> list[type]:
    return [type(node.op) for node in traced(path).graph.nodes]


@pytest.mark.parametrize("name", SPELLINGS)
def test_is_torchs(name: str, tmp_path: Path) -> None:
    """One list of whole numbers names elements, one beside every place, or several of axes that are joined."""
    path = write(tmp_path, f"return {SPELLINGS[name]}", inputs=INPUTS, arguments="x, i")
    graph = traced(path).graph
    own = GatherElementsOp if name.startswith("in ") and name not in JOINED else GatherOp
    assert (own in ops_of(path)) == (name not in LEFT)
    x, i = torch.randn(9, 6, 24), torch.randint(0, 6, (3, 5))
    (found,) = interpret.run(graph, [x, i], {})
    assert torch.equal(found, load_model_file(path).model_class()(x, i))


@pytest.mark.parametrize(("axis", "number"), [(0, 9), (0, -10), (1, 6), (1, -7)])
def test_numbers_outside_their_own_axis_are_refused(axis: int, number: int, tmp_path: Path) -> None:
    """Though they would be inside the axes together."""
    graph = traced(
        write(tmp_path, "return x[i, j]", inputs="torch.randn(9, 6), *2 * [torch.arange(2)]", arguments="x, i, j")
    ).graph
    numbers = [torch.tensor([3, 4]), torch.tensor([3, 4])]
    x = torch.randn(9, 6)
    assert torch.equal(interpret.run(graph, [x, *numbers], {})[0], x[numbers[0], numbers[1]])
    numbers[axis][1] = number
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        interpret.run(graph, [x, *numbers], {})


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


LOGITS = "torch.randn(4, 7, 500), torch.randint(0, 500, (4, 7))"
IN_PLACES = {
    "x.log_softmax(-1).gather(-1, i.unsqueeze(-1)).squeeze(-1)": ["row_reduce"],
    "(x / 0.7).softmax(-1).gather(-1, i.unsqueeze(-1)).squeeze(-1)": ["row_reduce"],
    "x[:, :-1].log_softmax(-1).gather(2, i[:, 1:, None]).squeeze(-1)": ["row_reduce"],
    "x.gather(-1, i.unsqueeze(-1)).squeeze(-1) - x.logsumexp(-1)": ["row_stream"],
    "x.gather(-1, i.unsqueeze(-1)).exp()": ["pointwise"],
    "x.gather(-1, i.unsqueeze(-1)).square().mean()": ["reduce_views"],
    "x.gather(-1, i.unsqueeze(-1))": ["torch", "torch"],  # a view, and torch's own
}


@pytest.mark.parametrize("body", IN_PLACES)
def test_what_numbers_name_is_computed_there(body: str, tmp_path: Path) -> None:
    """And is not written for that, as eager's softmax is."""
    found = compile_file(write(tmp_path, f"return {body}", "self.v = 500", LOGITS, "x, i"), target="sm_90")
    steps = [step.plan.detail.template if isinstance(step, KernelStep) else "torch" for step in found.program.steps]
    assert steps == IN_PLACES[body]


@pytest.mark.parametrize("other", ["y", "y.cumsum(-1)"])
def test_what_is_written_anyway_is_read(other: str, tmp_path: Path) -> None:
    body = f"y = x.log_softmax(-1)\nreturn y.gather(-1, i.unsqueeze(-1)) * 2, {other}"
    found = compile_file(write(tmp_path, body, inputs=LOGITS, arguments="x, i"))
    refused = [event for event in found.program.refusals if event.identity.startswith("log_softmax(x)[i]")]
    assert ["written anyway" in event.reason for event in refused] == [True]


def test_entropy_and_what_is_named_are_one_pass(tmp_path: Path) -> None:
    body = "y = x.log_softmax(-1)\nreturn y.gather(-1, i.unsqueeze(-1)).squeeze(-1), -(y.exp() * y).sum(-1)"
    found = compile_file(write(tmp_path, body, inputs=LOGITS, arguments="x, i"))
    assert len(found.program.kernels) == 1


def test_types_are_checked() -> None:
    x, numbers = TensorType(dtype=DType.FLOAT32, shape=(4, "n")), TensorType(dtype=DType.INT64, shape=(2, 3))
    assert infer_gather(GatherOp(axis=1), (x, numbers), x).shape == (4, 2, 3)
    with pytest.raises(GraphError, match="positions of type float32"):
        infer_gather(GatherOp(axis=0), (x, x), x)
    assert infer_gather_elements(GatherElementsOp(axis=1), (x, numbers.replace(shape=(1, 3))), x).shape == (4, 3)
    with pytest.raises(GraphError, match="positions of type float32"):
        infer_gather_elements(GatherElementsOp(axis=1), (x, x), x)
    with pytest.raises(GraphError, match="for elements of"):
        infer_gather_elements(GatherElementsOp(axis=1), (x, numbers), x)


def test_what_is_fetched_is_fetched_again_where_it_is_joined(tmp_path: Path) -> None:
    """Rows of an embedding that sums and a join read: none of them needs it written."""
    body = """e = self.e(i)
d = torch.log1p(d)
pairs = (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(1, keepdim=True)
return self.w(d) + pairs + self.l(torch.cat([e.flatten(1), d], 1)).tanh()"""
    init = "self.e, self.l, self.w = nn.Embedding(1000, 16), nn.Linear(429, 400), nn.Linear(13, 1)"
    inputs = "torch.randint(0, 1000, (8192, 26)), torch.rand(8192, 13)"
    compiled = compile_file(write(tmp_path, body, init, inputs, arguments="i, d"))
    assert not any(isinstance(step, EagerStep) for step in compiled.program.steps)
