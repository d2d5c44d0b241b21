"""How often sums should leave the tensor cores: ``python benchmarks/promotions.py OUT.json``.

Products in full fp32 whose rows are split in place (``_gemm_in_place.cu.j2``), promoted after every 1, 2 and 4 steps of
16 of k. Factors of one sign show truncation, which takes from every sum towards zero. Errors are against float64,
times (µs) side by side with eager in turns.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from functools import partial
from pathlib import Path

from side_by_side import HEADER, ROOT

sys.path.insert(0, str(ROOT))

import torch
from variants import of_its_own

from fusegen.compiler import compile_file
from fusegen.doctor import use_environment_tools
from fusegen.verdict.check import run_set
from fusegen.verdict.subject import model_subject
from fusegen.verdict.timing import interleaved

PRODUCTS = {
    "64x512x1024 positive": ("rand", (64, 512), (512, 1024)),
    "64x512x1024 normal": ("randn", (64, 512), (512, 1024)),
    "64x2048x1024 positive": ("rand", (64, 2048), (2048, 1024)),
    "512x512x2048 positive": ("rand", (512, 512), (512, 2048)),
    "4x256x256x512 positive": ("rand", (4, 256, 256), (4, 256, 512)),
}
STEPS = (1, 2, 4)
_PROMOTED = re.compile(r"PROMOTED = PRECISE \? \d+")


def model(draw: str, x: tuple[int, ...], y: tuple[int, ...]) -> str:
    forward = "class Model(nn.Module):\n    def forward(self, x, y):\n        return torch.matmul(x, y) * 0.5\n"
    inputs = f"def get_inputs():\n    return [torch.{draw}({x}), torch.{draw}({y})]\n"
    return f"{HEADER}\n\n{forward}\n\n{inputs}\n\ndef get_init_inputs():\n    return []\n"


def measure(path: Path) -> dict[str, object]:
    source = compile_file(path).source
    runs = {}
    for steps in STEPS:
        text, found = _PROMOTED.subn(f"PROMOTED = PRECISE ? {steps}", source)
        if not found:
            raise SystemExit(f"{path.stem} is not split in place")
        generated = path.with_name(f"generated_{steps}_{path.name}")
        generated.write_text(of_its_own(text, str(steps)))
        subject = model_subject(path, generated)
        runs[str(steps)] = subject.build(subject.generated, "cuda")
    eager = subject.build(subject.reference, "cuda")
    inputs = tuple(x.cuda() for x in subject.inputs())
    with torch.no_grad():
        errors = {steps: run_set("inputs", (eager, run), inputs).outputs[0] for steps, run in runs.items()}
        every = {"eager": partial(eager, *inputs), **{steps: partial(run, *inputs) for steps, run in runs.items()}}
        times = {name: round(time.median * 1e3, 2) for name, time in interleaved(every, 21).items()}
    return {"microseconds": times, "errors": {steps: error.model_dump() for steps, error in errors.items()}}


def main() -> None:
    use_environment_tools()
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{name.replace(' ', '_')}.py" for name in PRODUCTS}
        for name, path in paths.items():
            path.write_text(model(*PRODUCTS[name]))
        found = {}
        for name, path in paths.items():
            found[name] = measure(path)
            print(name, found[name], flush=True)
    device = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    Path(sys.argv[1]).write_text(json.dumps({**device, "products": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
