import torch
import torch.nn as nn


def part(x, w):
    B, H, W, C = x.shape
    x = x.view(B, H // w, w, W // w, w, C)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, w, w, C)


class Model(nn.Module):
    def __init__(self, dim=96, heads=3, w=7, shift=3):
        super().__init__()
        self.w = w
        self.h = heads
        self.shift = shift
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)
        self.act = nn.GELU()
        self.table = nn.Parameter(torch.randn((2 * w - 1) ** 2, heads))
        c = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(w), indexing="ij")).flatten(1)
        r = (c[:, :, None] - c[:, None, :]).permute(1, 2, 0) + (w - 1)
        r[:, :, 0] *= 2 * w - 1
        self.register_buffer("index", r.sum(-1))
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x):
        B, H, W, C = x.shape
        s = x
        x = torch.roll(self.norm1(x), shifts=(-self.shift, -self.shift), dims=(1, 2))
        xw = part(x, self.w).view(-1, self.w * self.w, C)
        Bw, N, _ = xw.shape
        qkv = self.qkv(xw).reshape(Bw, N, 3, self.h, C // self.h).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        a = (q * (C // self.h) ** -0.5) @ k.transpose(-2, -1)
        bias = self.table[self.index.view(-1)].view(N, N, -1).permute(2, 0, 1).contiguous()
        a = self.softmax(a + bias.unsqueeze(0))
        y = self.proj((a @ v).transpose(1, 2).reshape(Bw, N, C)).view(-1, self.w, self.w, C)
        y = (
            y.view(B, H // self.w, W // self.w, self.w, self.w, -1)
            .permute(0, 1, 3, 2, 4, 5)
            .contiguous()
            .view(B, H, W, -1)
        )
        x = s + torch.roll(y, shifts=(self.shift, self.shift), dims=(1, 2))
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


def get_inputs():
    return [torch.rand(10, 56, 56, 96)]


def get_init_inputs():
    return []
