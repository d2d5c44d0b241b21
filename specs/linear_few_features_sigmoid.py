"""Scores of many classes from few features: Linear -> +bias -> sigmoid."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Results take longer to store than their sums of few terms to compute."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.offset = nn.Parameter(torch.randn(out_features))

    def forward(self, x):
        return torch.sigmoid(self.linear(x) + self.offset)


batch_size = 16384
in_features = 32
out_features = 8192


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
