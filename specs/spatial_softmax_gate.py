"""Scale -> softmax over all positions of a plane -> gate -> ReLU."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Spatial attention: the axes are flattened for the softmax and restored after it."""

    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(channels, 1, 1))

    def forward(self, x):
        scores = (x * self.scale).flatten(2)
        weights = torch.softmax(scores, dim=-1).view_as(x)
        return torch.relu(x * weights)


batch_size = 64
channels = 64
height, width = 96, 96


def get_inputs():
    return [torch.rand(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels]
