"""Transposed convolution -> max pooling -> hardtanh -> mean -> tanh."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """The convolution pools its own results and clamps what it keeps; the mean reads a quarter of them."""

    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, window):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride=stride, padding=padding)
        self.pool = nn.MaxPool2d(window)

    def forward(self, x):
        x = F.hardtanh(self.pool(self.conv_transpose(x)))
        return torch.tanh(torch.mean(x, dim=(2, 3), keepdim=True))


batch_size = 32
in_channels = 32
out_channels = 64
height, width = 128, 128
kernel_size, stride, padding = 3, 1, 1
window = 2


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride, padding, window]
