import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, i, hs, o):
        super().__init__()
        layers = []
        for h in hs:
            layers += [nn.Linear(i, h), nn.ReLU()]
            i = h
        layers.append(nn.Linear(i, o))
        self.network = nn.Sequential(*layers)

    def forward(self, x):
        return self.network(x)


def get_inputs():
    return [torch.rand(128, 8192)]


def get_init_inputs():
    return [8192, [1024] * 8, 8192]
