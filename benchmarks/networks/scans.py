import torch
import torch.nn as nn


class Model(nn.Module):
    """Scans and order: cumulative sums (forwards, backwards, exclusive, masked), a product, extremes."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x, mask):
        a = torch.cumsum(x, dim=self.dim)
        b = torch.cumsum(x.flip(self.dim), dim=self.dim).flip(self.dim)
        c = torch.cumsum(
            torch.cat((torch.zeros_like(x.select(self.dim, 0).unsqueeze(self.dim)), x), dim=self.dim), dim=self.dim
        )
        d = torch.cumsum(x * mask, dim=self.dim)
        e = torch.cumprod(1 + 1e-3 * x, dim=self.dim)
        return (
            a + b - c[:, :-1] * d,
            e,
            torch.argmax(x, dim=self.dim),
            torch.argmin(x, dim=0),
            torch.min(x, dim=self.dim)[0],
        )


def get_inputs():
    return [torch.randn(2048, 4096), torch.randint(0, 2, (2048, 4096)).bool()]


def get_init_inputs():
    return [1]
