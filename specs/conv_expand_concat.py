"""1x1 convolution -> ReLU -> 1x1 and 3x3 convolutions -> ReLU each -> concatenated."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """A squeeze, and two expansions of it side by side."""

    def __init__(self, in_channels, squeezed, expanded):
        super().__init__()
        self.squeeze = nn.Conv2d(in_channels, squeezed, 1)
        self.pixels = nn.Conv2d(squeezed, expanded, 1)
        self.windows = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.pixels(x)), F.relu(self.windows(x))], 1)


batch_size = 64
in_channels = 96
height, width = 112, 112
squeezed = 16
expanded = 64


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, squeezed, expanded]
