"""Poolings of poolings, of monotone functions and of convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable

from fusegen import dims, inference, ops
from fusegen.errors import GraphError
from fusegen.ir import (
    AdaptivePoolOp,
    ConstOp,
    ConvOp,
    DType,
    Node,
    PadOp,
    PointwiseOp,
    PoolOp,
    ReduceOp,
    TensorType,
)
from fusegen.passes.algebra.collapse import READ_ELSEWHERE, conv_below
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op
from fusegen.verdict.tf32 import in_tf32

# --- poolings that compose ----------------------------------------------------------------------


def _pools(m: Match) -> tuple[PoolOp, PoolOp]:
    outer, inner = m.root.op, m["inner"].op
    assert isinstance(outer, PoolOp)
    assert isinstance(inner, PoolOp)
    return outer, inner


def is_plain(pool: PoolOp) -> bool:
    """Every window lies inside the input and counts in full."""
    return not any(pool.padding) and not pool.ceil and pool.divisor is None


def _composed(outer: PoolOp, inner: PoolOp) -> PoolOp:
    kernel = tuple(k + (n - 1) * s for k, n, s in zip(inner.kernel, outer.kernel, inner.stride, strict=True))
    stride = tuple(a * b for a, b in zip(inner.stride, outer.stride, strict=True))
    return inner.replace(kernel=kernel, stride=stride, size=outer.size)


def _composes(m: Match) -> str | None:
    outer, inner = _pools(m)
    if outer.rank != inner.rank or not m.only_user("inner"):
        return ""
    flat = all(d == 1 for d in (*outer.dilation, *inner.dilation))
    if not flat or not is_plain(outer) or inner.ceil:
        return "windows that reach over the edge do not compose"
    pairs = list(zip(inner.kernel, inner.stride, strict=True))
    if outer.fn == "max" and any(kernel < stride for kernel, stride in pairs):
        return "the windows leave gaps"
    if outer.fn == "mean" and (not is_plain(inner) or any(kernel != stride for kernel, stride in pairs)):
        return "only means over tiles compose to one mean"
    return None


def is_composed(m: Match) -> bool:
    """Whether the mean pooling ``m.root`` becomes a part of the one that alone reads it."""
    readers = m.graph.users[m.root.name]
    outer = m.graph.node(readers[0]) if len(readers) == 1 else m.root
    if not isinstance(outer.op, PoolOp) or outer.op.fn != "mean" or outer is m.root:
        return False
    return _composes(Match(m.graph, outer, {"inner": m.root})) is None


def _compose(m: Match) -> Node:
    return m.add(_composed(*_pools(m)), m["x"])


def _whole_axes(m: Match) -> str | None:
    pool = m.root.op
    assert isinstance(pool, PoolOp)
    whole = m["x"].type.shape[-pool.rank :] == pool.kernel and set(pool.size) == {1}
    return None if whole and is_plain(pool) and set(pool.dilation) == {1} else ""


def _reduce_whole(m: Match) -> Node:
    pool, rank = m.root.op, m["x"].type.rank
    assert isinstance(pool, PoolOp)
    return m.add(ReduceOp(fn=pool.fn, axes=tuple(range(rank - pool.rank, rank)), keepdim=True), m["x"])


# --- monotone functions and maxima --------------------------------------------------------------

_INCREASING = ("relu", "exp", "sigmoid", "tanh", "floor", "ceil", "round", "selu", "hardsigmoid", "erf", "atan")
_WITH_NUMBER = ("add", "sub", "mul", "div", "maximum", "minimum", "leaky_relu")


def _finite(m: Match) -> str | None:
    """The function is increasing for this number, and makes NaN of NaN alone."""
    fn, c = m["inner"].op, m["c"].op
    assert isinstance(fn, PointwiseOp)
    assert isinstance(c, ConstOp)
    if not isinstance(c.value, float) or not math.isfinite(c.value) or m["x"].type != m["inner"].type:
        return ""
    positive = fn.fn not in ("mul", "div", "leaky_relu") or c.value > 0
    return None if positive and m.only_user("inner") else ""


def _after_maximum(m: Match) -> Node:
    inner = m["inner"].op
    operands = [m["c"]] if "c" in m.captures else []
    return m.add(inner, m.add(m.root.op, m["x"]), *operands)


_MAXIMA = (
    ("max pooling", PoolOp, {"fn": "max"}),
    ("adaptive max pooling", AdaptivePoolOp, {"fn": "max"}),
    ("a maximum or minimum", ReduceOp, {"fn": ("max", "min")}),
)

# --- convolutions under a mean pooling ----------------------------------------------------------


def pooled_weights(m: Match, before: tuple[int, ...], after: tuple[int, ...], stride: tuple[int, ...]) -> Node:
    """The kernel padded and averaged over the pooling's windows: `stride` taps apart."""
    pool, w = m.root.op, m["w"]
    assert isinstance(pool, PoolOp)
    lead = (0, 0)
    padded = m.add(PadOp(before=(*lead, *before), after=(*lead, *after)), w)
    nothing, one = (0,) * pool.rank, (1,) * pool.rank
    box = PoolOp(fn="mean", kernel=pool.kernel, stride=stride, padding=nothing, dilation=one, size=one)
    taps = tuple(inference.pool_size(box, axis, int(size)) for axis, size in enumerate(padded.type.shape[2:]))
    return m.add(box.replace(size=taps), padded)


def merged_conv(m: Match, pool: PoolOp, conv: ConvOp) -> ConvOp:
    """In full fp32 where eager's convolution is: of another kernel and stride, the library may choose TF32."""
    stride = tuple(a * b for a, b in zip(conv.stride, pool.stride, strict=True))
    channels = m["w"].type.shape[1]
    exact = isinstance(channels, int) and not in_tf32(conv.transposed, channels)
    return conv.replace(stride=stride, precise=conv.precise or exact, summed=False)


def pool_and_conv(m: Match) -> tuple[PoolOp, ConvOp] | None:
    """Both, when they run over the same axes and the convolution can take in the pooling at all."""
    pool, conv = m.root.op, m["conv"].op
    assert isinstance(pool, PoolOp)
    assert isinstance(conv, ConvOp)
    if pool.rank != conv.rank or not is_plain(pool) or set(conv.dilation) != {1}:
        return None
    return (pool, conv) if m["x"].type.dtype is DType.FLOAT32 else None


def alone(m: Match, fits: Callable[[Match], str | None]) -> str | None:
    """None where the convolution ``fits``, and nothing but the pooling reads it."""
    if is_composed(m):
        return ""
    reason = fits(m)
    return READ_ELSEWHERE if reason is None and not m.only_user("conv") else reason


def fits(m: Match) -> str | None:
    """None where ``merge`` takes a pooling into a convolution, and that pays."""
    found = pool_and_conv(m)
    if found is None:
        return ""
    pool, conv = found
    if conv.transposed or set(conv.stride) != {1}:
        return ""
    if reason := merged_taps(m):
        return reason
    taps = tuple(k + n - 1 for k, n in zip(inference.kernel_size(m["w"].type), pool.kernel, strict=True))
    size = _conv_type(m, merged_conv(m, pool, conv), taps)
    return None if size == m.root.type else "the sizes do not agree for every input size"


def merged_taps(m: Match) -> str | None:
    """Why an averaged kernel has too many taps, or None."""
    found = pool_and_conv(m)
    if found is None:
        return "dilated taps do not meet"
    pool, _ = found
    kernel = inference.kernel_size(m["w"].type)
    merged = math.prod(k + n - 1 for k, n in zip(kernel, pool.kernel, strict=True))
    if reason := _dear(m, merged, math.prod(pool.kernel)):
        return reason
    if cheaper(merged, math.prod(kernel) * math.prod(pool.stride)):
        return None
    return f"{merged} taps for every result, against {math.prod(kernel)} for each of {math.prod(pool.kernel)}"


def _dear(m: Match, merged: int, window: int) -> str | None:
    """Why ``merged`` taps, averages of ``window`` weights each, are no less work than the results, or None."""
    samples, _, *positions = m["conv"].type.shape
    direct = math.prod(inference.kernel_size(m["w"].type)) * dims.numel((samples, *positions), m.graph.sizes)
    return (
        f"averages of {window} weights for each of {merged} taps are much work"
        if 4 * merged * window > direct
        else None
    )


def cheaper(merged: int, direct: int) -> bool:
    """Worth a kernel of its own for the weights."""
    return 4 * merged <= 3 * direct


def _conv_type(m: Match, conv: ConvOp, kernel: tuple[int, ...]) -> TensorType | None:
    w = m["w"].type
    try:
        return ops.infer(conv, (m["x"].type, w.replace(shape=(*w.shape[:2], *kernel))), m.root.type)
    except GraphError:
        return None


def merge(m: Match) -> Node:
    """The convolution of the pooling's stride with the kernel averaged over its windows."""
    found = pool_and_conv(m)
    assert found is not None
    pool, conv = found
    around = tuple(n - 1 for n in pool.kernel)
    weights = pooled_weights(m, around, around, (1,) * pool.rank)
    return m.add(merged_conv(m, pool, conv), m["x"], weights)


def _shifted(m: Match) -> str | None:
    """The term is one number for every window of a plane, and a convolution lies below."""
    pool, c, inner = m.root.op, m["c"], m["inner"]
    assert isinstance(pool, PoolOp)
    if is_composed(m):
        return ""
    constant = all(size == 1 for size in c.type.shape[-pool.rank :])
    conv = conv_below(m.graph, m["x"]) is not None and m.only_user("x")
    whole = pool.count_include_pad is False or is_plain(pool)
    return None if constant and conv and whole and m["x"].type == inner.type and m.only_user("inner") else ""


def _after_pooling(m: Match) -> Node:
    return m.add(m["inner"].op, m.add(m.root.op, m["x"]), m["c"])


CONV = op(ConvOp, anything("x"), anything("w"), name="conv")

RULES = (
    Rule(
        "max_pool(max_pool(x)) = max_pool(x)",
        op(PoolOp, op(PoolOp, anything("x"), name="inner", fn="max"), fn="max"),
        _compose,
        Numerics.EXACT,
        _composes,
    ),
    Rule(
        "mean_pool(mean_pool(x)) = mean_pool(x),  over tiles",
        op(PoolOp, op(PoolOp, anything("x"), name="inner", fn="mean"), fn="mean"),
        _compose,
        Numerics.REASSOCIATES,
        _composes,
    ),
    Rule(
        "pool(x) of one window = reduce(x)",
        op(PoolOp, anything("x")),
        _reduce_whole,
        Numerics.REASSOCIATES,
        _whole_axes,
    ),
    *(
        Rule(
            f"{name} of f(x) = f of it,  f increasing",
            op(kind, op(PointwiseOp, anything("x"), name="inner", fn=_INCREASING), **fields),
            _after_maximum,
            Numerics.REASSOCIATES,
            lambda m: None if m.only_user("inner") else "",
        )
        for name, kind, fields in _MAXIMA
    ),
    *(
        Rule(
            f"{name} of f(x, c) = f of it and c,  f increasing for the number c",
            op(kind, op(PointwiseOp, anything("x"), op(ConstOp, name="c"), name="inner", fn=_WITH_NUMBER), **fields),
            _after_maximum,
            Numerics.REASSOCIATES,
            _finite,
        )
        for name, kind, fields in _MAXIMA
    ),
    *(
        Rule(
            f"mean_pool(conv {sign} c) = mean_pool(conv) {sign} c,  c constant over a plane",
            op(
                PoolOp,
                op(PointwiseOp, anything("x"), anything("c"), name="inner", fn=fn, commutative=fn in ("add", "mul")),
                fn="mean",
            ),
            _after_pooling,
            Numerics.REASSOCIATES,
            _shifted,
        )
        for fn, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/"))
    ),
    Rule(
        "mean_pool(conv(x, w)) = conv(x, windows of w averaged) of the pooling's stride",
        op(PoolOp, CONV, fn="mean"),
        merge,
        Numerics.REASSOCIATES,
        lambda m: alone(m, fits),
    ),
)
