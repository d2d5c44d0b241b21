import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, n=1000, c=3, a=1.0):
        super().__init__()

        def conv_bn(i, o, s):
            o = int(a * o)
            return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))

        def conv_dw(i, o, s):
            i, o = int(a * i), int(a * o)
            return nn.Sequential(
                nn.Conv2d(i, i, 3, s, 1, groups=i, bias=False),
                nn.BatchNorm2d(i),
                nn.ReLU(inplace=True),
                nn.Conv2d(i, o, 1, 1, 0, bias=False),
                nn.BatchNorm2d(o),
                nn.ReLU(inplace=True),
            )

        self.model = nn.Sequential(
            conv_bn(c, 32, 2),
            conv_dw(32, 64, 1),
            conv_dw(64, 128, 2),
            conv_dw(128, 128, 1),
            conv_dw(128, 256, 2),
            conv_dw(256, 256, 1),
            conv_dw(256, 512, 2),
            *[conv_dw(512, 512, 1) for _ in range(5)],
            conv_dw(512, 1024, 2),
            conv_dw(1024, 1024, 1),
            nn.AvgPool2d(7),
        )
        self.fc = nn.Linear(int(a * 1024), n)

    def forward(self, x):
        x = self.model(x)
        x = x.view(x.size(0), -1)
        return self.fc(x)


def get_inputs():
    return [torch.rand(10, 3, 224, 224)]


def get_init_inputs():
    return []
