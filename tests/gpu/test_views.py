"""Elementwise work behind views, and how its results lie in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu.cases import built
from tests.models import write

pytestmark = pytest.mark.gpu

SHAPE = (24, 96, 130)


@pytest.mark.parametrize(
    "body",
    {
        "rolled": "return torch.roll(x, (5, -3), (1, 2)) * 2",
        "flipped": "return x.flip(2) + x.flip(0, 1) * 2",
        "reflected": "return F.pad(torch.exp(x), (1, 2), mode='reflect')",
        "reflected both ways": "return F.pad(x[:, None], (3, 2, 1, 4), mode='reflect') + 1",
        "continued": "return F.pad(x[:, None], (3, 2, 0, 4), mode='replicate') + 1",
        "around": "return F.pad(x[:, None], (3, 2, 1, 4), mode='circular') + 1",
        "repeated": "return torch.relu(x).repeat(1, 2, 3)",
        "nearest": "return F.interpolate(torch.relu(x)[:, None], scale_factor=2)",
        "bilinear": "return torch.relu(F.interpolate(x[:, None], scale_factor=2, mode='bilinear'))",
        "bilinear by different factors": "return F.interpolate(x[:, None], scale_factor=(4, 2), mode='bilinear')",
        "bilinear to other sizes": "return F.interpolate(torch.relu(x)[:, None], (57, 200), mode='bilinear')",
        "bilinear by another factor": "return F.interpolate(x[:, None], scale_factor=(3, 1), mode='bilinear')",
        "bilinear between corners": (
            "return F.interpolate(x[:, None], scale_factor=2, mode='bilinear', align_corners=True) + 1"
        ),
        "linear to a size of the call": "return F.interpolate(x, x.shape[1], mode='linear')",
        "nearest to other sizes": "return F.interpolate(x[:, None], (57, 200)) + 1",
        "nearest to sizes of the call": "return F.interpolate(x[:, None], (x.shape[2], x.shape[1])) + 1",
        "columns of windows": "return F.unfold(x[:, None], 3, padding=1)",
        "columns of strided windows": "return F.unfold(x[:, None].exp(), (2, 3), 2, (0, 1), (1, 3))",
        "frames": "return x.unfold(2, 2, 1) * x[..., :2].unsqueeze(2)",
        "windows of rows": "return x.unfold(1, 4, 1).unfold(2, 3, 2).contiguous()",
        "means of windows": "return F.pad(x, (2, 2)).unfold(2, 5, 1).mean(-1)",
        "windows times a kernel": (
            "u = F.unfold(x[:, None] / 8, 3, padding=1).view(x.shape[0], 9, *x.shape[1:])\n"
            "return (u * u[:, :1].exp()).sum(1)"
        ),
        "differences": "return x.diff(dim=2).abs().mean(2) + (x[:, 1:] - x[:, :-1]).square().mean()",
    }.values(),
)
@pytest.mark.parametrize("sizes", [SHAPE, (3, 96, 1031), (7, 6, 5), (0, 96, 130)])
def test_where_every_element_comes_from(body: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    _, reference, generated = built(write(tmp_path, body, "", f"torch.rand{SHAPE}"))
    x = torch.randn(sizes, device="cuda")
    with torch.no_grad():
        torch.testing.assert_close(generated(x), reference(x), rtol=1e-6, atol=5e-7)  # sums of values up to 5


ROTARY = """
t = torch.arange(x.shape[1], device=x.device).float()
f = torch.outer(t, 100.0 ** (-torch.arange(0, 130, 2, device=x.device).float() / 130))
e = torch.cat([f, f], -1)[:, :x.shape[2]]
return x * e.cos() + x.flip(2) * e.sin()
"""


INTEGERS = {
    "padding": "return x * (torch.arange(x.shape[1], device=x.device) < n[:, None])[..., None]",
    "padding of means": "return (x * (torch.arange(x.shape[1], device=x.device) < n[:, None])[..., None]).mean(1)",
    "classes": "return F.one_hot(n, 97).float() + x[0, :1, :1]",
    "weights of classes": "return (F.one_hot(n, 97)[:, None, :96] * x.mT).sum(-1)",
    "places": "k = torch.arange(x.shape[2], device=x.device)\nreturn x * ((k * 3 + 1) % 5 - k // 2).flip(0)",
    "remainders of classes": "return (n % 7 * -2 + n // 3).clamp(-5, 20)[:, None, None] * x",
    "causal": (
        "k, q = torch.arange(x.shape[2], device=x.device), torch.arange(x.shape[1], device=x.device)\n"
        "return torch.where(k <= q[:, None], x, -torch.inf).softmax(2)"
    ),
    "buckets": (
        "k = torch.arange(x.shape[2], device=x.device)\na = (k - 3).abs()\n"
        "b = 8 + (torch.log(a.float().clamp(min=1) / 8) / 2.7725887 * 8).long()\n"
        "return x + torch.where(a < 8, a, b.clamp(max=15)).float()"
    ),
    "quantised": "return ((x * 20).round().long().clamp(-128, 127) - n[:, None, None]).float() * 0.05",
    "rotary": ROTARY,
}
OWN_SIZES = {  # of bodies that are of some sizes only, or mean nothing of none
    "padding of means": [SHAPE, (3, 96, 1031), (0, 96, 130)],
    "classes": [SHAPE, (3, 96, 1031), (7, 6, 5)],
    "weights of classes": [SHAPE, (3, 96, 1031), (0, 96, 130)],
    "causal": [SHAPE, (9, 96, 130), (0, 96, 130)],
    "rotary": [SHAPE, (9, 96, 130), (0, 96, 130)],
}


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        (name, sizes)
        for name in INTEGERS
        for sizes in OWN_SIZES.get(name, [SHAPE, (3, 96, 1031), (7, 6, 5), (0, 96, 130)])
    ],
)
def test_integers(name: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    drawn = f"torch.rand{SHAPE}, torch.randint(0, 97, ({SHAPE[0]},))"
    _, reference, generated = built(write(tmp_path, INTEGERS[name], "", drawn, "x, n"))
    x, n = torch.randn(sizes, device="cuda"), torch.randint(0, 97, sizes[:1], device="cuda")
    with torch.no_grad():
        torch.testing.assert_close(generated(x, n), reference(x, n), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "body",
    {
        "batched": "return (x.permute(0, 2, 1) * 2).contiguous()",
        "all axes": "return torch.tanh(x.permute(2, 1, 0)).flatten(1) + 1",
        "beside one that is not": "return x.transpose(1, 2) * (x.reshape(x.shape[0], x.shape[2], x.shape[1]) + 1)",
        "part": "return torch.exp(x[:, 1:].transpose(1, 2)).contiguous()",
        "joined": "return torch.cat([x.transpose(1, 2), torch.exp(x).transpose(1, 2)], 2) * 2",
        "padded": "return F.pad(x, (1, 2)).transpose(1, 2).flatten(0, 1) * 2",
    }.values(),
)
@pytest.mark.parametrize("sizes", [SHAPE, (3, 96, 1031), (2, 96, 16), (7, 96, 5), (0, 96, 130)])
def test_operands_in_another_order(body: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    _, reference, generated = built(write(tmp_path, body, "", f"torch.rand{SHAPE}"))
    x = torch.randn(sizes, device="cuda")
    with torch.no_grad():
        torch.testing.assert_close(generated(x), reference(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "body",
    {
        "neighbouring channels": "return F.local_response_norm(torch.relu(x), 5)",
        "an even number of them": "return F.local_response_norm(x, 4, 0.1, 0.6)",
        "maxima of rows": "return F.max_pool2d(x.unsqueeze(1), (3, 1), (2, 1), (1, 0)).squeeze(1) + 1",
        "maxima of padded rows": (
            "y = F.pad(x.unsqueeze(1) * 2, (0, 0, 1, 1), value=-torch.inf)\n"
            "return F.max_pool2d(y, (3, 1), (2, 1)).squeeze(1)"
        ),
    }.values(),
)
@pytest.mark.parametrize("sizes", [(24, 96, 130), (3, 9, 31), (2, 97, 1024), (0, 96, 130)])
def test_poolings_of_views(body: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    _, reference, generated = built(write(tmp_path, body, "", f"torch.rand{SHAPE}"))
    x = torch.randn(sizes, device="cuda")
    with torch.no_grad():
        torch.testing.assert_close(generated(x), reference(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        "return F.hardsigmoid(self.m(x).permute(2, 0, 1))",
        "return F.hardsigmoid(self.m(x).permute(2, 0, 1)).contiguous()",
        "return F.hardsigmoid(self.m(x)).permute(2, 0, 1).contiguous()",
        "return F.hardsigmoid(self.m(x)).transpose(0, 1).contiguous()",
        "return F.hardsigmoid(self.m(x))[:, 1:].contiguous()",
        "return F.hardsigmoid(self.m(x).transpose(1, 2).contiguous()) + 1",
        "y = self.m(x).transpose(1, 2)\nreturn y * torch.tanh(y) - y.mean(1, keepdim=True)",
    ],
)
def test_results_lie_as_eagers(body: str, tmp_path: Path) -> None:
    _, reference, generated = built(write(tmp_path, body, "self.m = nn.Conv1d(96, 48, 3)", f"torch.rand{SHAPE}"))
    generated.load_state_dict(reference.state_dict())
    x = torch.randn(SHAPE, device="cuda")
    with torch.no_grad():
        found, expected = generated(x), reference(x)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert found.stride() == expected.stride()
