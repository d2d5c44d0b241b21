"""Which convolutions cuDNN computes in TF32 where torch permits it: ``python tf32_classes.py OUT.json``.

Few channels, several groups, many channels to few outputs. A tap of one and data of 1 + 2^-12, which TF32 rounds to
one, tell. Beside them, what cuDNN takes on a cold L2 for planes of no whole accesses and for kernels that lie side by
side.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from fusegen.verdict.timing import interleaved

ROUNDS = 9
Sizes = tuple[int, ...]
Case = tuple[Sizes, Sizes, int, int, int]
"""Shapes of data and weights, stride, padding, groups."""
ONE_TAP: tuple[Sizes, ...] = (
    (64, 768, 192, 17),
    (64, 768, 160, 17),
    (64, 160, 192, 17),
    (32, 512, 2048, 7),
    (32, 2048, 512, 7),
    (128, 2048, 512, 7),
    (64, 1024, 256, 14),
    (64, 256, 1024, 14),
    (64, 1280, 320, 7),
    (64, 320, 1280, 7),
    (128, 96, 576, 7),
    (64, 256, 128, 35),
    (64, 288, 64, 35),
    (64, 192, 48, 35),
    (32, 832, 256, 7),
    (64, 480, 192, 14),
    (64, 512, 112, 13),
    (64, 128, 256, 27),
    (64, 64, 192, 55),
)
"""Samples, channels, outputs, side."""
SIDE_BY_SIDE: tuple[Sizes, ...] = (
    (64, 3, 768, 224, 16),
    (128, 3, 256, 224, 16),
    (32, 3, 768, 224, 16),
    (64, 3, 96, 224, 4),
    (64, 3, 1024, 224, 14),
    (64, 3, 768, 384, 32),
    (16, 1, 512, 512, 16),
    (128, 3, 512, 32, 4),
    (64, 64, 128, 56, 2),
    (64, 96, 192, 56, 2),
    (64, 3, 384, 224, 8),
)
"""Samples, channels, outputs, side, kernel."""


def few_channels() -> Iterator[Case]:
    for c in (1, 2, 3, 4, 6, 8, 12, 15):
        for k in (1, 3, 4, 5, 7, 11):
            for o in (4, 8, 16, 32, 64, 96, 128):
                for stride in (1, 2):
                    for samples, side in ((16, 64), (128, 128)):
                        yield (samples, c, side, side), (o, c, k, k), stride, k // 2, 1
    for c in (1, 3, 4, 8, 12):
        for k in (1, 2, 3, 5):
            for o in (8, 16, 32, 48, 64):
                for stride in (1, 2):
                    yield (16, c, 16, 48, 48), (o, c, k, k, k), stride, k // 2, 1
    for c in (1, 4, 8, 12):
        for k in (3, 5, 9, 25):
            for o in (8, 16, 32, 64, 128):
                yield (32, c, 8192), (o, c, k), 1, k // 2, 1


def many_channels() -> Iterator[Case]:
    for c in (16, 24, 32, 48, 64, 96, 128, 256):
        for k in (1, 3, 5):
            for side in (7, 14, 28, 56):
                for o in (8, 12, 16, 24, 32, 40, 48, 60, 64, 96):
                    yield (32, c, side, side), (o, c, k, k), 1, k // 2, 1


def groups() -> Iterator[Case]:
    pairs = ((2, 2), (3, 6), (4, 4), (4, 8), (4, 16), (6, 6), (8, 4), (8, 8), (8, 12), (12, 12))
    for c, o in (*pairs, (16, 8), (16, 16), (16, 32), (32, 32)):
        for k in (1, 3, 5):
            for stride in (1, 2):
                for g in (2, 4, 8, 16, 32):
                    yield (32, c * g, 56, 56), (o * g, c, k, k), stride, k // 2, g
                for g in (2, 4, 8):
                    yield (8, c * g, 16, 24, 24), (o * g, c, k, k, k), stride, k // 2, g


def rounds(case: Case) -> bool:
    """Whether cuDNN rounds the operands of a convolution to TF32."""
    x, w, stride, padding, count = case
    rank = len(x) - 2
    tap = torch.zeros(w, device="cuda")
    tap[(0,) * len(w)] = 1.0
    data = torch.full(x, 1 + 2.0**-12, device="cuda")
    structure = ([stride] * rank, [padding] * rank, [1] * rank, False, [0] * rank, count)
    return bool(torch.convolution(data, tap, None, *structure).amax().item() < 1 + 2.0**-13)


def microseconds(samples: int, channels: int, outputs: int, side: int, kernel: int = 1) -> float:
    x = torch.randn(samples, channels, side, side, device="cuda")
    w = torch.randn(outputs, channels, kernel, kernel, device="cuda")
    found = interleaved({"cuDNN": partial(torch.conv2d, x, w, stride=kernel)}, ROUNDS)
    return round(found["cuDNN"].median * 1e3, 1)


def main() -> None:
    kinds = {"few channels": few_channels(), "many channels": many_channels(), "groups": groups()}
    classes = {
        kind: {f"{list(case[0])} {list(case[1])} stride {case[2]} groups {case[4]}": rounds(case) for case in cases}
        for kind, cases in kinds.items()
    }
    result = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "in TF32": classes,
        "one tap, us": {str(list(case)): microseconds(*case) for case in ONE_TAP},
        "side by side, us": {str(list(case)): microseconds(*case) for case in SIDE_BY_SIDE},
    }
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
