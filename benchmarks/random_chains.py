"""Random models side by side: ``python benchmarks/random_chains.py OUT.json large|round|small SEED[-SEED] ...``.

The models of ``tests/chains.py``, which its seeds replay: nobody chose them. The small ones are those of the tests,
and measure launches; the large ones measure bytes and products, those of round sizes too.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

from side_by_side import ROOT, run

sys.path.insert(0, str(ROOT))

from tests.chains import LARGE, ROUND, SMALL, chain

SIZES = {"large": LARGE, "round": ROUND, "small": SMALL}


def seeds(ranges: list[str]) -> Iterator[int]:
    for text in ranges:
        first, _, last = text.partition("-")
        yield from range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    out, which, *ranges = sys.argv[1:]
    models = {f"{which}_{seed}": chain(random.Random(seed), SIZES[which]).text() for seed in seeds(ranges)}
    sys.exit(run(models, Path(out)))
