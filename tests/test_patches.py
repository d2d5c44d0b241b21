"""Convolutions whose kernels lie side by side are products of patches, where these are rows or have many elements."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusegen.compiler import compile_file
from fusegen.ir import ConvOp, MatmulOp
from tests.models import all_nodes, check_in_double, write

TAKEN = {
    "tokens": (
        "nn.Conv2d(3, 8, 4, 4)",
        "F.layer_norm(y.flatten(2).transpose(1, 2), (8,))",
        [(2, 3, 8, 12), (1, 3, 11, 15)],
    ),
    "channels_normalised": ("nn.Conv2d(3, 8, 2, 2)", "y.relu().softmax(1)", [(2, 3, 8, 6), (3, 3, 3, 5)]),
    "many_terms": ("nn.Conv2d(3, 5, 8, 8)", "F.gelu(y)", [(2, 3, 16, 24), (1, 3, 17, 9)]),
    "volume": (
        "nn.Conv3d(2, 6, (2, 4, 4), (2, 4, 4))",
        "y.permute(0, 2, 3, 4, 1) @ p",
        [(2, 2, 4, 8, 8), (1, 2, 3, 5, 9)],
    ),
    "waveform": ("nn.Conv1d(1, 6, 160, 160, bias=False)", "y.tanh()", [(3, 1, 640), (1, 1, 799)]),
}
"""By name: the layer, what follows its result ``y``, and shapes of ``x``: the first is the file's."""


@pytest.mark.parametrize("name", TAKEN)
def test_patches_are_rows_of_a_product(name: str, tmp_path: Path) -> None:
    layer, after, shapes = TAKEN[name]
    init = f"self.conv = {layer}\nself.p = nn.Parameter(torch.randn(6, 4))"
    path = write(tmp_path, f"p, y = self.p, self.conv(x)\nreturn {after}", init, f"torch.rand{shapes[0]}")
    compiled = compile_file(path)
    kinds = [type(node.op) for node in all_nodes(compiled)]
    assert MatmulOp in kinds
    assert ConvOp not in kinds
    check_in_double(compiled, path, [[torch.randn(shape)] for shape in shapes])


@pytest.mark.parametrize(
    ("layer", "after"),
    [
        ("nn.Conv2d(3, 8, 4, 4)", "F.gelu(y)"),
        ("nn.Conv2d(3, 8, 8, 8)", "F.gelu(y).mean((2, 3))"),
        ("nn.Conv2d(3, 8, 8, 8)", "F.max_pool2d(y, 2)"),
        ("nn.Conv2d(64, 8, 2, 2)", "y.softmax(1)"),
        ("nn.Conv2d(3, 8, 8, 8, padding=1)", "F.gelu(y)"),
        ("nn.Conv2d(3, 8, 8, 7)", "F.gelu(y)"),
        ("nn.Conv2d(3, 9, 8, 8, groups=3)", "F.gelu(y)"),
    ],
)
def test_what_stays_a_convolution(layer: str, after: str, tmp_path: Path) -> None:
    """Few terms, of which nothing reads rows; what reduces positions; TF32, overlaps and gaps."""
    channels = layer.partition("(")[2].partition(",")[0]
    path = write(
        tmp_path, f"y = self.conv(x)\nreturn {after}", f"self.conv = {layer}", f"torch.rand(2, {channels}, 32, 48)"
    )
    assert ConvOp in [type(node.op) for node in all_nodes(compile_file(path))]
