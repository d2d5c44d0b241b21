"""Clocks of TF32 products on Hopper's tensor cores: ``python benchmarks/product_clocks.py OUT.json``.

``wgmma.m64nNk8`` on all multiprocessors at once: by its columns, where its first operand comes from, products of a
batch, batches that may be on the way when the next one is made, and with loads of the operands from shared memory,
rounded in one operation. Needs nvcc and a Hopper GPU; ``--build`` only compiles.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from side_by_side import ROOT

sys.path.insert(0, str(ROOT))

import torch

from fusegen.emit.render import environment

COLUMNS = (32, 64, 128)
WAYS = (
    (True, 3, 0, False),
    (True, 3, 0, True),
    (True, 9, 0, False),
    (True, 3, 1, False),
    (False, 3, 0, False),
    (False, 9, 0, False),
    (False, 3, 1, False),
)
"""First operand in registers, products of a batch, batches on the way, and whether its operands are loaded."""


def main() -> None:
    out = Path(sys.argv[1])
    kernels = {
        f"k{i}": {"columns": n, "registers": way[0], "batch": way[1], "on_the_way": way[2], "loads": way[3]}
        for i, (n, way) in enumerate(product(COLUMNS, WAYS))
    }
    text = (
        environment()
        .from_string(Path(__file__).with_suffix(".cu.j2").read_text())
        .render(columns=COLUMNS, kernels=[{"name": name, **kernel} for name, kernel in kernels.items()])
    )
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "clocks.cu"), Path(folder, "clocks")
        source.write_text(text)
        subprocess.run(["nvcc", "-O2", "-gencode=arch=compute_90a,code=sm_90a", "-o", program, source], check=True)
        if "--build" in sys.argv:
            return
        lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
    found = []
    for name, warpgroups, clocks, tflops, ghz in map(str.split, lines):
        kernel = kernels[name]
        found.append(
            {
                "columns": kernel["columns"],
                "first_operand": "registers" if kernel["registers"] else "shared memory",
                "batch": kernel["batch"],
                "batches_on_the_way": kernel["on_the_way"],
                "loads": kernel["loads"],
                "warpgroups": int(warpgroups),
                "clocks": float(clocks),
                "tflops": int(tflops),
                "ghz": float(ghz),
            }
        )
    out.write_text(json.dumps({"device": torch.cuda.get_device_name(), "products": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
