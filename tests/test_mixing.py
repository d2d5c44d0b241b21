"""Products along channels, however they are written: positions are read and written as they lie."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusegen.compiler import compile_file
from fusegen.ir import PermuteOp
from fusegen.plan.types import KernelStep
from tests.emitted import bodies, reference_from, simulated
from tests.models import write

OF_INPUTS = "self.w = nn.Parameter(torch.randn(64, 128) * 0.1)"
OF_FEATURES = "self.w = nn.Parameter(torch.randn(128, 64) * 0.1)"
WITH_BIAS = f"{OF_FEATURES}\nself.b = nn.Parameter(torch.randn(128))"
SPELLINGS = {
    "einsum": (OF_INPUTS, "torch.einsum('bchw,cd->bdhw', x, self.w)"),
    "einsum_of_weights": (OF_FEATURES, "torch.einsum('oc,bchw->bohw', self.w, x)"),
    "einsum_of_one_axis": (OF_FEATURES, "torch.einsum('bct,oc->bot', x.flatten(2), self.w)"),
    "matmul": (OF_INPUTS, "(x.permute(0, 2, 3, 1) @ self.w).permute(0, 3, 1, 2)"),
    "linear": (WITH_BIAS, "F.linear(x.permute(0, 2, 3, 1), self.w, self.b).permute(0, 3, 1, 2)"),
    "weights_first": (OF_FEATURES, "torch.matmul(self.w, x.flatten(2))"),
    "tensordot": (OF_INPUTS, "torch.tensordot(x, self.w, dims=([1], [0])).permute(0, 3, 1, 2)"),
    "tokens": (
        WITH_BIAS,
        "F.linear(x.flatten(2).transpose(1, 2), self.w, self.b).transpose(1, 2).unflatten(2, x.shape[2:])",
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_channels_are_mixed_in_one_kernel(name: str, tmp_path: Path) -> None:
    init, body = SPELLINGS[name]
    path = write(tmp_path, f"return F.gelu({body}) * 2", init, "torch.randn(24, 64, 112, 112)")
    compiled = compile_file(path)
    kernels = [step.plan for step in compiled.program.steps if isinstance(step, KernelStep)]
    assert [plan.name for plan in kernels] == ["k0_gemm_sm90"]
    assert not any(isinstance(node.op, PermuteOp) for body in bodies(compiled.program) for node in body.nodes)

    torch.manual_seed(0)
    reference = reference_from(path.read_text()).Model()
    torch.manual_seed(0)
    generated = simulated(compiled).ModelNew()
    x = torch.randn(2, 64, 5, 6)
    with torch.no_grad():
        torch.testing.assert_close(generated(x), reference(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "template"),
    [
        ("torch.randn(16, 128, 64, 64)", "gemm_sm90"),  # a product of the weights with every sample
        ("torch.randn(16, 32, 128, 128)", "gemm_views"),  # of so few channels, in plain float32
        ("torch.randn(32, 512, 14, 14)", "contraction"),  # of so few positions, a convolution
    ],
)
def test_the_faster_kernel_mixes_channels(inputs: str, template: str, tmp_path: Path) -> None:
    channels = int(inputs.split(", ")[1])
    init = f"self.w = nn.Parameter(torch.randn({channels}, {channels}))"
    body = "return F.relu(torch.matmul(self.w, x.flatten(2)))"
    compiled = compile_file(write(tmp_path, body, init, inputs))
    (plan,) = (step.plan for step in compiled.program.steps if isinstance(step, KernelStep))
    assert plan.name == f"k0_{template}"


def test_channels_that_stay_last_are_a_product(tmp_path: Path) -> None:
    body = "return F.relu(x.permute(0, 2, 3, 1) @ self.w)"
    compiled = compile_file(write(tmp_path, body, OF_INPUTS, "torch.randn(24, 64, 112, 112)"))
    assert not any("conv(" in event.identity for stage in compiled.stages for event in stage.applied)


@pytest.mark.parametrize(
    ("init", "body", "inputs", "kernels"),
    [
        (  # what lies between is work on channels, wherever these are
            f"{WITH_BIAS}\nself.n = nn.LayerNorm(128)",
            "y = self.n(F.linear(x.permute(0, 2, 3, 1), self.w, self.b)).relu()\n"
            "return F.max_pool2d(y.permute(0, 3, 1, 2), 3, 2, 1)",
            "torch.randn(16, 64, 101, 103)",
            3,
        ),
        (  # tokens that are mixed, and put back
            "self.l = nn.Linear(196, 196)",
            "return F.gelu(self.l(x.transpose(1, 2))).transpose(1, 2) + x",
            "torch.randn(64, 196, 512)",
            1,
        ),
    ],
)
def test_work_that_comes_before_channels_are_put_back(
    init: str, body: str, inputs: str, kernels: int, tmp_path: Path
) -> None:
    compiled = compile_file(write(tmp_path, body, init, inputs))
    found = [step for step in compiled.program.steps if isinstance(step, KernelStep)]
    assert len(found) == kernels
    assert not any(isinstance(node.op, PermuteOp) for graph in bodies(compiled.program) for node in graph.nodes)
    assert any("channels that are put back" in event.identity for stage in compiled.stages for event in stage.applied)


def test_data_in_the_order_of_the_product_keeps_it_a_product(tmp_path: Path) -> None:
    """Where the channels' place is not theirs, moving them would copy the other tensor."""
    body = "return (F.relu(x.permute(0, 2, 3, 1) @ self.w) * y).permute(0, 3, 1, 2)"
    inputs = "torch.randn(24, 64, 32, 32), torch.randn(24, 32, 32, 128)"
    compiled = compile_file(write(tmp_path, body, OF_INPUTS, inputs, "x, y"))
    assert not any("conv(" in event.identity for stage in compiled.stages for event in stage.applied)


@pytest.mark.parametrize(
    ("body", "inputs", "arguments"),
    [
        ("return torch.matmul(y, x).relu()", "torch.randn(8, 50, 64), torch.randn(50, 50)", "x, y"),
        ("return torch.matmul(self.w.bfloat16(), x).relu()", "torch.randn(8, 64, 200, dtype=torch.bfloat16)", "x"),
    ],
)
def test_channels_of_a_call_and_of_other_types_stay_those_of_products(
    body: str, inputs: str, arguments: str, tmp_path: Path
) -> None:
    compiled = compile_file(write(tmp_path, body, OF_FEATURES, inputs, arguments))
    assert not any("conv(" in event.identity for stage in compiled.stages for event in stage.applied)
