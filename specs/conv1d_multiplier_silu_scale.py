"""Depthwise one-dimensional convolution of two outputs a channel -> SiLU -> learned scale."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """A channel multiplier: two results from every window of the input."""

    def __init__(self, channels, multiplier, kernel_size):
        super().__init__()
        outputs = channels * multiplier
        self.conv = nn.Conv1d(channels, outputs, kernel_size, padding=kernel_size // 2, groups=channels)
        self.scale = nn.Parameter(torch.rand(outputs, 1) + 0.5)

    def forward(self, x):
        return F.silu(self.conv(x)) * self.scale


batch_size = 16
channels = 256
multiplier = 2
length = 8192
kernel_size = 5


def get_inputs():
    return [torch.rand(batch_size, channels, length)]


def get_init_inputs():
    return [channels, multiplier, kernel_size]
