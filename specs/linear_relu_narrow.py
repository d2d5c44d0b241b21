"""Linear -> ReLU with few features."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """A product that memory bounds: every input is read for sixteen results."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        return torch.relu(self.linear(x))


batch_size = 16384
in_features = 256
out_features = 16


def get_inputs():
    return [torch.rand(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
