"""1x1 convolutions -> scores of positions -> softmax -> weighed values -> scale -> + x: attention over an image."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Channels lie across the rows of both products, and the second one has the scores transposed."""

    def __init__(self, channels, inner):
        super().__init__()
        self.query = nn.Conv2d(channels, inner, 1)
        self.key = nn.Conv2d(channels, inner, 1)
        self.value = nn.Conv2d(channels, channels, 1)
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, x):
        n, c, h, w = x.shape
        q, k, v = (f(x).flatten(2) for f in (self.query, self.key, self.value))
        weights = torch.softmax(torch.bmm(q.transpose(1, 2), k), dim=-1)
        return self.gamma * torch.bmm(v, weights.transpose(1, 2)).view(n, c, h, w) + x


batch_size, channels, inner, height, width = 16, 64, 16, 32, 32


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels, inner]
