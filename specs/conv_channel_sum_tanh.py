"""Convolution with a scale for every channel -> sum over the channels -> tanh."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """The sum needs one channel, by the sum of the scaled weights."""

    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=1)
        self.scale = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x):
        x = self.conv(x) * self.scale
        return torch.tanh(torch.sum(x, dim=1, keepdim=True))


batch_size = 64
in_channels, out_channels = 32, 128
height, width = 96, 128
kernel_size = 3


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
