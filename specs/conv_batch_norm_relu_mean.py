"""Convolution -> batch norm with batch statistics -> ReLU -> global mean."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """The mean is over other axes than the statistics."""

    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=1)
        self.norm = nn.BatchNorm2d(out_channels, momentum=0.05)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x))).mean(dim=(2, 3))


batch_size = 32
in_channels = 16
out_channels = 64
height, width = 112, 112
kernel_size = 3


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
