"""Linear -> GELU -> scale -> GroupNorm over the features."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """512 groups of 16 neighbouring features each, normalised after a heavy matrix product."""

    def __init__(self, in_features, out_features, num_groups, scale):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.norm = nn.GroupNorm(num_groups, out_features)
        self.scale = scale

    def forward(self, x):
        x = nn.functional.gelu(self.linear(x)) * self.scale
        return self.norm(x)


batch_size = 1536
in_features = 6144
out_features = 8192
num_groups = out_features // 16
scale = 1.5


def get_inputs():
    return [torch.rand(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, num_groups, scale]
