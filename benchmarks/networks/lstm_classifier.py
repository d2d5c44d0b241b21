"""A bidirectional LSTM over a sequence, from a state that the model holds, and a classifier of its last step."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, input_size, hidden_size, num_layers, classes, batch_size):
        super().__init__()
        self.h0 = torch.randn((num_layers * 2, batch_size, hidden_size))
        self.c0 = torch.randn((num_layers * 2, batch_size, hidden_size))
        self.lstm = nn.LSTM(input_size, hidden_size, num_layers, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(2 * hidden_size)
        self.head = nn.Linear(2 * hidden_size, classes)

    def forward(self, x):
        self.h0 = self.h0.to(x.device)
        self.c0 = self.c0.to(x.device)
        out, _ = self.lstm(x, (self.h0, self.c0))
        return self.head(torch.relu(self.norm(out[:, -1, :])))


def get_inputs():
    return [torch.randn(16, 256, 128)]


def get_init_inputs():
    return [128, 256, 3, 10, 16]
