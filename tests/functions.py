"""Functions of all magnitudes: what a kernel makes of any float, element by element."""

from __future__ import annotations

import torch

BODY = """return (
    x / y, torch.reciprocal(x), x.sqrt(), F.softplus(x), F.softplus(x, 2, 10), F.elu(x, 0.7), F.selu(x),
    F.celu(x, 1.5), F.softsign(x), x.sigmoid(), F.mish(x), x.sin(), x.cos(),
)"""
ARGUMENTS, INPUTS = "x, y", "torch.rand(64, 96), torch.rand(64, 96)"
_ROUNDINGS, _LEAST = 8 * 2.0**-24, 2.0**-120
"""What a value may be off, relative to it, and what denormal ones may be besides."""


def operands(seed: int) -> list[torch.Tensor]:
    """Two tensors: floats of every exponent, NaN and infinities among them, and half of them near one."""
    generator = torch.Generator().manual_seed(seed)

    def any_floats() -> torch.Tensor:
        bits = torch.randint(-(2**31), 2**31, (64, 96), generator=generator).to(torch.int32)
        near = torch.randn(64, 96, generator=generator) * 4
        found = torch.where(torch.rand(64, 96, generator=generator) < 0.5, bits.view(torch.float32), near)
        found[0, :8] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, 3.4e38, -1e-39])
        return found

    x, y = any_floats(), any_floats()
    y[0, :8] = y[0, :8].roll(int(torch.randint(8, (1,), generator=generator)))
    return [x, y]


def agree(found: list[torch.Tensor], exact: list[torch.Tensor]) -> None:
    """Assert that every element is ``exact`` (in double) to a few roundings, specials included."""
    for i, (result, wanted) in enumerate(zip(found, exact, strict=True)):
        single, result = wanted.float().cpu(), result.cpu()
        close = (result.double() - wanted.cpu()).abs() <= _ROUNDINGS * wanted.cpu().abs() + _LEAST
        same = (result == single) | (result.isnan() & single.isnan())
        assert bool((close | same).all()), (i, result[~(close | same)][:5], single[~(close | same)][:5])
