"""Convolution in 3d -> softmax over channels -> two max poolings -> sum over channels."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Two poolings are one."""

    def __init__(self, in_channels, out_channels, kernel_size, window):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size)
        self.first = nn.MaxPool3d(window)
        self.second = nn.MaxPool3d(window)

    def forward(self, x):
        x = torch.softmax(self.conv(x), dim=1)
        x = self.second(self.first(x))
        return x.sum(dim=1)


batch_size = 16
in_channels = 3
out_channels = 16
depth, height, width = 24, 64, 64
kernel_size = 3
window = 2


def get_inputs():
    return [torch.rand(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, window]
