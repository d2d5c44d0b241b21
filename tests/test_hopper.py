"""The expected time of a convolution on sm_90a against what an H200 took."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fusegen import hopper
from fusegen.ir import ConvOp
from fusegen.machines import machine
from fusegen.trace import trace

# convolution, input shape, milliseconds with an epilogue that stores every result
MEASURED = {
    "transposed": (lambda: nn.ConvTranspose2d(64, 128, 4, 2, 1, output_padding=1), (128, 64, 64, 64), 0.655),
    "wide": (lambda: nn.Conv2d(64, 128, 3), (96, 64, 144, 144), 1.11),
    "large": (lambda: nn.Conv2d(48, 96, 3), (48, 48, 288, 288), 1.61),
    "transposed, stride 2": (lambda: nn.ConvTranspose2d(64, 64, 3, 2, 1, output_padding=1), (24, 64, 200, 200), 0.70),
    "transposed, 3d": (lambda: nn.ConvTranspose3d(32, 64, 3, 2, 1), (12, 32, 20, 36, 36), 0.405),
    "narrow": (lambda: nn.Conv2d(16, 32, 3, padding=1), (64, 16, 128, 128), 0.109),
    "medium": (lambda: nn.Conv2d(32, 64, 3, padding=1), (64, 32, 128, 128), 0.223),
    "deep": (lambda: nn.Conv2d(128, 256, 3, padding=1), (32, 128, 56, 56), 0.207),
    "3d": (lambda: nn.Conv3d(16, 32, 3), (16, 16, 24, 64, 64), 0.29),
    "pointwise": (lambda: nn.Conv2d(64, 256, 1), (64, 64, 56, 56), 0.11),
}


@pytest.mark.parametrize("name", MEASURED)
def test_expected_time_is_near_the_measured_one(name: str) -> None:
    build, shape, milliseconds = MEASURED[name]
    with torch.device("meta"):
        graph = trace(build().eval(), (torch.empty(shape),), Path(__file__)).graph
    (node,) = (n for n in graph.nodes if isinstance(n.op, ConvOp))
    seconds = hopper.conv_seconds(graph, node, machine("sm_90"), False)
    assert 0.66 < seconds * 1e3 / milliseconds < 1.5
