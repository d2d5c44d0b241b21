"""Convolution -> batch norm with batch statistics -> tanh."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """In training mode: the statistics are the batch's, and the running ones move."""

    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.norm = nn.BatchNorm2d(out_channels)

    def forward(self, x):
        return torch.tanh(self.norm(self.conv(x)))


batch_size = 64
in_channels = 8
out_channels = 48
height, width = 98, 98
kernel_size = 3


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
