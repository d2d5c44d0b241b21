"""Convolutions of images whose elements are repeated: a transposed convolution of the image itself.

A kernel meets each element as often as it is repeated, with neighbouring weights, and so needs their sums alone
(k + s - 1 taps to s results, in place of k to each). ``ConvOp.enlarged`` keeps how large eager's input is, by whose
sizes its precision goes.
"""

from __future__ import annotations

from math import prod

from fusegen import dims, inference
from fusegen.ir import ConvOp, ExpandOp, FlipOp, Node, PadOp, PermuteOp, PointwiseOp, PoolOp, ReshapeOp
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op
from fusegen.verdict.tf32 import in_tf32

_LEAST = 16
"""Channels on either side below which products do not fill the tensor cores, and reading is what takes time."""


def _factors(m: Match) -> tuple[int, ...] | None:
    """How often each element is repeated along each axis of ``x``, or None."""
    x, apart, spread, up = (m[name].type.shape for name in ("x", "apart", "spread", "up"))
    if apart[:2] != x[:2] or spread[:2] != x[:2] or len(apart) != len(spread):
        return None
    found, place = [], 2
    for size in x[2:]:
        if place >= len(apart) or apart[place] != size or spread[place] != size:
            return None
        place += 1
        times = spread[place] if place < len(apart) and apart[place] == 1 != spread[place] else 1
        if not isinstance(times, int):
            return None
        place += times != 1
        found.append(times)
    whole = tuple(dims.mul(size, times) for size, times in zip(x[2:], found, strict=True))
    return tuple(found) if place == len(apart) and up == (*x[:2], *whole) and max(found) > 1 else None


def _fewer_products(m: Match) -> str | None:
    conv, factors = m.root.op, _factors(m)
    assert isinstance(conv, ConvOp)
    one, none = (1,) * conv.rank, (0,) * conv.rank
    plain = ConvOp(transposed=False, stride=one, padding=conv.padding, dilation=one, output_padding=none)
    if factors is None or conv != plain:
        return ""
    kernel = inference.kernel_size(m["w"].type)
    if any(padding >= taps for padding, taps in zip(conv.padding, kernel, strict=True)):
        return "its padding reaches beyond a kernel"
    return _pays(m, kernel, factors)


def _pays(m: Match, kernel: tuple[int, ...], factors: tuple[int, ...]) -> str | None:
    outputs, inputs = m["w"].type.shape[:2]
    if not isinstance(outputs, int) or not isinstance(inputs, int) or min(outputs, inputs) < _LEAST:
        return "it has few channels"
    if not in_tf32(False, inputs):
        return "eager computes it in full fp32"
    if prod(k + s - 1 for k, s in zip(kernel, factors, strict=True)) >= prod(kernel) * prod(factors):
        return "as many products"
    few = dims.numel(m["x"].type.shape, m.graph.sizes) < dims.numel(m["w"].type.shape, m.graph.sizes)
    return "its weights are more than its data" if few else None


def _of_sums(m: Match) -> Node:
    conv, factors = m.root.op, _factors(m)
    assert isinstance(conv, ConvOp)
    assert factors is not None
    kernel, one = inference.kernel_size(m["w"].type), (1,) * conv.rank
    around = (0, 0, *(s - 1 for s in factors))
    w = m.add(PadOp(before=around, after=around), m["w"])
    size = tuple(k + s - 1 for k, s in zip(kernel, factors, strict=True))
    means = PoolOp(fn="mean", kernel=factors, stride=one, padding=(0,) * conv.rank, dilation=one, size=size)
    w = m.add(PointwiseOp(fn="mul"), m.add(means, w), m.const(prod(factors)))
    w = m.add(FlipOp(axes=tuple(range(2, 2 + conv.rank))), w)
    w = m.add(PermuteOp(order=(1, 0, *range(2, 2 + conv.rank))), w)
    padding = tuple(k - 1 - p for k, p in zip(kernel, conv.padding, strict=True))
    return m.add(conv.replace(transposed=True, stride=factors, padding=padding, enlarged=factors), m["x"], w)


RULES = (
    Rule(
        "conv(repeat(x), w) = conv_transpose(x, sums of w),  each element of x repeated along axes",
        op(
            ConvOp,
            op(
                ReshapeOp,
                op(ExpandOp, op(ReshapeOp, anything("x"), name="apart"), name="spread"),
                name="up",
            ),
            anything("w"),
        ),
        _of_sums,
        Numerics.REASSOCIATES,
        _fewer_products,
    ),
)
