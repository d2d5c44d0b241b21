"""3d convolution -> SiLU -> average pooling -> + bias."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Windows along the depth fit no patch of an image: their layers are computed one after the other."""

    def __init__(self, in_channels, out_channels, kernel_size, padding, window):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size, padding=padding)
        self.pool = nn.AvgPool3d(window)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1, 1))

    def forward(self, x):
        return self.pool(F.silu(self.conv(x))) + self.bias


batch_size = 16
in_channels = 32
out_channels = 64
depth, height, width = 16, 48, 48
kernel_size, padding = 3, 1
window = 2


def get_inputs():
    return [torch.rand(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, padding, window]
