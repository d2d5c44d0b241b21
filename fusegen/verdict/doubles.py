"""The reference in float64: what its forward makes, and what it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _AskedForDouble(TorchFunctionMode):
    """Within it, a forward that asks for float32 (``x.float()``, ``softmax(x, dtype=torch.float32)``) gets float64."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        def wider(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*map(wider, args), **{name: wider(value) for name, value in (kwargs or {}).items()})


@contextmanager
def made_in_double() -> Iterator[None]:
    """Within it, tensors that forward makes are float64, as its parameters are, whether it asks for float32 or not."""
    saved = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _AskedForDouble():
            yield
    finally:
        torch.set_default_dtype(saved)


def double(value: Any) -> Any:
    """An input as the reference in float64 takes it."""
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if floating else value
