import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, i, a, b0, b, c0, c, d):
        super().__init__()
        self.b1 = nn.Conv2d(i, a, 1)
        self.b3 = nn.Sequential(nn.Conv2d(i, b0, 1), nn.Conv2d(b0, b, 3, padding=1))
        self.b5 = nn.Sequential(nn.Conv2d(i, c0, 1), nn.Conv2d(c0, c, 5, padding=2))
        self.bp = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(i, d, 1))

    def forward(self, x):
        return torch.cat([self.b1(x), self.b3(x), self.b5(x), self.bp(x)], 1)


def get_inputs():
    return [torch.rand(10, 480, 224, 224)]


def get_init_inputs():
    return [480, 192, 96, 208, 16, 48, 64]
