"""Reductions along some of a convolution's axes, in its kernel and apart: ``python sweeps.py OUT.json [NAME ...]``.

Each model planned in both ways, interleaved with eager and torch.compile on a cold L2, held to the tolerance of
``fusegen check``. It shows what the expected times of ``spaces/convsweep.py`` choose between.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from kernel_choices import measured
from side_by_side import model_text

from fusegen.compiler import compile_file
from fusegen.doctor import use_environment_tools
from fusegen.spaces import convsweep
from fusegen.verdict.subject import model_subject

MODELS = {
    "3d_3_24_depth": ("nn.Conv3d(3, 24, 3)", "self.m(x).min(2).values.softmax(1)", (128, 3, 24, 32, 32)),
    "3d_3_24_height": ("nn.Conv3d(3, 24, 3)", "self.m(x).amax(3)", (128, 3, 24, 32, 32)),
    "3d_3_24_width": ("nn.Conv3d(3, 24, 3)", "self.m(x).amax(4)", (128, 3, 24, 32, 32)),
    "3d_16_32_depth": ("nn.Conv3d(16, 32, 3)", "self.m(x).amax(2).tanh()", (16, 16, 24, 48, 48)),
    "3d_32_64_depth": ("nn.Conv3d(32, 64, 3)", "self.m(x).amin(2)", (16, 32, 16, 32, 32)),
    "3d_64_64_plane": ("nn.Conv3d(64, 64, 3)", "self.m(x).amax((3, 4))", (16, 64, 12, 24, 24)),
    "2d_3_64_width": ("nn.Conv2d(3, 64, 7, 2, 3)", "self.m(x).amax(3)", (64, 3, 224, 224)),
    "2d_3_128_width": ("nn.Conv2d(3, 128, 3, 2, 2)", "self.m(x).amax(3, True) * -1.5", (64, 3, 112, 89)),
    "2d_16_64_height": ("nn.Conv2d(16, 64, 3)", "self.m(x).amax(2)", (64, 16, 128, 128)),
    "2d_32_64_height": ("nn.Conv2d(32, 64, 3)", "self.m(x).sin().amax(2)", (64, 32, 96, 96)),
    "2d_64_128_width": ("nn.Conv2d(64, 128, 3)", "self.m(x).amax(3)", (64, 64, 64, 64)),
    "2d_64_64_plane": ("nn.Conv2d(64, 64, 3)", "self.m(x).amax((2, 3))", (128, 64, 48, 48)),
    "t2d_96_64_width": ("nn.ConvTranspose2d(96, 64, 3)", "self.m(x).amin(3)", (16, 96, 139, 78)),
    "t2d_8_128_width": ("nn.ConvTranspose2d(8, 128, 3, 3)", "self.m(x).amax(3).abs() - 1.5", (8, 8, 26, 37)),
    "t2d_32_64_height": ("nn.ConvTranspose2d(32, 64, 4, 2, 1)", "self.m(x).amax(2)", (32, 32, 64, 64)),
    "t3d_32_16_depth": ("nn.ConvTranspose3d(32, 16, 3, 2, 1)", "self.m(x).amax(2).softmax(1)", (16, 32, 16, 32, 32)),
    "1d_8_32": ("nn.ConvTranspose1d(8, 32, 3, dilation=2)", "(self.m(x) / -1.5).min(2).values", (32, 8, 7720)),
    "1d_64_128": ("nn.Conv1d(64, 128, 3)", "self.m(x).amax(2)", (64, 64, 4096)),
    "3d_3_24_mean_depth": ("nn.Conv3d(3, 24, 3)", "F.gelu(self.m(x)).mean(2).softmax(1)", (128, 3, 24, 32, 32)),
    "2d_16_64_sum_height": ("nn.Conv2d(16, 64, 3)", "F.silu(self.m(x)).sum(2)", (64, 16, 128, 128)),
    "2d_3_32_mean_plane": ("nn.Conv2d(3, 32, 3)", "F.gelu(self.m(x)).mean((2, 3))", (512, 3, 30, 30)),
    "t2d_8_128_mean_width": ("nn.ConvTranspose2d(8, 128, 3, 3)", "self.m(x).relu().mean(3)", (8, 8, 26, 37)),
    "depthwise_3": ("nn.Conv2d(64, 64, 3, padding=1, groups=64)", "F.silu(self.m(x)).mean((2, 3))", (32, 64, 56, 56)),
    "depthwise_7": ("nn.Conv2d(64, 64, 7, padding=3, groups=64)", "F.gelu(self.m(x)).mean((2, 3))", (64, 64, 112, 112)),
    "depthwise_few": ("nn.Conv2d(24, 24, 5, 2, groups=24)", "self.m(x).amax((2, 3))", (8, 24, 256, 256)),
    "depthwise_before": ("nn.Conv2d(96, 96, 3, groups=96)", "self.m(x.relu()).abs().mean((2, 3))", (64, 96, 58, 58)),
}
"""By name: the module ``self.m``, what the forward returns, the shape of the input."""
WAYS: dict[str, tuple[str, Any] | None] = {
    "as_planned": None,
    "together": ("together_or_apart", lambda *_: None),
    "apart": ("members", lambda *_: None),
}
"""What of ``convsweep`` is set to what else for each."""


def prepare(way: str, model: Path, out: Path) -> None:
    """Generate the model in one way, build its kernels, and print the names of its steps."""
    if setting := WAYS[way]:
        setattr(convsweep, *setting)
    use_environment_tools()
    compiled = compile_file(model)
    out.write_text(compiled.source)
    subject = model_subject(model, out)
    with torch.no_grad():
        subject.build(subject.generated, "cuda")(*(value.cuda() for value in subject.inputs()))
    print(json.dumps([getattr(getattr(step, "plan", None), "name", "torch") for step in compiled.program.steps]))


def main() -> int:
    if sys.argv[1] == "--way":
        prepare(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
        return 0
    use_environment_tools()
    out, *names = sys.argv[1:]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        made = {}
        for name in names or MODELS:
            module, body, shape = MODELS[name]
            model = Path(folder) / f"{name}.py"
            model.write_text(model_text(f"self.m = {module}", f"return {body}", shape))
            for way in WAYS:
                command = [
                    sys.executable,
                    "-W",
                    "ignore",
                    __file__,
                    "--way",
                    way,
                    str(model),
                    f"{folder}/{way}_{name}.py",
                ]
                env = {**os.environ, "OMP_NUM_THREADS": "1"}
                made[name, way] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        steps = {key: json.loads(process.communicate()[0].splitlines()[-1]) for key, process in made.items()}
        for name in names or MODELS:
            sources: dict[str, Path] = {}
            for way in WAYS:
                source = Path(folder) / f"{way}_{name}.py"
                if all(source.read_text() != other.read_text() for other in sources.values()):
                    sources[way] = source
            own = {way: steps[name, way] for way in WAYS}
            found[name] = {"model": MODELS[name], "steps": own, **measured(Path(folder) / f"{name}.py", sources)}
            print(name, found[name]["microseconds"], found[name]["passed"], own["as_planned"], flush=True)
            facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "models": found}
            Path(out).write_text(json.dumps(facts, indent=1) + "\n")
    return 0 if all(all(entry["passed"].values()) for entry in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
