"""Whole models beside eager and torch.compile on a cold L2: ``python side_by_side.py OUT.json MODEL.py ...``.

Every model is compiled in a process of its own, by fusegen and by torch; times are taken one model after the other.
Whole networks: ``benchmarks/networks/*.py``, as people write them. A tuning file beside a model holds. A model that
takes longer than ``PATIENCE`` to compile is left out, and it is said what it was doing for how long.
The error is that of the file's inputs, held to the tolerance of ``fusegen check``. ``waited_microseconds``: of a call
on an idle GPU, from its beginning on the host.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from fusegen.compiler import compile_file  # noqa: E402
from fusegen.doctor import use_environment_tools  # noqa: E402
from fusegen.tuning import pins_path  # noqa: E402
from fusegen.verdict.check import run_set  # noqa: E402
from fusegen.verdict.probes import Probe  # noqa: E402
from fusegen.verdict.subject import call, model_subject  # noqa: E402
from fusegen.verdict.timing import interleaved, waited_microseconds  # noqa: E402

ROUNDS = 21
AT_ONCE = 20
PATIENCE = 150.0
"""Seconds that the models of a batch have to compile."""
HEADER = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


def model_text(init: str, body: str, shape: tuple[int, ...], draw: str = "torch.randn") -> str:
    """A model file: statements of ``__init__``, statements of ``forward(self, x)``, the shape of ``x``."""
    lines = [
        HEADER,
        "class Model(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        *(f"        {line}" for line in init.splitlines()),
        "    def forward(self, x):",
        *(f"        {line}" for line in body.splitlines()),
        f"def get_inputs():\n    return [{draw}({shape})]",
        "def get_init_inputs():\n    return []\n",
    ]
    return "\n".join(lines)


class Phases:
    """What a process does, in a file that others read: name and second of every beginning."""

    def __init__(self, path: Path):
        self.path, self.started = path, time.perf_counter()

    def begin(self, name: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{name},{time.perf_counter() - self.started:.1f}\n")


def seconds_of(path: Path) -> dict[str, float]:
    """Seconds from each beginning to the next; of what has not ended, when it began."""
    entries = [line.split(",") for line in path.read_text().splitlines()] if path.exists() else []
    starts = [float(second) for _, second in entries]
    return {
        name: round(end - start, 1)
        for (name, _), start, end in zip(entries, starts, [*starts[1:], 2 * starts[-1] if starts else 0], strict=False)
    }


def measure(model: Path, turn: Path) -> dict[str, Any]:
    """Errors and times of one model; waits for ``turn`` before it uses the GPU for more than compiling."""
    use_environment_tools()
    generated_path = model.with_name("generated_" + model.name)
    phases = Phases(model.with_suffix(".phases"))
    compiled = compile_file(model, progress=phases.begin)
    phases.begin("load")
    generated_path.write_text(compiled.source)
    subject = model_subject(model, generated_path)
    reference, generated = (subject.build(factory, "cuda") for factory in (subject.reference, subject.generated))
    inputs = tuple(value.cuda() if isinstance(value, torch.Tensor) else value for value in subject.inputs())
    runs: dict[str, Callable[..., Any]] = {
        "eager": reference,
        "torch.compile": torch.compile(reference, dynamic=False),
        "generated": generated,
    }
    with torch.no_grad():
        for name, run in runs.items():
            phases.begin(name)
            for _ in range(3):
                run(*inputs)
        torch.cuda.synchronize()
        phases.begin("ready")
        torch.cuda.empty_cache()  # others compile meanwhile
        model.with_suffix(".ready").touch()
        while not turn.exists():
            time.sleep(0.02)
        written = sum(y.nbytes for y in call(reference, inputs))
        generated.load_state_dict(reference.state_dict())
        found = run_set("the file's inputs", (reference, generated), inputs)
        contestants: dict[str, Callable[[], Any]] = {name: partial(run, *inputs) for name, run in runs.items()}
        read = [*inputs, *reference.parameters()]
        waited = waited_microseconds(contestants, ROUNDS)
        contestants["probe"] = Probe(sum(value.nbytes for value in read if isinstance(value, torch.Tensor)), written)
        timed = interleaved(contestants, ROUNDS)
    medians = {name: round(timing.median * 1e3, 1) for name, timing in timed.items()}
    return {
        "steps": [getattr(getattr(step, "plan", None), "name", "torch") for step in compiled.program.steps],
        "compile_seconds": round(compiled.seconds, 1),
        "lines": len(compiled.source.splitlines()),
        "phase_seconds": {name: s for name, s in seconds_of(phases.path).items() if s >= 0.1 and name != "ready"},
        "microseconds": medians,
        "waited_microseconds": {name: round(value, 1) for name, value in waited.items()},
        "share_of_probe": round(medians["probe"] / medians["generated"], 2),
        "x_eager": round(medians["eager"] / medians["generated"], 2),
        "x_compile": round(medians["torch.compile"] / medians["generated"], 2),
        "passed": all(output.passed for output in found.outputs),
        "errors": [output.model_dump(mode="json") for output in found.outputs],
    }


def run(models: Mapping[str, str], out: Path, tuned: Mapping[str, str] | None = None) -> int:
    """Measure ``models`` (name to model file) and write what was found to ``out`` after every one.

    ``tuned``: tuning files, for those that have one.
    """
    entries: dict[str, Any] = {}
    names = list(models)
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1", "FUSEGEN_STRICT": "1"}
    environment.setdefault("OMP_NUM_THREADS", "2")  # many compile at once
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for first in range(0, len(names), AT_ONCE):
            running = {}
            for name in names[first : first + AT_ONCE]:
                model, turn = folder / f"{name}.py", folder / f"{name}.go"
                model.write_text(models[name])
                if tuned and name in tuned:
                    pins_path(model).write_text(tuned[name])
                command = [sys.executable, "-W", "ignore", __file__, "--measure", str(model), str(turn)]
                running[name] = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
            deadline = time.monotonic() + PATIENCE
            while compiling := [
                n for n, p in running.items() if p.poll() is None and not (folder / f"{n}.ready").exists()
            ]:
                time.sleep(0.1)
                if time.monotonic() > deadline:
                    break
            for name in compiling:
                process = running.pop(name)
                process.kill()
                process.communicate()
                print(name, "SLOW", seconds_of(folder / f"{name}.phases"), flush=True)
            for name, process in running.items():
                (folder / f"{name}.go").touch()
                assert process.stdout
                found = next((line for line in process.stdout if line.startswith("{")), None)  # it ends meanwhile
                if found is None:
                    print(name, "FAILED", flush=True)
                    continue
                entry = entries[name] = {"model": models[name], **json.loads(found)}
                verdict = "ok" if entry["passed"] else "INACCURATE"
                print(name, verdict, entry["microseconds"], entry["share_of_probe"], entry["x_compile"], flush=True)
                print("   ", entry["waited_microseconds"], "with the host", flush=True)
                print("   ", entry["lines"], "lines;", entry["phase_seconds"], flush=True)
                facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "models": entries}
                out.write_text(json.dumps(facts, indent=1) + "\n")
            for process in running.values():
                process.communicate()
    return 0 if len(entries) == len(names) and all(entry["passed"] for entry in entries.values()) else 1


def main() -> int:
    if sys.argv[1] == "--measure":
        print(json.dumps(measure(Path(sys.argv[2]), Path(sys.argv[3]))), flush=True)
        return 0
    paths = list(map(Path, sys.argv[2:]))
    tuned = {path.stem: pins_path(path).read_text() for path in paths if pins_path(path).is_file()}
    return run({path.stem: path.read_text() for path in paths}, Path(sys.argv[1]), tuned)


if __name__ == "__main__":
    sys.exit(main())
