"""Strided 3d transposed convolution -> hardswish."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Eight stride phases in three dimensions."""

    def __init__(self, in_channels, out_channels, kernel_size, stride, padding):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose3d(in_channels, out_channels, kernel_size, stride=stride, padding=padding)

    def forward(self, x):
        x = self.conv_transpose(x)
        return nn.functional.hardswish(x)


batch_size = 12
in_channels = 32
out_channels = 64
depth = 20
height = 36
width = 36
kernel_size = 3
stride = 2
padding = 1


def get_inputs():
    return [torch.rand(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride, padding]
