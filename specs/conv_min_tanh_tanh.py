"""3x3 convolution of few channels -> minimum over channels -> tanh -> tanh."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """A row reduction in the epilogue: the convolution itself is never written. Eager is full fp32 here."""

    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        x = self.conv(x)
        x = torch.min(x, dim=1, keepdim=True)[0]
        x = torch.tanh(x)
        return torch.tanh(x)


batch_size = 96
in_channels = 8
out_channels = 64
height = 300
width = 300
kernel_size = 3


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
