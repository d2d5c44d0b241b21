"""Convolution of few channels -> GELU -> global average pool: its results are summed up, and never written."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """A nonlinear function under a mean over all positions."""

    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        return self.pool(F.gelu(self.conv(x))).flatten(1)


batch_size = 64
in_channels, out_channels, kernel_size = 8, 64, 3
height, width = 160, 160


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
