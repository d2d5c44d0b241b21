"""Products whose truncation a sum would add up: which they are, and what their kernels do about it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fusegen.compiler import compile_file
from fusegen.ir import MatmulOp
from tests.models import write

_HEADER = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
_STEP = "STEPS = 1;"


def _model(forward: str, x: tuple[int, ...] = (2048, 1000), y: tuple[int, ...] = (1000, 512)) -> str:
    parameter = f"        self.w = nn.Parameter(torch.rand({y}))\n"
    init = f"class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n{parameter}\n"
    inputs = f"def get_inputs():\n    return [torch.rand({x}), torch.rand({y})]\n"
    body = f"    def forward(self, x, y):\n        return {forward}\n"
    return f"{_HEADER}{init}{body}\n\n{inputs}\n\ndef get_init_inputs():\n    return []\n"


@pytest.mark.parametrize(
    ("forward", "summed"),
    [
        ("F.gelu(x @ y).mean(1)", True),
        ("(F.gelu(x @ y) ** 2).t().contiguous().sum(0)", True),
        ("F.gelu(x @ y).reshape(2048, 2, 256).mean(-1)", True),
        ("F.gelu(x @ y).reshape(2048, 256, 2).mean(-1)", False),  # two terms
        ("F.gelu(x @ y).amax(1)", False),
        ("F.gelu(x @ y)", False),
        ("F.gelu(x @ self.w).mean(1)", False),  # what is lost is given back
        ("F.gelu(x @ (y * self.w)).mean(1)", False),
    ],
)
def test_products_of_data_whose_results_are_added_up(forward: str, summed: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(_model(forward))
    compiled = compile_file(path)
    (product,) = (
        node
        for step in compiled.program.after.nodes
        for node in (step, *(step.op.body.nodes if hasattr(step.op, "body") else ()))
        if isinstance(node.op, MatmulOp)
    )
    assert isinstance(product.op, MatmulOp)
    assert product.op.summed is summed
    assert (_STEP in compiled.source) is summed


def test_products_split_in_place_promote_as_often(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(_model("F.gelu(x @ y).mean(1)", (64, 512), (512, 1024)))
    assert "PROMOTED = PRECISE ? 1 : STEPS" in compile_file(path).source
    path.write_text(_model("F.gelu(x @ y)", (64, 512), (512, 1024)))
    assert "PROMOTED = PRECISE ? 2 : STEPS" in compile_file(path).source


@pytest.mark.parametrize(
    ("forward", "averaged"),
    [
        ("F.gelu(x @ self.w).mean(1)", True),
        ("F.relu(F.max_pool1d((x @ (y * self.w)).unsqueeze(1), 4) - 0.5).sum(2)", True),
        ("F.gelu((x @ self.w).view(len(x), -1, 128).amax(1)).mean(1)", True),
        ("F.gelu(x @ self.w).view(len(x), -1, 8).sum(2).tanh().sum(1)", True),
        ("F.gelu(x @ self.w).view(len(x), -1, 8).sum(2).tanh()", False),  # eight terms
        ("F.relu(x @ self.w).var(1)", True),
        ("F.layer_norm(x @ self.w, (self.w.shape[1],))", False),  # the norm divides by what is lost from the variance
        ("F.gelu(x @ self.w).amax(1)", False),
        ("F.gelu(x @ y).mean(1)", False),
    ],
)
def test_products_by_weights_get_back_what_truncation_takes(forward: str, averaged: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    for shapes in (((2048, 1000), (1000, 512)), ((64, 512), (512, 1024))):  # prepared rows, and rows split in place
        path.write_text(_model(forward, *shapes))
        assert ("constexpr float LOST" in compile_file(path).source) is averaged


@pytest.mark.parametrize(
    ("forward", "amplified"),
    [
        ("(F.gelu(x @ y) ** 3).mean(1)", False),
        ("((x @ y) ** 3).square().mean(1)", True),
        ("torch.pow(F.relu(x @ y), 4.5).sum(1)", True),
        ("((x @ y) ** 3 + (x @ y) ** 2).mean(1)", False),
        ("((x @ y) ** 4).amax(1)", False),
    ],
)
def test_sums_of_high_powers_are_left_to_products_in_plain_fp32(forward: str, amplified: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(_model(forward))
    program = compile_file(path).program
    assert any(node.op.amplified for node in program.after.every_node if isinstance(node.op, MatmulOp)) is amplified
    library = any(isinstance(node.op, MatmulOp) for node in program.after.nodes)
    assert library is amplified


@pytest.mark.parametrize(
    ("forward", "channels", "chain"),
    [
        ("(F.gelu(self.c(3 - x)) * s).mean((2, 3))", 12, 3),
        ("F.gelu(self.c(x)).cumsum(0) + F.gelu(self.c(x)).sum((1, 2, 3), keepdim=True)", 12, 3),
        ("F.gelu(self.c(3 - x)).cumsum(0)", 12, 9),
        ("self.c(x).var((2, 3)).cumsum(0)", 12, 3),
        ("F.instance_norm(self.c(x)).cumsum(0)", 12, 9),  # a mean that is taken away takes what is common with it
        ("F.gelu(self.c(x)).cumsum(0) + F.gelu(self.c(x)).amax((1, 2, 3), keepdim=True)", 12, 9),
    ],
)
def test_averaged_convolutions_promote_more_often(forward: str, channels: int, chain: int, tmp_path: Path) -> None:
    """In full fp32, also where another kernel adds the results up."""
    init = f"self.c = nn.Conv2d({channels}, 64, 5)"
    path = write(tmp_path, f"s = x[:1, :1, 4:, 4:]\nreturn {forward}", init, f"torch.rand(16, {channels}, 133, 102)")
    found = [int(text) for text in re.findall(r"int CHAIN = (\d+);", compile_file(path).source)]
    assert found == [chain]
