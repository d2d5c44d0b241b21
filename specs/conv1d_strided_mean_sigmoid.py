"""Strided one-dimensional convolution without bias -> AdaptiveAvgPool1d(1) -> sigmoid gate."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """A stride wider than the kernel: some inputs are read by no tap at all."""

    def __init__(self, in_channels, out_channels, kernel_size, stride):
        super().__init__()
        self.conv = nn.Conv1d(in_channels, out_channels, kernel_size, stride=stride, bias=False)
        self.pool = nn.AdaptiveAvgPool1d(1)

    def forward(self, x):
        x = self.pool(self.conv(x)).squeeze(-1)
        return torch.sigmoid(x)


batch_size = 32
in_channels = 64
out_channels = 64
length = 65536
kernel_size = 3
stride = 4


def get_inputs():
    return [torch.rand(batch_size, in_channels, length)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride]
