"""Transposed convolution -> sum over the image -> scale -> clamp -> subtract: a pointwise tail."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """A sum instead of a mean, with unequal strides, and a tail of four pointwise ops."""

    def __init__(self, in_channels, out_channels, kernel_size, stride, scale, lowest, highest):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride=stride)
        self.threshold = nn.Parameter(torch.randn(out_channels))
        self.scale = scale
        self.lowest = lowest
        self.highest = highest

    def forward(self, x):
        x = self.conv_transpose(x).sum(dim=(2, 3))
        x = torch.clamp(x * self.scale, self.lowest, self.highest)
        return torch.abs(x - self.threshold)


batch_size = 16
in_channels = 48
out_channels = 96
height, width = 160, 160
kernel_size = (3, 5)
stride = (1, 2)
scale = 1e-4
lowest = -1.0
highest = 1.0


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride, scale, lowest, highest]
