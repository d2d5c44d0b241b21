"""Linear -> heads -> masked softmax attention -> Linear -> + x: attention as language models have it."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """The scores are never written: two products, the mask and the softmax between them are one kernel."""

    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(length, length)).view(1, 1, length, length))

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = (
            t.view(n, length, self.heads, width // self.heads).transpose(1, 2) for t in self.qkv(x).split(width, dim=2)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
        return x + self.out(y.transpose(1, 2).reshape(n, length, width))


batch_size, length, width, heads = 8, 512, 512, 8


def get_inputs():
    return [torch.randn(batch_size, length, width)]


def get_init_inputs():
    return [width, heads, 1024]
