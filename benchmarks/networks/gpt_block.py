import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class NewGELU(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Attn(nn.Module):
    def __init__(self, d, h, p1, p2, T):
        super().__init__()
        self.c_attn = nn.Linear(d, 3 * d)
        self.c_proj = nn.Linear(d, d)
        self.attn_dropout = nn.Dropout(p1)
        self.resid_dropout = nn.Dropout(p2)
        self.register_buffer("bias", torch.tril(torch.ones(T, T)).view(1, 1, T, T))
        self.n_head = h
        self.n_embd = d

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = self.attn_dropout(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class Model(nn.Module):
    def __init__(self, d, h, p1, p2, T):
        super().__init__()
        self.ln_1 = nn.LayerNorm(d)
        self.attn = Attn(d, h, p1, p2, T)
        self.ln_2 = nn.LayerNorm(d)
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(d, 4 * d), "c_proj": nn.Linear(4 * d, d), "act": NewGELU(), "dropout": nn.Dropout(p2)}
        )
        m = self.mlp
        self.mlpf = lambda x: m.dropout(m.c_proj(m.act(m.c_fc(x))))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlpf(self.ln_2(x))


def get_inputs():
    return [torch.rand(16, 512, 768)]


def get_init_inputs():
    return [768, 8, 0.0, 0.0, 1024]
