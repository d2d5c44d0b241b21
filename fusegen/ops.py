"""One row per structural op: its type (``inference``), meaning in torch, and cost. Elementwise rows: ``pointwise``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any

from fusegen import dims, inference, windows
from fusegen.dims import Dims
from fusegen.ir import (
    AdaptivePoolOp,
    AttentionOp,
    CatOp,
    ConstOp,
    ConvOp,
    DType,
    EagerOp,
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
    Op,
    PadOp,
    ParamOp,
    PermuteOp,
    PointwiseOp,
    PoolOp,
    RangeOp,
    RecurrenceOp,
    RecurrentOp,
    ReduceOp,
    ResampleOp,
    ReshapeOp,
    ScanOp,
    SliceOp,
    TensorType,
    TriangleOp,
    UnfoldOp,
)
from fusegen.literals import python_float
from fusegen.pointwise import POINTWISE

Shape = tuple[int, ...]
_MOVES = (ReshapeOp, PermuteOp, ExpandOp, SliceOp, CatOp, PadOp, FlipOp, ResampleOp, TriangleOp)


@dataclass(frozen=True)
class OpRow:
    """``infer(op, operand types, declared type)``; ``torch(op, operand texts)`` is a Python expression;
    ``flops(op, operand shapes, result shape)`` counts additions and multiplications. ``flattens(op)``:
    large differences between operands can become small ones between results."""

    infer: Callable[[Any, inference.Types, TensorType], TensorType]
    torch: Callable[[Any, Sequence[str]], str]
    flops: Callable[[Any, Sequence[Shape], Shape], int] = lambda op, operands, result: 0
    flattens: Callable[[Any], bool] = lambda op: False


def _size_list(shape: Dims) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _torch_slice(op: SliceOp, args: Sequence[str]) -> str:
    stop = dims.add(op.start, dims.mul(op.length, op.step))
    return f"{args[0]}[{':, ' * op.axis}{op.start}:{stop}:{op.step}]"


def _torch_resample(op: ResampleOp, args: Sequence[str]) -> str:
    x = args[0]
    last = f"({x}.shape[{op.axis}] - 1)"
    index = f"(torch.arange({op.length}, device={x}.device) * {op.step} + ({op.start})) // {op.divisor}"
    held = {
        "hold": f"({index}).clamp(0, {last})",
        "mirror": f"{last} - ({last} - ({index}).abs()).abs()",
        "wrap": f"({index}) % ({last} + 1)",
    }
    return f"{x}.index_select({op.axis}, {held[op.edge]})"


def _torch_interpolate(op: InterpolateOp, args: Sequence[str]) -> str:
    """By torch's own places: they are of float32, of float64 in linear interpolation of that."""
    x = f"torch.movedim({args[0]}, {op.axis}, -1)"
    options = f"[{op.length}], {f'{op.align_corners}, ' if op.mode == 'linear' else ''}"
    options += "None" if op.scale is None else python_float(op.scale)
    text = f"torch.ops.aten.upsample_{op.mode}1d.default({x}.reshape(-1, 1, {args[0]}.shape[{op.axis}]), {options})"
    return f"torch.movedim({text}.reshape(*{x}.shape[:-1], {op.length}), -1, {op.axis})"


def _torch_gather(op: GatherOp, args: Sequence[str]) -> str:
    x, index = args
    if op.wraps:
        return f"{x}[{':, ' * op.axis}{index}]"
    shape = f"{x}.shape[:{op.axis}] + {index}.shape + {x}.shape[{op.axis + 1}:]"
    return f"torch.index_select({x}, {op.axis}, {index}.reshape(-1)).reshape({shape})"


def _torch_gather_elements(op: GatherElementsOp, args: Sequence[str]) -> str:
    x, index = args
    if op.wraps:
        index = f"torch.where({index} < 0, {index} + {x}.shape[{op.axis}], {index})"
    if op.ignored is not None:
        index = f"torch.where({index} == {op.ignored}, 0, {index})"
    return f"torch.take_along_dim({x}, {index}, {op.axis})"


def _torch_unfold(op: UnfoldOp, args: Sequence[str]) -> str:
    """Windows with the elements between theirs, without those."""
    between = f"[..., ::{op.dilation}]" if op.dilation > 1 else ""
    extent = op.dilation * (op.size - 1) + 1
    return f"{args[0]}.unfold({op.axis}, {extent}, {op.step}){between}.movedim(-1, {op.axis + 1})"


def _torch_pad(op: PadOp, args: Sequence[str]) -> str:
    pads = [pad for pair in zip(reversed(op.before), reversed(op.after), strict=True) for pad in pair]
    return f"torch.nn.functional.pad({args[0]}, {pads}, value={python_float(op.value)})"


def _torch_fill(op: FillOp, args: Sequence[str]) -> str:
    own = f", dtype=torch.{op.dtype.value}" if op.dtype else ""
    return f"{args[0]}.new_full({_size_list(op.shape)}, {python_float(op.value)}{own})"


def _torch_range(op: RangeOp, args: Sequence[str]) -> str:
    stop = dims.add(op.start, dims.mul(op.length, op.step))
    return f"torch.arange({op.start}, {stop}, {op.step}, dtype=torch.{op.dtype.value}, device={args[0]}.device)"


def _torch_pool(op: PoolOp, args: Sequence[str]) -> str:
    options = f"{op.kernel}, {op.stride}, {op.padding}, "
    if op.fn == "max":
        return f"torch.nn.functional.max_pool{op.rank}d({args[0]}, {options}{op.dilation}, ceil_mode={op.ceil})"
    options += f"ceil_mode={op.ceil}, count_include_pad={op.count_include_pad}"
    if op.divisor is not None:
        options += f", divisor_override={op.divisor}"
    return f"torch.nn.functional.avg_pool{op.rank}d({args[0]}, {options})"


def _torch_adaptive_pool(op: AdaptivePoolOp, args: Sequence[str]) -> str:
    name = {"max": "max", "mean": "avg"}[op.fn]
    return f"torch.nn.functional.adaptive_{name}_pool{op.rank}d({args[0]}, {_size_list(op.size)})"


def _torch_const(op: ConstOp, args: Sequence[str]) -> str:
    if isinstance(op.value, str):
        return f"({op.value})" if op.times == 1 else f"({python_float(op.times)} * ({op.value}))"
    return repr(op.value) if isinstance(op.value, int) else python_float(op.value)


def _torch_normalize(op: NormalizeOp, args: Sequence[str]) -> str:
    x, axes, eps = args[0], list(op.axes), python_float(op.eps)
    if op.center:
        var = f"torch.var({x}, dim={axes}, correction=0, keepdim=True)"
        text = f"({x} - torch.mean({x}, dim={axes}, keepdim=True)) * torch.rsqrt({var} + {eps})"
    else:
        text = f"{x} * torch.rsqrt(torch.mean(torch.square({x}), dim={axes}, keepdim=True) + {eps})"
    for applied, operand in zip(("*", "+"), args[1:], strict=False):
        text += f" {applied} {operand}"
    return f"({text})"


_REDUCE_TORCH = {"max": "amax", "min": "amin"}


def _torch_reduce(op: ReduceOp, args: Sequence[str]) -> str:
    if op.fn == "prod":
        text = args[0]
        for axis in reversed(op.axes):
            text = f"torch.prod({text}, dim={axis}, keepdim={op.keepdim})"
        return text
    if op.fn == "var":
        return f"torch.var({args[0]}, dim={list(op.axes)}, correction=0, keepdim={op.keepdim})"
    if op.fn == "max" or op.fn == "min" or op.axes:
        name = _REDUCE_TORCH.get(op.fn, op.fn)
        return f"torch.{name}({args[0]}, dim={list(op.axes)}, keepdim={op.keepdim})"
    return args[0]


SCAN_STARTS = {"sum": 0.0, "prod": 1.0}
"""What a scan begins with."""


def _torch_scan(op: ScanOp, args: Sequence[str]) -> str:
    """An exclusive scan begins with one more element, in place of the last."""
    text = f"torch.flip({args[0]}, [{op.axis}])" if op.reverse else args[0]
    text = f"torch.cum{op.fn}({text}, dim={op.axis})"
    if op.exclusive:
        last = f"torch.movedim({text}, {op.axis}, -1)"
        text = f"torch.nn.functional.pad({last}, (1, -1), value={SCAN_STARTS[op.fn]}).movedim(-1, {op.axis})"
    return f"torch.flip({text}, [{op.axis}])" if op.reverse else text


def _torch_conv(op: ConvOp, args: Sequence[str]) -> str:
    bias = args[2] if len(args) > 2 else "None"
    if op.cropped:
        part = ", ".join(f"{first}:{-last or ''}" for first, last in op.cropped)
        return f"{_torch_conv(windows.eager(op, ()), args)}[:, :, {part}]"
    if any(op.behind):
        around = PadOp(before=op.padding, after=tuple(map(add, op.padding, op.behind)))
        args = (_torch_pad(around, args), *args[1:])
        op = op.replace(padding=(0,) * op.rank)
    if op.precise or op.enlarged:  # the one form of the call that names the precision: its last argument permits TF32
        lists = [str(list(values)) for values in (op.stride, op.padding, op.dilation)]
        shape = f"{', '.join(lists)}, {op.transposed}, {list(op.output_padding)}, {op.groups}"
        return f"torch.ops.aten._convolution.default({args[0]}, {args[1]}, {bias}, {shape}, False, False, True, False)"
    options = f"stride={op.stride}, padding={op.padding}, "
    if op.transposed:
        options += f"output_padding={op.output_padding}, "
    options += f"groups={op.groups}, dilation={op.dilation}"
    name = f"conv_transpose{op.rank}d" if op.transposed else f"conv{op.rank}d"
    return f"torch.nn.functional.{name}({args[0]}, {args[1]}, {bias}, {options})"


def _torch_matmul(op: MatmulOp, args: Sequence[str]) -> str:
    a = f"{args[0]}.mT" if op.left_transposed else args[0]
    if len(args) > 2:
        weight = args[1] if op.transposed else f"{args[1]}.mT"
        return f"torch.nn.functional.linear({a}, {weight}, {args[2]})"
    return f"torch.matmul({a}, {args[1]}{'.mT' if op.transposed else ''})"


def _torch_attention(op: AttentionOp, args: Sequence[str]) -> str:
    mask = f", attn_mask={args[3]}" if len(args) > 3 else ""
    options = f"{mask}{', is_causal=True' if op.causal else ''}, scale={python_float(op.scale)}"
    return f"torch.nn.functional.scaled_dot_product_attention({', '.join(args[:3])}{options})"


def _torch_recurrent(op: RecurrentOp, args: Sequence[str]) -> str:
    """Dropout between layers is none: its call stays an eager op."""
    states, weights = ", ".join(args[1 : 1 + op.states]), ", ".join(args[1 + op.states :])
    states = f"[{states}]" if op.states > 1 else states
    flags = f"{op.bias}, {op.layers}, 0.0, False, {op.bidirectional}, {op.batch_first}"
    return f"torch.ops.aten.{op.cell}.input({args[0]}, {states}, [{weights}], {flags})"


def _flops_recurrence(op: RecurrenceOp, operands: Sequence[Shape], result: Shape) -> int:
    _, weight, _ = op.direction(operands, 0)
    steps = math.prod(operands[op.states][:2])
    return op.directions * steps * (2 * math.prod(weight) + 8 * weight[0])


def _flops_recurrent(op: RecurrentOp, operands: Sequence[Shape], result: Shape) -> int:
    weights = sum(math.prod(shape) for shape in operands[1 + op.states :])
    return 2 * math.prod(result[:2]) * weights


def _flops_conv(op: ConvOp, operands: Sequence[Shape], result: Shape) -> int:
    weight = operands[1]
    positions = math.prod(operands[0][2:]) if op.transposed else math.prod(result[2:])
    channels = operands[0][1] if op.transposed else result[1]
    return 2 * result[0] * positions * channels * math.prod(weight[1:])


ROWS: dict[str, OpRow] = {
    "input": OpRow(inference.infer_declared, lambda op, args: f"x{op.position}"),
    "param": OpRow(inference.infer_declared, lambda op, args: f"params[{op.path!r}]"),
    "const": OpRow(inference.infer_const, _torch_const),
    "pointwise": OpRow(
        inference.infer_pointwise,
        lambda op, args: POINTWISE[op.fn].torch.format(*args),
        lambda op, operands, result: POINTWISE[op.fn].flops * math.prod(result),
        lambda op: POINTWISE[op.fn].flattens or POINTWISE[op.fn].boolean,
    ),
    "reduce": OpRow(
        inference.infer_reduce,
        _torch_reduce,
        lambda op, operands, result: (4 if op.fn == "var" else 1) * math.prod(operands[0]),
    ),
    "arg_reduce": OpRow(
        inference.infer_arg_reduce,
        lambda op, args: f"torch.{op.fn}({args[0]}, dim={op.axis}, keepdim={op.keepdim})",
        lambda op, operands, result: math.prod(operands[0]),
    ),
    "scan": OpRow(inference.infer_along, _torch_scan, lambda op, operands, result: math.prod(result)),
    "flip": OpRow(inference.infer_flip, lambda op, args: f"torch.flip({args[0]}, {list(op.axes)})"),
    "softmax": OpRow(
        inference.infer_along,
        lambda op, args: f"torch.{'log_' if op.log else ''}softmax({args[0]}, dim={op.axis})",
        lambda op, operands, result: 8 * math.prod(result),
        lambda op: not op.log,
    ),
    "normalize": OpRow(inference.infer_normalize, _torch_normalize, lambda op, operands, result: 8 * math.prod(result)),
    "conv": OpRow(inference.infer_conv, _torch_conv, _flops_conv),
    "matmul": OpRow(
        inference.infer_matmul,
        _torch_matmul,
        lambda op, operands, result: 2 * math.prod(result) * operands[0][-2 if op.left_transposed else -1],
    ),
    "attention": OpRow(
        inference.infer_attention,
        _torch_attention,
        lambda op, operands, result: 2 * math.prod(result[:-1]) * operands[1][-2] * (operands[0][-1] + result[-1]),
    ),
    "recurrent": OpRow(inference.infer_recurrent, _torch_recurrent, _flops_recurrent),
    "recurrence": OpRow(
        inference.infer_recurrence,
        lambda op, args: f"recurrent.recurrence({op!r}, {', '.join(args)})",
        _flops_recurrence,
    ),
    "reshape": OpRow(inference.infer_reshape, lambda op, args: f"torch.reshape({args[0]}, {_size_list(op.shape)})"),
    "permute": OpRow(inference.infer_permute, lambda op, args: f"torch.permute({args[0]}, {list(op.order)})"),
    "expand": OpRow(inference.infer_expand, lambda op, args: f"torch.broadcast_to({args[0]}, {_size_list(op.shape)})"),
    "resample": OpRow(inference.infer_resample, _torch_resample),
    "interpolate": OpRow(
        inference.infer_interpolate,
        _torch_interpolate,
        lambda op, operands, result: (3 if op.mode == "linear" else 0) * math.prod(result),
    ),
    "gather": OpRow(inference.infer_gather, _torch_gather),
    "gather_elements": OpRow(inference.infer_gather_elements, _torch_gather_elements),
    "unfold": OpRow(inference.infer_unfold, _torch_unfold),
    "slice": OpRow(inference.infer_slice, _torch_slice),
    "cat": OpRow(inference.infer_cat, lambda op, args: f"torch.cat([{', '.join(args)}], dim={op.axis})"),
    "pad": OpRow(inference.infer_pad, _torch_pad),
    "triangle": OpRow(
        inference.infer_triangle,
        lambda op, args: f"torch.{'triu' if op.upper else 'tril'}({args[0]}, {op.diagonal})",
    ),
    "fill": OpRow(
        lambda op, types, declared: types[0].replace(shape=op.shape, dtype=op.dtype or types[0].dtype),
        _torch_fill,
    ),
    "range": OpRow(inference.infer_range, _torch_range),
    "pool": OpRow(
        inference.infer_pool, _torch_pool, lambda op, operands, result: math.prod(op.kernel) * math.prod(result)
    ),
    "adaptive_pool": OpRow(
        inference.infer_pool, _torch_adaptive_pool, lambda op, operands, result: math.prod(operands[0])
    ),
    "window_sum": OpRow(
        inference.infer_window_sum,
        lambda op, args: f"windows.window_sum({args[0]}, {op!r})",
        lambda op, operands, result: math.prod(operands[0]),
    ),
    "tap_sum": OpRow(
        inference.infer_tap_sum,
        lambda op, args: f"windows.tap_sum({args[0]}, {op!r})",
        lambda op, operands, result: math.prod(operands[0]),
    ),
    "axis_window_sum": OpRow(
        inference.infer_axis_window_sum,
        lambda op, args: f"windows.axis_window_sum({args[0]}, {op!r})",
        lambda op, operands, result: math.prod(operands[0]),
    ),
    "axis_tap_sum": OpRow(
        inference.infer_axis_tap_sum,
        lambda op, args: f"windows.axis_tap_sum({args[0]}, {op!r})",
        lambda op, operands, result: math.prod(operands[0]),
    ),
    "eager": OpRow(
        inference.infer_declared,
        lambda op, args: f"torch.ops.{op.target}({op.arguments.format(*args)})",
        lambda op, operands, result: math.prod(result),
    ),
    "getitem": OpRow(inference.infer_getitem, lambda op, args: f"{args[0]}[{op.index}]"),
    "region": OpRow(inference.infer_region, lambda op, args: f"region({', '.join(args)})"),
}


def infer(op: Op, types: inference.Types, declared: TensorType) -> TensorType:
    """The type that ``op`` computes from operands of ``types``. Raises ``GraphError``.

    Leaves (inputs, parameters, eager ops) compute what they are declared to.
    """
    return ROWS[op.kind].infer(op, types, declared)


def flops(graph: Graph, node: Node) -> int:
    """Additions, multiplications and the like of a node at the traced sizes."""
    operands = [graph.shape(name) for name in node.inputs]
    return ROWS[node.op.kind].flops(node.op, operands, graph.shape(node.name))


def function_flops(graph: Graph, node: Node) -> int:
    """The same of an elementwise function that takes more than one for each element; of any other node, 0."""
    takes_more = isinstance(node.op, PointwiseOp) and POINTWISE[node.op.fn].flops > 1
    return flops(graph, node) if takes_more else 0


def torch_expr(op: Op, args: Sequence[str]) -> str:
    """A Python expression for ``op`` on operand texts ``args`` (names x0.., params, windows in scope)."""
    return ROWS[op.kind].torch(op, args)


def flattens(op: Op) -> bool:
    """True when ``op`` can hide an error of its operand: softmax, bounded functions, clamps."""
    return ROWS[op.kind].flattens(op)


_TO_INTEGERS = ("to_int32", "to_int64")


def made_integers(graph: Graph) -> set[str]:
    """Float values that become integers, and what these are elementwise made of: a rounding of theirs may be a whole
    number of the result, so that they are rounded where eager's are."""
    found, pending = (
        set[str](),
        [
            name
            for node in graph.nodes
            if isinstance(node.op, PointwiseOp) and node.op.fn in _TO_INTEGERS
            for name in node.inputs
        ],
    )
    while pending:
        node = graph.node(pending.pop())
        if node.name not in found and node.type.dtype is DType.FLOAT32:
            found.add(node.name)
            pending += node.inputs if isinstance(node.op, (PointwiseOp, *_MOVES)) else []
    return found


def is_leaf(op: Op) -> bool:
    """True for values that exist before the graph runs: inputs, parameters and scalars."""
    return isinstance(op, (InputOp, ParamOp, ConstOp))


def is_heavy(op: Op) -> bool:
    """True for ops that torch's libraries compute when no template does."""
    return isinstance(op, (ConvOp, MatmulOp, AttentionOp, RecurrentOp, EagerOp))
