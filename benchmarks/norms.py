"""Norms, softmaxes, reductions, poolings and what surrounds them: ``python benchmarks/norms.py OUT.json [NAME ...]``.

Chains of the shapes that follow a convolution or a linear layer, on a cold L2 beside eager and torch.compile, with
the share of the time that reading the input once and writing the result once takes. Every chain is compiled in a
process of its own, by fusegen and by torch; the times are taken one chain after the other.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from fusegen.check import compare  # noqa: E402
from fusegen.compiler import compile_file  # noqa: E402
from fusegen.doctor import use_environment_tools  # noqa: E402
from fusegen.probes import Probe  # noqa: E402
from fusegen.subject import call, load_generated  # noqa: E402
from fusegen.timing import interleaved  # noqa: E402
from fusegen.trace import load_model_file  # noqa: E402

ROUNDS = 21
AT_ONCE = 24
MODEL = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = {norm}

    def forward(self, x):
        return {result}


def get_inputs():
    return [torch.randn{shape}]


def get_init_inputs():
    return []
"""
NONE = "nn.Identity()"
CHAINS: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "group_norm_hardswish": ("nn.GroupNorm(16, 64)", "F.hardswish(self.n(x))", (128, 64, 128, 128)),
    "group_norm_relu": ("nn.GroupNorm(8, 64)", "F.relu(self.n(x))", (32, 64, 128, 128)),
    "group_norm_sigmoid_mean": ("nn.GroupNorm(8, 64)", "self.n(x.relu()).sigmoid().mean((2, 3))", (32, 64, 128, 128)),
    "group_norm_3d": ("nn.GroupNorm(8, 24)", "F.hardswish(self.n(x))", (32, 24, 24, 32, 32)),
    "group_norm_features": ("nn.GroupNorm(256, 8192)", "F.silu(self.n(x))", (1024, 8192)),
    "instance_norm": ("nn.InstanceNorm2d(64)", "self.n(x) / 2", (64, 64, 128, 128)),
    "instance_norm_126": ("nn.InstanceNorm2d(64)", "F.relu(self.n(x))", (64, 64, 126, 126)),
    "instance_norm_127": ("nn.InstanceNorm2d(64)", "self.n(x) / 2", (64, 64, 127, 127)),
    "instance_norm_63": ("nn.InstanceNorm2d(64)", "self.n(x) / 2", (256, 64, 63, 63)),
    "instance_norm_14": ("nn.InstanceNorm2d(512)", "self.n(x) / 2", (256, 512, 14, 14)),
    "instance_norm_512": ("nn.InstanceNorm2d(32)", "self.n(x) / 2", (8, 32, 512, 512)),
    "instance_norm_3d": ("nn.InstanceNorm3d(32)", "F.leaky_relu(self.n(x)) + 1", (16, 32, 30, 62, 62)),
    "batch_norm_relu": ("nn.BatchNorm2d(128)", "F.relu(self.n(x))", (128, 128, 66, 66)),
    "batch_norm_tanh": ("nn.BatchNorm2d(64)", "self.n(x).tanh()", (32, 64, 128, 128)),
    "batch_norm_127": ("nn.BatchNorm2d(64)", "self.n(x).relu()", (32, 64, 127, 127)),
    "batch_norm_relu_mean": ("nn.BatchNorm2d(64)", "self.n(x).relu().mean((2, 3))", (64, 64, 128, 128)),
    "batch_norm_features": ("nn.BatchNorm1d(8192)", "F.gelu(self.n(x)).relu()", (1024, 8192)),
    "batch_norm_features_tall": ("nn.BatchNorm1d(4096)", "F.gelu(self.n(x)).relu()", (16384, 4096)),
    "layer_norm_image": ("nn.LayerNorm([64, 128, 128])", "F.gelu(self.n(x))", (32, 64, 128, 128)),
    "layer_norm_features": ("nn.LayerNorm(8192)", "F.silu(self.n(x))", (1024, 8192)),
    "rms_channels": (
        NONE,
        "x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-5)",
        (64, 64, 128, 128),
    ),
    "softmax_space": (NONE, "x.flatten(2).softmax(-1).view_as(x)", (64, 64, 128, 128)),
    "softmax_channels": (NONE, "F.sigmoid(x.softmax(1) * 2)", (64, 64, 126, 126)),
    "softmax_many_channels": (NONE, "x.softmax(1)", (16, 4096, 32, 32)),
    "softmax_features": (NONE, "F.gelu(x).softmax(-1)", (4096, 8192)),
    "gelu_mean": (NONE, "F.gelu(x).mean((2, 3))", (128, 128, 64, 64)),
    "relu_sum_rows": (NONE, "F.relu(x).sum(2)", (64, 64, 128, 128)),
    "max_channels_mean": (NONE, "x.amax(1).mean((1, 2))", (64, 64, 128, 128)),
    "sum_of_squares": (NONE, "x.square().sum()", (64, 64, 128, 128)),
    "max_pool": (NONE, "F.max_pool2d(F.relu(x), 2)", (64, 64, 128, 128)),
    "max_pool_overlapping": (NONE, "F.max_pool2d(x, 3, 2, 1).tanh()", (64, 64, 128, 128)),
    "mean_pool": (NONE, "F.avg_pool2d(F.gelu(x), 2)", (64, 64, 126, 126)),
    "max_pool_3d_sum": (NONE, "F.max_pool3d(x, 2).sum(1, keepdim=True)", (16, 32, 30, 62, 62)),
}


def measure(model: Path, turn: Path) -> dict[str, Any]:
    """Errors and times of one chain; waits for ``turn`` before it uses the GPU for more than compiling."""
    use_environment_tools()
    generated_path = model.with_name("generated_" + model.name)
    compiled = compile_file(model)
    generated_path.write_text(compiled.source)
    torch.manual_seed(0)
    loaded = load_model_file(model)
    reference = loaded.model_class().cuda()
    generated = load_generated(generated_path)().cuda()
    generated.load_state_dict(reference.state_dict())
    (x,) = (value.cuda() for value in loaded.get_inputs())
    runs: dict[str, Callable[[torch.Tensor], Any]] = {
        "eager": copy.deepcopy(reference),
        "torch.compile": torch.compile(copy.deepcopy(reference), dynamic=False),
        "generated": copy.deepcopy(generated),
    }
    with torch.no_grad():
        for run in runs.values():
            for _ in range(3):
                run(x)
        torch.cuda.synchronize()
        model.with_suffix(".ready").touch()
        while not turn.exists():
            time.sleep(0.02)
        truth = call(copy.deepcopy(reference).double(), (x.double(),))[0]
        found = compare("output", call(generated, (x,))[0], call(reference, (x,))[0], truth)
        contestants: dict[str, Callable[[], Any]] = {name: partial(run, x) for name, run in runs.items()}
        contestants["probe"] = Probe(x.nbytes, truth.nbytes // 2)
        timed = interleaved(contestants, ROUNDS)
    medians = {name: round(timing.median * 1e3, 1) for name, timing in timed.items()}
    return {
        "steps": [getattr(getattr(step, "plan", None), "name", "torch") for step in compiled.program.steps],
        "microseconds": medians,
        "share_of_probe": round(medians["probe"] / medians["generated"], 2),
        "x_compile": round(medians["torch.compile"] / medians["generated"], 2),
        "error": found.model_dump(mode="json"),
    }


def main() -> int:
    if sys.argv[1] == "--measure":
        print(json.dumps(measure(Path(sys.argv[2]), Path(sys.argv[3]))))
        return 0
    names = sys.argv[2:] or list(CHAINS)
    entries: dict[str, Any] = {}
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1", "FUSEGEN_STRICT": "1"}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for first in range(0, len(names), AT_ONCE):
            running = {}
            for name in names[first : first + AT_ONCE]:
                norm, result, shape = CHAINS[name]
                model = folder / f"{name}.py"
                model.write_text(MODEL.format(norm=norm, result=result, shape=shape))
                command = [
                    sys.executable,
                    "-W",
                    "ignore",
                    __file__,
                    "--measure",
                    str(model),
                    str(folder / f"{name}.go"),
                ]
                running[name] = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
            while any(p.poll() is None and not (folder / f"{name}.ready").exists() for name, p in running.items()):
                time.sleep(0.1)
            for name, process in running.items():
                (folder / f"{name}.go").touch()
                output, _ = process.communicate()
                if process.returncode:
                    print(name, "FAILED", flush=True)
                    continue
                norm, result, shape = CHAINS[name]
                entry = {"norm": norm, "result": result, "shape": shape, **json.loads(output.splitlines()[-1])}
                entries[name] = entry
                verdict = "ok" if entry["error"]["passed"] else "INACCURATE"
                print(name, verdict, entry["microseconds"], entry["share_of_probe"], entry["x_compile"], flush=True)
                Path(sys.argv[1]).write_text(
                    json.dumps({"device": torch.cuda.get_device_name(), "chains": entries}, indent=1) + "\n"
                )
    return 0 if len(entries) == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
