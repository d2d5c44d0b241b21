"""Convolutions of random models, cuDNN's and by every kernel for them, called as a generated file calls them (no bias).

python library_convolutions.py library OUT.json large|round|small FIRST-LAST ...   times the first one of every model
python library_convolutions.py build OUT.json FOLDER [NAME ...]    plans and compiles kernels for those; no GPU
python library_convolutions.py time OUT.json FOLDER                times them beside the library

What ``library``, ``contractions`` and ``hopper`` of ``fusegen.costs`` expect is fitted to these times, on a cold L2.
"""

from __future__ import annotations

import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import convolutions
import torch
from random_chains import SIZES, seeds

from fusegen import tuning
from fusegen.compiler import optimise
from fusegen.costs import contractions
from fusegen.plan.types import KernelStep, Program
from fusegen.trace import trace
from fusegen.verdict.timing import interleaved
from tests.chains import chain

ROUNDS = 11
_CONVOLUTION = torch.nn.modules.conv._ConvNd


class _Found(Exception):
    """The convolution that a model comes to first, and the shape of its input."""

    def __init__(self, layer: Any, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer, self.shape = layer, shape


def _first(text: str) -> _Found | None:
    """Of the model ``text``, run without data."""

    def meet(layer: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        raise _Found(layer, tuple(inputs[0].shape))

    scope: dict[str, Any] = {}
    exec(compile(text, "model", "exec"), scope)
    with torch.device("meta"):
        model = scope["Model"](*scope["get_init_inputs"]())
        for layer in model.modules():
            if isinstance(layer, _CONVOLUTION):
                layer.register_forward_pre_hook(meet)
        try:
            model(*scope["get_inputs"]())
        except _Found as found:
            return found
    return None


def _arguments(layer: Any) -> dict[str, Any]:
    names = ["in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups"]
    names += ["output_padding"] if layer.transposed else []
    return {name: getattr(layer, name) for name in names}


def _layer(case: dict[str, Any]) -> torch.nn.Module:
    given = {k: v for k, v in case.items() if k not in ("layer", "x", "us", "kernels")}
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    layer: torch.nn.Module = getattr(torch.nn, case["layer"])(**arguments, bias=False)
    return layer


def library(words: list[str]) -> dict[str, Any]:
    """Microseconds of the library's call by model, and what it is called with."""
    cases: dict[str, Any] = {}
    which = ""
    for word in words:
        if word in SIZES:
            which = word
            continue
        for seed in seeds([word]):
            found = _first(chain(random.Random(seed), SIZES[which]).text())
            if found is None:
                continue
            case = {"layer": type(found.layer).__name__, **_arguments(found.layer), "x": list(found.shape)}
            call = partial(_layer(case).cuda(), torch.rand(found.shape, device="cuda"))
            timed = interleaved({"library": call}, ROUNDS)
            cases[f"{which}_{seed}"] = {**case, "us": round(timed["library"].median * 1e3, 1)}
    return cases


def _both(*operands: Any, **options: Any) -> tuple[float, float]:
    """Expected times of the asynchronous and the portable kernel, neither left out."""
    body, node, whole, machine = operands
    asynchronous = contractions.asynchronous_seconds(body, node, machine)
    return asynchronous, contractions.portable_seconds(body, node, whole, machine)


def _programs(case: dict[str, Any]) -> dict[str, Program]:
    """The programs of a lone convolution in a kernel, by the kernel's label."""
    with torch.device("meta"):
        graph = trace(_layer(case), (torch.zeros(case["x"]),), Path(__file__)).graph

    def planned(pins: dict[str, str]) -> tuple[Program, dict[str, dict[str, float | None]]]:
        always = mock.patch.object(contractions, "refusal", return_value=None)
        with always, mock.patch.object(contractions, "tensor_core_seconds", _both), tuning.choices(pins) as found:
            return optimise(graph, "sm_90", False, lambda stage: None)[0], found.seen

    program, seen = planned({})
    point = next((point for point in seen if point.endswith(" kernel")), None)
    return {way: planned({point: way})[0] for way in seen[point]} if point else {"only": program}


def build(cases: dict[str, Any], folder: Path, names: list[str]) -> None:
    """``NAME__WAY.so`` in ``folder``, and beside each how it is called."""
    sources: list[Path] = []
    for name in names or cases:
        for way, program in _programs(cases[name]).items():
            plans = [step.plan for step in program.steps if isinstance(step, KernelStep)]
            if not len(plans) == len(program.steps) == 1:
                continue
            detail = convolutions.detail_of(plans[0], portable=way == "portable")
            if detail.template in ("contraction", "conv_sm90"):
                sources.append(folder / f"{name}__{way}.cu")
                convolutions.write(plans[0], detail, sources[-1])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(convolutions.build, sources))


def measure(cases: dict[str, Any], folder: Path) -> None:
    """Adds the kernels' microseconds to ``cases``, with the library's beside each."""
    for built in sorted(folder.glob("*__*.so")):
        name, _, way = built.stem.partition("__")
        layer = _layer(cases[name]).cuda()
        x, weight = torch.rand(cases[name]["x"], device="cuda"), next(layer.parameters()).detach()
        expected = layer(x)
        kernel, found = convolutions.Kernel(built.stem, folder), torch.full_like(expected, torch.nan)
        kernel(x, weight, found)
        error = float((found - expected).abs().max() / expected.abs().max())
        timed = interleaved({"kernel": partial(kernel, x, weight, found), "library": partial(layer, x)}, ROUNDS)
        times = {name: round(time.median * 1e3, 1) for name, time in timed.items()}
        cases[name].setdefault("kernels", {})[way] = {**times, "from_library": error}


def main() -> None:
    command, out, *rest = sys.argv[1:]
    if command == "library":
        with torch.no_grad():
            cases = library(rest)
        facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": cases}
    else:
        facts = json.loads(Path(out).read_text())
        folder = Path(rest[0])
        if command == "build":
            folder.mkdir(parents=True, exist_ok=True)
            build(facts["cases"], folder, rest[1:])
            return
        with torch.no_grad():
            measure(facts["cases"], folder)
    Path(out).write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
