"""Loops over time that a trace has written out: cells are recurrences, and what every step does is done at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusegen.compiler import Compiled, compile_file
from fusegen.ir import MatmulOp, RecurrenceOp
from fusegen.passes.unrolled import RECURRENCE, STEPS
from tests.models import all_nodes, check_in_double, write

JOINED = "self.i = nn.Linear(9, 4); self.o = nn.Linear(4, 3)"
CELL = "self.c = nn.RNNCell(5, 4); self.o = nn.Linear(4, 3)"
LOOPS: dict[str, tuple[str, str, str, list[str]]] = {
    "joined": (
        JOINED,
        "outs = []\nfor t in range(x.size(0)):\n    h = torch.tanh(self.i(torch.cat((x[t], h), dim=1)))\n"
        "    outs.append(self.o(h))\nreturn torch.stack(outs, dim=0)",
        "6, 3, 5",
        [RECURRENCE, STEPS],
    ),
    "state_first": (
        JOINED,
        "for t in range(x.size(1)):\n    h = torch.relu(self.i(torch.cat((h, x[:, t]), dim=1)))\nreturn self.o(h)",
        "3, 6, 5",
        [RECURRENCE],
    ),
    "cell": (
        CELL,
        "outs = []\nfor t in range(x.size(1)):\n    h = self.c(x[:, t], h)\n"
        "    outs.append(torch.sigmoid(self.o(h)) * 2)\nreturn torch.stack(outs, dim=1), h",
        "3, 6, 5",
        [RECURRENCE, STEPS],
    ),
    "by_hand": (
        "self.w = nn.Parameter(torch.randn(5, 4)); self.v = nn.Parameter(torch.randn(4, 4))\n"
        "self.b = nn.Parameter(torch.randn(4))",
        "for step in x.unbind(1):\n    h = torch.tanh(step @ self.w + h @ self.v + self.b)\nreturn h",
        "3, 6, 5",
        [RECURRENCE],
    ),
    "by_hand_joined": (
        "self.w = nn.Parameter(torch.randn(9, 4))",
        "for step in x.unbind(0):\n    h = torch.relu(torch.cat((h, step), 1) @ self.w)\nreturn h",
        "6, 3, 5",
        [RECURRENCE],
    ),
    "two_layers": (
        "self.a = nn.RNNCell(5, 4); self.b = nn.RNNCell(4, 4, bias=False, nonlinearity='relu')",
        "g, outs = h, []\nfor step in x.unbind(0):\n    h = self.a(step, h)\n    g = self.b(h, g)\n    outs.append(g)\n"
        "return torch.stack(outs)",
        "6, 3, 5",
        [RECURRENCE, RECURRENCE, STEPS],
    ),
    "gru_cell": (
        "self.c = nn.GRUCell(5, 4)",
        "outs = []\nfor t in range(x.size(0)):\n    h = self.c(x[t], h)\n    outs.append(h)\nreturn torch.stack(outs)",
        "6, 3, 5",
        [RECURRENCE, STEPS],
    ),
    "lstm_cell": (
        "self.c = nn.LSTMCell(5, 4)",
        "c, outs = torch.zeros_like(h), []\nfor t in range(x.size(1)):\n    h, c = self.c(x[:, t], (h, c))\n"
        "    outs.append(h)\nreturn torch.stack(outs, dim=1), c",
        "3, 6, 5",
        [RECURRENCE, STEPS],
    ),
    "lstm_cell_last": (
        "self.c = nn.LSTMCell(5, 4, bias=False)",
        "h = c = torch.zeros_like(h)\nfor t in range(x.size(0)):\n    h, c = self.c(x[t], (h, c))\nreturn h",
        "6, 3, 5",
        [RECURRENCE],
    ),
    "cells_read": (
        "self.c = nn.LSTMCell(5, 4)",
        "c, outs = h, []\nfor t in range(x.size(0)):\n    h, c = self.c(x[t], (h, c))\n    outs.append(c)\n"
        "return torch.stack(outs)",
        "6, 3, 5",
        [],
    ),
    "own_inputs": (  # which are no parts of a tensor
        CELL,
        "for t in range(6):\n    h = self.c(x[t] * (t + 1), h)\nreturn h",
        "6, 3, 5",
        [RECURRENCE],
    ),
    "part": (CELL, "for t in range(1, 6):\n    h = self.c(x[t], h)\nreturn h", "8, 3, 5", [RECURRENCE]),
    "no_state": (
        "self.o = nn.Linear(5, 4)",
        "return torch.stack([self.o(torch.exp(x[t])) - 1 for t in range(x.size(0))], dim=1) + h[:, None]",
        "6, 3, 5",
        [STEPS],
    ),
    "short": (CELL, "for t in range(3):\n    h = self.c(x[t], h)\nreturn h", "3, 3, 5", []),
    "fed_back": (
        "self.c = nn.RNNCell(5, 4); self.o = nn.Linear(4, 5)",
        "y = x[0]\nfor t in range(6):\n    h = self.c(y, h)\n    y = self.o(h)\nreturn y",
        "6, 3, 5",
        [],
    ),
    "one_of_two": (  # the longer one stays
        "self.c = nn.RNNCell(5, 4); self.d = nn.RNNCell(5, 4); self.o = nn.Linear(4, 5)",
        "y = x[0]\nfor t in range(6):\n    h = self.c(y, h)\n    y = self.o(h)\n"
        "for t in range(5):\n    h = self.d(x[t], h)\nreturn h",
        "6, 3, 5",
        [RECURRENCE],
    ),
    "other_weights": (
        "self.c = nn.ModuleList([nn.RNNCell(5, 4) for _ in range(6)])",
        "for t in range(6):\n    h = self.c[t](x[t], h)\nreturn h",
        "6, 3, 5",
        [],
    ),
}
"""By name: the constructor, the forward of x and a state h [3, 4], the shape of x, and which rules apply."""


def _compiled(name: str, folder: Path) -> tuple[Compiled, Path]:
    init, forward, shape, _ = LOOPS[name]
    path = write(folder, forward, init, f"torch.randn({shape}), torch.randn(3, 4)", "x, h")
    return compile_file(path), path


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_computes_what_its_steps_do(name: str, tmp_path: Path) -> None:
    compiled, path = _compiled(name, tmp_path)
    found = [event.identity for event in compiled.program.rewrites if event.identity in (RECURRENCE, STEPS)]
    assert sorted(found) == sorted(LOOPS[name][3])
    sizes = [int(size) for size in LOOPS[name][2].split(",")]
    check_in_double(compiled, path, [[torch.randn(sizes), torch.randn(3, 4)]])


def test_nothing_of_the_steps_is_left(tmp_path: Path) -> None:
    compiled, _ = _compiled("cell", tmp_path)
    assert sum(isinstance(node.op, RecurrenceOp) for node in all_nodes(compiled)) == 1
    assert sum(isinstance(node.op, MatmulOp) for node in all_nodes(compiled)) == 2


def test_why_a_loop_stays(tmp_path: Path) -> None:
    compiled, _ = _compiled("fed_back", tmp_path)
    (refused,) = [event for event in compiled.program.refusals if event.identity == RECURRENCE]
    assert refused.reason == "what a step reads beside the state follows from the states before"
