"""Linear layer -> layer norm -> softsign -> variance over the features."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """The norm and the statistics after it run over the same rows."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.norm = nn.LayerNorm(out_features)

    def forward(self, x):
        x = F.softsign(self.norm(self.linear(x)))
        return x - x.std(dim=1, keepdim=True)


batch_size = 16384
in_features = 256
out_features = 1024


def get_inputs():
    return [torch.rand(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
