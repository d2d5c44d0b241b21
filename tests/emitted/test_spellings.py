"""Unusual ways to write a model: what is generated computes what eager does, at the sizes of the file and at others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_structure

from fusegen import guards, interpret
from fusegen.compiler import Compiled, compile_file
from fusegen.ir import EagerOp
from tests.emitted import reference_from, simulated
from tests.models import write

SIZES = ((2, 8, 6), (3, 2, 6), (2, 3, 6), (5, 13, 6), (2, 8, 11), (4, 9, 3), (1, 5, 4))


def _results(model: nn.Module, inputs: Sequence[torch.Tensor]) -> list[Any]:
    with torch.no_grad():
        found = model(*inputs)
    return list(found) if isinstance(found, tuple) else [found]


def _agrees(compiled: Compiled, path: Path, *sizes: Sequence[int]) -> int:
    """Compares at the sizes that the file covers, and says how many those are."""
    reference = reference_from(path.read_text()).Model()
    module = simulated(compiled, "generated").ModelNew()
    module.load_state_dict(reference.state_dict(), strict=True)
    graph, covered = compiled.program.before, 0
    for size in sizes:
        x = torch.randn(*size)
        bound = {name: x.shape[axis] for name, (_, axis) in interpret.bound_sizes(graph).items()}
        fixed = all(own in (d, bound.get(str(d))) for d, own in zip(graph.inputs[0].type.shape, size, strict=True))
        if not fixed or not guards.all_hold(graph.constraints, bound):
            continue
        graph.sizes.update(bound)  # what the stand-ins of the kernels run at
        covered += 1
        for ours, eager in zip(_results(module, [x]), _results(reference, [x]), strict=True):
            torch.testing.assert_close(ours, eager)
    return covered


@pytest.mark.parametrize(
    "part",
    [
        "x[:, -(x.shape[1] // 2):]",
        "x[:, (x.shape[1] - 1) // 2 - x.shape[1]]",
        "x[:, -min(x.shape[1], 4):]",
        "torch.cat([x[:, -(x.shape[1] // 4):], x], 1)",
        "x[..., x.shape[-1] - 10:]",
        "x[:, 2 - x.shape[1] // 2:]",
        "x.narrow(1, -(x.shape[1] // 2), 2)",
        "self.l(x[..., :1])[..., -10:]",
        "x[:, -3:-1]",
    ],
)
def test_positions_from_the_end(part: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"return {part} * 2", "self.l = nn.Linear(1, 5)", "torch.rand(2, 8, 6)")
    assert _agrees(compile_file(path), path, *SIZES) >= 2


@pytest.mark.parametrize(
    "body",
    [
        "return x[:, [1]]",
        "return x[:, [0, 0]] * 2",
        "return x * torch.tensor([2.0])",
        "return torch.where(x > 0.5, torch.tensor(1), torch.tensor(0))",
        "return x * 2, torch.tensor(3)",
        "return x * 2, torch.tensor(0.5)",
        "return x.masked_fill(torch.tensor([True] * 6), 0)",
        "return (x * 2)[..., [2, 0]] + 1",
        "return x * torch.tensor([1.0, 2.0, 2.0, 3.0, 4.0, 5.0])",
        "return (x[..., :2] @ torch.tensor([[1.0, 2.0], [3.0, 4.0]])).relu()",
        "return x.bfloat16() * torch.tensor([1.0, 2.0] * 3, dtype=torch.bfloat16)",
        "return x.double() * torch.tensor(0.1, dtype=torch.float64)",
        "return torch.where(torch.tensor([True, False] * 3), x, torch.tensor(0.5))",
        "return x.double() * torch.tensor([2.0], dtype=torch.float64)",
    ],
)
def test_constants_keep_their_element_type(body: str, tmp_path: Path) -> None:
    path = write(tmp_path, body, inputs="torch.rand(2, 8, 6)")
    assert _agrees(compile_file(path), path, *SIZES) >= 2


@pytest.mark.parametrize(
    "body",
    [
        "return self.up(x, output_size=(x.shape[1] + x.shape[2],)) * 2",
        "return x.var(1, correction=x.shape[1] - 1) * 2",
        "return x.norm(x.shape[1], dim=0) * 2",
        "return F.conv1d(x, self.up.weight[:, :, :3], padding='same', dilation=x.shape[2] // 2).relu()",
    ],
)
def test_sizes_in_place_of_numbers(body: str, tmp_path: Path) -> None:
    path = write(tmp_path, body, "self.up = nn.ConvTranspose1d(8, 8, 3, 2)", "torch.rand(2, 8, 6)")
    compiled = compile_file(path)
    assert any(isinstance(node.op, EagerOp) for node in compiled.program.after.nodes)
    assert _agrees(compiled, path, *SIZES) >= 1


def test_a_number_that_is_made_of_a_size_is_a_condition(tmp_path: Path) -> None:
    path = write(tmp_path, "return F.layer_norm(x, (6,), eps=1.0 / x.shape[0])", inputs="torch.rand(8, 6)")
    compiled = compile_file(path)
    assert "1.0 / x0_0 == 0.125" in compiled.program.before.constraints
    assert "if not (1.0 / x0_0 == 0.125):" in compiled.source
    assert _agrees(compiled, path, (8, 6), (7, 6)) == 1


@pytest.mark.parametrize(
    ("init", "body"),
    [
        ("self.a = nn.Linear(6, 6)\nself.b = self.a", "return self.b(self.a(x).relu())"),
        ("a = nn.Linear(6, 6)\nself.s = nn.Sequential(a, nn.ReLU(), a)", "return self.s(x)"),
        ("self.p = nn.ParameterList([torch.rand(6), torch.rand(6)])", "return x * self.p[0] + self.p[1]"),
        (
            "self.p = nn.ParameterDict({'a': torch.rand(6), 'b': torch.rand(6)})",
            "return x * self.p['a'] + self.p['b']",
        ),
        ("self.w = nn.Parameter(torch.empty(0, 6))", "return F.linear(x, self.w).sum(-1)"),
        (
            "self.w, self.l = nn.Parameter(torch.empty(0, 6)), nn.Linear(6, 6)",
            "return torch.cat([self.l(x), F.linear(x, self.w)], -1).relu()",
        ),
    ],
)
def test_parameters(init: str, body: str, tmp_path: Path) -> None:
    """Of a module under two names, in a list or dict, and none at all."""
    path = write(tmp_path, body, init, "torch.rand(2, 8, 6)")
    assert _agrees(compile_file(path), path, (2, 8, 6), (3, 5, 6)) == 2


def test_a_model_without_inputs_computes_where_its_parameters_are(tmp_path: Path) -> None:
    init = "self.p, self.q = nn.Parameter(torch.ones(6, 6)), nn.Parameter(torch.ones(6))"
    path = write(tmp_path, "return (self.p @ self.p + self.q).relu()", init, "", "*, k=1")
    generated = simulated(compile_file(path), "generated")
    torch.testing.assert_close(generated.ModelNew()(), torch.full((6, 6), 7.0))
    assert generated.calls
    model, calls = generated.ModelNew().to("meta"), len(generated.calls)
    with pytest.warns(UserWarning, match="p is on meta, not on a CUDA device"):
        model()
    assert len(generated.calls) == calls


@pytest.mark.parametrize(
    "made",
    [
        "torch.nn.utils.weight_norm(nn.Linear(6, 5))",
        "torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 5))",
        "torch.nn.utils.weight_norm(nn.Linear(6, 5), dim=None)",
    ],
)
@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated")
def test_weights_that_torch_computes_before_each_call(made: str, tmp_path: Path) -> None:
    path = write(tmp_path, "return self.l(x).relu()", f"self.l = {made}", "torch.rand(4, 6)")
    compiled = compile_file(path)
    assert not any("hooks" in note for note in compiled.notes)
    assert _agrees(compiled, path, (4, 6), (7, 6)) == 2


@pytest.mark.parametrize(
    "body",
    [
        "return x * 2, None",
        "return None, (x + 1, None), x * 2",
        "return {'y': x * 2, 'state': None}",
        "return torch.max(x * 2, 1)",
        "return x.sort(1), x.exp()",
        "return torch.aminmax(x + 1, dim=1)",
        "return [x.topk(2, 1), None]",
    ],
)
def test_results_in_places_of_their_own(body: str, tmp_path: Path) -> None:
    path = write(tmp_path, body, inputs="torch.rand(2, 8, 6)")
    compiled = compile_file(path)
    reference, model = reference_from(path.read_text()).Model(), simulated(compiled, "generated").ModelNew()
    x = torch.rand(2, 8, 6)
    ours, eager = model(x), reference(x)
    assert tree_structure(ours) == tree_structure(eager)
    for one, other in zip(tree_leaves(ours), tree_leaves(eager), strict=True):
        assert one is other is None or torch.equal(one, other)
