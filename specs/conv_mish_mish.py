"""3x3 convolution -> mish -> mish."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Channel counts that are no power of two, and an epilogue of many special functions."""

    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        x = self.conv(x)
        x = nn.functional.mish(x)
        return nn.functional.mish(x)


batch_size = 48
in_channels = 48
out_channels = 96
height = 288
width = 288
kernel_size = 3


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
