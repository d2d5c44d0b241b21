"""Transposed convolution in 3d -> average pooling -> clamp -> scale."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """What a stride of two spreads out and a pooling of two averages again is never written."""

    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, window, low, high):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose3d(in_channels, out_channels, kernel_size, stride=stride, padding=padding)
        self.pool = nn.AvgPool3d(window)
        self.low, self.high = low, high

    def forward(self, x):
        x = self.pool(self.conv_transpose(x))
        return torch.clamp(x, self.low, self.high) * 2


batch_size = 8
in_channels = 32
out_channels = 64
depth, height, width = 16, 32, 32
kernel_size, stride, padding = 3, 2, 1
window = 2
low, high = 0.0, 1.0


def get_inputs():
    return [torch.rand(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride, padding, window, low, high]
