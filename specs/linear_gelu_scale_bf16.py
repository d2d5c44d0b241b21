"""Linear -> GELU -> scale in bfloat16."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """A heavy matrix product of 16-bit floats with a pointwise epilogue."""

    def __init__(self, in_features, out_features, scale):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, dtype=torch.bfloat16)
        self.scale = scale

    def forward(self, x):
        return nn.functional.gelu(self.linear(x)) * self.scale


batch_size = 1536
in_features = 6144
out_features = 8192
scale = 1.5


def get_inputs():
    return [torch.rand(batch_size, in_features, dtype=torch.bfloat16)]


def get_init_inputs():
    return [in_features, out_features, scale]
