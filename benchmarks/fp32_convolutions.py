"""Convolutions that eager computes in full fp32, alone and with a tail: ``fp32_convolutions.py FOLDER``.

Writes the model files; ``benchmarks/run.py OUT FOLDER/*.py --no-check`` times them.
"""

from __future__ import annotations

import sys
from pathlib import Path

CASES = {
    "conv2d_8_64": ("nn.Conv2d(8, 64, 3, padding=1)", "F.hardswish(y)", (128, 8, 256, 256)),
    "conv2d_12_96": ("nn.Conv2d(12, 96, 3, padding=1)", "F.gelu(y)", (64, 12, 160, 160)),
    "conv2d_3_64": ("nn.Conv2d(3, 64, 3, padding=1)", "F.relu(y) * 2", (64, 3, 256, 256)),
    "conv2d_3_64_k7": ("nn.Conv2d(3, 64, 7, 2, 3)", "F.relu(y)", (128, 3, 224, 224)),
    "conv2d_1_32_k5": ("nn.Conv2d(1, 32, 5)", "torch.tanh(y)", (64, 1, 256, 256)),
    "conv2d_patches": ("nn.Conv2d(3, 256, 16, 16)", "F.gelu(y)", (64, 3, 384, 384)),
    "conv2d_groups": ("nn.Conv2d(64, 128, 3, padding=1, groups=8)", "F.hardswish(y)", (32, 64, 128, 128)),
    "conv1d_8_64": ("nn.Conv1d(8, 64, 9)", "F.silu(y)", (64, 8, 65536)),
    "conv3d_3_16": ("nn.Conv3d(3, 16, 3)", "F.gelu(y) * 2", (64, 3, 24, 64, 64)),
    "conv3d_3_16_softmax": ("nn.Conv3d(3, 16, 3)", "y.softmax(1)", (128, 3, 16, 32, 32)),
    "conv3d_3_32": ("nn.Conv3d(3, 32, 3)", "F.hardswish(y)", (32, 3, 32, 64, 64)),
    "conv2d_8_64_min": ("nn.Conv2d(8, 64, 3)", "torch.tanh(torch.min(y, dim=1, keepdim=True)[0])", (96, 8, 300, 300)),
}
"""By name: the convolution, what follows it, the shape of the input."""

MODEL = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = {conv}

    def forward(self, x):
        y = self.conv(x)
        return {tail}


def get_inputs():
    return [torch.rand({shape})]


def get_init_inputs():
    return []
"""


def write_models(folder: Path) -> None:
    """Two model files for every case: ``NAME.py`` and ``NAME_alone.py``, the convolution by itself."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (conv, tail, shape) in CASES.items():
        for suffix, result in (("", tail), ("_alone", "y")):
            text = MODEL.format(conv=conv, tail=result, shape=", ".join(map(str, shape)))
            (folder / f"{name}{suffix}.py").write_text(text)


if __name__ == "__main__":
    write_models(Path(sys.argv[1]))
