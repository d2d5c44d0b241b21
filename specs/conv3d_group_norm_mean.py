"""Convolution in three dimensions -> group norm -> mean of every sample."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """The scale differs between the channels of a group, so the mean is not that of the shift."""

    def __init__(self, in_channels, out_channels, kernel_size, num_groups):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size)
        self.norm = nn.GroupNorm(num_groups, out_channels)
        nn.init.normal_(self.norm.weight)

    def forward(self, x):
        return self.norm(self.conv(x)).mean(dim=(1, 2, 3, 4))


batch_size = 64
in_channels, out_channels = 4, 32
depth, height, width = 20, 48, 40
kernel_size = 3
num_groups = 4


def get_inputs():
    return [torch.rand(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, num_groups]
