import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, n, c, g):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.Sequential(
                    nn.BatchNorm2d(c + i * g),
                    nn.ReLU(inplace=True),
                    nn.Conv2d(c + i * g, g, 3, padding=1, bias=False),
                    nn.Dropout(0.0),
                )
                for i in range(n)
            ]
        )

    def forward(self, x):
        f = [x]
        for layer in self.layers:
            f.append(layer(x))
            x = torch.cat(f, 1)
        return x


def get_inputs():
    return [torch.rand(10, 32, 224, 224)]


def get_init_inputs():
    return [6, 32, 32]
