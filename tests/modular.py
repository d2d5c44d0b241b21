"""Evaluates graphs over the integers modulo a prime: exact arithmetic, where equal means equal.

Written from the definitions of the ops, not from the interpreter's: a convolution here is index
arithmetic, so it can contradict both torch and the windows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from fractions import Fraction

import torch

from fusegen import windows
from fusegen.ir import (
    AdaptivePoolOp,
    AxisTapSumOp,
    AxisWindowSumOp,
    CatOp,
    ConstOp,
    ConvOp,
    ExpandOp,
    FillOp,
    FlipOp,
    GatherElementsOp,
    GatherOp,
    Graph,
    InputOp,
    InterpolateOp,
    MatmulOp,
    Node,
    NormalizeOp,
    PadOp,
    ParamOp,
    PermuteOp,
    PointwiseOp,
    PoolOp,
    RangeOp,
    ReduceOp,
    ResampleOp,
    ReshapeOp,
    ScanOp,
    SliceOp,
    TapSumOp,
    TriangleOp,
    UnfoldOp,
    WindowSumOp,
)

PRIME = 134_217_689
"""Below 2^27: products stay below 2^54, so sums of 512 of them fit 64 bits."""
_DENOMINATOR = 1000
"""The largest of a number that stands for a quotient."""


def inverse(value: int) -> int:
    return pow(value, -1, PRIME)


@functools.cache
def residue(value: float) -> int:
    """Of the quotient of small integers that a number stands for: one over a count is no float."""
    ratio = Fraction(value).limit_denominator(_DENOMINATOR)
    return ratio.numerator * inverse(ratio.denominator) % PRIME


def _read(conv: ConvOp, axis: int, tap: int, result: int) -> int | None:
    """The position along an axis that a tap multiplies for a result, inside the data or not; a transposed
    convolution's may lie between two."""
    shift = tap * conv.dilation[axis] - conv.padding[axis]
    if not conv.transposed:
        return result * conv.stride[axis] + shift
    position, between = divmod(result - shift, conv.stride[axis])
    return None if between else position


def conv(x: torch.Tensor, w: torch.Tensor, op: ConvOp) -> torch.Tensor:
    """By the definition: what every tap reads for every result, zeros outside, times it, over channels and taps."""
    kernel = tuple(w.shape[2:])
    sizes = [int(windows.output_size(op, kernel, axis, size)) for axis, size in enumerate(x.shape[2:])]
    for axis, (taps, results) in enumerate(zip(kernel, sizes, strict=True)):
        place = 2 + 2 * axis
        length = x.shape[place]
        read = [_read(op, axis, k, q) for k in range(taps) for q in range(results)]
        inside = [i if i is not None and 0 <= i < length else length for i in read]
        x = torch.cat([x, x.new_zeros([*x.shape[:place], 1, *x.shape[place + 1 :]])], place)
        x = x.index_select(place, torch.tensor(inside, dtype=torch.int64)).unflatten(place, (taps, results))
    groups, rank = op.groups, op.rank
    patches = x.permute(0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2))
    patches = patches.reshape(x.shape[0], groups, 1, x.shape[1] // groups * math.prod(kernel), math.prod(sizes))
    weight = w.unflatten(0, (groups, -1))
    weight = weight.transpose(1, 2) if op.transposed else weight  # [group, output, input, *taps]
    weight = weight.reshape(*weight.shape[:2], -1, 1)
    return (patches * weight % PRIME).sum(3).reshape(x.shape[0], groups * weight.shape[1], *sizes)


def pool(x: torch.Tensor, op: PoolOp) -> torch.Tensor:
    """By the definition along one axis after the other: the elements of every window, and how many of them a mean
    counts."""
    for axis, place in enumerate(range(x.dim() - op.rank, x.dim())):
        length, results = x.shape[place], []
        for q in range(int(op.size[axis])):
            start = q * op.stride[axis] - op.padding[axis]
            taps = [start + k * op.dilation[axis] for k in range(op.kernel[axis])]
            inside = [i for i in taps if 0 <= i < length]
            window = x.index_select(place, torch.tensor(inside))
            if op.fn == "max":
                results.append(window.amax(place))
                continue
            count = sum(i < length + op.padding[axis] for i in taps) if op.count_include_pad else len(inside)
            share = 1 if op.divisor is not None else inverse(count)
            results.append(window.sum(place) % PRIME * share % PRIME)
        x = torch.stack(results, place)
    return x * inverse(op.divisor) % PRIME if op.fn != "max" and op.divisor is not None else x


def adaptive_pool(x: torch.Tensor, op: AdaptivePoolOp) -> torch.Tensor:
    """By the definition: window q of n over a length runs from floor(q length / n) to ceil((q + 1) length / n)."""
    for axis, count in enumerate(map(int, op.size), x.dim() - len(op.size)):
        length = x.shape[axis]
        ends = [(q * length // count, -(-(q + 1) * length // count)) for q in range(count)]
        parts = [x.narrow(axis, begin, end - begin) for begin, end in ends]
        joined = [p.amax(axis) if op.fn == "max" else mean(p, (axis,), False) for p in parts]
        x = torch.stack(joined, axis)
    return x


def mean(x: torch.Tensor, axes: tuple[int, ...], keepdim: bool) -> torch.Tensor:
    total = x.sum(list(axes), keepdim=keepdim) if axes else x
    return (total % PRIME) * inverse(math.prod(x.shape[axis] for axis in axes)) % PRIME


def variance(x: torch.Tensor, axes: tuple[int, ...], keepdim: bool) -> torch.Tensor:
    distance = (x - mean(x, axes, True)) % PRIME
    return mean(distance * distance % PRIME, axes, keepdim)


def normalize(args: list[torch.Tensor], op: NormalizeOp) -> torch.Tensor:
    """By the definition, with the cube in the place of the reciprocal root."""
    x, *affine = args
    power = variance(x, op.axes, True) if op.center else mean(x * x % PRIME, op.axes, True)
    power = (power + residue(op.eps)) % PRIME
    y = ((x - mean(x, op.axes, True)) if op.center else x) % PRIME * (power * power % PRIME * power % PRIME) % PRIME
    if affine:
        y = y * affine[0] % PRIME
    return y + affine[1] if len(affine) > 1 else y


def scan(x: torch.Tensor, op: ScanOp) -> torch.Tensor:
    """By the definition, element by element."""
    y, length = torch.empty_like(x), x.shape[op.axis]
    state = torch.full_like(x.select(op.axis, 0), 0 if op.fn == "sum" else 1)
    for place in reversed(range(length)) if op.reverse else range(length):
        element = x.select(op.axis, place)
        after = (state + element if op.fn == "sum" else state * element) % PRIME
        y.select(op.axis, place).copy_(state if op.exclusive else after)
        state = after
    return y


def interpolate(x: torch.Tensor, op: InterpolateOp) -> torch.Tensor:
    """By the definition, at the places that are rounded by nothing."""
    size, length = x.shape[op.axis], int(op.length)
    step = Fraction(size, length) if op.scale is None else 1 / Fraction(op.scale)
    if op.align_corners:
        step = Fraction(size - 1, max(length - 1, 1))
    if size == length:
        return x
    half = 0 if op.align_corners or op.mode == "nearest" else Fraction(1, 2)
    places = [max(step * (i + half) - half, Fraction(0)) for i in range(length)]
    own = torch.tensor([min(int(place), size - 1) for place in places])
    first = x.index_select(op.axis, own)
    if op.mode == "nearest":
        return first
    second = x.index_select(op.axis, (own + 1).clamp(max=size - 1))
    shares = [place - int(at) for place, at in zip(places, own, strict=True)]
    residues = [share.numerator * inverse(share.denominator) % PRIME for share in shares]
    share = torch.tensor(residues).reshape(-1, *(1,) * (x.dim() - 1 - op.axis))
    return (1 - share) % PRIME * first % PRIME + share * second % PRIME


def _node(node: Node, args: list[torch.Tensor]) -> torch.Tensor:
    match node.op:
        case ConstOp(value=value):
            return torch.tensor(residue(value))
        case PointwiseOp(fn="add"):
            return args[0] + args[1]
        case PointwiseOp(fn="sub"):
            return args[0] - args[1]
        case PointwiseOp(fn="mul"):
            return args[0] * args[1]
        case PointwiseOp(fn="div"):
            return args[0] * args[1].clone().apply_(inverse)
        case PointwiseOp(fn="neg"):
            return -args[0]
        case PointwiseOp(fn="abs" | "relu"):  # residues are not negative
            return args[0]
        case PointwiseOp(fn="square"):
            return args[0] * args[0]
        case PointwiseOp(fn="maximum" | "minimum" as fn):
            return (torch.maximum if fn == "maximum" else torch.minimum)(args[0], args[1])
        case ReduceOp(fn="sum" | "mean" as fn, axes=axes, keepdim=keepdim):
            if fn == "mean":
                return mean(args[0], axes, keepdim)
            return args[0].sum(list(axes), keepdim=keepdim) if axes else args[0]
        case PointwiseOp(fn="rsqrt"):  # any function tells whether two arguments are equal
            return args[0] * args[0] % PRIME * args[0]
        case ReduceOp(fn="var", axes=axes, keepdim=keepdim):
            return variance(args[0], axes, keepdim)
        case NormalizeOp() as op:
            return normalize(args, op)
        case ReduceOp(fn="max", axes=axes, keepdim=keepdim):
            return args[0].amax(list(axes), keepdim=keepdim)
        case ReduceOp(fn="min", axes=axes, keepdim=keepdim):
            return args[0].amin(list(axes), keepdim=keepdim)
        case ReduceOp(fn="prod", axes=(axis,), keepdim=keepdim):
            product = functools.reduce(lambda a, b: a * b % PRIME, args[0].split(1, axis))
            return product if keepdim else product.squeeze(axis)
        case ConvOp() as op:
            return conv(args[0], args[1], op) + (args[2].reshape(-1, *(1,) * op.rank) if len(args) > 2 else 0)
        case MatmulOp(transposed=transposed, left_transposed=left_transposed):
            a, b = args[0].mT if left_transposed else args[0], args[1] if transposed else args[1].mT
            product = (a[..., :, None, :] * b[..., None, :, :]) % PRIME
            return product.sum(-1) + (args[2] if len(args) > 2 else 0)
        case ReshapeOp(shape=shape):
            return args[0].reshape([int(size) for size in shape])
        case PermuteOp(order=order):
            return args[0].permute(order)
        case ScanOp() as op:
            return scan(args[0], op)
        case FlipOp(axes=axes):
            return args[0].flip(axes)
        case ResampleOp() as op:
            size = args[0].shape[op.axis]
            places = (torch.arange(int(op.length)) * op.step + int(op.start)) // op.divisor
            if op.edge == "hold":
                places = places.clamp(0, size - 1)
            elif op.edge == "wrap":
                places %= size
            else:
                places = torch.where(places < 0, -places, places)
                places = torch.where(places >= size, 2 * (size - 1) - places, places)
            return args[0].index_select(op.axis, places)
        case GatherOp(axis=axis):
            return torch.movedim(args[0], axis, 0)[args[1] % args[0].shape[axis]].movedim(
                tuple(range(args[1].dim())), tuple(range(axis, axis + args[1].dim()))
            )
        case GatherElementsOp(axis=axis, ignored=ignored):
            index = args[1] if ignored is None else torch.where(args[1] == ignored, 0, args[1])
            return torch.take_along_dim(args[0], index % args[0].shape[axis], axis)
        case InterpolateOp() as op:
            return interpolate(args[0], op)
        case UnfoldOp(axis=axis, size=size, step=step, dilation=dilation):
            count = (args[0].shape[axis] - 1 - dilation * (size - 1)) // step + 1
            parts = [args[0].index_select(axis, torch.arange(size) * dilation + i * step) for i in range(count)]
            return torch.stack(parts, axis)
        case ExpandOp(shape=shape):
            return args[0].expand([int(size) for size in shape])
        case FillOp(value=value, shape=shape):
            return torch.full([int(size) for size in shape], int(value) % PRIME)
        case RangeOp(length=length, start=start, step=step):
            return torch.arange(int(length)) * step + int(start)
        case PointwiseOp(fn="to_float32" | "to_int64" | "to_int32"):  # of integers that no conversion changes
            return args[0]
        case TriangleOp(upper=upper, diagonal=diagonal):
            return (torch.triu if upper else torch.tril)(args[0], diagonal)
        case SliceOp(axis=axis, start=start, length=length, step=step):
            return args[0].index_select(axis, torch.arange(int(length)) * step + int(start))
        case CatOp(axis=axis):
            return torch.cat(args, axis)
        case PadOp(before=before, after=after, value=value):
            pads = [pad for pair in zip(reversed(before), reversed(after), strict=True) for pad in pair]
            filled = 0 if value == -math.inf else int(value) % PRIME  # no residue is less
            return torch.nn.functional.pad(args[0], pads, value=filled)
        case PoolOp() as op:
            return pool(args[0], op)
        case AdaptivePoolOp() as op:
            return adaptive_pool(args[0], op)
        case WindowSumOp() as op:
            sums = windows.window_sum(args[0], op.replace(mean=False)) % PRIME
            sizes = args[0].shape[2:]
            positions = math.prod(
                int(windows.output_size(op.conv, op.kernel, axis, size)) for axis, size in enumerate(sizes)
            )
            return sums * inverse(positions) if op.mean else sums
        case TapSumOp() as op:
            return windows.tap_sum(args[0], op)
        case AxisWindowSumOp() as op:
            sums = windows.axis_window_sum(args[0], op.replace(mean=False)) % PRIME
            positions = int(windows.output_size(op.conv, op.kernel, op.axis, args[0].shape[2 + op.axis]))
            return sums * inverse(positions) if op.mean else sums
        case AxisTapSumOp() as op:
            return windows.axis_tap_sum(args[0], op)
    raise NotImplementedError(node.op.kind)


def evaluate(graph: Graph, values: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The graph's outputs modulo ``PRIME``; ``values`` by the names of inputs and parameters."""
    known: dict[str, torch.Tensor] = {}
    for node in graph.nodes:
        if isinstance(node.op, (InputOp, ParamOp)):
            known[node.name] = values[node.name]
        else:
            known[node.name] = _node(node, [known[name] for name in node.inputs]) % PRIME
    return tuple(known[name] for name in graph.outputs)
