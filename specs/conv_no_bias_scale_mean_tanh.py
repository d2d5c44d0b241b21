"""Convolution without bias -> scale -> mean -> scale and shift -> tanh."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Scaling on both sides of the mean, around a convolution that has no bias of its own."""

    def __init__(self, in_channels, out_channels, kernel_size, before, after):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, bias=False)
        self.shift = nn.Parameter(torch.randn(out_channels, 1, 1))
        self.before = before
        self.after = after

    def forward(self, x):
        x = self.conv(x) * self.before
        x = x.mean(dim=[-2, -1], keepdim=True)
        x = x / self.after + self.shift
        return torch.tanh(x)


batch_size = 32
in_channels = 32
out_channels = 96
height, width = 224, 224
kernel_size = 3
before = 2.0
after = 3.0


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, before, after]
