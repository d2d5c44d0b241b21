"""Which convolutions cuDNN computes in TF32 where torch permits it: ``python tf32_classes.py OUT.json [KIND ...]``.

Few channels, several groups, many channels to few outputs, along one axis or three, skipping, transposed. A tap of
one and data of 1 + 2^-12, which TF32 rounds to one, tell. Beside them, what cuDNN takes on a cold L2 for groups, for
planes of no whole accesses and for kernels that lie side by side.
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
Case = tuple[Sizes, Sizes, int, int, int] | tuple[Sizes, Sizes, int, int, int, int, bool]
"""Shapes of data and weights, stride, padding, groups; dilation and whether it is transposed."""
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
TIMED_GROUPS: tuple[Case, ...] = tuple(
    ((n, c * g, side, side), (o * g, c, k, k), stride, k // 2, g)
    for n, c, o, g, k, side, stride in (
        (32, 80, 20, 3, 1, 56, 1),
        (32, 20, 80, 3, 1, 56, 1),
        (64, 40, 40, 4, 1, 28, 1),
        (64, 128, 128, 2, 1, 28, 1),
        (32, 32, 64, 8, 1, 28, 2),
        (16, 64, 64, 2, 1, 112, 1),
        (128, 60, 60, 4, 1, 14, 1),
        (32, 32, 32, 8, 3, 28, 1),
        (32, 64, 64, 4, 3, 56, 1),
        (64, 16, 16, 8, 3, 56, 2),
        (32, 24, 24, 8, 3, 56, 1),
        (32, 16, 32, 2, 3, 56, 1),
        (32, 48, 48, 2, 5, 28, 1),
    )
)


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


def groups_of_many() -> Iterator[Case]:
    for c in (16, 20, 24, 32, 40, 48, 64, 80, 96, 128):
        for o in (16, 20, 32, 64, 80, 128):
            for g in (2, 3, 4, 8):
                for k in (1, 3, 5):
                    for stride, side in ((1, 14), (1, 56), (2, 56)):
                        yield (32, c * g, side, side), (o * g, c, k, k), stride, k // 2, g


def lines() -> Iterator[Case]:
    for c in (16, 24, 32, 48, 64, 96, 128, 256):
        for o in (16, 32, 64, 128, 256):
            for k in (1, 3, 7):
                for length in (128, 2048):
                    for stride in (1, 2):
                        yield (32, c, length), (o, c, k), stride, k // 2, 1


def volumes() -> Iterator[Case]:
    for c in (16, 24, 32, 48, 64, 96):
        for o in (8, 16, 32, 64):
            for k in (1, 3, 5):
                for stride in (1, 2):
                    yield (8, c, 16, 28, 28), (o, c, k, k, k), stride, k // 2, 1


def skipping() -> Iterator[Case]:
    for c in (16, 32, 64, 96, 128, 320):
        for o in (16, 32, 64, 96):
            for dilation in (2, 4, 12):
                for side in (33, 64):
                    yield (16, c, side, side), (o, c, 3, 3), 1, dilation, 1, dilation, False


def transposed() -> Iterator[Case]:
    for c in (3, 8, 16, 24, 32, 48, 64, 128):
        for o in (3, 8, 16, 24, 32, 64, 128):
            for k, stride in ((2, 2), (3, 1), (3, 2), (3, 3), (4, 2), (5, 1), (5, 2), (5, 3), (7, 2)):
                for samples, side in ((16, 32), (64, 64)):
                    for g in (1, 2):
                        yield (samples, c * g, side, side), (c * g, o, k, k), stride, 0, g, 1, True
                for samples, side in ((8, 12), (16, 24)) if k < 7 else ():
                    for g in (1, 2):
                        yield (samples, c * g, side // 2, side, side), (c * g, o, k, k, k), stride, 0, g, 1, True
            for k, stride in ((3, 1), (4, 2), (9, 3)):
                yield (32, c, 1024), (c, o, k), stride, 0, 1, 1, True


def rounds(case: Case) -> bool:
    """Whether cuDNN rounds the operands of a convolution to TF32."""
    x, w, stride, padding, count, *rest = case
    dilation, transposed = rest or (1, False)
    rank = len(x) - 2
    tap = torch.zeros(w, device="cuda")
    tap[(0,) * len(w)] = 1.0
    data = torch.full(x, 1 + 2.0**-12, device="cuda")
    structure = ([stride] * rank, [padding] * rank, [dilation] * rank, bool(transposed), [0] * rank, count)
    return bool(torch.convolution(data, tap, None, *structure).amax().item() < 1 + 2.0**-13)


def side_by_side(samples: int, channels: int, outputs: int, side: int, kernel: int = 1) -> Case:
    return (samples, channels, side, side), (outputs, channels, kernel, kernel), kernel, 0, 1


def microseconds(case: Case) -> float:
    x, w = (torch.randn(sizes, device="cuda") for sizes in case[:2])
    call = partial(torch.conv2d, x, w, stride=case[2], padding=case[3], groups=case[4])
    return round(interleaved({"cuDNN": call}, ROUNDS)["cuDNN"].median * 1e3, 1)


def named(case: Case) -> str:
    rest = f" dilation {case[5]}{' transposed' if case[6] else ''}" if len(case) == 7 else ""
    return f"{list(case[0])} {list(case[1])} stride {case[2]} groups {case[4]}{rest}"


KINDS = {
    "few channels": few_channels,
    "many channels": many_channels,
    "groups": groups,
    "groups of many": groups_of_many,
    "lines": lines,
    "volumes": volumes,
    "skipping": skipping,
    "transposed": transposed,
}


def main() -> None:
    kinds = sys.argv[2:] or KINDS
    classes = {kind: {named(case): rounds(case) for case in KINDS[kind]()} for kind in kinds}
    result = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "in TF32": classes,
        "groups, us": {named(case): microseconds(case) for case in TIMED_GROUPS},
    }
    if not sys.argv[2:]:
        result["one tap, us"] = {str(list(case)): microseconds(side_by_side(*case)) for case in ONE_TAP}
        result["side by side, us"] = {str(list(case)): microseconds(side_by_side(*case)) for case in SIDE_BY_SIDE}
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
