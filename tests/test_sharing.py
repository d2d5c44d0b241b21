"""Blocks that a network repeats run in one kernel; what differs in anything but names does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusegen.compiler import compile_file
from fusegen.plan.types import KernelStep
from tests.emitted import reference_from, simulated
from tests.models import write

TWICE = "y = torch.relu(self.a(x)) * 2\nreturn torch.relu(self.b(y)) * 2"
LAYERS = "self.a = nn.Linear(7, 7)\nself.b = nn.Linear(7, 7)"
INPUTS = "torch.rand(5, 7)"


def _used(path: Path) -> list[str]:
    steps = compile_file(path).program.steps
    return [step.plan.name for step in steps if isinstance(step, KernelStep)]


def test_a_repeated_block_is_one_kernel(tmp_path: Path) -> None:
    path = write(tmp_path, TWICE, LAYERS, INPUTS)
    compiled = compile_file(path)
    (plan,) = compiled.program.kernels
    assert _used(path) == [plan.name] * 2
    (other,) = plan.again
    assert f"//   and so for %{other}\n" in compiled.source
    assert compiled.source.count(f"namespace {plan.name}_kernel {{") == 1

    torch.manual_seed(0)
    reference = reference_from(path.read_text()).Model()
    generated = simulated(compiled)
    model = generated.ModelNew()
    model.load_state_dict(reference.state_dict())
    x = torch.rand(5, 7)
    torch.testing.assert_close(model(x), reference(x))
    assert len(generated.calls) == 2


@pytest.mark.parametrize(
    ("body", "init"),
    [
        (TWICE.replace("* 2\nreturn", "* 3\nreturn"), LAYERS),
        (TWICE.replace("torch.relu(self.b(y))", "torch.tanh(self.b(y))"), LAYERS),
        (TWICE, LAYERS.replace("self.b = nn.Linear(7, 7)", "self.b = nn.Linear(7, 8)")),
        (TWICE, LAYERS.replace("self.b = nn.Linear(7, 7)", "self.b = nn.Linear(7, 7, bias=False)")),
        ("return x.sum(1, keepdim=True) * x.mean(0), x.mean(1, keepdim=True) + x.mean(0)", "pass"),
        ("y = x + 1\nsum = x.reshape(7, 5).sum(1)\nmean = x.reshape(7, 5).mean(1)\nreturn sum, mean, y", "pass"),
        ("return torch.sub(x, x.amax(0)).exp(), torch.sub(x.amax(0), x).exp()", "pass"),  # operands in another order
    ],
)
def test_what_differs_has_a_kernel_of_its_own(body: str, init: str, tmp_path: Path) -> None:
    used = _used(write(tmp_path, body, init, INPUTS))
    assert len(set(used)) == len(used)


def test_a_result_that_is_read_later_is_another_kernel(tmp_path: Path) -> None:
    """The first block also writes what its second statement reads."""
    body = "y = torch.softmax(x, 1)\nw = torch.softmax(y.exp().logcumsumexp(0), 1)\nreturn w.exp(), y.flip(0)"
    used = _used(write(tmp_path, body, inputs=INPUTS))
    assert len(set(used)) == len(used) == 2


def test_counts_and_running_statistics_are_no_launches_of_their_own(tmp_path: Path) -> None:
    path = write(tmp_path, "return self.b(self.a(x).relu())", LAYERS.replace("Linear(7, 7)", "BatchNorm1d(7)"), INPUTS)
    source = compile_file(path).source
    forward = source[source.index("def _fusegen_fused") : source.index("def _fusegen_operands")]
    assert "add_(" not in forward
    assert "copy_(" not in forward


def test_a_block_of_another_width_is_the_same_kernel_with_sizes_of_the_call(tmp_path: Path) -> None:
    body, layers = "return self.a(x).relu(), self.b(w).relu()", "self.a, self.b = nn.BatchNorm2d(6), nn.BatchNorm2d(9)"
    path = write(tmp_path, body, layers, "torch.rand(4, 6, 8, 10), torch.rand(5, 9, 4, 6)", "x, w")
    compiled = compile_file(path)
    shared = [plan for plan in compiled.program.kernels if plan.detail.template == "row_stream"]
    (plan,) = shared
    assert len(plan.again) == 1
    assert {binding.name for binding in plan.bindings} == {"batch", "channels", "height", "width"}

    torch.manual_seed(0)
    reference = reference_from(path.read_text()).Model()
    generated = simulated(compiled)
    model = generated.ModelNew()
    model.load_state_dict(reference.state_dict())
    inputs = torch.rand(4, 6, 8, 10), torch.rand(5, 9, 4, 6)
    torch.testing.assert_close(model(*inputs), reference(*inputs))
    torch.testing.assert_close(model.state_dict(), reference.state_dict())


def test_one_block_keeps_its_constants(tmp_path: Path) -> None:
    path = write(tmp_path, "return self.a(x).relu()", "self.a = nn.BatchNorm2d(6)", "torch.rand(4, 6, 8, 10)")
    (plan,) = compile_file(path).program.kernels
    assert "channels" not in {binding.name for binding in plan.bindings}


def test_groups_of_norms_are_handed_to_the_kernel_that_they_share(tmp_path: Path) -> None:
    """No operand has them in its shape: of 6 channels in 3 groups and 8 in 2, every call says its own."""
    body = "return self.a(x).relu(), self.b(w).relu()"
    layers = "self.a, self.b = nn.GroupNorm(3, 6), nn.GroupNorm(2, 8)"
    path = write(tmp_path, body, layers, "torch.rand(4, 6, 160, 160), torch.rand(5, 8, 130, 150)", "x, w")
    compiled = compile_file(path)
    assert len(compiled.program.kernels) == 1
    steps = [step for step in compiled.program.steps if isinstance(step, KernelStep)]
    assert [list(step.given) for step in steps] == [["3", "2"], ["2", "4"]]

    reference = reference_from(path.read_text()).Model()
    model = simulated(compiled).ModelNew()
    inputs = torch.rand(4, 6, 160, 160), torch.rand(5, 8, 130, 150)
    torch.testing.assert_close(model(*inputs), reference(*inputs))
