"""3x3 convolution -> hardswish -> ReLU."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """A heavy convolution whose pointwise tail runs in its epilogue."""

    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        x = self.conv(x)
        x = nn.functional.hardswish(x)
        return torch.relu(x)


batch_size = 96
in_channels = 64
out_channels = 128
height = 144
width = 144
kernel_size = 3


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
