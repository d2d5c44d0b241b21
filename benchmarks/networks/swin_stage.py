import torch
import torch.nn as nn
import torch.nn.functional as F


def window_partition(x, w):
    B, H, W, C = x.shape
    x = x.view(B, H // w, w, W // w, w, C)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, w, w, C)


def window_reverse(windows, w, H, W):
    B = int(windows.shape[0] / (H * W / w / w))
    x = windows.view(B, H // w, W // w, w, w, -1)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(B, H, W, -1)


class WindowAttention(nn.Module):
    def __init__(self, dim, w, heads):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.table = nn.Parameter(torch.randn((2 * w - 1) * (2 * w - 1), heads) * 0.02)
        c = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(w), indexing="ij")).flatten(1)
        r = (c[:, :, None] - c[:, None, :]).permute(1, 2, 0).contiguous()
        r[:, :, 0] += w - 1
        r[:, :, 1] += w - 1
        r[:, :, 0] *= 2 * w - 1
        self.register_buffer("index", r.sum(-1))
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        B_, N, C = x.shape
        qkv = self.qkv(x).reshape(B_, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.table[self.index.view(-1)].view(N, N, -1).permute(2, 0, 1).contiguous()
        attn = attn + bias.unsqueeze(0)
        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(B_ // nW, nW, self.heads, N, N) + mask.unsqueeze(1).unsqueeze(0)
            attn = attn.view(-1, self.heads, N, N)
        attn = F.softmax(attn, dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B_, N, C))


class SwinBlock(nn.Module):
    def __init__(self, dim, resolution, heads, w, shift):
        super().__init__()
        self.w, self.shift, self.resolution = w, shift, resolution
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, w, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(0.0), nn.Linear(4 * dim, dim))
        mask = None
        if shift:
            H, W = resolution
            img = torch.zeros((1, H, W, 1))
            cnt = 0
            for h in (slice(0, -w), slice(-w, -shift), slice(-shift, None)):
                for v in (slice(0, -w), slice(-w, -shift), slice(-shift, None)):
                    img[:, h, v, :] = cnt
                    cnt += 1
            m = window_partition(img, w).view(-1, w * w)
            mask = m.unsqueeze(1) - m.unsqueeze(2)
            mask = mask.masked_fill(mask != 0, (-100.0)).masked_fill(mask == 0, 0.0)
        self.register_buffer("mask", mask)

    def forward(self, x):
        H, W = self.resolution
        B, L, C = x.shape
        assert L == H * W, "input feature has wrong size"
        shortcut = x
        x = self.norm1(x).view(B, H, W, C)
        if self.shift > 0:
            x = torch.roll(x, shifts=(-self.shift, -self.shift), dims=(1, 2))
        windows = window_partition(x, self.w).view(-1, self.w * self.w, C)
        windows = self.attn(windows, mask=self.mask).view(-1, self.w, self.w, C)
        x = window_reverse(windows, self.w, H, W)
        if self.shift > 0:
            x = torch.roll(x, shifts=(self.shift, self.shift), dims=(1, 2))
        x = shortcut + x.view(B, H * W, C)
        return x + self.mlp(self.norm2(x))


class PatchMerging(nn.Module):
    def __init__(self, resolution, dim):
        super().__init__()
        self.resolution = resolution
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)
        self.norm = nn.LayerNorm(4 * dim)

    def forward(self, x):
        H, W = self.resolution
        B, _, C = x.shape
        x = x.view(B, H, W, C)
        x = torch.cat([x[:, 0::2, 0::2, :], x[:, 1::2, 0::2, :], x[:, 0::2, 1::2, :], x[:, 1::2, 1::2, :]], -1)
        return self.reduction(self.norm(x.view(B, -1, 4 * C)))


class Model(nn.Module):
    def __init__(self, size, dim, heads, w):
        super().__init__()
        self.embed = nn.Conv2d(3, dim, 4, 4)
        self.norm = nn.LayerNorm(dim)
        r = size // 4
        self.blocks = nn.Sequential(SwinBlock(dim, (r, r), heads, w, 0), SwinBlock(dim, (r, r), heads, w, w // 2))
        self.merge = PatchMerging((r, r), dim)
        self.avgpool = nn.AdaptiveAvgPool1d(1)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = self.merge(self.blocks(self.norm(x)))
        return torch.flatten(self.avgpool(x.transpose(1, 2)), 1)


def get_inputs():
    return [torch.rand(10, 3, 224, 224)]


def get_init_inputs():
    return [224, 96, 3, 7]
