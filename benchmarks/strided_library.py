"""cuDNN's strided convolutions, as they are called and in channels last: ``python strided_library.py OUT.json``.

Beside each what ``fusegen.costs.library`` expects, on a cold L2. Sizes are drawn from a fixed seed.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from functools import partial
from pathlib import Path

import torch

from fusegen.costs import library
from fusegen.ir import ConvOp
from fusegen.machines import MACHINES
from fusegen.trace import trace
from fusegen.verdict.timing import interleaved

ROUNDS, CASES, SEED = 7, 44, 7
FIRST = [(147, 5, 3), (144, 5, 3), (147, 3, 3), (147, 3, 2), (147, 5, 1), (147, 5, 2)]
"""Side of the plane, kernel and stride, of 32 samples, 64 channels to 64."""
Case = tuple[int, int, int, int, int, int, int, int]


def cases() -> list[Case]:
    """Samples, channels, height, width, outputs, kernel, stride and padding."""
    rng = random.Random(SEED)
    found: list[Case] = [(32, 64, side, side, 64, kernel, stride, 0) for side, kernel, stride in FIRST]
    while len(found) < CASES:
        c = rng.choice([16, 24, 32, 48, 64, 96, 128, 192, 256])
        o = rng.choice([16, 32, 48, 64, 96, 128, 256])
        k, s = rng.choice([2, 3, 4, 5, 7]), rng.choice([2, 2, 3, 4])
        p, h = rng.choice([0, 1, k // 2]), rng.randint(28, 200)
        w, n = rng.choice([h, rng.randint(28, 200)]), rng.choice([8, 16, 32, 64])
        flops = 2 * n * o * (h // s) * (w // s) * c * k * k
        if n * c * h * w < 6e7 and 2e9 < flops < 6e10:
            found.append((n, c, h, w, o, k, s, p))
    return found


def expected(case: Case) -> float:
    """Seconds that the library is expected to take."""
    n, c, h, w, o, k, s, p = case
    with torch.device("meta"):
        layer, x = torch.nn.Conv2d(c, o, k, s, p, bias=False), torch.zeros(n, c, h, w)
        graph = trace(layer, (x,), Path(__file__)).graph
    (node,) = [node for node in graph.nodes if isinstance(node.op, ConvOp)]
    return library.seconds(graph, node, MACHINES["sm_90"])


def measured(case: Case) -> dict[str, float]:
    """Microseconds of the convolution as torch calls it, and of the same one in channels last."""
    n, c, h, w, o, k, s, p = case
    layer = torch.nn.Conv2d(c, o, k, s, p, bias=False).cuda()
    turned: torch.nn.Module = copy.deepcopy(layer)
    turned = turned.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.rand(n, c, h, w, device="cuda")
    last = x.to(memory_format=torch.channels_last)
    with torch.no_grad():
        timed = interleaved({"us": partial(layer, x), "channels_last": partial(turned, last)}, ROUNDS)
    return {name: round(time.median * 1e3, 1) for name, time in timed.items()}


def main() -> None:
    facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    found = [{"case": case, **measured(case), "expected": round(expected(case) * 1e6, 1)} for case in cases()]
    Path(sys.argv[1]).write_text(json.dumps({**facts, "cases": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
