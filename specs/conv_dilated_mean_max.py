"""Dilated convolution -> mean -> maximum over channels, taken as torch.max's values."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Dilation moves the taps apart: every tap of the 3x3 kernel has its own window."""

    def __init__(self, in_channels, out_channels, kernel_size, padding, dilation):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=padding, dilation=dilation)

    def forward(self, x):
        x = self.conv(x).mean((2, 3))
        return torch.max(x, dim=1)[0]


batch_size = 16
in_channels = 64
out_channels = 64
height, width = 256, 256
kernel_size = 3
padding = 2
dilation = 2


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, padding, dilation]
