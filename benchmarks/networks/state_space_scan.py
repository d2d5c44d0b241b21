import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, b, s, h, dh, ds, bl):
        super().__init__()
        self.bl = bl
        self.A = nn.Parameter(torch.randn(b, s, h))
        self.B = nn.Parameter(torch.randn(b, s, h, ds))
        self.C = nn.Parameter(torch.randn(b, s, h, ds))

    def segsum(self, x):
        T = x.size(-1)
        c = torch.cumsum(x, dim=-1)
        s = c[..., :, None] - c[..., None, :]
        m = torch.tril(torch.ones(T, T, device=x.device, dtype=bool), diagonal=0)
        return s.masked_fill(~m, -torch.inf)

    def forward(self, X, initial_states=None):
        b, s, h, p = X.shape
        Xb = X.reshape(b, s // self.bl, self.bl, h, p)
        Bb = self.B.reshape(b, s // self.bl, self.bl, h, -1)
        Cb = self.C.reshape(b, s // self.bl, self.bl, h, -1)
        Ab = self.A.reshape(b, s // self.bl, self.bl, h).permute(0, 3, 1, 2)
        Ac = torch.cumsum(Ab, dim=-1)
        L = torch.exp(self.segsum(Ab))
        Yd = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", Cb, Bb, L, Xb)
        decay = torch.exp(Ac[:, :, :, -1:] - Ac)
        st = torch.einsum("bclhn,bhcl,bclhp->bchpn", Bb, decay, Xb)
        if initial_states is None:
            initial_states = torch.zeros_like(st[:, :1])
        st = torch.cat([initial_states, st], dim=1)
        dc = torch.exp(self.segsum(F.pad(Ac[:, :, :, -1], (1, 0))))
        ns = torch.einsum("bhzc,bchpn->bzhpn", dc, st)[:, :-1]
        Yo = torch.einsum("bclhn,bchpn,bhcl->bclhp", Cb, ns, torch.exp(Ac))
        return (Yd + Yo).reshape(b, s, h, p)


def get_inputs():
    return [torch.rand(64, 128, 8, 64)]


def get_init_inputs():
    return [64, 128, 8, 64, 16, 64]
