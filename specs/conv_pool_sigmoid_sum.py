"""Convolution -> average pooling -> sigmoid -> sum."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """The pooling becomes part of the convolution: fewer, larger steps with an averaged kernel."""

    def __init__(self, in_channels, out_channels, kernel_size, window):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.pool = nn.AvgPool2d(window)

    def forward(self, x):
        x = self.pool(self.conv(x))
        return torch.sigmoid(x).sum(dim=(1, 2, 3))


batch_size = 64
in_channels = 16
out_channels = 64
height, width = 128, 128
kernel_size = 3
window = 4


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, window]
