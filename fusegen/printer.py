"""Graphs as text, one line per node."""

from __future__ import annotations

import textwrap

from fusegen.ir import (
    AdaptivePoolOp,
    ArgReduceOp,
    AttentionOp,
    AxisTapSumOp,
    AxisWindowSumOp,
    CatOp,
    ConstOp,
    ConvOp,
    EagerOp,
    ExpandOp,
    FillOp,
    FlipOp,
    GatherElementsOp,
    GatherOp,
    GetItemOp,
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
    RecurrenceOp,
    RecurrentOp,
    ReduceOp,
    RegionOp,
    ResampleOp,
    ReshapeOp,
    ScanOp,
    SliceOp,
    SoftmaxOp,
    TapSumOp,
    TriangleOp,
    UnfoldOp,
    WindowSumOp,
)


def _pool_attributes(pool: PoolOp) -> list[str]:
    attributes = [f"kernel={pool.kernel}", f"stride={pool.stride}"]
    if any(pool.padding):
        attributes.append(f"padding={pool.padding}")
    if any(d != 1 for d in pool.dilation):
        attributes.append(f"dilation={pool.dilation}")
    if pool.ceil:
        attributes.append("ceil")
    if pool.fn == "mean" and any(pool.padding) and not pool.count_include_pad:
        attributes.append("without padding")
    if pool.divisor is not None:
        attributes.append(f"divisor={pool.divisor}")
    return attributes


def _call(node: Node) -> tuple[str, list[str]]:
    """(what the node applies, its attributes)."""
    match node.op:
        case InputOp(position=position):
            return "input", [str(position)]
        case ParamOp(path=path, buffer=buffer):
            return "buffer" if buffer else "param", [repr(path)]
        case ConstOp(value=value, times=times):
            return "const", [str(value) if times == 1 else f"{times} * ({value})"]
        case PointwiseOp(fn=fn):
            return fn, []
        case ArgReduceOp(fn=fn, axis=axis, keepdim=keepdim):
            return fn, [f"axis={axis}", f"keepdim={keepdim}"]
        case ReduceOp(fn=fn, axes=axes, keepdim=keepdim):
            return f"reduce.{fn}", [f"axes={axes}", f"keepdim={keepdim}"]
        case ScanOp(fn=fn, axis=axis):
            return f"scan.{fn}", [
                f"axis={axis}",
                *(flag for flag in ("reverse", "exclusive") if getattr(node.op, flag)),
            ]
        case FlipOp(axes=axes):
            return "flip", [f"axes={axes}"]
        case ResampleOp() as op:
            names = ("axis", "start", "length", "step", "divisor", "edge")
            return "resample", [f"{name}={getattr(op, name)}" for name in names]
        case InterpolateOp() as op:
            given = [f"scale={op.scale:g}"] if op.scale is not None else []
            corners = ["align_corners"] if op.align_corners else []
            return f"interpolate.{op.mode}", [f"axis={op.axis}", f"length={op.length}", *corners, *given]
        case UnfoldOp() as op:
            return "unfold", [f"{name}={getattr(op, name)}" for name in ("axis", "count", "size", "step", "dilation")]
        case SoftmaxOp(axis=axis, log=log):
            return "log_softmax" if log else "softmax", [f"axis={axis}"]
        case NormalizeOp(axes=axes, eps=eps, center=center):
            return "normalize" if center else "rms_normalize", [f"axes={axes}", f"eps={eps}"]
        case ConvOp() as conv:
            return _conv_name(conv), _conv_attributes(conv)
        case MatmulOp():
            flags = ("left_transposed", "transposed", "precise", "summed", "averaged", "amplified")
            return "matmul", [flag for flag in flags if getattr(node.op, flag)]
        case AttentionOp(scale=scale, causal=causal):
            return "attention", [f"scale={scale:g}", *(["causal"] if causal else [])]
        case RecurrentOp(cell=cell, layers=layers):
            return cell, [f"layers={layers}", *(f for f in ("bidirectional", "batch_first") if getattr(node.op, f))]
        case RecurrenceOp(cell=cell, result=result):
            ways = [flag for flag in ("bidirectional", "batch_first") if getattr(node.op, flag)]
            return f"recurrence.{cell}", [f"result={result}", *([] if node.op.given else ["from zeros"]), *ways]
        case ReshapeOp(shape=shape):
            return "reshape", [f"[{', '.join(map(str, shape))}]"]
        case SliceOp(axis=axis, start=start, length=length, step=step):
            return "slice", [
                f"axis={axis}",
                f"start={start}",
                f"length={length}",
                *([f"step={step}"] if step > 1 else []),
            ]
        case CatOp(axis=axis):
            return "cat", [f"axis={axis}"]
        case GatherOp(axis=axis, wraps=wraps):
            return "gather", [f"axis={axis}", *(["wraps"] if wraps else [])]
        case GatherElementsOp(axis=axis, wraps=wraps, ignored=ignored):
            named = [*(["wraps"] if wraps else []), *([] if ignored is None else [f"ignored={ignored}"])]
            return "gather_elements", [f"axis={axis}", *named]
        case PadOp(before=before, after=after, value=value):
            return "pad", [f"before={before}", f"after={after}", *([f"value={value:g}"] if value else [])]
        case TriangleOp(upper=upper, diagonal=diagonal):
            return "triangle", ["upper" if upper else "lower", *([f"diagonal={diagonal}"] if diagonal else [])]
        case FillOp(value=value, shape=shape, dtype=dtype):
            return "fill", [f"{value:g}", f"[{', '.join(map(str, shape))}]", *([dtype.value] if dtype else [])]
        case RangeOp(length=length, start=start, step=step):
            return "range", [
                str(length),
                *([f"start={start}"] if start != 0 else []),
                *([f"step={step}"] if step != 1 else []),
            ]
        case PoolOp() as pool:
            return f"{pool.fn}_pool{pool.rank}d", _pool_attributes(pool)
        case AdaptivePoolOp(fn=fn, size=size):
            return f"adaptive_{fn}_pool{len(size)}d", [f"[{', '.join(map(str, size))}]"]
        case PermuteOp(order=order):
            return "permute", [f"order={order}"]
        case ExpandOp(shape=shape):
            return "expand", [f"[{', '.join(map(str, shape))}]"]
        case WindowSumOp(conv=conv, kernel=kernel, mean=mean):
            return "window_sum", [f"of={_conv_name(conv)}", f"kernel={kernel}", *_conv_attributes(conv), f"mean={mean}"]
        case AxisWindowSumOp(conv=conv, kernel=kernel, axis=axis, mean=mean):
            of = [f"of={_conv_name(conv)}", f"kernel={kernel}", *_conv_attributes(conv)]
            return "axis_window_sum", [f"axis={axis}", *of, f"mean={mean}"]
        case AxisTapSumOp(conv=conv, kernel=kernel, axis=axis):
            return "axis_tap_sum", [
                f"axis={axis}",
                f"of={_conv_name(conv)}",
                f"kernel={kernel}",
                *_conv_attributes(conv),
            ]
        case TapSumOp(conv=conv, kernel=kernel):
            return "tap_sum", [f"of={_conv_name(conv)}", f"kernel={kernel}", *_conv_attributes(conv)]
        case EagerOp(target=target, arguments=arguments):
            operands = [f"%{name}" for name in node.inputs]
            return f"torch.{target}", [arguments.format(*operands)]
        case GetItemOp(index=index):
            return "getitem", [str(index)]
        case RegionOp(template=template):
            return f"region.{template}", []


def _conv_name(op: ConvOp) -> str:
    return f"conv_transpose{op.rank}d" if op.transposed else f"conv{op.rank}d"


def _conv_attributes(op: ConvOp) -> list[str]:
    """The attributes that differ from the operator's defaults."""
    fields: list[tuple[str, object, object]] = [
        ("stride", op.stride, (1,) * op.rank),
        ("padding", op.padding, (0,) * op.rank),
        ("dilation", op.dilation, (1,) * op.rank),
        ("output_padding", op.output_padding, (0,) * op.rank),
        ("groups", op.groups, 1),
        ("precise", op.precise, False),
        ("summed", op.summed, False),
        ("averaged", op.averaged, False),
        ("behind", op.behind, ()),
        ("cropped", op.cropped, ()),
        ("enlarged", op.enlarged, ()),
    ]
    return [f"{name}={value}" for name, value, default in fields if value != default]


def format_node(node: Node) -> str:
    """``%mean: float32[x0_0, 128, 1, 1] = reduce.mean(%conv, axes=(2, 3), keepdim=True)``."""
    name, attributes = _call(node)
    operands = [] if isinstance(node.op, EagerOp) else [f"%{operand}" for operand in node.inputs]
    return f"%{node.name}: {node.type} = {name}({', '.join([*operands, *attributes])})"


def format_graph(graph: Graph) -> str:
    """The graph in execution order; the body of a region is indented below its node."""
    lines = []
    for node in graph.nodes:
        lines.append(format_node(node))
        if isinstance(node.op, RegionOp):
            lines.append(textwrap.indent(format_graph(node.op.body), "    "))
    outputs = ", ".join(f"%{name}" for name in graph.outputs)
    lines.append(f"return ({outputs},)" if graph.tuple_output and len(graph.outputs) == 1 else f"return {outputs}")
    lines += [f"update {path} = %{name}" for path, name in graph.updates]
    lines += [f"where {constraint}" for constraint in graph.constraints]
    return "\n".join(lines)
