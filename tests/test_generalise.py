"""Large constant sizes become symbols where nothing depends on the number, and proofs use that."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from fusegen import interpret, proof
from fusegen.compiler import compile_file
from fusegen.errors import GraphError, MismatchError
from fusegen.ir import (
    ConstOp,
    ConvOp,
    DType,
    EagerOp,
    Graph,
    InputOp,
    MatmulOp,
    Node,
    NormalizeOp,
    PointwiseOp,
    RegionOp,
    TapSumOp,
    TensorType,
)
from fusegen.passes import decompose
from fusegen.passes.rewrite import Rule
from fusegen.proof.generalise import generalise
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
        ("return torch.logcumsumexp(self.l(x), 1)", "linear"),  # torch's own op: unknown
    ],
)
def test_a_size_that_an_op_depends_on_stays(body: str, kept: str, tmp_path: Path) -> None:
    found = shapes(body, LINEAR, "torch.rand(4, 96)", tmp_path)
    assert found[kept][1] == 128
    assert isinstance(found["x"][1], str)


def test_a_reshape_fixes_what_it_regroups_alone(tmp_path: Path) -> None:
    body, init = (
        "return (x + self.p).view(-1, 8, 6, 100).exp().sum(2)",
        "self.p = nn.Parameter(torch.rand(32, 48, 100))",
    )
    found = shapes(body, init, "torch.rand(32, 48, 100)", tmp_path)
    batch, channels, width = found["p_p"]
    assert (batch, channels, width) == ("k0", 48, "k1")
    assert found["exp"] == (batch, 8, 6, width)


def test_a_merged_axis_is_the_product_of_its_parts(tmp_path: Path) -> None:
    found = shapes(
        "return x.flatten(1) + self.p", "self.p = nn.Parameter(torch.rand(1600))", "torch.rand(4, 32, 50)", tmp_path
    )
    _, channels, width = found["x"]
    assert {channels, width} == {"k0", "k1"}
    assert found["p_p"] == ("k0*k1",)


def test_an_axis_that_is_split_in_two_ways_stays(tmp_path: Path) -> None:
    body = "return (x + self.p).view(-1, 32, 50).exp(), (x + self.p).view(-1, 50, 32).abs()"
    found = shapes(body, "self.p = nn.Parameter(torch.rand(1600))", "torch.rand(4, 1600)", tmp_path)
    assert found["p_p"] == (1600,)
    assert found["exp"][1:] == (32, 50)


def test_window_sums_keep_windows_alone(tmp_path: Path) -> None:
    init = "self.c, self.p = nn.Conv2d(24, 40, 3), nn.Parameter(torch.rand(64, 40, 100, 80))"
    found = compile_file(
        write(tmp_path, "return (self.c(x) + self.p).mean((2, 3))", init, "torch.rand(64, 24, 102, 82)")
    )
    assert any(isinstance(node.op, TapSumOp) for stage in found.stages for node in stage.graph.nodes)
    assert all(sizes for sizes in found.proof.sizes)


def test_channels_of_a_convolution_become_small_numbers(tmp_path: Path) -> None:
    init, inputs = "self.c = nn.Conv2d(96, 128, 3, stride=2)", "torch.rand(4, 96, 40, 50)"
    graph = traced(write(tmp_path, "return self.c(x).mean(0)", init, inputs)).graph
    found = generalise(graph.replace(constraints=()))
    shapes = {node.name: node.type.shape for node in found.nodes}
    outputs, channels, *kernel = shapes["p_c_weight"]
    assert {outputs, channels} == {3, 5}
    assert kernel == [3, 3]
    assert shapes["x"][1] == channels
    assert shapes["p_c_bias"] == (outputs,) == shapes["mean"][:1]


def test_what_a_convolution_computes_follows_from_what_it_reads() -> None:
    conv = ConvOp(transposed=False, stride=(2,), padding=(1,), dilation=(1,), output_padding=(0,))
    x, w = TensorType(dtype=DType.FLOAT32, shape=(2, 4, 96)), TensorType(dtype=DType.FLOAT32, shape=(4, 4, 3))
    y = x.replace(shape=(2, 4, 48))
    nodes = (
        Node(name="x", op=InputOp(position=0), type=x),
        Node(name="w", op=InputOp(position=1), type=w),
        Node(name="y", op=conv, inputs=("x", "w"), type=y),
        Node(name="z", op=PointwiseOp(fn="relu"), inputs=("y",), type=y),
    )
    found = generalise(Graph(nodes=nodes, outputs=("z",)))
    assert found.sizes == {"k0": 96}
    assert found.node("x").type.shape == (2, 4, "k0")
    assert found.node("z").type.shape == (2, 4, "((k0 - 1) // 2) + 1")
    assert found.shape("z") == (2, 4, 48)


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


RANGES = """
y = torch.maximum((self.l(x) * 0.1).exp(), self.floor)
z = torch.relu(y) / 2
return z * z + F.relu(z)
"""


def test_what_follows_from_ranges_is_proven_at_small_sizes(tmp_path: Path) -> None:
    """The size of the parameter is the model's own; only values further back show that y is positive."""
    init = "self.l, self.floor = nn.Linear(64, 96), nn.Parameter(torch.rand(1, 2048, 1))"
    compiled = compile_file(write(tmp_path, RANGES, init, "torch.rand(4, 2048, 64)"))
    simple = next(stage.graph for stage in compiled.stages if stage.name == "algebra")
    assert "relu" not in simple.by_name
    assert all(max(sizes.values()) < 100 for sizes in compiled.proof.sizes)


def test_constants_are_proven_at_small_sizes(tmp_path: Path) -> None:
    """A graph's attention, over as many nodes as its parameter has."""
    body = "e = x + x.T * self.p\nreturn torch.where(self.p > 0, e, -9e15 * torch.ones_like(e)).softmax(1)"
    path = write(tmp_path, body, "self.p = nn.Parameter(torch.rand(2048, 2048))", "torch.rand(2048, 2048)")
    found = compile_file(path).proof
    assert found.sizes
    assert all(max(sizes.values()) < 100 for sizes in found.sizes)


def test_much_work_is_proven_at_smaller_sizes(tmp_path: Path) -> None:
    init = "self.c = nn.Conv3d(480, 480, 5, padding=2, groups=48)"
    found = compile_file(write(tmp_path, "return self.c(x).relu() + 1", init, "torch.rand(4, 480, 20, 20, 20)")).proof
    positions = [math.prod(sizes.values()) for sizes in found.sizes[: proof.ROUNDS]]
    assert all(2 * 480 * 10 * 5**3 * count <= 2e8 for count in positions), positions


def test_a_wrong_rule_does_not_get_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (right,) = (rule for rule in decompose.RULES if rule.identity.startswith("matmul(x, w, b)"))
    wrong = Rule(right.identity, right.pattern, lambda m: m.add(m.root.op, m["x"], m["w"]), right.numerics)
    monkeypatch.setattr(decompose, "RULES", (wrong,))
    with pytest.raises(MismatchError, match="differs"):
        compile_file(large(tmp_path))


def test_what_takes_numbers_only_is_proven_at_its_own_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(graph: Graph) -> Graph:
        raise GraphError("numbers only")

    monkeypatch.setattr(proof, "generalise", refuse)
    path = write(tmp_path, "return self.l(x).relu()", LINEAR, "torch.rand(4, 96)")
    found = compile_file(path).proof
    assert found.sizes
    assert all("k0" not in sizes for sizes in found.sizes)


NETWORK = """
y = self.n(self.c(x)).relu()
z = self.m(self.d(y)).relu()
return z.mean((2, 3)) @ self.w
"""
LAYERS = """
self.c, self.d = nn.Conv2d(24, 32, 3), nn.Conv2d(32, 40, 3)
self.n, self.m = nn.BatchNorm2d(32), nn.BatchNorm2d(40)
self.w = nn.Parameter(torch.rand(40, 20))
"""


def test_layers_that_are_rewritten_alike_are_evaluated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Graph] = []
    whole = proof._compare
    monkeypatch.setattr(proof, "_compare", lambda one, *rest: (compared.append(one), whole(one, *rest))[1])
    compile_file(write(tmp_path, NETWORK, LAYERS, "torch.rand(2, 24, 40, 40)"))
    assert all(graph.name == "miter" for graph in compared)
    norms = [graph for graph in compared if any(isinstance(node.op, NormalizeOp) for node in graph.nodes)]
    assert len(norms) == 1


@pytest.mark.parametrize("place", [0, 2, -1])
def test_a_difference_anywhere_is_found(place: int, tmp_path: Path) -> None:
    program = compile_file(write(tmp_path, NETWORK, LAYERS, "torch.rand(2, 24, 40, 40)")).program
    target = [node.name for node in program.after.nodes if isinstance(node.op, (MatmulOp, RegionOp))][place]
    nodes = []
    for node in program.after.nodes:
        inputs = tuple("twice" if name == target else name for name in node.inputs)
        nodes.append(node.replace(inputs=inputs))
        if node.name == target:
            nodes.append(node.replace(name="twice", op=PointwiseOp(fn="add"), inputs=(target, target)))
    outputs = tuple("twice" if name == target else name for name in program.after.outputs)
    wrong = program.after.replace(nodes=tuple(nodes), outputs=outputs)
    assert proof.prove(program.before, program.after).worst < 1e-9
    with pytest.raises(MismatchError):
        proof.prove(program.before, wrong)


def test_two_draws_are_not_one(tmp_path: Path) -> None:
    body = "return F.dropout(x, 0.5) + F.dropout(x, 0.5)"
    before = traced(write(tmp_path, body)).graph
    first = next(node.name for node in before.nodes if isinstance(node.op, EagerOp))
    last = before.nodes[-1]
    once = before.replace(nodes=(*before.nodes[:-1], last.replace(inputs=(first, first)))).prune()
    with pytest.raises(MismatchError):
        proof.prove(before, once)
