"""A region of a convolution that pools its own results, as the two kernels that run where it does not."""

from __future__ import annotations

from fusegen.ir import Graph, InputOp, Node, ParamOp, RegionOp
from fusegen.plan.details import ContractionAxis, ContractionPlan, ConvApartPlan
from fusegen.plan.region import Region
from fusegen.plan.types import KernelPlan


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


def apart(region: Region, conv: Node) -> tuple[Region, Region]:
    """The convolution alone, and the pooling with everything else, as two regions."""
    graph, whole, body = region.graph, region.node, region.body
    outside = dict(zip((node.name for node in body.inputs), whole.inputs, strict=True))
    outside[conv.name] = f"{conv.name}_apart"
    first = _numbered(body, [*map(body.node, conv.inputs), conv], (conv.name,))
    given = conv.replace(op=InputOp(position=0), inputs=())
    second = _numbered(body, [given if node.name == conv.name else node for node in body.nodes], body.outputs)
    leaves = [graph.node(name) for name in dict.fromkeys(whole.inputs)]
    nodes = [
        n if isinstance(n.op, ParamOp) else n.replace(op=InputOp(position=i), inputs=()) for i, n in enumerate(leaves)
    ]
    ops = (RegionOp(template="contraction", body=first), RegionOp(template="pool", body=second))
    for op, name in zip(ops, (outside[conv.name], whole.name), strict=True):
        inputs = tuple(outside[node.name] for node in op.body.inputs)
        nodes.append(op.body.node(op.body.outputs[0]).replace(name=name, op=op, inputs=inputs))
    split = graph.replace(nodes=tuple(nodes), outputs=(whole.name,), updates=())
    return Region(split, nodes[-2]), Region(split, nodes[-1])


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
