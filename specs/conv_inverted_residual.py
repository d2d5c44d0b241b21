"""1x1 convolution -> ReLU6 -> depthwise 3x3 convolution of stride 2 -> ReLU6 -> 1x1 convolution."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """The block of mobile networks: its widest tensors are around a convolution with one channel in each group."""

    def __init__(self, in_channels, out_channels, expansion, kernel_size, stride):
        super().__init__()
        wide = in_channels * expansion
        self.expand = nn.Conv2d(in_channels, wide, 1)
        self.depthwise = nn.Conv2d(wide, wide, kernel_size, stride=stride, padding=kernel_size // 2, groups=wide)
        self.project = nn.Conv2d(wide, out_channels, 1)

    def forward(self, x):
        x = F.relu6(self.expand(x))
        x = F.relu6(self.depthwise(x))
        return self.project(x)


batch_size = 64
in_channels = 24
out_channels = 32
expansion = 6
height, width = 112, 112
kernel_size = 3
stride = 2


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, expansion, kernel_size, stride]
