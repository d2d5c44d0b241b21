"""The reference in float64: what its forward makes, and what it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}


class _AskedForDouble(TorchFunctionMode):
    """Within it, a forward that asks for float32 (``x.float()``, ``softmax(x, dtype=torch.float32)``) gets float64."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        def wider(value: Any) -> Any:
            return _WIDER.get(value, value) if isinstance(value, torch.dtype) else value

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
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(torch.complex128) if value.is_complex() else value.double() if value.is_floating_point() else value


def doubled(module: nn.Module) -> nn.Module:
    """``module`` itself, its parameters and buffers in double precision: also complex ones, which torch leaves out."""
    module.double()
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = double(tensor.data)
    return module
