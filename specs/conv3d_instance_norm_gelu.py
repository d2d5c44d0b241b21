"""Three-dimensional convolution -> instance norm -> division -> GELU."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """A row is a volume of one channel, of a length known only at run time."""

    def __init__(self, in_channels, out_channels, kernel_size, divisor):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size)
        self.norm = nn.InstanceNorm3d(out_channels, affine=True)
        self.divisor = divisor

    def forward(self, x):
        return F.gelu(self.norm(self.conv(x)) / self.divisor)


batch_size = 16
in_channels = 4
out_channels = 32
depth, height, width = 18, 34, 66
kernel_size = 3
divisor = 1.5


def get_inputs():
    return [torch.rand(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, divisor]
