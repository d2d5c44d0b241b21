"""Gradients of generated modules, and the buffers that they update."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_flatten

from fusegen.compiler import Compiled, compile_file
from tests.emitted import BIAS_RELU, WIDTH, compiled_from, pair, reference_from, simulated


def test_first_and_second_derivatives(compiled: Compiled) -> None:
    reference, model, _ = pair(compiled, BIAS_RELU, WIDTH)
    x = torch.randn(3, WIDTH, requires_grad=True)
    penalties = []
    for m in (reference, model):
        y = m(x * 2)
        leaves = [x, *m.parameters()]
        first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
        penalties.append((*first, *second))
    for expected, actual in zip(*penalties, strict=True):
        torch.testing.assert_close(actual, expected)


def test_gradients_where_operands_depend_on_each_other(compiled: Compiled) -> None:
    """The module applied to its own output, and to its own parameter: no path counts twice."""
    reference, model, _ = pair(compiled, BIAS_RELU, WIDTH)
    results = []
    for m in (reference, model):
        y = m(m(m.linear.weight) + m.bias)
        first = torch.autograd.grad(y.sum(), list(m.parameters()), create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), list(m.parameters()))
        m.zero_grad()
        m(m(m.linear.weight)).sum().backward()
        results.append([*first, *second, *(p.grad for p in m.parameters())])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


def test_partial_gradients(compiled: Compiled) -> None:
    reference, model, _ = pair(compiled, BIAS_RELU, WIDTH)
    x = torch.randn(3, WIDTH)
    for m in (reference, model):
        m.linear.weight.requires_grad_(False)
        m(x).sum().backward()
    assert model.linear.weight.grad is None
    torch.testing.assert_close(model.bias.grad, reference.bias.grad)


def test_tied_parameters(compiled: Compiled) -> None:
    reference, model, _ = pair(compiled, BIAS_RELU, WIDTH)
    x = torch.randn(3, WIDTH)
    for m in (reference, model):
        m.linear.bias = m.bias
        m(x).sum().backward()
    torch.testing.assert_close(model.bias.grad, reference.bias.grad)


def test_edits_between_forward_and_backward_are_caught(compiled: Compiled) -> None:
    _, model, _ = pair(compiled, BIAS_RELU, WIDTH)
    y = model(torch.randn(3, WIDTH)).sum()
    with torch.no_grad():
        model.linear.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_backward_with_a_graph_kept(compiled: Compiled) -> None:
    _, model, _ = pair(compiled, BIAS_RELU, WIDTH)
    y = model(torch.randn(3, WIDTH)).sum()
    y.backward(retain_graph=True)
    once = model.bias.grad.clone()
    y.backward()
    torch.testing.assert_close(model.bias.grad, 2 * once)


NORM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return torch.relu(self.norm(x)) * torch.sigmoid(x) + 1

def get_inputs():
    return [torch.rand(4, 6)]
"""


def test_buffer_updates_happen_once(tmp_path: Path) -> None:
    compiled = compiled_from(NORM, tmp_path, mode_dependent=True)
    assert compiled.program.after.updates
    module = simulated(compiled)
    torch.manual_seed(0)
    reference = reference_from(NORM).Model()
    model = module.ModelNew()
    for step in range(2):
        x = torch.randn(4, 6) + step
        for m in (reference, model):
            m.zero_grad()
            loss = m(x).sum()
            loss.backward(retain_graph=True)
            loss.backward()
        for name, value in reference.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], value)
        torch.testing.assert_close(model.norm.weight.grad, reference.norm.weight.grad)
    assert module.calls
    calls = len(module.calls)
    reference(x)
    y = model(x).sum()
    model.eval()
    reference.eval()
    y.backward()  # the mode of the forward counts, not the mode now
    assert not model.norm.training
    with pytest.warns(UserWarning, match="is not in training mode"):
        torch.testing.assert_close(model(x), reference(x))
    assert len(module.calls) == calls + calls // 2  # calls: of two forwards


def test_an_empty_batch_leaves_running_statistics_to_the_reference(tmp_path: Path) -> None:
    module = simulated(compiled_from(NORM, tmp_path, mode_dependent=True))
    reference, model = reference_from(NORM).Model(), module.ModelNew()
    for m in (reference, model):
        assert m(torch.empty(0, 6)).shape == (0, 6)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=0, equal_nan=True)
    assert not module.calls


STATE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Linear(9, 5)
        self.hidden = torch.randn(4, 5)

    def forward(self, x):
        self.hidden = torch.tanh(self.step(torch.cat([x, self.hidden], 1)))
        return self.hidden * 2

def get_inputs():
    return [torch.rand(4, 4)]

def get_init_inputs():
    return []
"""


def test_a_tensor_kept_in_an_attribute_is_kept_by_the_generated_module(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(STATE)
    module = simulated(compile_file(path))
    models = []
    for create in (reference_from(STATE).Model, module.ModelNew):
        torch.manual_seed(0)
        models.append(create())
    reference, model = models
    assert model.state_dict().keys() == reference.state_dict().keys()
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 4)
            torch.testing.assert_close(model(x), reference(x))
    calls = len(module.calls)
    assert calls >= 3
    x = torch.randn(4, 4)
    with pytest.warns(UserWarning, match="hidden is kept from call to call"):
        model(x).sum().backward()
    reference(x).sum().backward()
    torch.testing.assert_close(model.step.weight.grad, reference.step.weight.grad)
    assert len(module.calls) == calls


SCALED = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Linear(4, 5)

    def forward(self, scale, x, axis):
        return torch.tanh(self.step(x * scale)).sum(axis)

def get_inputs():
    return [0.5, torch.rand(4, 4), 1]

def get_init_inputs():
    return []
"""


def test_numbers_among_the_inputs_are_compiled_in(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(SCALED)
    module = simulated(compile_file(path))
    reference, model = reference_from(SCALED).Model(), module.ModelNew()
    model.load_state_dict(reference.state_dict())
    x = torch.randn(4, 4, requires_grad=True)
    torch.testing.assert_close(model(0.5, x, 1), reference(0.5, x, 1))
    gradients = [torch.autograd.grad(m(0.5, x, 1).square().sum(), x)[0] for m in (reference, model)]
    torch.testing.assert_close(gradients[1], gradients[0])
    calls = len(module.calls)
    assert calls
    with pytest.warns(UserWarning, match=r"argument scale differs from 0.5, which was compiled in"):
        torch.testing.assert_close(model(0.25, x, 1), reference(0.25, x, 1))
    assert len(module.calls) == calls


NESTED = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x):
        y = self.linear(x).exp()
        return RESULT

def get_inputs():
    return [torch.rand(5, 6)]
"""


@pytest.mark.parametrize(
    "result",
    [
        "{'logits': y, 'more': [y.relu(), (y.sum(1),)]}",
        "y, (y.tanh(), [y.argmax(1), y * 2])",
        "[y, y.sigmoid()]",
        "{0: y}",
        "None, y, (y.tanh(), None)",
        "y, 2 * x.shape[0] + 1",
        "[3, {'k': y.relu().sort(1)}, True, 1.5, y, (x.shape[0] - 9) // 2, -x.shape[1]]",
        "y.max(1)",
    ],
)
def test_results_come_in_lists_tuples_and_dicts(result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEGEN_STRICT", "1")
    source = NESTED.replace("RESULT", result)
    (path := tmp_path / "model.py").write_text(source)
    reference, generated, _ = pair(compile_file(path), source)
    x, found = torch.rand(7, 6), []
    for model in (reference, generated):
        leaves, structure = tree_flatten(model(x))
        sum(y.sum() for y in leaves if torch.is_tensor(y) and y.requires_grad).backward()
        found.append((leaves, structure, [p.grad for p in model.parameters()]))
    (expected, outline, slopes), (actual, own, gradients) = found
    assert own == outline
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradients, slopes)
