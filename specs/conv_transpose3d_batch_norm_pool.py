"""Transposed convolution in three dimensions -> scale -> batch norm with batch statistics -> global average pool."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """A norm over the batch under a mean over positions."""

    def __init__(self, in_channels, out_channels, kernel_size, stride, factor):
        super().__init__()
        self.conv = nn.ConvTranspose3d(in_channels, out_channels, kernel_size, stride=stride)
        self.norm = nn.BatchNorm3d(out_channels)
        self.pool = nn.AdaptiveAvgPool3d(1)
        self.factor = factor

    def forward(self, x):
        return self.pool(self.norm(self.conv(x) * self.factor))


batch_size = 16
in_channels, out_channels = 24, 48
depth, height, width = 10, 24, 28
kernel_size, stride = 3, 2
factor = 1.5


def get_inputs():
    return [torch.rand(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride, factor]
