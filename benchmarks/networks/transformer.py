"""An encoder and a decoder with a causal mask, as torch.nn has them."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, width, heads, layers, feed_forward, symbols):
        super().__init__()
        self.transformer = nn.Transformer(width, heads, layers, layers, feed_forward, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, symbols)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1), device=target.device)
        return F.log_softmax(self.head(self.transformer(source, target, tgt_mask=mask)), dim=-1)


def get_inputs():
    return [torch.rand(16, 128, 512), torch.rand(16, 96, 512)]


def get_init_inputs():
    return [512, 8, 2, 2048, 1000]
