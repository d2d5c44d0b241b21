"""A GRU of several layers in both directions, from given states."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, input_size, hidden_size, num_layers):
        super().__init__()
        self.gru = nn.GRU(input_size, hidden_size, num_layers, bidirectional=True)

    def forward(self, x, h0):
        output, last = self.gru(x, h0)
        return output, last


def get_inputs():
    return [torch.rand(128, 10, 128), torch.rand(6 * 2, 10, 256)]


def get_init_inputs():
    return [128, 256, 6]
