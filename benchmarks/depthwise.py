"""Convolutions of groups of few channels and their blocks: ``python benchmarks/depthwise.py OUT.json [NAME ...]``.

Side by side (``side_by_side.py``) with eager and torch.compile.
"""

from __future__ import annotations

import sys
from pathlib import Path

from side_by_side import model_text, run

CHAINS: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "depthwise_pointwise": (
        "self.d = nn.Conv2d(96, 96, 3, padding=1, groups=96)\nself.p = nn.Conv2d(96, 128, 1)",
        "F.hardswish(self.p(F.hardswish(self.d(x))))",
        (32, 96, 112, 112),
    ),
    "depthwise": (
        "self.d = nn.Conv2d(96, 96, 3, padding=1, groups=96)",
        "F.hardswish(self.d(x))",
        (32, 96, 112, 112),
    ),
    "strided": (
        "self.d = nn.Conv2d(96, 96, 3, 2, 1, groups=96)",
        "F.relu6(self.d(x))",
        (32, 96, 112, 112),
    ),
    "wide": (
        "self.d = nn.Conv2d(96, 96, 7, padding=3, groups=96)",
        "F.gelu(self.d(x))",
        (64, 96, 56, 56),
    ),
    "small_images": (
        "self.d = nn.Conv2d(512, 512, 3, padding=1, groups=512)",
        "F.relu6(self.d(x))",
        (64, 512, 14, 14),
    ),
    "line": (
        "self.d = nn.Conv1d(512, 512, 5, padding=2, groups=512)",
        "F.silu(self.d(x))",
        (16, 512, 4096),
    ),
    "volume": (
        "self.d = nn.Conv3d(32, 32, 3, padding=1, groups=32)",
        "F.relu(self.d(x))",
        (16, 32, 16, 64, 64),
    ),
    "multiplier": (
        "self.d = nn.Conv2d(32, 96, 3, padding=1, groups=32)",
        "F.relu(self.d(x))",
        (32, 32, 112, 112),
    ),
    "groups_of_four": (
        "self.d = nn.Conv2d(64, 64, 3, padding=1, groups=16)",
        "F.relu(self.d(x))",
        (32, 64, 112, 112),
    ),
    "transposed": (
        "self.d = nn.ConvTranspose2d(64, 64, 4, 2, 1, groups=64)",
        "F.relu(self.d(x))",
        (32, 64, 56, 56),
    ),
    "batch_norm": (
        "self.d = nn.Conv2d(96, 96, 3, padding=1, groups=96, bias=False)\nself.n = nn.BatchNorm2d(96)",
        "F.hardswish(self.n(self.d(x)))",
        (32, 96, 112, 112),
    ),
    "wide_perceptron": (
        "self.d, self.n = nn.Conv2d(96, 96, 7, padding=3, groups=96), nn.LayerNorm(96)"
        "\nself.e, self.p, self.s = nn.Linear(96, 384), nn.Linear(384, 96), nn.Parameter(torch.rand(96))",
        "x + (self.s * self.p(F.gelu(self.e(self.n(self.d(x).permute(0, 2, 3, 1)))))).permute(0, 3, 1, 2)",
        (32, 96, 56, 56),
    ),
    "inverted_residual_batch_norm": (
        "self.e = nn.Conv2d(32, 192, 1, bias=False)\nself.d = nn.Conv2d(192, 192, 3, padding=1, groups=192, bias=False)"
        "\nself.p = nn.Conv2d(192, 32, 1, bias=False)"
        "\nself.n, self.m, self.o = nn.BatchNorm2d(192), nn.BatchNorm2d(192), nn.BatchNorm2d(32)",
        "x + self.o(self.p(F.relu6(self.m(self.d(F.relu6(self.n(self.e(x))))))))",
        (64, 32, 56, 56),
    ),
}


def main() -> int:
    texts = {name: model_text(init, f"return {body}", shape) for name, (init, body, shape) in CHAINS.items()}
    return run({name: texts[name] for name in sys.argv[2:] or texts}, Path(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
