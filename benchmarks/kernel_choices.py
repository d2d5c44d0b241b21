"""Convolutions of random models by every kernel for them: ``python kernel_choices.py OUT.json large|round SEED ...``.

The same model planned in several ways, all interleaved with eager and torch.compile on a cold L2, held to the tolerance
of ``fusegen check``. It shows what the expected times choose between where cuDNN decides on full fp32.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from random_chains import SIZES
from side_by_side import ROUNDS

from fusegen.compiler import compile_file
from fusegen.costs import contractions, direct, hopper
from fusegen.doctor import use_environment_tools
from fusegen.verdict.check import run_set
from fusegen.verdict.subject import model_subject
from fusegen.verdict.timing import interleaved
from tests.chains import chain


def _answer(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


_NEVER = _answer(1e3)
WAYS: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "as_planned": (),
    "tf32_alone": ((contractions, "fp32_pays", _answer(False)),),
    "both_classes": ((contractions, "fp32_pays", _answer(True)),),
    "plain_fp32": (
        (direct, "_FEW_SECONDS", 1.0),
        (contractions, "asynchronous_seconds", _NEVER),
        (contractions, "portable_seconds", _NEVER),
    ),
    "portable": ((hopper, "refusal", _answer("the portable kernel is asked for")),),
}
"""What is set to what else for each."""


def measure(model: Path) -> dict[str, Any]:
    """Times and errors of one model, in all ways that differ."""
    use_environment_tools()
    sources: dict[str, Path] = {}
    steps: dict[str, Any] = {}
    for way in WAYS:
        out = model.with_name(f"{way}_{model.name}")
        command = [sys.executable, __file__, "--way", way, str(model), str(out)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        same = next((name for name, other in sources.items() if other.read_text() == out.read_text()), None)
        steps[way] = same or json.loads(printed.splitlines()[-1])
        if same is None:
            sources[way] = out
    return {**measured(model, sources), "steps": steps}


def measured(model: Path, sources: dict[str, Path]) -> dict[str, Any]:
    """Times of one model generated in several ways, and whether each is within the tolerance."""
    subjects = {way: model_subject(model, source) for way, source in sources.items()}
    first = next(iter(subjects.values()))
    reference = first.build(first.reference, "cuda")
    inputs = tuple(value.cuda() if isinstance(value, torch.Tensor) else value for value in first.inputs())
    runs: dict[str, Callable[..., Any]] = {"eager": reference, "torch.compile": torch.compile(reference, dynamic=False)}
    passed = {}
    with torch.no_grad():
        for way, subject in subjects.items():
            generated = subject.build(subject.generated, "cuda")
            generated.load_state_dict(reference.state_dict())
            passed[way] = all(output.passed for output in run_set("inputs", (reference, generated), inputs).outputs)
            runs[way] = generated
        timed = interleaved({name: partial(run, *inputs) for name, run in runs.items()}, ROUNDS)
    medians = {name: round(timing.median * 1e3, 1) for name, timing in timed.items()}
    return {"microseconds": medians, "passed": passed}


def main() -> int:
    if sys.argv[1] == "--way":
        for module, name, value in WAYS[sys.argv[2]]:
            setattr(module, name, value)
        compiled = compile_file(Path(sys.argv[3]))
        Path(sys.argv[4]).write_text(compiled.source)
        print(json.dumps([getattr(getattr(step, "plan", None), "name", "torch") for step in compiled.program.steps]))
        return 0
    out, which, *seeds = sys.argv[1:]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            model = Path(folder) / f"{which}_{seed}.py"
            model.write_text(chain(random.Random(int(seed)), SIZES[which]).text())
            found[model.stem] = {"model": model.read_text(), **measure(model)}
            print(model.stem, found[model.stem]["microseconds"], found[model.stem]["steps"], flush=True)
            facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "models": found}
            Path(out).write_text(json.dumps(facts, indent=1) + "\n")
    return 0 if all(all(entry["passed"].values()) for entry in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
