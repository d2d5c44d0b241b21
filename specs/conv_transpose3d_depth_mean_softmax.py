"""Transposed convolution in 3d -> mean over the depth -> + bias -> softmax over channels -> tanh."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """One of three spatial axes is averaged: a transposed convolution in 2d is left."""

    def __init__(self, in_channels, out_channels, kernel_size, stride, padding):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose3d(in_channels, out_channels, kernel_size, stride=stride, padding=padding)
        self.bias = nn.Parameter(torch.randn(1, out_channels, 1, 1, 1))

    def forward(self, x):
        x = self.conv_transpose(x).mean(dim=2, keepdim=True) + self.bias
        return torch.tanh(torch.softmax(x, dim=1)) * 2


batch_size = 16
in_channels = 16
out_channels = 64
depth, height, width = 32, 64, 64
kernel_size, stride, padding = 3, 1, 1


def get_inputs():
    return [torch.rand(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride, padding]
