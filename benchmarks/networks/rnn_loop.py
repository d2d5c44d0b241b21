"""A recurrent cell written by hand and applied step by step, and what is read off every state."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)
        self.tanh = nn.Tanh()

    def forward(self, x, h0):
        """x [steps, batch, input_size], h0 [batch, hidden_size] -> [steps, batch, output_size]"""
        hidden, outputs = h0, []
        for step in range(x.size(0)):
            hidden = self.tanh(self.i2h(torch.cat((x[step], hidden), dim=1)))
            outputs.append(self.h2o(hidden))
        return torch.stack(outputs, dim=0)


def get_inputs():
    return [torch.rand(64, 8, 512), torch.rand(8, 256)]


def get_init_inputs():
    return [512, 256, 128]
