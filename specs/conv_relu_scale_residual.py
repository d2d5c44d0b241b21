"""3x3 convolution -> ReLU -> times a scale -> plus its input."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """A residual: the epilogue reads the input again, once, as it stores the result."""

    def __init__(self, channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, kernel_size, padding=kernel_size // 2)
        self.scale = nn.Parameter(torch.rand(channels, 1, 1) + 0.5)

    def forward(self, x):
        return torch.relu(self.conv(x)) * self.scale + x


batch_size = 32
channels = 64
height = 112
width = 112
kernel_size = 3


def get_inputs():
    return [torch.rand(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels, kernel_size]
