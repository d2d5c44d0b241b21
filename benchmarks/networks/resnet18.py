import torch
import torch.nn as nn


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, i, o, stride=1, downsample=None):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(o)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(o)
        self.downsample = downsample

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Model(nn.Module):
    def __init__(self, num_classes=1000):
        super().__init__()
        self.in_channels = 64
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = self._make(BasicBlock, 64, 2)
        self.layer2 = self._make(BasicBlock, 128, 2, 2)
        self.layer3 = self._make(BasicBlock, 256, 2, 2)
        self.layer4 = self._make(BasicBlock, 512, 2, 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, num_classes)

    def _make(self, block, o, n, stride=1):
        d = None
        if stride != 1 or self.in_channels != o:
            d = nn.Sequential(nn.Conv2d(self.in_channels, o, 1, stride, bias=False), nn.BatchNorm2d(o))
        layers = [block(self.in_channels, o, stride, d)]
        self.in_channels = o
        for _ in range(1, n):
            layers.append(block(o, o))
        return nn.Sequential(*layers)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def get_inputs():
    return [torch.rand(16, 3, 224, 224)]


def get_init_inputs():
    return []
