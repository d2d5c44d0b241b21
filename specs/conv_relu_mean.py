"""Convolution -> ReLU -> mean: no collapse, because ReLU is not linear."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """What stands between the convolution and the mean decides; here the rule must not fire."""

    def __init__(self, in_channels, out_channels, kernel_size, padding):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=padding)

    def forward(self, x):
        x = F.relu(self.conv(x))
        return x.mean(dim=(2, 3))


batch_size = 16
in_channels = 32
out_channels = 64
height, width = 128, 128
kernel_size = 3
padding = 1


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, padding]
