"""Depthwise 3x3x3 convolution -> hardswish -> learned scale -> residual."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """A volume that is read once although every element is in 27 windows, and again as the residual."""

    def __init__(self, channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv3d(channels, channels, kernel_size, padding=kernel_size // 2, groups=channels, bias=False)
        self.scale = nn.Parameter(torch.rand(channels, 1, 1, 1) + 0.5)

    def forward(self, x):
        return F.hardswish(self.conv(x)) * self.scale + x


batch_size = 16
channels = 32
depth, height, width = 16, 64, 64
kernel_size = 3


def get_inputs():
    return [torch.rand(batch_size, channels, depth, height, width)]


def get_init_inputs():
    return [channels, kernel_size]
