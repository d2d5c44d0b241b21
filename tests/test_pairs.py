"""Pairs of elements of smaller operands: no kernel reads or writes the few numbers of each."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from fusegen.compiler import compile_file
from fusegen.ir import RegionOp
from tests.models import write

BOXES = """
corner = torch.maximum(x[:, :, None, :2], y[:, None, :, :2])
inner = (torch.minimum(x[:, :, None, 2:], y[:, None, :, 2:]) - corner).clamp(min=0)
overlap = inner[..., 0] * inner[..., 1]
return (x[:, :, None] - y[:, None]).abs().sum(-1) - overlap / (x.prod(-1)[:, :, None] + y.prod(-1)[:, None] - overlap)
"""
DISTANCES = """
d = ((x.unsqueeze(2) - y.unsqueeze(1)) ** 2).sum(-1)
return d.amin(2), d.amin(1).mean(-1)
"""
LARGEST = "return (x.unsqueeze(2) - y.unsqueeze(1)).abs().amax(-1, keepdim=True) * 2"
MEANS = "return (x.unsqueeze(2) * y.unsqueeze(1)).mean(-1).exp()"


@pytest.mark.parametrize("body", [BOXES, DISTANCES, LARGEST, MEANS])
def test_few_numbers_of_pairs_are_taken_of_the_operands(body: str, tmp_path: Path) -> None:
    compiled = compile_file(write(tmp_path, body, "", "torch.rand(3, 40, 4), torch.rand(3, 50, 4)", "x, y"))
    regions = [node.op.body.nodes for node in compiled.program.after.nodes if isinstance(node.op, RegionOp)]
    assert regions
    for node in (*compiled.program.after.nodes, *chain(*regions)):
        assert sum(size != 1 for size in node.type.shape) <= 3
