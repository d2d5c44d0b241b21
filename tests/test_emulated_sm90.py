"""Convolutions of sm_90a, run on the CPU thread by thread: their tiles, stores and epilogues against float64."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch

from fusegen.compiler import compile_file
from fusegen.costs import direct, hopper, library
from fusegen.plan import contraction
from fusegen.plan.details import ContractionPlan, HopperConvPlan
from fusegen.trace import load_model_file
from tests.emulated import operands_of, steps
from tests.emulated.hopper import HopperKernel
from tests.gpu.test_residual import MODELS, PARAMETERS, Rounded
from tests.models import write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]

CASES = MODELS | {
    "plain": ("nn.Conv2d(20, 33, 3)", "F.hardswish(self.m(x)) * 2", (20, 30, 41)),
    "chain_before": (
        "nn.Conv2d(20, 33, 3, padding=1)",
        "F.hardswish(self.m(torch.where(x > 0.1, x, self.q))) * 2",
        (20, 30, 41),
    ),
    "channels": ("nn.Conv2d(24, 40, 3, padding=1)", "(self.m(x) + y).softmax(1) * y", (24, 13, 20), (40, 13, 20)),
}
PREPARED = (
    "plain",
    "chain_before",
    "channels",
    "pixels",
    "plane",
    "gated",
    "grouped",
    "of_its_input",
    "of_places",
    "columns",
    "rows",
    "samples",
    "layers",
    "volume",
    "transposed_far",
    "transposed_volume",
    "transposed_rows",
)
IN_PLACE = ("channels", "aligned", "pixels", "plane", "rows", "samples", "dilated", "volume", "transposed")


@pytest.mark.parametrize(
    ("name", "variant"), [*((name, "sm90") for name in PREPARED), *((name, "in_place") for name in IN_PLACE)]
)
def test_agrees_with_float64(name: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "is_small", lambda *_: False)
    monkeypatch.setattr(library, "seconds", lambda *_: math.inf)
    monkeypatch.setattr(library, "allows_tf32", lambda *_: True)
    monkeypatch.setattr(contraction, "_is_slower", lambda *_: False)
    monkeypatch.setattr(hopper, "reads_in_place", lambda *_: variant == "in_place")
    module, body, *shapes = CASES[name]
    sizes = ", ".join(f"torch.rand(3, {', '.join(map(str, shape))})" for shape in shapes)
    path = write(
        tmp_path,
        f"return {body}",
        f"{PARAMETERS}self.q = nn.Parameter(torch.rand(20, 1, 1) + 0.5)\nself.m = {module}",
        sizes,
        "x, y"[: 3 * len(shapes) - 2],
    )
    compiled = compile_file(path)
    (plan,) = steps(compiled, ContractionPlan)
    assert isinstance(plan.hopper, HopperConvPlan)
    assert bool(plan.hopper.ahead) == (name in MODELS)
    kernel = HopperKernel(compiled, plan, variant, tmp_path)
    torch.manual_seed(0)
    model = load_model_file(path).model_class()
    parameters = operands_of(compiled, plan, dict(model.named_parameters()))
    drawn = [torch.randn(2, *shape) for shape in shapes]
    inputs = dict(zip((node.name for node in compiled.program.after.inputs), drawn, strict=True))
    (found,) = kernel([parameters[arg.name] if arg.name in parameters else inputs[arg.node] for arg in plan.args], 1)
    model = model.double()
    model.m = Rounded(model.m)
    with torch.no_grad():
        exact = model(*(value.double() for value in drawn))
    assert (found - exact).abs().max() <= 4e-6 * exact.abs().max()
