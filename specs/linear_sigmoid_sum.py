"""Linear -> sigmoid -> sum over the features."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Few rows and a large weight, which is read once: the work is cut along the contracted axis too."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        x = torch.sigmoid(self.linear(x))
        return torch.sum(x, dim=1, keepdim=True)


batch_size = 160
in_features = 24576
out_features = 24576


def get_inputs():
    return [torch.rand(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
