"""One-dimensional transposed convolution -> mean over time -> softmax over channels."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """The collapse in one dimension, with stride, padding and output padding all different."""

    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, output_padding):
        super().__init__()
        self.upsample = nn.ConvTranspose1d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, output_padding=output_padding
        )

    def forward(self, x):
        x = self.upsample(x)
        x = x.mean(dim=-1)
        return torch.softmax(x, dim=1)


batch_size = 16
in_channels = 64
out_channels = 128
length = 65536
kernel_size = 5
stride = 3
padding = 2
output_padding = 1


def get_inputs():
    return [torch.rand(batch_size, in_channels, length)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride, padding, output_padding]
