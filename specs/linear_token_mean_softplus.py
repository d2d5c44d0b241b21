"""Linear over tokens -> mean over tokens -> softplus."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """A mean over tokens commutes with the layer: one token goes through it instead of all."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        x = self.linear(x)
        return F.softplus(x.mean(dim=1))


batch_size = 32
length = 256
in_features = 1024
out_features = 4096


def get_inputs():
    return [torch.rand(batch_size, length, in_features)]


def get_init_inputs():
    return [in_features, out_features]
