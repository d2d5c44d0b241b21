"""Attention within the chunks of a sequence, decaying with the distance -> scale: the core of state space models."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Masks, decays and heads are where elements come from and go to: products read from behind them."""

    def __init__(self, heads):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(heads, 1))

    def forward(self, query, key, value, gate):
        decay = torch.cumsum(F.logsigmoid(gate), dim=2).transpose(2, 3)
        steps = gate.shape[2]
        future = torch.ones(steps, steps, dtype=torch.bool, device=gate.device).triu(1)
        decay = (decay.unsqueeze(-1) - decay.unsqueeze(-2)).masked_fill(future, -torch.inf).exp()
        query, key, value = (x.transpose(2, 3) for x in (query, key, value))
        scores = query @ key.mT * decay
        return (scores @ value).transpose(2, 3).flatten(1, 2) * self.scale


batch_size, chunks, steps, heads, head_size, value_size = 16, 8, 64, 8, 32, 64


def get_inputs():
    return [
        torch.randn(batch_size, chunks, steps, heads, head_size),
        torch.randn(batch_size, chunks, steps, heads, head_size),
        torch.randn(batch_size, chunks, steps, heads, value_size),
        torch.randn(batch_size, chunks, steps, heads),
    ]


def get_init_inputs():
    return [heads]
