"""Norms and statistics: what the trace makes of them equals torch, buffers included, before and after the passes."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from fusegen import interpret
from fusegen.compiler import optimise
from fusegen.ir import EagerOp, Graph, ReduceOp, RegionOp
from fusegen.trace import instantiate, load_model_file, trace
from tests.models import write

NORMS = {
    "batch": "nn.BatchNorm2d(8)",
    "batch_plain": "nn.BatchNorm2d(8, affine=False, momentum=0.3, eps=1e-3)",
    "batch_untracked": "nn.BatchNorm2d(8, track_running_stats=False)",
    "instance": "nn.InstanceNorm2d(8)",
    "instance_tracked": "nn.InstanceNorm2d(8, affine=True, track_running_stats=True)",
    "group": "nn.GroupNorm(2, 8)",
    "group_plain": "nn.GroupNorm(4, 8, affine=False)",
    "layer": "nn.LayerNorm([8, 6, 5])",
    "layer_row": "nn.LayerNorm(5, bias=False)",
    "rms": "nn.RMSNorm([6, 5])",
    "rms_eps": "nn.RMSNorm(5, eps=1e-3, elementwise_affine=False)",
}
FUNCTIONS = {
    "var": "return x.var(1), x.var(), x.var((2, 3), unbiased=False, keepdim=True), torch.var(x, 0, correction=0)",
    "std": "return x.std(-1), x.std((0, 2), keepdim=True), torch.std(x, correction=2)",
    "var_mean": "v, m = torch.var_mean(x, 1)\nd, n = torch.std_mean(x, (2, 3), keepdim=True)\nreturn v, m, d + n",
    "norms": "return x.norm(), x.norm(dim=1), x.norm(p=1, dim=2, keepdim=True), x.flatten(1).norm(float('inf'), 1)",
    "linalg": "return torch.linalg.vector_norm(x, dim=(2, 3)), torch.linalg.norm(x.flatten(1), dim=1)",
    "normalize": "return F.normalize(x, dim=1), F.normalize(x.flatten(1), p=1.0)",
    "extremes": "a, b = torch.aminmax(x, dim=1)\nreturn a, b, x.amin((1, 2)), x.max(2)[0], x.min(), x.prod(1)",
}


def agrees(path: Path, training: bool = True) -> Graph:
    """The graph and its optimised form against the module in float64, at the traced sizes and others."""
    loaded = load_model_file(path)
    model, inputs = instantiate(loaded)
    model.train(training)
    graph = trace(model, inputs, loaded.path).graph
    program, _ = optimise(graph, "sm_90", not training, lambda stage: None)
    assert not any(isinstance(node.op, EagerOp) and "norm" in node.op.target for node in graph.nodes)
    torch.manual_seed(0)
    fresh = loaded.model_class().double().train(training)
    with torch.no_grad():
        for value in (*fresh.parameters(), *fresh.buffers()):
            if value.is_floating_point():
                value.uniform_(0.5, 1.5)
    for batch in (4, 2):
        x = 3 * torch.randn(batch, 8, 6, 5, dtype=torch.float64) + 10
        model = copy.deepcopy(fresh)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        expected = model(x)
        wanted = list(expected if isinstance(expected, tuple) else (expected,))
        wanted += [model.state_dict()[name] for name, _ in graph.updates]
        changed = {name for name, value in model.state_dict().items() if not torch.equal(value, state[name])}
        assert changed == {name for name, _ in graph.updates}
        for form in (graph, program.after):
            for one, two in zip(interpret.run(form, [x], state), wanted, strict=True):
                torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)
    return graph


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NORMS)
def test_norms_mean_what_torch_does(name: str, training: bool, tmp_path: Path) -> None:
    agrees(write(tmp_path, "return self.n(x).relu()", f"self.n = {NORMS[name]}", "torch.rand(4, 8, 6, 5)"), training)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_statistics_mean_what_torch_does(name: str, tmp_path: Path) -> None:
    agrees(write(tmp_path, FUNCTIONS[name], inputs="torch.rand(4, 8, 6, 5)"))


def test_naming_the_element_type_changes_nothing(tmp_path: Path) -> None:
    body = "return x.mean(dtype=torch.float32), x.sum(1, dtype=torch.float32), x.softmax(1, dtype=torch.float32)"
    loaded = load_model_file(write(tmp_path, body))
    graph = trace(*instantiate(loaded), loaded.path).graph
    assert [node.op.kind for node in graph.nodes] == ["input", "reduce", "reduce", "softmax"]


def test_half_precision_statistics_stay_with_torch(tmp_path: Path) -> None:
    path = write(tmp_path, "return self.n(x)", "self.n = nn.GroupNorm(2, 8).half()", "torch.rand(4, 8, 6, 5).half()")
    loaded = load_model_file(path)
    graph = trace(*instantiate(loaded), loaded.path).graph
    assert [node.op.target for node in graph.nodes if isinstance(node.op, EagerOp)] == ["aten.group_norm.default"]


def test_equal_values_are_computed_once(tmp_path: Path) -> None:
    """The running statistics are those that the batch is normalised by."""
    graph = agrees(write(tmp_path, "return self.n(x)", "self.n = nn.BatchNorm2d(8)", "torch.rand(4, 8, 6, 5)"))
    _, stages = optimise(graph, "sm_90", False, lambda stage: None)
    after = next(stage.graph for stage in stages if stage.name == "statistics")
    assert sorted(node.op.fn for node in after.nodes if node.op.kind == "reduce") == ["mean", "var"]


CENTRED = "normalize(x) - mean(normalize(x)) = (x - mean(x)) rsqrt(var of all + eps) w"


@pytest.mark.parametrize(
    ("norm", "body", "applied"),
    [
        ("nn.BatchNorm2d(8)", "return y - y.mean((2, 3), keepdim=True)", True),
        ("nn.BatchNorm2d(8, affine=False)", "return torch.sub(y, torch.mean(y, dim=(0, 3), keepdim=True))", True),
        ("nn.InstanceNorm2d(8, affine=True)", "return y - y.mean(3, keepdim=True)", True),
        ("nn.RMSNorm((6, 5), elementwise_affine=False)", "return y - y.mean((2, 3), keepdim=True)", True),
        ("nn.LayerNorm([6, 5])", "return y - y.mean((2, 3), keepdim=True)", False),  # its affine varies
        ("nn.BatchNorm2d(8)", "return y - y.mean(1, keepdim=True)", False),  # each channel has a mean of its own
        ("nn.BatchNorm2d(8)", "return y.mean((2, 3), keepdim=True) - y", False),
        ("nn.BatchNorm2d(8)", "return y - y.mean((2, 3), keepdim=True), y", False),
        ("nn.BatchNorm2d(8)", "return y - x.mean((2, 3), keepdim=True)", False),
    ],
)
def test_a_norm_that_is_centred_again(norm: str, body: str, applied: bool, tmp_path: Path) -> None:
    path = write(tmp_path, f"y = self.n(x)\n{body}", f"self.n = {norm}", "torch.rand(4, 8, 6, 5)")
    graph = agrees(path)
    program, _ = optimise(graph, "sm_90", False, lambda stage: None)
    assert (CENTRED in [rewrite.identity for rewrite in program.rewrites]) == applied


def test_a_shift_that_cancels_leaves_its_nan(tmp_path: Path) -> None:
    body = "y = self.n(x)\nreturn y - y.mean((2, 3), keepdim=True)"
    path = write(tmp_path, body, "self.n = nn.BatchNorm2d(8)", "torch.rand(4, 8, 6, 5)")
    loaded = load_model_file(path)
    program, _ = optimise(trace(*instantiate(loaded), loaded.path).graph, "sm_90", False, lambda stage: None)
    model = loaded.model_class().double()
    with torch.no_grad():
        model.n.bias[:2] = torch.tensor([torch.inf, torch.nan])
    state = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(4, 8, 6, 5, dtype=torch.float64)
    found = interpret.run(program.after, [x], state)[0]
    torch.testing.assert_close(found, model(x), equal_nan=True)
    assert found[:, :2].isnan().all()


@pytest.mark.parametrize("norm", ["nn.Sequential(nn.BatchNorm2d(8), nn.BatchNorm2d(8))", "nn.GroupNorm(8, 8)"])
def test_an_axis_of_one_value_is_not_reduced(norm: str, tmp_path: Path) -> None:
    path = write(tmp_path, "return self.n(x.relu()).mean((2, 3))", f"self.n = {norm}", "torch.rand(1, 8, 6, 5)")
    loaded = load_model_file(path)
    graph = trace(*instantiate(loaded), loaded.path).graph
    program, _ = optimise(graph, "sm_90", False, lambda stage: None)
    reductions = [
        (node.op.axes, body.node(node.inputs[0]).type.shape)
        for region in program.after.nodes
        if isinstance(region.op, RegionOp)
        for body in [region.op.body]
        for node in body.nodes
        if isinstance(node.op, ReduceOp)
    ]
    assert reductions
    assert all(shape[axis] != 1 for axes, shape in reductions for axis in axes)
