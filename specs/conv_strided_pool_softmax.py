"""Strided, padded convolution -> AdaptiveAvgPool2d(1) -> flatten -> softmax: a classifier's head."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """A plain convolution of stride two: the windows of its taps are strided slices of x."""

    def __init__(self, in_channels, out_channels, kernel_size, stride, padding):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=padding)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        x = self.pool(self.conv(x))
        x = torch.flatten(x, start_dim=1)
        return torch.softmax(x, dim=1)


batch_size = 32
in_channels = 64
out_channels = 128
height, width = 256, 256
kernel_size = 3
stride = 2
padding = 1


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride, padding]
