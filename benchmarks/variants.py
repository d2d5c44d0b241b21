"""Kernels of models that were generated in several ways: ``python variants.py OUT.json FOLDER [NAME ...]``.

FOLDER has a model as NAME.py and what was generated from it as NAME__WAY.py, by pins, by two versions of fusegen or by
hand. Times are medians on a cold L2: of every kernel as the profiler sees it, and of the whole call. Those of eager and
of torch.compile are ``side_by_side.py``'s.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fusegen.doctor import use_environment_tools
from fusegen.verdict.check import run_set
from fusegen.verdict.subject import model_subject
from fusegen.verdict.timing import ColdL2, interleaved

ROUNDS = 15
AT_ONCE = 16


def of_its_own(source: str, way: str) -> str:
    """``source`` with operators of a name of its own: text that was edited by hand keeps the name, and a process that
    has loaded one variant takes its kernels for all."""
    found = re.search(r'_fusegen_NAMESPACE = "(\w+)"', source)
    if found is None:
        raise SystemExit(f"{way}: not a generated file")
    return source.replace(found[1], f"{found[1]}_{way}")


def build(model: Path, generated: Path) -> None:
    """Compile what ``generated`` needs, for processes that come after."""
    subject = model_subject(model, generated)
    with torch.no_grad():
        subject.build(subject.generated, "cuda")(*subject.inputs_on("cuda"))


def _kernels(run: Callable[[], object]) -> set[str]:
    """The names of what ``run`` launches."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    return {event.name for event in profile.events()}


def measured(model: Path, generated: Path) -> dict[str, Any]:
    """Microseconds of the whole call and of each kernel, and the errors as shares of the tolerance."""
    subject = model_subject(model, generated)
    reference, variant = subject.build(subject.reference, "cuda"), subject.build(subject.generated, "cuda")
    variant.load_state_dict(reference.state_dict())
    inputs = subject.inputs_on("cuda")
    flush = ColdL2()
    flushing = _kernels(flush)
    kernels: dict[str, list[float]] = defaultdict(list)
    with torch.no_grad():
        outputs = run_set("inputs", (reference, variant), inputs).outputs
        whole = interleaved({"generated": lambda: variant(*inputs)}, ROUNDS)["generated"].median
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(ROUNDS):
                flush()
                variant(*inputs)
    for event in profile.events():
        if own := re.search(r"(k\d+_\w+)_kernel::(\w+)", event.name):
            kernels[f"{own[1]} {own[2]}"].append(event.device_time)
        elif event.device_time and not event.name.startswith(("Memcpy", "Memset")) and event.name not in flushing:
            kernels[f"torch's {event.name[:60]}"].append(event.device_time)
    times = {name: round(median(values), 1) for name, values in kernels.items()}
    return {
        "microseconds": round(whole * 1e3, 1),
        "kernels": times,
        "largest_of_allowed": round(max(o.max_generated / (o.max_allowed or 1.0) for o in outputs), 3),
        "rms_of_allowed": round(max(o.rms_generated / (o.rms_allowed or 1.0) for o in outputs), 3),
        "passed": all(output.passed for output in outputs),
    }


def main() -> int:
    use_environment_tools()
    if sys.argv[1] == "--build":
        build(Path(sys.argv[2]), Path(sys.argv[3]))
        return 0
    out, folder, *names = sys.argv[1:]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as copies:
        jobs: list[tuple[Path, Path]] = []
        for generated in sorted(Path(folder).glob("*__*.py")):
            name, way = generated.stem.split("__")
            if not names or name in names:
                copy = Path(copies) / generated.name
                copy.write_text(of_its_own(generated.read_text(), way))
                jobs.append((generated.with_name(f"{name}.py"), copy))
        for first in range(0, len(jobs), AT_ONCE):
            batch = [[sys.executable, __file__, "--build", *map(str, job)] for job in jobs[first : first + AT_ONCE]]
            for process in [subprocess.Popen(command) for command in batch]:
                process.wait()
        for model, generated in jobs:
            try:
                found[generated.stem] = measured(model, generated)
            except Exception as error:  # of one variant: the others are measured all the same
                found[generated.stem] = {"error": f"{type(error).__name__}: {error}", "passed": False}
            print(generated.stem, found[generated.stem], flush=True)
            facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "variants": found}
            Path(out).write_text(json.dumps(facts, indent=1) + "\n")
    return 0 if all(entry["passed"] for entry in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
