"""Check and time specs on the GPU in one process: ``python benchmarks/run.py OUT_FOLDER [SPEC ...]``.

Without specs, every file of ``specs/``. A spec that fails is reported and the rest still run. Results go
to ``OUT_FOLDER/results.json`` after every spec, so that an interrupted run keeps what it has.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from fusegen import report  # noqa: E402
from fusegen.compiler import compile_file  # noqa: E402
from fusegen.doctor import diagnose, use_environment_tools  # noqa: E402
from fusegen.errors import FusegenError  # noqa: E402
from fusegen.outputs import generated_file  # noqa: E402
from fusegen.verdict.bench import BenchReport, bench  # noqa: E402
from fusegen.verdict.check import CheckReport, check  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for results.json")
    parser.add_argument("specs", type=Path, nargs="*", help="default: specs/*.py")
    parser.add_argument("--generated", type=Path, help="folder of generated files; default: compile each spec anew")
    parser.add_argument(
        "--prebuild", type=int, default=0, help="compile this many specs at a time first, with nvcc and torch.compile"
    )
    parser.add_argument("--target", default="sm_90")
    parser.add_argument("--seconds", type=float, default=2.0, help="timing budget per spec")
    parser.add_argument("--max-autotune", action="store_true")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--no-bench", action="store_true")
    parser.add_argument("--no-first-use", action="store_true")
    parser.add_argument("--no-tf32", action="store_true", help="convolutions in full fp32")
    return parser.parse_args()


PREBUILD = """
import sys
from pathlib import Path
import torch
from fusegen.verdict.subject import call, model_subject
subject = model_subject(*map(Path, sys.argv[1:]))
inputs = tuple(x.cuda() if isinstance(x, torch.Tensor) else x for x in subject.inputs())
for model in (subject.generated().cuda(), torch.compile(subject.reference().cuda())):
    call(model, inputs)
"""


def prebuild(specs: list[Path], generated: Path, jobs: int) -> None:
    """Fill the caches of nvcc and torch.compile, many files at a time, before anything is timed."""

    def build(spec: Path) -> None:
        command = [sys.executable, "-W", "ignore", "-c", PREBUILD, str(spec), str(generated / spec.name)]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}, check=False)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(build, specs))


def run_spec(spec: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What was found out about one spec, as JSON; an error becomes part of it."""
    entry: dict[str, Any] = {"spec": spec.name, "error": None}
    started = time.perf_counter()
    try:
        compiled = compile_file(spec, target=options.target)
        entry["compile"] = report.summarise(compiled, Path(spec.name), None).model_dump(mode="json")
        existing = options.generated / spec.name if options.generated else None
        with generated_file(compiled, spec, existing) as generated:
            if not options.no_check:
                checked: CheckReport = check(compiled, spec, generated)
                report.print_check(checked)
                entry["check"] = checked.model_dump(mode="json")
            if not options.no_bench:
                timed: BenchReport = bench(
                    compiled,
                    spec,
                    generated,
                    max_autotune=options.max_autotune,
                    seconds=options.seconds,
                    measure_first_use=not options.no_first_use,
                )
                report.print_bench(timed)
                entry["bench"] = timed.model_dump(mode="json")
    except Exception as error:
        entry["error"] = report.error_text(error, spec) if isinstance(error, FusegenError) else traceback.format_exc()
        print(f"{spec.stem}: {entry['error']}", file=sys.stderr, flush=True)
    entry["seconds"] = round(time.perf_counter() - started, 1)
    return entry


def print_overview(entries: list[dict[str, Any]]) -> None:
    """One line per spec."""
    header = ("spec", "check", "eager µs", "compile µs", "generated µs", "x eager", "x compile", "roofline", "host µs")
    print("\n" + " | ".join(header))
    for entry in entries:
        checked, timed = entry.get("check"), entry.get("bench")
        row = [entry["spec"].removesuffix(".py")]
        row.append("ERROR" if entry["error"] else "-" if checked is None else "ok" if checked["passed"] else "FAILED")
        if timed:
            medians = {name: timing["median"] for name, timing in timed["ms"].items()}
            row += [f"{medians[n] * 1e3:.1f}" if n in medians else "-" for n in ("eager", "torch.compile", "generated")]
            row += [f"{timed['speedups'][n]:.2f}" if n in medians else "-" for n in ("eager", "torch.compile")]
            row += [f"{timed['roofline_fraction']:.0%}", f"{timed['host_us']['generated']:.1f}"]
        print(" | ".join(row))


def main() -> int:
    warnings.filterwarnings("ignore")
    options = arguments()
    use_environment_tools()
    torch.backends.cudnn.allow_tf32 = not options.no_tf32
    options.out.mkdir(parents=True, exist_ok=True)
    specs = options.specs or sorted((ROOT / "specs").glob("*.py"))
    report.print_doctor(diagnose())
    if options.prebuild and options.generated:
        prebuild(specs, options.generated, options.prebuild)
    entries = []
    for spec in specs:
        print(f"\n=== {spec.stem}", flush=True)
        entries.append(run_spec(spec, options))
        (options.out / "results.json").write_text(json.dumps(entries, indent=1) + "\n")
        sys.stdout.flush()
    print_overview(entries)
    failed = [e for e in entries if e["error"] or not e.get("check", {"passed": True})["passed"]]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
