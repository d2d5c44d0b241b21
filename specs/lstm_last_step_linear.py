"""LSTM of two layers -> its last step -> Linear -> sigmoid: a classifier of sequences."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Each layer is a product of all of its inputs, and one kernel for all steps that keeps the weights on chip."""

    def __init__(self, in_features, hidden, layers, classes):
        super().__init__()
        self.lstm = nn.LSTM(in_features, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        steps, _ = self.lstm(x)
        return torch.sigmoid(self.head(steps[:, -1]))


batch_size, length, in_features, hidden, layers, classes = 32, 128, 64, 256, 2, 10


def get_inputs():
    return [torch.randn(batch_size, length, in_features)]


def get_init_inputs():
    return [in_features, hidden, layers, classes]
