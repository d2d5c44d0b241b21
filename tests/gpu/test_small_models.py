"""Chains that no spec has, compiled here and now: every kind of operand, store, phase and reduction."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusegen.verdict.subject import call
from tests import functions
from tests.gpu.cases import agrees, built
from tests.models import write

pytestmark = pytest.mark.gpu

BODIES = {
    "softmax": "return torch.softmax(x, 1) * 2",
    "log_softmax": "return torch.log_softmax(x * 3, 1).exp()",
    "norm": "return (x - x.mean(1, keepdim=True)) / (x.square().mean(1, keepdim=True) + 1).sqrt()",
    "logsumexp": "return torch.logsumexp(x, 1).tanh()",
    "rows_of_features": "return torch.softmax(x.flatten(2).sum(2), 1)",
    "min_prod": "return x.amin(1) + (x * 0.5).prod(1)",
    "residual": "z = x.relu() + x.sigmoid()\nreturn torch.softmax(z, 1) * x + z.amax(1, keepdim=True)",
    "pointwise": "return F.hardswish(x.exp() - 2) * F.mish(x) + F.gelu(x)",
    "broadcasts": "return x * self.row + self.column.sigmoid() / (1 + self.channel.abs())",
    "permuted": "return x.softmax(1).permute(0, 2, 3, 1)",
    "clamped": "return (x * self.channel).clamp(-0.3, 0.4).amax(1)",
    "shared": "y = x.exp()\nreturn y.sum(1, keepdim=True) * y.flip(1)",
    "pool": "return F.max_pool2d((x * self.channel).relu(), 2).tanh() + self.channel",
    "pool_overlap": "return F.avg_pool2d(x, 3, 2, 1, count_include_pad=False) * F.max_pool2d(x.sigmoid(), 3, 2, 1)",
    "pool_ceil": "return F.avg_pool2d(x, 3, 2, 1, ceil_mode=True) + F.max_pool2d(x, 2, 2, ceil_mode=True)[..., :1, :1]",
    "pool_dilated": "return F.max_pool2d(x, (2, 3), (1, 2), (1, 1), (3, 2)) - F.max_pool2d(x, 5, 2, 2).amax()",
    "pool_wide": "return F.avg_pool2d(F.pad(x, (30, 30, 30, 30)), 11, 5)",
    "pool_adaptive": "return F.adaptive_avg_pool2d(x, (3, 5)).exp() + F.adaptive_max_pool2d(x, (3, 5))",
    "pool_1d": "return F.max_pool1d(x.flatten(2), 3, 2) + 1, F.avg_pool1d(x.flatten(2), 2)",
    "pool_long": "return F.adaptive_avg_pool1d(x.flatten(1), 2) * 2, F.adaptive_max_pool2d(x.exp(), (1, 2))",
    "pool_long_padded": "return F.avg_pool2d(F.pad(x * self.channel, (0, 99, 0, 99)), (90, 60), (7, 60), (45, 20))",
    "pool_long_line": "return F.max_pool1d(F.pad(x.flatten(1), (0, 5000)), 5000, 900, 2500) + 1",
    "part_of_channels": "return (F.silu(self.convolution(x)) * 2)[:, 1:], self.convolution(x + 1).mean(3)[:, 5:20:3]",
    "part_of_features": "return F.gelu(self.linear(x.mean((2, 3))))[:, 7:100] * 3",
    "joined": "y = self.channel.expand(x.shape[0], -1, *x.shape[2:])\nreturn torch.cat([x * 2, x.tanh(), y], 1) + 1",
    "padded": "return F.pad(x.exp(), (1, 2, 0, 3), value=0.5)[:, 1:, 2:] * 2",
    "grouped": "return x.view(x.shape[0], 2, 5, x.shape[2], x.shape[3]).transpose(1, 2).reshape(x.shape) * 2",
    "regrouped": "return x.flatten(1).view(x.shape[0], -1, 4).permute(2, 0, 1).relu(), torch.roll(x, 13, 1) * 2",
    "spread": "return (x.unsqueeze(2) - x.unsqueeze(1)).abs() + x[:, :1, None]",
    "einsum": "return torch.einsum('bchw,bcuw,bc->bhu', x, x, x.mean((2, 3)))",
    "losses": "return F.smooth_l1_loss(x, x * 2), F.cosine_similarity(x, x + 1), F.kl_div(x, x.softmax(1))",
    "remainders": "return (x * 7) % 2.5 + torch.fmod(x, 0.3) + torch.hypot(x, x + 1) + torch.atan2(x, x - 1)",
    "inverses": "return x.tanh().asin() + x.sigmoid().acos() + (x.abs() + 1).acosh() + (x.tanh() * 0.5).atanh()",
    "recurrent": "return F.relu(self.recurrent(x.flatten(0, 1))[0] * 2)",
    "pool_3d": "return F.avg_pool3d(x.unsqueeze(1), 3, 2, 1) * 2, F.max_pool3d(x.unsqueeze(1), 2)",
}
INIT = """
self.row = nn.Parameter(torch.randn(7))
self.column = nn.Parameter(torch.randn(6, 1))
self.channel = nn.Parameter(torch.randn(10, 1, 1))
self.recurrent = nn.GRU(7, 5, 2)
self.convolution = nn.Conv2d(10, 24, 3, padding=1)
self.linear = nn.Linear(10, 130)
"""


FIXED_IMAGE = {"broadcasts", "regrouped", "recurrent", "einsum"}
"""Parameters of a size of the image, or a view by fours."""
BATCHES = {"einsum": (4,), "losses": (4, 33)}
"""Batches where not all are compiled for: torch 2.11 fixes an einsum's sizes; the mean of one loss is another graph."""


@pytest.mark.parametrize("name", BODIES)
def test_agrees_at_every_size(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, BODIES[name], INIT, "torch.rand(4, 10, 6, 7)")
    _, reference, model = built(path)
    for batch in BATCHES.get(name, (1, 4, 33)):
        agrees(reference, model, torch.randn(batch, 10, 6, 7, device="cuda"))
    if name not in FIXED_IMAGE:
        agrees(reference, model, torch.randn(2, 10, 64, 128, device="cuda"))


def test_functions_of_all_magnitudes(tmp_path: Path) -> None:
    path = write(tmp_path, functions.BODY, inputs=functions.INPUTS, arguments=functions.ARGUMENTS)
    _, reference, model = built(path)
    for seed in range(8):
        given = tuple(value.cuda() for value in functions.operands(seed))
        with torch.no_grad():
            found = model(*given)
        functions.agree(list(found), list(call(reference, tuple(value.double() for value in given))))


@pytest.mark.parametrize("size", [(126, 126), (90, 63), (33, 1500)])
def test_rows_of_windows_that_divide_rows_unevenly(size: tuple[int, int], tmp_path: Path) -> None:
    body = "return F.adaptive_avg_pool2d(x * 2, (2, 5)) + F.adaptive_max_pool2d(x, (2, 5))"
    _, reference, model = built(write(tmp_path, body, inputs="torch.rand(64, 40, 126, 126)"))
    agrees(reference, model, torch.randn(64, 40, *size, device="cuda"))
    agrees(reference, model, torch.randn(60, 41, *size, device="cuda")[:, 1:])
