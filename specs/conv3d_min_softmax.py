"""3-d convolution of few channels -> minimum over the depth -> softmax over the channels."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """A block computes all depths of its positions: only their minima leave it, and the softmax joins."""

    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        x = self.conv(x)
        x = torch.min(x, dim=2).values
        return torch.softmax(x, dim=1)


batch_size = 64
in_channels = 3
out_channels = 32
depth, height, width = 20, 40, 40
kernel_size = 3


def get_inputs():
    return [torch.rand(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
