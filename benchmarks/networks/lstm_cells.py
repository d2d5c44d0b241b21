"""Two LSTM cells, one after the other at every step, and the mean of the second one's states."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, input_size, hidden_size, classes):
        super().__init__()
        self.hidden_size = hidden_size
        self.first = nn.LSTMCell(input_size, hidden_size)
        self.second = nn.LSTMCell(hidden_size, hidden_size)
        self.head = nn.Linear(hidden_size, classes)

    def forward(self, x):
        """x [batch, steps, input_size] -> [batch, classes]"""
        h1 = c1 = h2 = c2 = torch.zeros(x.shape[0], self.hidden_size, device=x.device)
        states = []
        for step in range(x.shape[1]):
            h1, c1 = self.first(x[:, step], (h1, c1))
            h2, c2 = self.second(h1, (h2, c2))
            states.append(h2)
        return self.head(torch.stack(states, dim=1).mean(dim=1))


def get_inputs():
    return [torch.randn(32, 50, 64)]


def get_init_inputs():
    return [64, 192, 10]
