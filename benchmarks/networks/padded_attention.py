"""Attention over keys of which a mask says the padding; the weights are a result, too."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.norm = nn.LayerNorm(d)

    def split(self, x):
        return x.view(x.size(0), x.size(1), self.heads, -1).transpose(1, 2)

    def forward(self, x, memory, padding):
        """x [N, L, D], memory [N, S, D], padding [N, S]: True where there is nothing"""
        k, v = self.kv(memory).chunk(2, dim=-1)
        scores = self.split(self.q(x)) @ self.split(k).transpose(-2, -1) / (x.size(-1) // self.heads) ** 0.5
        weights = torch.softmax(scores.masked_fill(padding[:, None, None, :], float("-inf")), dim=-1)
        y = (weights @ self.split(v)).transpose(1, 2).flatten(2)
        return self.norm(x + self.o(y)), {"weights": weights, "mean": weights.mean(1)}


def get_inputs():
    return [
        torch.randn(16, 256, 512),
        torch.randn(16, 384, 512),
        torch.arange(384)[None, :] >= torch.randint(64, 385, (16, 1)),
    ]


def get_init_inputs():
    return [512, 8]
