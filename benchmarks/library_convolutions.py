"""cuDNN's convolutions of random models: ``python library_convolutions.py OUT.json large|round|small FIRST-LAST ...``.

The first convolution of every model, called as a generated file calls it (no bias), on a cold L2. What
``fusegen.costs.contractions.library_seconds`` expects is fitted to these times.
"""

from __future__ import annotations

import json
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from random_chains import SIZES, seeds

from fusegen.verdict.timing import interleaved
from tests.chains import chain

ROUNDS = 9
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


def measure(found: _Found) -> dict[str, Any]:
    """Microseconds of the call, and what it is called with."""
    layer = type(found.layer)(**{**_arguments(found.layer), "bias": False}).cuda()
    x = torch.rand(found.shape, device="cuda")
    timed = interleaved({"library": partial(layer, x)}, ROUNDS)["library"]
    return {"layer": type(layer).__name__, **_arguments(layer), "x": found.shape, "us": round(timed.median * 1e3, 1)}


def _arguments(layer: Any) -> dict[str, Any]:
    names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
    names += ("output_padding",) if layer.transposed else ()
    return {name: getattr(layer, name) for name in names}


def main() -> int:
    out, *rest = sys.argv[1:]
    cases: dict[str, Any] = {}
    which = ""
    with torch.no_grad():
        for word in rest:
            if word in SIZES:
                which = word
                continue
            for seed in seeds([word]):
                found = _first(chain(random.Random(seed), SIZES[which]).text())
                if found is not None:
                    cases[f"{which}_{seed}"] = measure(found)
    facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": cases}
    Path(out).write_text(json.dumps(facts, indent=1) + "\n")
    print(len(cases), "convolutions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
