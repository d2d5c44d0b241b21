import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, image=224, patch=16, n=10, dim=512, depth=6, heads=8, mlp=2048, ch=3, dropout=0.0):
        super().__init__()
        self.patch = patch
        self.pos = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, dim))
        self.embed = nn.Linear(ch * patch**2, dim)
        self.cls = nn.Parameter(torch.randn(1, 1, dim))
        self.dropout = nn.Dropout(dropout)
        self.transformer = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d_model=dim, nhead=heads, dim_feedforward=mlp, dropout=dropout), num_layers=depth
        )
        self.mlp_head = nn.Sequential(nn.Linear(dim, mlp), nn.GELU(), nn.Dropout(dropout), nn.Linear(mlp, n))

    def forward(self, img):
        p = self.patch
        x = img.unfold(2, p, p).unfold(3, p, p).reshape(img.shape[0], -1, p * p * img.shape[1])
        x = self.embed(x)
        cls = self.cls.expand(img.shape[0], -1, -1)
        x = torch.cat((cls, x), dim=1)
        x = self.dropout(x + self.pos)
        x = self.transformer(x)
        return self.mlp_head(x[:, 0])


def get_inputs():
    return [torch.randn(2, 3, 224, 224)]


def get_init_inputs():
    return []
