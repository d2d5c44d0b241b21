"""Three-dimensional transposed convolution -> mean over the volume -> maximum over channels."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """The collapse in three dimensions, under a reduction that does not commute with the mean."""

    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, output_padding):
        super().__init__()
        self.upsample = nn.ConvTranspose3d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, output_padding=output_padding
        )

    def forward(self, x):
        x = self.upsample(x)
        x = x.mean(dim=(2, 3, 4), keepdim=True)
        return torch.amax(x, dim=1, keepdim=True)


batch_size = 8
in_channels = 32
out_channels = 64
depth, height, width = 16, 48, 48
kernel_size = 3
stride = 2
padding = 1
output_padding = 1


def get_inputs():
    return [torch.rand(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride, padding, output_padding]
