"""What a layer of a recurrent network computes: the meaning of ``RecurrenceOp`` in torch, step by step."""

from __future__ import annotations

import torch
from torch import Tensor

from fusegen.ir import RecurrenceOp


def _step(op: RecurrenceOp, x: Tensor, s: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The next (h, c) of sums of inputs ``x`` and of states ``s``, [N, G F] (equations of torch.nn.LSTM, GRU, RNN)."""
    match op.cell:
        case "lstm":
            i, f, g, o = (x + s).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(c), c
        case "gru":
            (x_r, x_z, x_n), (s_r, s_z, s_n) = x.chunk(3, dim=1), s.chunk(3, dim=1)
            n = torch.tanh(x_n + torch.sigmoid(x_r + s_r) * s_n)
            return n + torch.sigmoid(x_z + s_z) * (h - n), c
        case "rnn_tanh":
            return torch.tanh(x + s), c
        case "rnn_relu":
            return torch.relu(x + s), c


def recurrence(op: RecurrenceOp, *operands: Tensor) -> Tensor:
    """The result of ``op``: h at every step, or an LSTM's last c (shapes: ``RecurrenceOp``)."""
    found: list[Tensor] = []
    for direction in range(op.directions):
        x, weight, bias = op.direction(operands, direction)
        steps = x.unbind(1 if op.batch_first else 0)
        none = x.new_zeros(steps[0].shape[0], weight.shape[1])
        states = [first[direction] for first in operands[: op.states]] or [none, none]
        h, c = states[0], states[-1]
        outputs = []
        for step in reversed(steps) if direction else steps:
            h, c = _step(op, step, torch.nn.functional.linear(h, weight, bias), h, c)
            outputs.append(h)
        if direction:
            outputs.reverse()
        found.append(c if op.result == "cells" else torch.stack(outputs, dim=1 if op.batch_first else 0))
    return torch.stack(found) if op.result == "cells" else torch.cat(found, dim=2)
