"""Convolution -> hardswish -> x scale -> max pooling -> mish."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """The windows are reduced where the convolution's results lie in registers: those are never written."""

    def __init__(self, in_channels, out_channels, kernel_size, window):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.scale = nn.Parameter(torch.randn(out_channels, 1, 1))
        self.pool = nn.MaxPool2d(window)

    def forward(self, x):
        x = F.hardswish(self.conv(x)) * self.scale
        return F.mish(self.pool(x))


batch_size = 32
in_channels = 64
out_channels = 128
height, width = 128, 128
kernel_size = 3
window = 2


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, window]
