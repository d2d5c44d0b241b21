import torch
import torch.nn as nn


class DC(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.d = nn.Sequential(
            nn.Conv2d(i, o, 3, padding=1),
            nn.BatchNorm2d(o),
            nn.Softmax(dim=-1),
            nn.Conv2d(o, o, 3, padding=1),
            nn.BatchNorm2d(o),
            nn.Softmax(dim=-1),
        )

    def forward(self, x):
        return self.d(x)


class Model(nn.Module):
    def __init__(self, i, o, f):
        super().__init__()
        self.e1 = DC(i, f)
        self.p1 = nn.MaxPool2d(2, 2)
        self.e2 = DC(f, f * 2)
        self.p2 = nn.MaxPool2d(2, 2)
        self.b = DC(f * 2, f * 4)
        self.u2 = nn.ConvTranspose2d(f * 4, f * 2, 2, 2)
        self.d2 = DC(f * 4, f * 2)
        self.u1 = nn.ConvTranspose2d(f * 2, f, 2, 2)
        self.d1 = DC(f * 2, f)
        self.final = nn.Conv2d(f, o, 1)

    def forward(self, x):
        e1 = self.e1(x)
        e2 = self.e2(self.p1(e1))
        b = self.b(self.p2(e2))
        d2 = self.d2(torch.cat([self.u2(b), e2], dim=1))
        d1 = self.d1(torch.cat([self.u1(d2), e1], dim=1))
        return self.final(d1)


def get_inputs():
    return [torch.rand(8, 8, 64, 512)]


def get_init_inputs():
    return [8, 4, 64]
