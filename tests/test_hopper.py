"""The expected time of a convolution on sm_90a against what an H200 took."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fusegen.costs import hopper
from fusegen.costs.hopper_taps import Windows
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


# convolution, input shape, milliseconds with the input prepared and read in place
IN_PLACE = {
    "wide": (lambda: nn.Conv2d(64, 128, 3), (96, 64, 144, 144), 1.114, 0.991),
    "smaller": (lambda: nn.Conv2d(64, 128, 3), (64, 64, 96, 96), 0.341, 0.281),
    "large": (lambda: nn.Conv2d(48, 96, 3), (48, 48, 288, 288), 1.648, 1.436),
    "narrow": (lambda: nn.Conv2d(16, 32, 3, padding=1), (64, 16, 128, 128), 0.109, 0.090),
    "medium": (lambda: nn.Conv2d(32, 64, 3, padding=1), (64, 32, 128, 128), 0.224, 0.185),
    "deep": (lambda: nn.Conv2d(128, 256, 3, padding=1), (32, 128, 56, 56), 0.209, 0.204),
    "few images": (lambda: nn.Conv2d(16, 256, 3), (16, 16, 64, 64), 0.038, 0.049),
    "small": (lambda: nn.Conv2d(32, 256, 3), (8, 32, 64, 64), 0.029, 0.040),
    "transposed, stride 2": (
        lambda: nn.ConvTranspose2d(64, 64, 3, 2, 1, output_padding=1),
        (24, 64, 200, 200),
        0.739,
        1.081,
    ),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_an_input_is_read_in_place_where_that_was_faster(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In TF32, that is."""
    monkeypatch.setattr(hopper, "pays_in_halves", lambda *_: False)
    build, shape, prepared, in_place = IN_PLACE[name]
    with torch.device("meta"):
        graph = trace(build().eval(), (torch.empty(shape),), Path(__file__)).graph
    (node,) = (n for n in graph.nodes if isinstance(n.op, ConvOp))
    assert hopper.reads_in_place(graph, node, machine("sm_90")) == (in_place < 0.95 * prepared)


# convolution, input shape, windows, milliseconds with a pooling in the epilogue: input prepared, and read in place
POOLED = {
    "wide": (lambda: nn.Conv2d(64, 128, 3), (32, 64, 128, 128), (2, 2), 0.319, 0.263),
    "smaller": (lambda: nn.Conv2d(64, 128, 3), (64, 64, 60, 60), (2, 2), 0.170, 0.143),
    "medium": (lambda: nn.Conv2d(32, 64, 3), (64, 32, 128, 128), (4, 4), 0.231, 0.206),
    "deep": (lambda: nn.Conv2d(128, 256, 3, padding=1), (32, 128, 56, 56), (2, 2), 0.197, 0.178),
    "few images": (lambda: nn.Conv2d(64, 64, 3, padding=1), (10, 64, 224, 224), (2, 2), 0.210, 0.158),
    "transposed": (lambda: nn.ConvTranspose2d(64, 64, 3, 1, 1), (64, 64, 128, 128), (2, 2), 0.420, 0.314),
}


@pytest.mark.parametrize("name", POOLED)
def test_poolings_read_in_place_where_that_was_faster(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In TF32, that is."""
    monkeypatch.setattr(hopper, "pays_in_halves", lambda *_: False)
    build, shape, kernel, prepared, in_place = POOLED[name]
    with torch.device("meta"):
        graph = trace(build().eval(), (torch.empty(shape),), Path(__file__)).graph
    (node,) = (n for n in graph.nodes if isinstance(n.op, ConvOp))
    windows, h200 = Windows.of(kernel), machine("sm_90")
    assert hopper.pools_in_place(graph, node, windows, h200) == (in_place < 0.95 * prepared)
    assert 0.8 < hopper.pooled_seconds(graph, node, windows, h200, False) * 1e3 / in_place < 1.2


# convolution, input shape, microseconds in TF32, whichever way was faster, and in halves
IN_HALVES = {
    "wide": (lambda: nn.Conv2d(256, 256, 3, padding=1), (10, 256, 56, 56), 136, 97),
    "deep": (lambda: nn.Conv2d(128, 128, 3, padding=1), (32, 128, 56, 56), 108, 97),
    "odd": (lambda: nn.Conv2d(37, 53, 3, padding=1), (32, 37, 99, 101), 95, 87),
    "large": (lambda: nn.Conv2d(64, 64, 3, padding=1), (32, 64, 112, 112), 138, 127),
    "3d": (lambda: nn.Conv3d(32, 64, 3), (16, 32, 18, 34, 34), 145, 111),
    "transposed, stride 2": (lambda: nn.ConvTranspose2d(64, 64, 4, 2, 1), (32, 64, 64, 64), 104, 99),
    "pointwise": (lambda: nn.Conv2d(256, 128, 1), (32, 256, 56, 56), 55, 90),
}


@pytest.mark.parametrize("name", IN_HALVES)
def test_halves_where_they_were_faster(name: str) -> None:
    build, shape, in_tf32, in_halves = IN_HALVES[name]
    with torch.device("meta"):
        graph = trace(build().eval(), (torch.empty(shape),), Path(__file__)).graph
    (node,) = (n for n in graph.nodes if isinstance(n.op, ConvOp))
    assert hopper.pays_in_halves(graph, node, None, machine("sm_90")) == (in_halves < in_tf32)
    seconds = hopper.conv_seconds(graph, node, machine("sm_90"), False, in_halves=True)
    assert 0.8 < seconds * 1e6 / in_halves < 1.2


@pytest.mark.parametrize("shape", [(64, 16, 128, 127), (64, 16, 128, 130)])
def test_rows_of_no_whole_vectors_are_prepared(shape: tuple[int, ...]) -> None:
    with torch.device("meta"):
        graph = trace(nn.Conv2d(16, 32, 3, padding=1).eval(), (torch.empty(shape),), Path(__file__)).graph
    (node,) = (n for n in graph.nodes if isinstance(n.op, ConvOp))
    assert not hopper.reads_in_place(graph, node, machine("sm_90"))


@pytest.mark.parametrize("name", MEASURED)
def test_expected_time_is_near_the_measured_one(name: str) -> None:
    build, shape, milliseconds = MEASURED[name]
    with torch.device("meta"):
        graph = trace(build().eval(), (torch.empty(shape),), Path(__file__)).graph
    (node,) = (n for n in graph.nodes if isinstance(n.op, ConvOp))
    seconds = hopper.conv_seconds(graph, node, machine("sm_90"), False)
    assert 0.66 < seconds * 1e3 / milliseconds < 1.5
