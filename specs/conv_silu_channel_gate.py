"""Convolution -> SiLU -> a gate for every channel, of its mean (squeeze and excitation)."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, reduction):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2)
        self.squeeze = nn.Linear(out_channels, out_channels // reduction)
        self.excite = nn.Linear(out_channels // reduction, out_channels)

    def forward(self, x):
        y = F.silu(self.conv(x))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean(dim=(2, 3))))))
        return y * gate[:, :, None, None]


batch_size = 40
in_channels = 64
out_channels = 96
height, width = 96, 96
kernel_size = 3
reduction = 8


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, reduction]
