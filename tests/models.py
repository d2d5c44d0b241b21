"""Model files written on the spot, from the body of a forward."""

from __future__ import annotations

import textwrap
from pathlib import Path

import torch

from fusegen import interpret
from fusegen.compiler import Compiled
from fusegen.ir import Node
from fusegen.trace import TracedModel, instantiate, load_model_file, trace

HEADER = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


def write(
    tmp_path: Path, body: str, init: str = "pass", inputs: str = "torch.rand(4, 3, 6, 5)", arguments: str = "x"
) -> Path:
    path = tmp_path / "model.py"
    path.write_text(
        HEADER
        + "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        + textwrap.indent(textwrap.dedent(init), "        ")
        + f"\n    def forward(self, {arguments}):\n"
        + textwrap.indent(textwrap.dedent(body), "        ")
        + f"\ndef get_inputs():\n    return [{inputs}]\ndef get_init_inputs():\n    return []\n"
    )
    return path


def untied(x: torch.Tensor) -> torch.Tensor:
    """``x`` without numbers halfway between two of TF32: copies round these to even, instructions away from zero."""
    bits = x.contiguous().view(torch.int32)
    return torch.where(bits & 0x1FFF == 0x1000, bits + 1, bits).view(torch.float32)


def traced(path: Path) -> TracedModel:
    loaded = load_model_file(path)
    model, inputs = instantiate(loaded)
    return trace(model, inputs, loaded.path)


def all_nodes(compiled: Compiled) -> list[Node]:
    """Of the program, and of what its kernels compute."""
    return list(compiled.program.after.every_node)


def check_in_double(compiled: Compiled, path: Path, inputs: list[list[torch.Tensor]]) -> None:
    """The rewritten graph of the model file computes what the model does, of each of the ``inputs`` in float64."""
    torch.manual_seed(0)
    model = load_model_file(path).model_class().double()
    for given in inputs:
        x = [value.double() for value in given]
        expected = model(*x)
        expected = expected if isinstance(expected, tuple) else (expected,)
        found = interpret.run(compiled.program.after, x, dict(model.named_parameters()))
        for y, r in zip(found, expected, strict=True):
            torch.testing.assert_close(y, r)
