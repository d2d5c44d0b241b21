"""Linear layers of many shapes on the GPU: ``python benchmarks/linears.py OUT.json``.

Few features in fp32, heavy products in 16-bit floats: errors against float64, times on a cold L2 beside eager
and beside a kernel that only moves the same bytes.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from fusegen.check import compare  # noqa: E402
from fusegen.doctor import use_environment_tools  # noqa: E402
from fusegen.probes import Probe  # noqa: E402
from fusegen.subject import call, load_generated  # noqa: E402
from fusegen.timing import interleaved  # noqa: E402
from fusegen.trace import load_model_file  # noqa: E402

ROUNDS = 25
MODEL = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear({inputs}, {outputs}, dtype=torch.{dtype})

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
from fusegen.subject import load_generated
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


CASES = (
    Case(16384, 256, 16, "torch.relu(self.linear(x))"),
    Case(65536, 512, 8, "torch.relu(self.linear(x))"),
    Case(65536, 1024, 16, "F.gelu(self.linear(x)) * 2"),
    Case(131072, 256, 4, "self.linear(x).sigmoid() * 2"),
    Case(100003, 203, 10, "torch.logsumexp(self.linear(x), 1)"),
    Case(32768, 1024, 32, "F.gelu(self.linear(x)) * 2"),
    Case(16384, 2048, 20, "torch.logsumexp(self.linear(x), 1)"),
    Case(1536, 6144, 8192, "F.gelu(self.linear(x)) * 1.5", "bfloat16"),
    Case(1536, 6144, 8192, "F.gelu(self.linear(x)) * 1.5", "float16"),
    Case(4096, 4096, 4096, "F.silu(self.linear(x)) * 1.5", "bfloat16"),
    Case(16384, 1024, 1024, "F.relu(self.linear(x)) + 1", "bfloat16"),
    Case(1024, 8192, 8192, "F.hardswish(self.linear(x)) * 2", "bfloat16"),
)


def prepare(path: Path) -> str:
    """Compile a model and build its kernels; the names of what runs."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PREPARE, str(path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def measure(case: Case, path: Path) -> dict[str, Any]:
    """Errors and times of one case."""
    torch.manual_seed(0)
    loaded = load_model_file(path)
    reference = loaded.model_class().cuda()
    generated = load_generated(path.with_name("generated_" + path.name))().cuda()
    generated.load_state_dict(reference.state_dict())
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
        for run in runs.values():
            run()
        timed = interleaved(runs, ROUNDS)
    return {
        **asdict(case),
        "microseconds": {name: round(timing.median * 1e3, 2) for name, timing in timed.items()},
        "error": found.model_dump(mode="json"),
    }


def main() -> int:
    use_environment_tools()
    entries = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"linear{i}.py" for i in range(len(CASES))]
        for path, case in zip(paths, CASES, strict=True):
            path.write_text(MODEL.format(**asdict(case)))
        with ThreadPoolExecutor(16) as pool:
            kernels = list(pool.map(prepare, paths))
        for path, case, names in zip(paths, CASES, kernels, strict=True):
            entry = {**measure(case, path), "steps": names}
            entries.append(entry)
            print(case, names, entry["microseconds"], "ok" if entry["error"]["passed"] else "FAILED", flush=True)
    Path(sys.argv[1]).write_text(
        json.dumps({"device": torch.cuda.get_device_name(), "cases": entries}, indent=1) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
