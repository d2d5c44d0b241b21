"""Grouped convolution -> F.adaptive_avg_pool2d(x, 1) -> GELU."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Groups, an even padding on a 5x5 kernel, and the mean spelled as a functional pool."""

    def __init__(self, in_channels, out_channels, kernel_size, padding, groups):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=padding, groups=groups)

    def forward(self, x):
        x = F.adaptive_avg_pool2d(self.conv(x), 1)
        return F.gelu(x)


batch_size = 16
in_channels = 128
out_channels = 256
height, width = 128, 128
kernel_size = 5
padding = 2
groups = 8


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, padding, groups]
