import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """A frozen backbone (put in eval mode by the constructor) below a trained head with spatial pyramid pooling."""

    def __init__(self, classes, f):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, f, 3, padding=1), nn.BatchNorm2d(f), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(f, 2 * f, 3, padding=1), nn.BatchNorm2d(2 * f), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(2 * f, 4 * f, 3, padding=1), nn.BatchNorm2d(4 * f), nn.PReLU(4 * f), nn.Dropout2d(0.0),
        ).eval()  # fmt: skip
        self.head = nn.Sequential(
            nn.Linear(21 * 4 * f, 128), nn.BatchNorm1d(128), nn.Hardswish(), nn.Linear(128, classes)
        )

    def forward(self, x):
        x = self.backbone(x)
        p = [F.adaptive_avg_pool2d(x, k).view(x.size(0), -1) for k in (1, 2)]
        p.append(F.adaptive_max_pool2d(x, 4).view(x.size(0), -1))
        return F.log_softmax(self.head(torch.cat(p, 1)), dim=1)


def get_inputs():
    return [torch.rand(32, 3, 64, 64)]


def get_init_inputs():
    return [10, 64]
