"""Convolution -> group norm -> hardswish -> scale and shift."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """A group is eight channels of a plane: more than a block keeps, so a cluster of blocks shares it."""

    def __init__(self, in_channels, out_channels, kernel_size, groups):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=1)
        self.norm = nn.GroupNorm(groups, out_channels)

    def forward(self, x):
        x = F.hardswish(self.norm(self.conv(x)))
        return x * 0.5 + 1.0


batch_size = 32
in_channels = 16
out_channels = 64
height, width = 128, 128
kernel_size = 3
groups = 8


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, groups]
