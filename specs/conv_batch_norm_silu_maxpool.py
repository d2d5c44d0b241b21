"""Convolution -> batch norm with batch statistics -> SiLU -> max pooling."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """In training mode: the statistics are the batch's, and the running ones move."""

    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=1)
        self.norm = nn.BatchNorm2d(out_channels)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        return self.pool(F.silu(self.norm(self.conv(x))))


batch_size = 48
in_channels = 64
out_channels = 72
height, width = 122, 122
kernel_size = 3


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
