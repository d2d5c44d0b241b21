import torch
import torch.nn as nn


class MB(nn.Module):
    def __init__(self, i, o, k, s, e):
        super().__init__()
        h = i * e
        self.use = s == 1 and i == o
        self.expand = nn.Sequential(nn.Conv2d(i, h, 1, bias=False), nn.BatchNorm2d(h), nn.ReLU6(inplace=True))
        self.dw = nn.Sequential(nn.Conv2d(h, h, k, s, (k - 1) // 2, groups=h, bias=False), nn.BatchNorm2d(h), nn.SiLU())
        self.se = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(h, h // 4, 1), nn.SiLU(), nn.Conv2d(h // 4, h, 1), nn.Sigmoid()
        )
        self.proj = nn.Sequential(nn.Conv2d(h, o, 1, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        y = self.dw(self.expand(x))
        y = y * self.se(y)
        y = self.proj(y)
        return x + y if self.use else y


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = MB(32, 32, 3, 1, 6)
        self.b = MB(32, 64, 5, 2, 6)

    def forward(self, x):
        return self.b(self.a(x))


def get_inputs():
    return [torch.rand(10, 32, 112, 112)]


def get_init_inputs():
    return []
