"""Plans of convolutions with a pooling in their epilogue, and of the two kernels that run where it does not."""

from __future__ import annotations

from math import prod
from typing import Literal

from fusegen import convpool, ops
from fusegen.convpool import ConvPool
from fusegen.ir import ConvOp, Graph, InputOp, Node, ParamOp, RegionOp
from fusegen.plan import contraction, conv_sm90, pool
from fusegen.plan.conv_window import Pooling
from fusegen.plan.details import ContractionAxis, ContractionPlan, ConvApartPlan, HopperConvPlan
from fusegen.plan.region import Region
from fusegen.plan.rowprogram import RowProgram
from fusegen.plan.rows import RowLowering, Style
from fusegen.plan.sizes import Unplanned
from fusegen.plan.types import KernelPlan
from fusegen.poolspace import output_size
from fusegen.rowspace import RowSpace

_STYLE = Style("{}", "{}", moves_rows=True, quick=True)


def _numbered(body: Graph, nodes: list[Node], outputs: tuple[str, ...]) -> Graph:
    """A region's body: its inputs in the order in which they come."""
    read = {name for node in nodes for name in node.inputs} | set(outputs)
    inputs = [node.name for node in nodes if isinstance(node.op, InputOp) and node.name in read]
    placed = [
        node.replace(op=InputOp(position=inputs.index(node.name))) if node.name in inputs else node
        for node in nodes
        if node.name in inputs or not isinstance(node.op, InputOp)
    ]
    return body.replace(nodes=tuple(placed), outputs=outputs)


def apart(graph: Graph, region: Node, conv: Node, template: Literal["pool", "row_stream"]) -> tuple[Region, Region]:
    """The convolution alone, and everything that follows it (by ``template``), as two regions."""
    assert isinstance(region.op, RegionOp)
    body = region.op.body
    outside = dict(zip((node.name for node in body.inputs), region.inputs, strict=True))
    outside[conv.name] = f"{conv.name}_apart"
    first = _numbered(body, [*map(body.node, conv.inputs), conv], (conv.name,))
    given = conv.replace(op=InputOp(position=0), inputs=())
    second = _numbered(body, [given if node.name == conv.name else node for node in body.nodes], body.outputs)
    leaves = [graph.node(name) for name in dict.fromkeys(region.inputs)]
    nodes = [
        n if isinstance(n.op, ParamOp) else n.replace(op=InputOp(position=i), inputs=()) for i, n in enumerate(leaves)
    ]
    ops = (RegionOp(template="contraction", body=first), RegionOp(template=template, body=second))
    for op, name in zip(ops, (outside[conv.name], region.name), strict=True):
        inputs = tuple(outside[node.name] for node in op.body.inputs)
        nodes.append(op.body.node(op.body.outputs[0]).replace(name=name, op=op, inputs=inputs))
    split = graph.replace(nodes=tuple(nodes), outputs=(region.name,), updates=())
    return Region(split, nodes[-2]), Region(split, nodes[-1])


def _lower(region: Region, part: Graph, space: RowSpace, source: str) -> RowProgram:
    output = region.outputs[0].replace(node=part.outputs[0])
    return RowLowering(part, space, region.args, region.sizes, _STYLE, source).program((output,))


def _hopper(region: Region, parts: ConvPool, conv: ContractionPlan) -> HopperConvPlan:
    """The kernel that pools what it computes. Raises ``Unplanned``."""
    node, body = parts.conv, region.body
    assert isinstance(node.op, ConvOp)
    x, w = (body.node(name) for name in node.inputs)
    divisor = parts.op.divisor or prod(parts.op.kernel)
    before = _lower(region, parts.before, parts.before_space, "v")
    pooling = Pooling(parts.windows, parts.op.fn, divisor, before)
    traced = tuple(zip(body.shape(x.name)[2:], body.shape(node.name)[2:], strict=True))
    channels = ops.conv_channels(node.op, x.type, w.type)
    operands = conv_sm90.Operands(node.name, conv.source, conv.weight, conv.batch)
    after = _lower(region, parts.after, parts.after_space, "pooled")
    found = conv_sm90.plan(
        node.op, conv.axes, traced, channels, False, lambda split: after, operands, conv.precise, pooling
    )
    if isinstance(found, str):
        raise Unplanned(f"the kernel of {node.name} does not pool its results: {found}")
    return found


def composed(
    region: Region, own: Node, axes: tuple[ContractionAxis, ...], conv: KernelPlan, other: KernelPlan
) -> ConvApartPlan:
    """The two kernels ``conv`` and ``other`` in place of one for ``region``, whose convolution is ``own``."""
    assert isinstance(conv.detail, ContractionPlan)
    x, w = (region.body.node(operand) for operand in own.inputs)
    detail = conv.detail.replace(
        source=region.args[x.name].name,
        weight=region.args[w.name].name,
        batch=region.sizes.local(x.type.shape[0]),
        axes=axes,
    )
    sizes = []
    for part in (conv, other):
        taken = [part.args[b.arg].type.shape[b.axis] for b in part.bindings] + [given.size for given in part.given]
        sizes.append(tuple(map(region.sizes.local, taken)))
    return ConvApartPlan(conv=detail, elements=region.sizes.product(own.type.shape), sizes=(sizes[0], sizes[1]))


def plan(graph: Graph, node: Node, name: str) -> KernelPlan:
    """One kernel where Hopper's tensor cores compute the convolution, two elsewhere. Raises ``Unplanned``."""
    region = Region(graph, node)
    parts = convpool.split(region.body)
    first, second = apart(graph, node, parts.conv, "pool")
    own = parts.conv
    assert isinstance(own.op, ConvOp)
    x, w = (region.body.node(operand) for operand in own.inputs)
    axes = contraction.axes_of(region, own.op, own, x, w)
    for axis, placed in enumerate(axes):
        region.sizes.define(parts.op.size[axis], output_size(parts.op, axis, placed.output))
    conv, pooled = contraction.plan(first, name, portable=True), pool.plan(second, name)
    detail = composed(region, own, axes, conv, pooled)
    return region.plan(
        f"{name}_conv_pool",
        detail,
        hopper=_hopper(region, parts, detail.conv),
        workspace=True,
        tf32="conv",
        parts=(conv, pooled),
    )
