"""Transposed convolution in three dimensions -> shift -> layer norm of every row -> average pooling -> SiLU."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """What a window averages is normalised along one of the axes that it spans."""

    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, output_padding, width, window):
        super().__init__()
        self.conv = nn.ConvTranspose3d(in_channels, out_channels, kernel_size, stride, padding, output_padding)
        self.norm = nn.LayerNorm(stride * width)
        self.shift = nn.Parameter(torch.randn(()))
        self.window = window

    def forward(self, x):
        y = self.norm(self.conv(x) + self.shift)
        return F.silu(F.avg_pool3d(y, self.window))


batch_size = 12
in_channels, out_channels = 32, 48
depth, height, width = 12, 28, 24
kernel_size, stride, padding, output_padding = 3, 2, 1, 1
window = 2


def get_inputs():
    return [torch.rand(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride, padding, output_padding, width, window]
