"""Grouped, dilated, strided transposed convolution -> mean -> logsumexp over channels."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Every parameter of the transposed convolution at once."""

    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, dilation):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=padding,
            output_padding=output_padding,
            groups=groups,
            dilation=dilation,
        )

    def forward(self, x):
        x = self.conv_transpose(x)
        x = torch.mean(x, dim=(2, 3))
        return torch.logsumexp(x, dim=1)


batch_size = 16
in_channels = 64
out_channels = 128
height, width = 96, 96
kernel_size = 3
stride = 3
padding = 3
output_padding = 2
groups = 4
dilation = 2


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, dilation]
