"""Tracing: every spelling is one op, sizes stay symbolic, nothing large is allocated, errors name the line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fusegen import dims, guards, interpret
from fusegen.compiler import compile_file
from fusegen.errors import FusegenError, ModelFileError, TraceError, UnsupportedOpError
from fusegen.ir import CatOp, DType, EagerOp, FillOp, Graph, RecurrentOp, ReduceOp
from fusegen.trace import load_model_file
from fusegen.trace.failures import trace_error
from tests.models import HEADER, traced, write
from tests.variants import ROOT


def kinds(graph: Graph) -> list[str]:
    return [getattr(n.op, "fn", n.op.kind) for n in graph.nodes if n.op.kind not in ("input", "param", "const")]


@pytest.mark.parametrize(
    "body",
    [
        "return x.mean((2, 3), keepdim=True)",
        "return torch.mean(x, dim=[-1, -2], keepdim=True)",
        "return F.adaptive_avg_pool2d(x, 1)",
        "return F.adaptive_avg_pool2d(x, (1, 1))",
        "return nn.AdaptiveAvgPool2d(1)(x)",
    ],
)
def test_spellings_of_a_mean_are_one_op(body: str, tmp_path: Path) -> None:
    graph = traced(write(tmp_path, body)).graph
    assert [n.op for n in graph.nodes[1:]] == [ReduceOp(fn="mean", axes=(2, 3), keepdim=True)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return 2 - x", ["sub"]),
        ("return x.clamp(0.1, 2)", ["maximum", "minimum"]),
        ("return F.leaky_relu(x, 0.2)", ["leaky_relu"]),
        ("return x ** 2 + x ** 0.5", ["square", "sqrt", "add"]),
        ("return torch.logsumexp(x, 1)", ["logsumexp"]),
        ("return torch.max(x, dim=1)[0]", ["max"]),
        ("return x.max(1).values.unsqueeze(0)", ["max", "reshape"]),
        ("return x.min(1)[1]", ["argmin"]),
        ("return torch.argmax(x)", ["reshape", "argmax"]),
        ("return F.gelu(x, approximate='tanh')", ["gelu_tanh"]),
        ("y = x + 1\ny += x\nreturn F.relu(y, inplace=True)", ["add", "add", "relu"]),
        ("return x.flatten(1).softmax(-1)", ["reshape", "softmax"]),
        ("return x.permute(0, 2, 3, 1).contiguous()", ["permute"]),
        ("return F.dropout(x, 0.3, training=False)", []),
        ("return F.pad(x, (1, -2, -1, 0), value=2.0)", ["slice", "slice", "pad"]),
        ("return x * 2 - F.pad(x, (0, 0, 1, -1))", ["mul", "slice", "pad", "sub"]),
        ("return F.pad(x, (0, 0, 0, 0))", []),
        ("return F.pad(x, (-1, -1))", ["slice"]),
        ("return torch.min(x, torch.tensor(0.25))", ["minimum"]),
    ],
)
def test_ops(body: str, expected: list[str], tmp_path: Path) -> None:
    path = write(tmp_path, body)
    graph = traced(path).graph
    assert kinds(graph) == expected
    x = torch.rand(3, 3, 7, 4)
    reference = load_model_file(path).model_class()(x)
    torch.testing.assert_close(interpret.run(graph, [x], {})[0], reference)


@pytest.mark.parametrize(
    ("body", "share"),
    [
        ("return F.dropout2d(x, 0.3) + 1", 0.3),
        ("return F.dropout3d(x.unsqueeze(1), 0.3) + 1", 0.3),
        ("return F.dropout1d(x.flatten(2), 0.6) + 1", 0.6),
        ("return F.dropout2d(x - x.mean(), 1.0) + 1", 1.0),
    ],
)
def test_channels_are_multiplied_by_what_torch_draws_for_them(body: str, share: float, tmp_path: Path) -> None:
    path = write(tmp_path, body)
    graph = traced(path).graph
    drawing = next(n for n in graph.nodes if isinstance(n.op, EagerOp))
    assert kinds(graph)[-2:] == ["mul", "add"]
    assert graph.shape(drawing.name)[2:] == (1,) * (drawing.type.rank - 2)
    x, model = torch.rand(3, 3, 7, 4), load_model_file(path).model_class()
    for seed in range(4):
        torch.manual_seed(seed)
        found, then = interpret.run(graph, [x], {})[0], torch.rand(3)
        torch.manual_seed(seed)
        torch.testing.assert_close(found, model(x))
        assert torch.equal(then, torch.rand(3)), "another number of draws"
        assert share == 1.0 or not torch.equal(found, x + 1)


def test_unknown_ops_become_eager_nodes_that_run(tmp_path: Path) -> None:
    path = write(tmp_path, "v, i = x.sort(1)\nreturn torch.logcumsumexp(v, 1) * 2, i, x.view(x.size(0), -1).msort()")
    graph = traced(path).graph
    assert sum(isinstance(n.op, EagerOp) for n in graph.nodes) == 3
    x = torch.rand(2, 3, 5, 4)
    for found, expected in zip(interpret.run(graph, [x], {}), load_model_file(path).model_class()(x), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "body",
    [
        "return torch.einsum('bchw,cd->bdhw', x, torch.ones_like(x[0, :, :3, 0]))",
        "return x.masked_fill(x < 0.5, float('-inf')).softmax(1)",
        "return x + torch.zeros(x.shape[2], 1, device=x.device)",
    ],
)
def test_arguments_of_eager_nodes_survive_as_text(body: str, tmp_path: Path) -> None:
    path = write(tmp_path, body)
    x = torch.rand(4, 3, 6, 5)
    found = interpret.run(traced(path).graph, [x], {})[0]
    torch.testing.assert_close(found, load_model_file(path).model_class()(x), equal_nan=True)


def test_sizes_are_symbols_and_parameters_keep_their_paths(tmp_path: Path) -> None:
    init = "self.body = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU())"
    graph = traced(write(tmp_path, "return self.body(x)", init)).graph
    assert graph.inputs[0].type.shape == ("x0_0", 3, "x0_2", "x0_3")
    assert graph.node(graph.outputs[0]).type.shape == ("x0_0", 8, "((x0_2 - 3) // 2) + 1", "((x0_3 - 3) // 2) + 1")
    assert sorted(n.op.path for n in graph.params if n.op.kind == "param") == ["body.0.bias", "body.0.weight"]


def test_a_size_that_a_norm_fixes_by_way_of_a_convolution_is_fixed(tmp_path: Path) -> None:
    body = "return self.norm(self.conv(x))"
    init = "self.conv = nn.Conv1d(6, 6, 3, stride=3, padding=1)\nself.norm = nn.LayerNorm([7])"
    graph = traced(write(tmp_path, body, init, "torch.rand(4, 6, 20)")).graph
    assert kinds(graph) == ["conv", "normalize"]
    assert graph.inputs[0].type.shape == ("x0_0", 6, 20)


def test_sizes_whose_product_a_parameter_fixes_are_fixed(tmp_path: Path) -> None:
    init = "self.floor = nn.Parameter(torch.rand(90))"
    graph = traced(write(tmp_path, "return torch.maximum(x.view(x.shape[0], -1), self.floor)", init)).graph
    assert kinds(graph) == ["reshape", "maximum"]
    assert graph.inputs[0].type.shape == ("x0_0", 3, 6, 5)


def test_a_branch_on_a_size_becomes_a_constraint(tmp_path: Path) -> None:
    graph = traced(write(tmp_path, "return x * 2 if x.shape[2] > 4 else x.relu()")).graph
    assert kinds(graph) == ["mul"]
    assert any("x0_2" in c and "4" in c for c in graph.constraints), graph.constraints


def test_a_branch_on_batch_one_becomes_a_constraint(tmp_path: Path) -> None:
    graph = traced(write(tmp_path, "return x * 2 if x.shape[0] > 1 else x.relu()")).graph
    assert "x0_0 > 1" in graph.constraints
    plain = traced(write(tmp_path, "return x * 2")).graph
    assert plain.constraints == ()


def test_a_branch_on_several_sizes_of_one_becomes_a_constraint(tmp_path: Path) -> None:
    """Each size alone may be 1, both together not, whatever the batch."""
    body = "return x * 2 if x.shape[2] * x.shape[3] > 1 else x.relu()"
    graph = traced(write(tmp_path, body)).graph
    assert kinds(graph) == ["mul"]
    assert graph.constraints == ("x0_2*x0_3 > 1",)
    body = "if x.shape[0] == 1:\n    return -x\n" + body
    assert traced(write(tmp_path, body)).graph.constraints == ("x0_0 > 1", "x0_2*x0_3 > 1")


def test_in_place_buffer_writes_are_updates(tmp_path: Path) -> None:
    graph = traced(write(tmp_path, "return self.bn(x)", "self.bn = nn.BatchNorm2d(3)")).graph
    assert sorted(path for path, _ in graph.updates) == ["bn.num_batches_tracked", "bn.running_mean", "bn.running_var"]


@pytest.mark.parametrize(
    ("source", "error", "line"),
    [
        ("class Model(:\n", ModelFileError, "1"),
        ("import torch\n", ModelFileError, None),
        ("import no_such_module\n", ModelFileError, "1"),
        (HEADER + "class Model(nn.Module):\n    pass\n", ModelFileError, None),
        (
            HEADER
            + "class Model(nn.Module):\n    def __init__(self):\n        raise KeyError('x')\n"
            + "def get_inputs():\n    return [torch.rand(2)]\n",
            ModelFileError,
            "6",
        ),
        (HEADER + "class Model(nn.Module):\n    pass\ndef get_inputs():\n    return [1 / 0]\n", ModelFileError, "7"),
        (
            HEADER
            + "class Model(nn.Module):\n    def forward(self, x):\n        if x.sum() > 0:\n            return x\n"
            + "        return -x\ndef get_inputs():\n    return [torch.rand(2)]\n",
            TraceError,
            "6",
        ),
        (
            HEADER
            + "class Model(nn.Module):\n    def forward(self, x):\n        return x @ torch.rand(3, 4)[:, :7, 1]\n"
            + "def get_inputs():\n    return [torch.rand(2)]\n",
            TraceError,
            "6",
        ),
        (
            HEADER
            + "class Model(nn.Module):\n    def forward(self, x, n):\n        return x * n[0]\n"
            + "def get_inputs():\n    return [torch.rand(2), [3]]\n",
            TraceError,
            None,
        ),
        (
            HEADER
            + "class Model(nn.Module):\n    def forward(self, x):\n        x.add_(1)\n        return x\n"
            + "def get_inputs():\n    return [torch.rand(2)]\n",
            TraceError,
            None,
        ),
    ],
)
def test_errors_name_the_line(source: str, error: type[FusegenError], line: str | None, tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(source)
    with pytest.raises(error) as raised:
        traced(path)
    assert raised.value.source == (f"bad.py:{line}" if line else None)


@pytest.mark.parametrize(
    ("init", "body"),
    [
        ("self.count = 0", "self.count += 1\nreturn x * 2"),
        ("self.seen = None", "self.seen = x.mean()\nreturn x * 2"),
        ("self.h = torch.tensor(0.5)", "self.h = self.h + x.mean()\nreturn x * 2"),
        ("self.a = nn.ReLU()\nself.a.last = 1.0", "self.a.last = 2.0\nreturn self.a(x)"),
    ],
)
def test_state_beside_buffers_is_refused(init: str, body: str, tmp_path: Path) -> None:
    """The generated forward would not change it, and a later call would differ."""
    with pytest.raises(TraceError, match=r"forward changes .*, which is neither a parameter nor a buffer") as raised:
        traced(write(tmp_path, body, init))
    assert raised.value.source
    assert raised.value.hint


def test_what_forward_leaves_behind_is_said(tmp_path: Path) -> None:
    body = "self.last, self.scale = x.relu(), 2\nreturn self.last * self.scale"
    found = traced(write(tmp_path, body, "self.scale = 2"))
    assert found.notes == ("the generated forward does not set last",)


def test_a_constant_tensor_of_many_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOpError, match="constant tensor") as raised:
        traced(write(tmp_path, "return x * torch.tensor([float(i) for i in range(60)])", inputs="torch.rand(60)"))
    assert raised.value.source == "model.py:9"


def test_a_derivative_in_forward_is_refused(tmp_path: Path) -> None:
    """Its tensors hold numbers that no trace knows."""
    body = "return torch.func.grad(lambda t: (t * self.w).tanh().sum())(x)"
    with pytest.raises(UnsupportedOpError, match="constant tensor") as raised:
        traced(write(tmp_path, body, "self.w = nn.Parameter(torch.rand(5))"))
    assert raised.value.hint == "take derivatives outside forward, or write them out"


def test_tensors_in_plain_attributes_are_buffers(tmp_path: Path) -> None:
    init = "self.a = nn.ReLU()\nself.a.t = torch.rand(5)\nself.h, self.same = torch.rand(4, 3, 6, 5), torch.rand(5)"
    body = "self.h, self.same = torch.tanh(self.h + x), self.same.to(x.device)\nreturn self.h * self.a.t * self.same"
    found = traced(write(tmp_path, body, init))
    assert found.held == ("h", "same", "a.t")
    assert [path for path, _ in found.graph.updates] == ["h"]
    assert {node.op.path for node in found.graph.params} == {"h", "same", "a.t"}  # type: ignore[union-attr]


@pytest.mark.slow
def test_compiling_a_large_model_stays_small_and_quick() -> None:
    """Spec A has a 1 GB input: compiling it must not allocate one, nor take long."""
    script = (
        "import re, time, torch\nfrom pathlib import Path\nstart = time.process_time()\nimport fusegen\n"
        "fusegen.compile_file(Path('specs/conv_transpose_mean_logsumexp.py'))\n"
        "peak = re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]\n"  # rusage keeps the parent's
        "print(time.process_time() - start, int(peak) / 1e6)\n"
    )
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    seconds, gigabytes = map(float, run.stdout.split())
    assert gigabytes < 1.0
    assert seconds < 10.0, "5 s on an idle machine; twice that allows for threads that wait for each other"


@pytest.mark.parametrize(
    "body",
    [
        "return F.max_pool2d(x, 2) + F.avg_pool2d(x, 3, 2, 1, count_include_pad=False).amax()",
        "return F.avg_pool2d(F.pad(x, (30, 30, 30, 30)), 11, 5)",
        "return self.n(x).relu()",
    ],
)
def test_questions_about_layout_and_rounding_are_no_constraints(body: str, tmp_path: Path) -> None:
    assert traced(write(tmp_path, body, "self.n = nn.GroupNorm(1, 3)")).graph.constraints == ()


def test_a_condition_stays_where_the_other_answer_gives_another_graph(tmp_path: Path) -> None:
    body = "return x.relu() if x.shape[2] % 2 == 0 else x.tanh()"
    graph = traced(write(tmp_path, body)).graph
    assert kinds(graph) == ["relu" if graph.sizes["x0_2"] % 2 == 0 else "tanh"]
    assert [c for c in graph.constraints if "% 2" in c], graph.constraints


@pytest.mark.parametrize(
    ("module", "op", "states"),
    [
        (
            "nn.LSTM(5, 4, 2, bidirectional=True)",
            RecurrentOp(cell="lstm", layers=2, bidirectional=True),
            [(4, "x0_1", 4), (4, "x0_1", 4)],
        ),
        (
            "nn.LSTM(5, 4, batch_first=True)",
            RecurrentOp(cell="lstm", layers=1, batch_first=True),
            [(1, "x0_0", 4), (1, "x0_0", 4)],
        ),
        ("nn.LSTM(5, 4, proj_size=3)", "aten.lstm.input", [(1, "x0_1", 3), (1, "x0_1", 4)]),
        ("nn.GRU(5, 4, 3, bias=False)", RecurrentOp(cell="gru", layers=3, bias=False), [(3, "x0_1", 4)]),
        ("nn.RNN(5, 4, nonlinearity='relu')", RecurrentOp(cell="rnn_relu", layers=1), [(1, "x0_1", 4)]),
        ("nn.RNN(5, 4)", RecurrentOp(cell="rnn_tanh", layers=1), [(1, "x0_1", 4)]),
    ],
)
def test_a_recurrent_network_is_one_node_of_any_length(
    module: str, op: RecurrentOp | str, states: list[tuple[object, ...]], tmp_path: Path
) -> None:
    body = "y, s = self.m(x)\nreturn (y, *s) if isinstance(s, tuple) else (y, s)"
    path = write(tmp_path, body, f"self.m = {module}", inputs="torch.rand(6, 3, 5)")
    graph = traced(path).graph
    (node,) = [n for n in graph.nodes if isinstance(n.op, (EagerOp, RecurrentOp))]
    assert (node.op.target if isinstance(node.op, EagerOp) else node.op) == op
    features = states[0][-1] * (2 if "bidirectional" in module else 1)  # type: ignore[operator]
    assert [graph.node(name).type.shape for name in graph.outputs] == [("x0_0", "x0_1", features), *states]
    loaded = load_model_file(path)
    torch.manual_seed(0)
    model, x = loaded.model_class(), torch.rand(9, 2, 5)
    for found, expected in zip(interpret.run(graph, (x,), dict(model.named_parameters())), model(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_sizes_of_attention_agree(tmp_path: Path) -> None:
    """Torch's shape function for attention does not ask, and its kernels read what is not there."""
    body = "return F.scaled_dot_product_attention(x, y, z, attn_mask=m)"
    inputs = "torch.rand(2, 3, 5, 8), torch.rand(2, 3, 7, 8), torch.rand(2, 3, 7, 6), torch.rand(5, 7)"
    graph = traced(write(tmp_path, body, inputs=inputs, arguments="x, y, z, m")).graph
    x, y, z, m = (node.type.shape for node in graph.nodes[:4])
    assert y[2] == z[2] == m[1]
    assert (x[2], x[3]) == (m[0], y[3])
    assert x[:2] == y[:2] == z[:2]
    assert z[3] not in (*x, *y)


def test_a_tensor_that_every_call_makes_anew_is_no_state(tmp_path: Path) -> None:
    """As weights are that torch.nn.utils.weight_norm computes before each call."""
    init = "self.c = torch.nn.utils.weight_norm(nn.Conv2d(3, 2, 3))"
    found = traced(write(tmp_path, "return self.c(x)", init))
    assert (found.held, found.graph.updates) == ((), ())
    assert found.notes == ("the generated forward does not set c.weight",)


def test_groups_of_a_convolution_that_are_samples(tmp_path: Path) -> None:
    """Weights made of data, one set for each sample."""
    body = "w = y[:, :, None, None] * self.w\nreturn F.conv2d(x.flatten(0, 1)[None], w, groups=x.shape[0])"
    path = write(
        tmp_path,
        body,
        "self.w = nn.Parameter(torch.rand(1, 3, 2, 2))",
        "torch.rand(4, 3, 6, 5), torch.rand(4, 3)",
        "x, y",
    )
    graph = traced(path).graph
    model, inputs = load_model_file(path).model_class(), (torch.rand(4, 3, 6, 5), torch.rand(4, 3))
    torch.testing.assert_close(interpret.run(graph, inputs, dict(model.named_parameters()))[0], model(*inputs))


def test_inputs_that_are_no_tensors_are_part_of_the_graph(tmp_path: Path) -> None:
    body = "return (x * s + y).sum(axis) * times"
    arguments = "x, s, y, axis, times=2"
    path = write(tmp_path, body, inputs="torch.rand(4, 3), 0.5, torch.rand(4, 3), 0", arguments=arguments)
    found = traced(path)
    assert found.literals == {1: 0.5, 3: 0}
    assert [node.type.shape for node in found.graph.inputs] == [("x0_0", "x0_1")] * 2
    x, y = torch.rand(7, 5), torch.rand(7, 5)
    torch.testing.assert_close(interpret.run(found.graph, (x, y), {})[0], (x * 0.5 + y).sum(0) * 2)


def test_masks_of_attention_are_not_looked_at(tmp_path: Path) -> None:
    """Modules of torch.nn ask whether a mask is causal, which would be a branch on values."""
    init = "self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)"
    path = write(tmp_path, "return self.layer(x, src_mask=m)", init, "torch.rand(2, 5, 8), torch.zeros(5, 5)", "x, m")
    graph = traced(path).graph
    model, x = load_model_file(path).model_class(), torch.rand(3, 5, 8)
    mask = torch.full((5, 5), -torch.inf).triu(1)
    found = interpret.run(graph, (x, mask), dict(model.named_parameters()))[0]
    torch.testing.assert_close(found, model(x, mask))


@pytest.mark.parametrize(
    "body", ["x.relu() * 2 if x.shape[0] > 3 else x.relu() * 3", "x.cumsum(1 if x.shape[0] > 3 else 2)"]
)
def test_a_condition_stays_where_the_other_answer_gives_other_arguments(body: str, tmp_path: Path) -> None:
    graph = traced(write(tmp_path, f"return {body}")).graph
    assert [c for c in graph.constraints if "x0_0" in c], graph.constraints


def test_writes_in_place_are_values(tmp_path: Path) -> None:
    body = """
    y = self.c(x)
    z = F.relu_(y)
    y += 1
    self.calls.add_(1)
    return y * z + self.n(z)
    """
    init = "self.c = nn.Conv2d(3, 3, 1)\nself.n = nn.BatchNorm2d(3)\nself.register_buffer('calls', torch.zeros(()))"
    path = write(tmp_path, body, init)
    graph = traced(path).graph
    assert {path for path, _ in graph.updates} == {"calls", "n.running_mean", "n.running_var", "n.num_batches_tracked"}
    model = load_model_file(path).model_class().train()
    x = torch.randn(4, 3, 6, 5)
    found = interpret.run(graph, [x], {name: value.clone() for name, value in model.state_dict().items()})
    assert torch.allclose(found[0], model(x), atol=1e-5)
    for (name, _), value in zip(graph.updates, found[1:], strict=True):
        assert torch.allclose(value, model.state_dict()[name], atol=1e-6), name


@pytest.mark.parametrize(
    "body",
    [
        "y = x + 1\nz = y.view(-1)\ny.relu_()\nreturn y, z",  # a view shows the write
        "y = x + 1\nz = y.type_as(x)\nz.relu_()\nreturn y, z",
        "y = x + 1\ny[:, 0].zero_()\nreturn y",
        "y = self.n(x) + self.n(x)\nreturn y",  # the second call reads statistics that the first wrote
    ],
)
def test_writes_that_show_elsewhere(body: str, tmp_path: Path) -> None:
    path = write(tmp_path, body, "self.n = nn.BatchNorm2d(3)")
    graph = traced(path).graph
    model = load_model_file(path).model_class().train()
    x = torch.randn(4, 3, 6, 5)
    found = interpret.run(graph, [x], {name: value.clone() for name, value in model.state_dict().items()})
    expected = model(x)
    expected = expected if isinstance(expected, tuple) else (expected,)
    state = [model.state_dict()[name] for name, _ in graph.updates]
    for value, wanted in zip(found, (*expected, *state), strict=True):
        assert torch.allclose(value.double(), wanted.double(), atol=1e-5)


def test_a_size_that_is_the_smaller_of_two(tmp_path: Path) -> None:
    body = "return torch.diagonal(torch.bmm(x, x.mT)[:, 1:], dim1=1, dim2=2).relu()"
    graph = traced(write(tmp_path, body, "pass", "torch.rand(3, 5, 7)")).graph
    (result,) = graph.outputs
    assert graph.shape(result) == (3, 4)


@pytest.mark.parametrize(
    "body",
    [
        "return F.interpolate(x, scale_factor=2, mode='bicubic', align_corners=False)",
        "return x * torch.exp(torch.arange(x.size(2), device=x.device) * (-9.0 / x.size(2)))[:, None]",
    ],
)
def test_numbers_made_of_sizes_fix_them(body: str, tmp_path: Path) -> None:
    found = traced(write(tmp_path, body))
    assert list(found.graph.sizes) == ["x0_0"]
    assert "sizes but the batch's are fixed to the example inputs" in found.notes[0]


def test_a_number_that_depends_on_values_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="a number that depends on tensor values"):
        traced(write(tmp_path, "return x * x.max().item()"))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import collections\nreturn collections.deque([x * 2])", "forward returns a deque"),
        ("return x * 2, x.shape[0] / 2", "a number that is computed"),
        ("return x.shape[0]", "forward returns no tensor"),
    ],
)
def test_results_of_other_classes_are_refused(body: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=message) as raised:
        traced(write(tmp_path, body))
    assert raised.value.source == "model.py:8"


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("return x * 2 if x.is_cuda else x", "is_cuda"),
        ("return x * 2 if x.device.type == 'cuda' else x", "device.type"),
        ("return x * 2 if torch.is_grad_enabled() else x", "is_grad_enabled"),
        ("with torch.autocast('cuda', dtype=torch.float16):\n    return x @ x.transpose(-1, -2)", "autocast"),
        ("y = x * 1\ny.data.clamp_(0)\nreturn y", "data.clamp_"),
    ],
)
def test_what_a_trace_would_not_show_is_refused(body: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=name.replace(".", r"\.")) as caught:
        traced(write(tmp_path, body))
    assert caught.value.source
    assert caught.value.hint


def test_what_asks_for_gradients_is_noted(tmp_path: Path) -> None:
    """``if self.saves_memory and x.requires_grad`` is common, and changes no result."""
    (note,) = traced(write(tmp_path, "y = x * 2\nreturn y.detach() if y.requires_grad else y")).notes
    assert "Model.forward reads requires_grad (model.py:10): compiled as with gradients" in note


def test_what_a_forward_calls_is_looked_at_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path, "return self.step(x)")
    methods = """
    def step(self, x):
        return x * 2 if x.is_cuda else x
    def fit(self, x):
        with torch.autocast('cuda'):
            return self.step(x)
"""
    text = path.read_text()
    path.write_text(text.replace("\ndef get_inputs", f"{methods}\ndef get_inputs", 1))
    with pytest.raises(TraceError, match=r"Model\.step asks where it runs"):
        traced(path)
    path.write_text(path.read_text().replace("x * 2 if x.is_cuda else x", "x * 2"))
    assert kinds(traced(path).graph) == ["mul"]


def test_autocast_that_is_off_is_no_obstacle(tmp_path: Path) -> None:
    body = "with torch.autocast(x.device.type, enabled=False):\n    return x.to(x.device) * 2"
    assert kinds(traced(write(tmp_path, body)).graph) == ["mul"]


@pytest.mark.parametrize("kind", ["torch.autocast", "torch.amp.autocast"])
def test_autocast_that_an_option_switches_on(kind: str, tmp_path: Path) -> None:
    body = f"with {kind}(x.device.type, enabled=self.mixed):\n    return x * 2"
    assert kinds(traced(write(tmp_path, body, "self.mixed = False")).graph) == ["mul"]
    with pytest.raises(TraceError, match=r"autocast") as raised:
        traced(write(tmp_path, body, "self.mixed = True"))
    assert str(raised.value.source).startswith("model.py:")


def test_tensors_in_lists_are_to_be_buffers(tmp_path: Path) -> None:
    """They belong to the mode in which the model was made, which torch says in its own words."""
    model = nn.Sequential(nn.ReLU())
    vars(model[0])["own"] = {"anchors": [torch.rand(5)]}
    vars(model[0])["sizes"] = [5]
    found = trace_error(AssertionError("fake mode (1) from fake tensor input 0 doesn't match"), tmp_path, model)
    assert "neither parameters nor buffers" in str(found)
    assert str(found.hint).endswith(": 0.own")


def test_a_tensor_that_several_modules_hold_is_not_written(tmp_path: Path) -> None:
    layers = "self.a, self.b, mask = nn.ReLU(), nn.ReLU(), torch.ones(5)\nself.a.mask = self.b.mask = mask"
    with pytest.raises(TraceError, match=r"writes to a\.mask, which other modules hold"):
        traced(write(tmp_path, "self.a.mask += 1\nreturn x * self.b.mask", layers))


@pytest.mark.parametrize(
    "hook",
    ["forward_hook(lambda module, given, out: out * 2)", "forward_pre_hook(lambda module, given: (given[0] * 2,))"],
)
def test_hooks_of_the_model_itself_are_refused(hook: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="the model itself has hooks") as raised:
        traced(write(tmp_path, "return x + 1", f"self.register_{hook}"))
    assert raised.value.hint


def test_hooks_of_a_submodule_are_noted(tmp_path: Path) -> None:
    init = "self.l = nn.Linear(5, 5)\nself.l.register_forward_hook(lambda module, given, out: out * 2)"
    notes = traced(write(tmp_path, "return self.l(x)", init)).notes
    assert any("submodule l has hooks" in note for note in notes)


@pytest.mark.parametrize(
    ("part", "inputs"),
    [
        ("x[:, -x.shape[1] // 2:]", "torch.rand(2, 8, 6)"),
        ("x[:, -(x.shape[1] // 2)::2]", "torch.rand(2, 8, 6)"),
        ("x[:, -10:4]", "torch.rand(2, 8, 6)"),
        ("x[:, -4:]", "torch.rand(2, 3, 6)"),
        ("x[:, x.shape[2]:]", "torch.rand(2, 8, 6)"),
        ("x[:, : x.shape[2] + 3]", "torch.rand(2, 8, 6)"),
        ("x[:, : -(x.shape[1] // 2)]", "torch.rand(2, 8, 6)"),
        ("x[:, (x.shape[1] - 20) // 3:]", "torch.rand(2, 8, 6)"),
        ("x.narrow(1, -(x.shape[1] // 2), x.shape[1] // 2)", "torch.rand(2, 8, 6)"),
    ],
)
def test_positions_count_from_either_end(part: str, inputs: str, tmp_path: Path) -> None:
    """At every size that the conditions allow."""
    found = traced(write(tmp_path, f"return {part} * 2", inputs=inputs))
    own = found.graph.inputs[0].type.shape[1]
    for size in range(1, 14) if isinstance(own, str) else [own]:
        if guards.all_hold(found.graph.constraints, {**found.graph.sizes, "x0_1": size}):
            x = torch.rand(2, size, 6)
            assert torch.equal(interpret.run(found.graph, [x], {})[0], found.model(x))


@pytest.mark.parametrize(
    "writes",
    [
        "y[:, 1:5] = 0.5",
        "y[:, 2:] = y[:, :1]",
        "y[:, :2] *= 3",
        "y[:, -3:] = x[:, :3].exp()",
        "y[:, 1:-1].relu_()",
        "y[1:, -1] = x[0, 0]",
        "y[:, 2].zero_()",
        "y[0] = x[1, :, :1]",
        "y[:, :, 1:3][:, :, 0] = 7",
        "y[..., ::2] = x[..., :3].exp()",
        "y[x > 0.5] = 0",
        "y[x[:, 0, 0] > 0.5] = x[0, 0, 0]",
        "y[..., 1::2] = 0.5",
        "y[..., 0::3] = x[..., 1::3]\ny[..., 1::3] = 0\ny[..., 2::3] *= -1",
    ],
)
def test_writes_to_parts_are_values(writes: str, tmp_path: Path) -> None:
    """At every size that the conditions allow: what is before the part, the part, and what is after."""
    path = write(tmp_path, f"y = x * 2\n{writes}\nreturn y, y.sin()", inputs="torch.rand(2, 8, 6)")
    found = traced(path)
    assert not any(isinstance(node.op, EagerOp) for node in found.graph.nodes)
    sizes = range(1, 12)
    checked = [s for s in sizes if guards.all_hold(found.graph.constraints, {**found.graph.sizes, "x0_1": s})]
    assert checked
    for size in checked:
        x = torch.rand(2, size, 6)
        for y, expected in zip(interpret.run(found.graph, [x.clone()], {}), found.model(x), strict=True):
            assert torch.equal(y, expected), size


@pytest.mark.parametrize("part", ["slice_scatter(x, y > 0.5, 1, 0, 2)", "select_scatter(x, y[:, 0] > 0.5, 1, 0)"])
def test_parts_of_another_element_type_are_left_to_torch(part: str, tmp_path: Path) -> None:
    inputs = "torch.rand(5, 8), torch.rand(5, 2)"
    found = traced(write(tmp_path, f"return torch.{part} * 2", inputs=inputs, arguments="x, y"))
    x, y = torch.rand(5, 8), torch.rand(5, 2)
    assert torch.equal(interpret.run(found.graph, [x, y], {})[0], found.model(x, y))


def test_parts_that_take_turns_are_joined_once(tmp_path: Path) -> None:
    """As rotary embeddings are written."""
    body = "y = torch.empty_like(x)\ny[..., ::2] = x[..., 1::2] * -1\ny[..., 1::2] = x[..., ::2]\nreturn y * 2"
    graph = compile_file(write(tmp_path, body, inputs="torch.rand(7, 6)")).program.after
    assert sum(isinstance(node.op, CatOp) for node in graph.every_node) == 1
    assert not any(isinstance(node.op, FillOp) for node in graph.every_node)


def test_parts_of_what_was_written_are_what_was_written(tmp_path: Path) -> None:
    body = "y = x * 2\ny[1:] = F.relu(x[1:])\nreturn y[1:] + 1"
    graph = compile_file(write(tmp_path, body, inputs="torch.rand(7, 5)")).program.after
    assert not any(isinstance(node.op, CatOp) for node in graph.every_node)


def test_quotients_that_kernels_compute_are_of_what_is_not_negative(tmp_path: Path) -> None:
    """C++ rounds those as Python does."""
    assert dims.canonical(dims.parse("-x0_0 // 2")) == "(-1)*((x0_0 + 1) // 2)"
    graph = traced(write(tmp_path, "return x[:, (x.shape[1] - 5) // 2 + 2:] * 2", inputs="torch.rand(2, 8, 6)")).graph
    assert not guards.all_hold(graph.constraints, {**graph.sizes, "x0_1": 4})


@pytest.mark.parametrize(
    ("body", "sizes"),
    [
        ("return F.layer_norm(x, (6,), eps=1.0 / x.shape[0])", {8}),
        ("return F.layer_norm(x, (6,), eps=0.5 * x.shape[0] ** -0.5)", {8}),
        ("return x[: int(x.shape[0] * 0.3)] * 2", {7, 8, 9}),
        ("return x.exp() if x.shape[0] / 2 > 2.4 else x.sin()", {5, 6, 7, 8, 9, 10, 11}),
        ("return F.dropout(x, 1 / x.shape[0], False) * 2", set(range(1, 12))),
    ],
)
def test_numbers_made_of_sizes_hold_where_they_were_traced(body: str, sizes: set[int], tmp_path: Path) -> None:
    graph = traced(write(tmp_path, body, inputs="torch.rand(8, 6)")).graph
    found = {n for n in range(1, 12) if guards.all_hold(graph.constraints, {**graph.sizes, "x0_0": n})}
    assert found == sizes


@pytest.mark.parametrize(
    "body",
    [
        "return x * 2 if x.shape[0] & 1 == 0 else x * 3",  # no arithmetic of ours
        "return x * 2 if torch.sym_max(x.shape[0], 5) > 6 else x * 3",
        "import math\nreturn x * (1 if math.log2(x.shape[0]) < 3.5 else 2)",
    ],
)
def test_questions_of_other_numbers_fix_the_size_or_are_conditions(body: str, tmp_path: Path) -> None:
    found = traced(write(tmp_path, body, inputs="torch.rand(8, 6)"))
    own = found.graph.inputs[0].type.shape[0]
    for size in range(1, 20) if isinstance(own, str) else [own]:
        if guards.all_hold(found.graph.constraints, {**found.graph.sizes, "x0_0": size}):
            x = torch.rand(size, 6)
            assert torch.equal(interpret.run(found.graph, [x], {})[0], found.model(x))


@pytest.mark.parametrize(
    ("body", "init", "random"),
    [
        ("return self.r(x)[0]", "self.r = nn.GRU(5, 4, 2)", False),
        ("return self.r(x)[0]", "self.r = nn.GRU(5, 4, 2, dropout=0.5)", True),
        ("return self.r(x)[0]", "self.r = nn.GRU(5, 4, 2, dropout=0.5).eval()", False),
        ("return F.scaled_dot_product_attention(x, x, x)", "pass", False),
        ("return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)", "pass", True),
        ("return torch.bernoulli(x)", "pass", True),
        ("return F.dropout(x, 0.5)", "pass", True),
    ],
)
def test_which_calls_draw_random_numbers(body: str, init: str, random: bool, tmp_path: Path) -> None:
    graph = traced(write(tmp_path, body, init, "torch.rand(4, 3, 5)")).graph
    assert any(interpret.is_random(node.op) for node in graph.nodes) is random


@pytest.mark.parametrize(
    ("init", "by_mode"),
    [
        ("nn.GRU(5, 4, 2)", False),
        ("nn.GRU(5, 4, 2, dropout=0.5)", True),
        ("nn.MultiheadAttention(5, 1)", False),
        ("nn.MultiheadAttention(5, 1, dropout=0.5)", True),
        ("nn.RReLU()", True),
        ("nn.utils.spectral_norm(nn.Linear(5, 5))", True),
        ("nn.Dropout(0.5)", True),
        ("nn.Linear(5, 5)", False),
    ],
)
def test_which_layers_behave_by_mode(init: str, by_mode: bool, tmp_path: Path) -> None:
    arguments = "x, x, x" if "Attention" in init else "x"
    path = write(tmp_path, f"return self.m({arguments})", f"self.m = {init}", "torch.rand(4, 3, 5)")
    assert traced(path).mode_dependent is by_mode


@pytest.mark.parametrize(
    "results",
    [
        "(y, z) if {} else (z, y)",
        "(y, 1 if {} else 2)",
        "(y, x.shape[2] if {} else x.shape[3])",
        "(y, bool({}))",
        "(y, z, None) if {} else (y, z, y)",
        "[y, z] if {} else (y, z)",
        "y if {} else (y,)",
    ],
)
def test_a_condition_stays_where_the_other_answer_returns_otherwise(results: str, tmp_path: Path) -> None:
    body = f"y, z = x.relu(), x.exp()\nreturn {results.format('x.shape[2] > 4')}"
    assert "x0_2 > 4" in traced(write(tmp_path, body)).graph.constraints


@pytest.mark.parametrize(
    ("body", "floats"),
    [
        ("return (x * (x > 0.5)).sum(1) / (x > 0.5).sum(1)", True),
        ("return x.sum() / (x > 0.5).sum().clamp(min=1)", True),
        ("n = (x > 0.5).sum(1, keepdim=True) * 2 + 1\nreturn x * n + n.sqrt()", True),
        ("return x / x.relu().count_nonzero()", True),
        ("return x.sum(1) * (x > 0.5).count_nonzero(1)", True),
        ("return x.count_nonzero(1)", False),
        ("return x.sum().count_nonzero() / 2", False),  # of one number
        ("return (x > 0.5).sum(1)", False),  # what the caller gets is an integer
        ("n = (x > 0.5).sum(1)\nreturn n / 2.0, n", False),
        ("return x[(x > 0.5).sum(1).clamp(max=3)]", False),
        ("return (x > 0.5).sum(1) // 2 * 1.5", False),
    ],
)
def test_counts_that_end_in_floats_are_floats(body: str, floats: bool, tmp_path: Path) -> None:
    path = write(tmp_path, body, inputs="torch.rand(6, 40)")
    graph = traced(path).graph
    assert all(node.type.dtype is not DType.INT64 for node in graph.nodes) == floats
    model, x = load_model_file(path).model_class(), torch.rand(6, 40)
    expected = model(x)
    (found, *_) = interpret.run(graph, [x], {})
    assert found.dtype == (expected[0] if isinstance(expected, tuple) else expected).dtype
    torch.testing.assert_close(found, expected[0] if isinstance(expected, tuple) else expected)


@pytest.mark.parametrize("name", ["code", "graph", "meta"])
def test_parameters_may_have_names_that_torch_uses_itself(name: str, tmp_path: Path) -> None:
    """Of modules that it makes of a graph, to take a similarity apart."""
    init = f"self.{name} = nn.Parameter(torch.rand(8))\nself.register_buffer('recompile', torch.rand(8))\n"
    init += "self.weight = nn.Parameter(torch.rand(8))\nself.model = nn.Linear(8, 8)"
    body = f"return F.cosine_similarity(self.model(x) * self.weight, self.{name} * self.recompile, dim=1)"
    path = write(tmp_path, body, init, "torch.rand(3, 8)")
    model, x = load_model_file(path).model_class(), torch.rand(3, 8)
    (y,) = interpret.run(traced(path).graph, [x], model.state_dict())
    torch.testing.assert_close(y, model(x))


def test_one_tensor_in_two_places_is_two_inputs(tmp_path: Path) -> None:
    """As the queries and keys of a file that attends to one sequence: calls may have others."""
    path = write(tmp_path, "return a - 2 * b", inputs="*2 * [torch.rand(3, 4)]", arguments="a, b")
    a, b = torch.rand(3, 4), torch.rand(3, 4)
    assert torch.equal(interpret.run(traced(path).graph, [a, b], {})[0], a - 2 * b)
