"""Linear layers of many shapes on the GPU: ``python benchmarks/linears.py OUT.json [--group NAME ...]``.

Few features in fp32, heavy products in 16-bit floats, weights stored as [inputs, outputs]: errors against float64,
times on a cold L2 beside eager, beside torch.compile and a kernel that only moves the same bytes, and beside what
another checkout of fusegen generates.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from fusegen.doctor import use_environment_tools  # noqa: E402
from fusegen.trace import load_model_file  # noqa: E402
from fusegen.verdict.check import compare  # noqa: E402
from fusegen.verdict.probes import Probe  # noqa: E402
from fusegen.verdict.subject import call, load_generated  # noqa: E402
from fusegen.verdict.timing import interleaved  # noqa: E402

ROUNDS = 25
MODEL = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        return {result}


def get_inputs():
    return [torch.rand({rows}, {inputs}, dtype=torch.{dtype})]


def get_init_inputs():
    return []
"""
PREPARE = """
import sys
from pathlib import Path
from fusegen import compile_file
from fusegen.verdict.subject import load_generated
model = Path(sys.argv[1])
found = compile_file(model)
generated = model.with_name("generated_" + model.name)
generated.write_text(found.source)
load_generated(generated).__init__.__globals__["_fusegen_load"](0)
print([getattr(getattr(step, "plan", None), "name", "torch") for step in found.program.steps])
"""


@dataclass(frozen=True)
class Case:
    rows: int
    inputs: int
    outputs: int
    result: str
    dtype: str = "float32"

    @property
    def text(self) -> str:
        """The model file."""
        init = f"self.linear = nn.Linear({self.inputs}, {self.outputs}, dtype=torch.{self.dtype})"
        if "self.weight" in self.result:
            sizes = f"{self.inputs}, {self.outputs}, dtype=torch.{self.dtype}"
            init = f"self.weight = nn.Parameter((torch.rand({sizes}) * 2 - 1) / {self.inputs} ** 0.5)"
        return MODEL.format(**asdict(self), init=init)


FEW = (
    Case(16384, 256, 16, "torch.relu(self.linear(x))"),
    Case(65536, 512, 8, "torch.relu(self.linear(x))"),
    Case(65536, 1024, 16, "F.gelu(self.linear(x)) * 2"),
    Case(131072, 256, 4, "self.linear(x).sigmoid() * 2"),
    Case(100003, 203, 10, "torch.logsumexp(self.linear(x), 1)"),
    Case(32768, 1024, 32, "F.gelu(self.linear(x)) * 2"),
    Case(16384, 2048, 20, "torch.logsumexp(self.linear(x), 1)"),
)
HALVES = (
    Case(1536, 6144, 8192, "F.gelu(self.linear(x)) * 1.5", "bfloat16"),
    Case(1536, 6144, 8192, "F.gelu(self.linear(x)) * 1.5", "float16"),
    Case(4096, 4096, 4096, "F.silu(self.linear(x)) * 1.5", "bfloat16"),
    Case(16384, 1024, 1024, "F.relu(self.linear(x)) + 1", "bfloat16"),
    Case(1024, 8192, 8192, "F.hardswish(self.linear(x)) * 2", "bfloat16"),
)
WEIGHTS = (
    Case(2048, 4096, 4096, "F.gelu(x @ self.weight) * 2"),
    Case(2048, 4096, 4096, "F.gelu(self.linear(x)) * 2"),
    Case(1536, 6144, 8192, "F.gelu(x @ self.weight) * 1.5"),
    Case(16384, 1024, 1024, "F.relu(torch.einsum('bk,kn->bn', x, self.weight)) + 1"),
    Case(1024, 8192, 8192, "torch.logsumexp(x @ self.weight, 1)"),
    Case(1000, 2047, 3001, "F.gelu(x @ self.weight) * 2"),
    Case(65536, 512, 8, "torch.relu(x @ self.weight)"),
    Case(1536, 6144, 8192, "F.gelu(x @ self.weight) * 1.5", "bfloat16"),
    Case(4096, 4096, 4096, "F.silu(x @ self.weight) * 1.5", "float16"),
)
GROUPS = {"few": FEW, "halves": HALVES, "weights": WEIGHTS}


def prepare(path: Path, tree: Path) -> str:
    """Compile a model with the fusegen in ``tree`` and build its kernels; the names of what runs."""
    command = [sys.executable, "-W", "ignore", "-c", PREPARE, str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def measure(case: Case, path: Path, before: Path | None, compiled: bool) -> dict[str, Any]:
    """Errors and times of one case, ``before`` being the model file that another fusegen has compiled."""
    torch.manual_seed(0)
    loaded = load_model_file(path)
    reference = loaded.model_class().cuda()
    generated, *others = (
        load_generated(file.with_name("generated_" + file.name))().cuda() for file in (path, before) if file
    )
    for module in (generated, *others):
        module.load_state_dict(reference.state_dict())
    (x,) = (value.cuda() for value in loaded.get_inputs())
    part = x[:4096]
    truth = call(copy.deepcopy(reference).double(), (part.double(),))[0]
    found = compare("output", call(generated, (part,))[0], call(reference, (part,))[0], truth)
    output = call(generated, (x,))[0]
    read = sum(t.nbytes for t in (x, *reference.parameters()))
    with torch.no_grad():
        runs: dict[str, Callable[[], Any]] = {
            "eager": lambda: reference(x),
            "generated": lambda: generated(x),
            "probe": Probe(read, output.nbytes),
        }
        if others:
            runs["generated before"] = lambda: others[0](x)
        if compiled:
            torch._dynamo.reset()
            optimised = torch.compile(reference)
            runs["torch.compile"] = lambda: optimised(x)
        for run in runs.values():
            run()
        timed = interleaved(runs, ROUNDS)
    return {
        **asdict(case),
        "microseconds": {name: round(timing.median * 1e3, 2) for name, timing in timed.items()},
        "error": found.model_dump(mode="json"),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--group", choices=GROUPS, action="append", help="default: all")
    parser.add_argument("--before", type=Path, help="a checkout of fusegen to compare with")
    parser.add_argument("--compile", action="store_true", help="time torch.compile too")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    use_environment_tools()
    cases = [case for name in options.group or GROUPS for case in GROUPS[name]]
    trees = [ROOT, *([options.before.resolve()] if options.before else [])]
    entries = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [[Path(folder) / f"linear{i}_{tree}.py" for i in range(len(cases))] for tree in range(len(trees))]
        for files in paths:
            for file, case in zip(files, cases, strict=True):
                file.write_text(case.text)
        with ThreadPoolExecutor(16) as pool:
            kernels, *_ = [
                list(names) for names in [pool.map(prepare, p, repeat(t)) for p, t in zip(paths, trees, strict=True)]
            ]
        for (path, *others), case, names in zip(zip(*paths, strict=True), cases, kernels, strict=True):
            entry = {**measure(case, path, next(iter(others), None), options.compile), "steps": names}
            entries.append(entry)
            print(case, names, entry["microseconds"], "ok" if entry["error"]["passed"] else "FAILED", flush=True)
            device = torch.cuda.get_device_name()
            options.out.write_text(json.dumps({"device": device, "cases": entries}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
