"""Linear -> average pooling of features -> GELU -> scale -> maximum."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Features that are averaged are one feature, with averaged weights."""

    def __init__(self, in_features, out_features, window, scale):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.pool = nn.AvgPool1d(window)
        self.scale = scale

    def forward(self, x):
        x = self.pool(self.linear(x).unsqueeze(1)).squeeze(1)
        x = F.gelu(x) * self.scale
        return torch.max(x, dim=1).values


batch_size = 1024
in_features = 4096
out_features = 4096
window = 16
scale = 2.0


def get_inputs():
    return [torch.rand(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, window, scale]
