"""TF32 as eager's convolutions use it: the setting, the rule which of them do, and their arithmetic.

cuDNN decides by shape whether a convolution that may run in TF32 does. The larger ones do and round both
operands to nearest; small ones often run in full fp32. A generated module asks which, where it can; elsewhere it
keeps to what torch's setting permits and is held to the error of that class where cuDNN happens to do better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")
LEAST_CHANNELS = 16
"""Input channels per group below which cuDNN computes a (not transposed) convolution in full fp32 on an H200, mostly:
36 of 170 random ones with fewer ran in TF32, of 1 to 125 taps, by no rule of channels, taps, stride or outputs."""


def in_tf32(transposed: bool, channels_per_group: int) -> bool:
    """True when eager computes such a convolution with TF32 operands as far as torch's settings permit it."""
    return transposed or channels_per_group >= LEAST_CHANNELS


@contextmanager
def tf32_convolutions(allowed: bool) -> Iterator[None]:
    """Within it, cuDNN may (or may not) use TF32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def rounded(x: torch.Tensor) -> torch.Tensor:
    """``x`` with 10 bits of mantissa, rounded to nearest, ties away from zero (``cvt.rna.tf32.f32``)."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


class _Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Convolutions that run in TF32 get rounded operands."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.convolution.default and args[0].dtype == torch.float32:
            x, weight, *rest = args
            transposed = args[6]
            channels = weight.shape[0] // args[8] if transposed else weight.shape[1]
            if in_tf32(transposed, channels):
                args = (rounded(x), rounded(weight), *rest)
        return func(*args, **(kwargs or {}))


@contextmanager
def tf32_arithmetic() -> Iterator[None]:
    """Within it, convolutions are those of TF32 with exact sums, whatever cuDNN would choose."""
    with tf32_convolutions(False), _Rounding():  # type: ignore[no-untyped-call]
        yield


def tf32_results(run: Callable[[], T]) -> T | None:
    """What ``run`` returns in TF32 arithmetic; None where torch's settings do not permit it."""
    if not (torch.cuda.is_available() and torch.backends.cudnn.allow_tf32):
        return None
    with tf32_arithmetic():
        return run()
