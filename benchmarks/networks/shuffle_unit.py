import torch
import torch.nn as nn
import torch.nn.functional as F


class Shuffle(nn.Module):
    def __init__(self, g):
        super().__init__()
        self.g = g

    def forward(self, x):
        b, c, h, w = x.size()
        x = x.view(b, self.g, c // self.g, h, w).transpose(1, 2).contiguous()
        return x.view(b, -1, h, w)


class Model(nn.Module):
    def __init__(self, i, o, g=3):
        super().__init__()
        m = o // 4
        self.conv1 = nn.Conv2d(i, m, 1, groups=g, bias=False)
        self.bn1 = nn.BatchNorm2d(m)
        self.conv2 = nn.Conv2d(m, m, 3, 1, 1, groups=m, bias=False)
        self.bn2 = nn.BatchNorm2d(m)
        self.conv3 = nn.Conv2d(m, o, 1, groups=g, bias=False)
        self.bn3 = nn.BatchNorm2d(o)
        self.shuffle = Shuffle(g)
        self.shortcut = nn.Sequential() if i == o else nn.Sequential(nn.Conv2d(i, o, 1, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out = self.shuffle(out)
        out = F.relu(self.bn3(self.conv3(out)))
        return out + self.shortcut(x)


def get_inputs():
    return [torch.rand(10, 240, 112, 112)]


def get_init_inputs():
    return [240, 480, 3]
