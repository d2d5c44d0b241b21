"""The taps of a convolution along one axis, as the portable kernel meets them."""

from __future__ import annotations

from math import gcd

from fusegen.costs.conv_tiling import TilingAxis


class Taps:
    """The taps of one axis, by output phase."""

    def __init__(self, kernel: int, stride: int, padding: int, dilation: int, transposed: bool):
        self.kernel, self.stride, self.padding, self.dilation = kernel, stride, padding, dilation
        self.phases = stride if transposed else 1
        self.step = 1 if transposed else stride
        self.gap = stride // gcd(stride, dilation) if transposed else 1
        self.spread = self.gap * dilation // stride if transposed else dilation
        self.offsets: list[list[int]] = []
        for phase in range(self.phases):
            shifts = [phase + padding - k * dilation for k in range(kernel)]
            if transposed:
                self.offsets.append([shift // stride for shift in shifts if shift % stride == 0])
            else:
                self.offsets.append([-shift for shift in shifts])

    @property
    def most(self) -> int:
        """Taps of the phase that has most."""
        return max(map(len, self.offsets))

    def merged(self) -> Taps:
        """All that any phase meets, as the taps of a convolution of stride 1."""
        every = sorted({offset for offsets in self.offsets for offset in offsets})
        step = gcd(*(offset - every[0] for offset in every)) or 1
        return Taps((every[-1] - every[0]) // step + 1, 1, -every[0], step, False)

    def tiled(self, *, alone: bool = False, width: bool = False, together: bool = False) -> TilingAxis:
        """``together``: a load of x serves all phases."""
        row = 1 if width else self.step if alone or self.most == 1 else gcd(self.step, self.spread)
        span = 0 if alone else (self.most - 1) * self.spread // row
        if together and self.phases > 1:
            every = [offset for offsets in self.offsets for offset in offsets]
            span = max(every) - min(every)
        return TilingAxis(
            kernel=self.kernel,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            phases=self.phases,
            gap=self.gap,
            alone=alone,
            row=row,
            span=span,
        )
