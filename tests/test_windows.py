"""The windows of convolution taps, against the definition of a convolution."""

from __future__ import annotations

import random

from fusegen import dims, windows
from fusegen.ir import ConvOp
from fusegen.windows import SIZE


def structure(rng: random.Random) -> tuple[ConvOp, tuple[int]]:
    transposed, stride, dilation = rng.random() < 0.5, rng.randint(1, 4), rng.randint(1, 3)
    conv = ConvOp(
        transposed=transposed,
        stride=(stride,),
        padding=(rng.randint(0, 4),),
        dilation=(dilation,),
        output_padding=(rng.randrange(max(stride, dilation)) if transposed else 0,),
    )
    return conv, (rng.randint(1, 5),)


def output_length(conv: ConvOp, kernel: int, size: int) -> int:
    reach = conv.dilation[0] * (kernel - 1)
    if conv.transposed:
        return (size - 1) * conv.stride[0] - 2 * conv.padding[0] + reach + conv.output_padding[0] + 1
    return (size + 2 * conv.padding[0] - reach - 1) // conv.stride[0] + 1


def met(conv: ConvOp, tap: int, size: int, outputs: int) -> set[int]:
    """The input positions that a tap meets in all output positions."""
    shift = tap * conv.dilation[0] - conv.padding[0]
    if conv.transposed:
        return {i for i in range(size) if 0 <= i * conv.stride[0] + shift < outputs}
    return {q * conv.stride[0] + shift for q in range(outputs)} & set(range(size))


def test_windows_hold_what_the_taps_meet() -> None:
    rng = random.Random(5)
    for _ in range(1000):
        conv, kernel = structure(rng)
        least = windows.least_size(conv, kernel, 0)
        lengths = [output_length(conv, kernel[0], size) for size in range(1, least + 1)]
        assert lengths[-1] >= 1
        assert all(length < 1 for length in lengths[:-1])
        taps = windows.axis_taps(conv, kernel, 0)
        for size in range(least, least + 9):
            outputs = dims.evaluate(windows.output_size(conv, kernel, 0, size), {})
            assert outputs == output_length(conv, kernel[0], size)
            for tap, number in enumerate(taps.tap_window):
                window = taps.windows[number]
                stop = dims.evaluate(dims.substitute(window.stop, {SIZE: "height"}), {"height": size})
                assert set(range(window.start, stop, window.step)) == met(conv, tap, size, outputs)
