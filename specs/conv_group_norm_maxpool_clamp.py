"""Convolution -> group norm -> scale per channel -> max pooling -> clamp."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """The statistics of a sample's groups of channels."""

    def __init__(self, in_channels, out_channels, kernel_size, groups):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.norm = nn.GroupNorm(groups, out_channels)
        self.scale = nn.Parameter(torch.randn(out_channels, 1, 1))
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        return torch.clamp(self.pool(self.norm(self.conv(x)) * self.scale), -0.5, 1.0)


batch_size = 48
in_channels = 48
out_channels = 80
height, width = 110, 110
kernel_size = 3
groups = 10


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, groups]
