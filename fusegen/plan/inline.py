"""Regions that no kernel can be planned for go back to what they were made of."""

from __future__ import annotations

from fusegen.ir import GetItemOp, Graph, InputOp, Node, RegionOp


def inline(graph: Graph, region: Node) -> Graph:
    """%y = region(%x) { %e = exp(%x); %y = neg(%e) }  ->  %e = exp(%x); %y = neg(%e)."""
    assert isinstance(region.op, RegionOp)
    body = region.op.body
    results = {n.op.index: n for n in graph.nodes if isinstance(n.op, GetItemOp) and region.name in n.inputs}
    holders = [region.name] if len(body.outputs) == 1 else [results[i].name for i in range(len(body.outputs))]
    gone = {region.name, *(node.name for node in results.values())}
    taken = {node.name for node in graph.nodes} - gone
    names = dict(zip((node.name for node in body.inputs), region.inputs, strict=True))
    own = dict(zip(body.outputs, holders, strict=True))
    parts: list[Node] = []
    for node in body.nodes:
        if isinstance(node.op, InputOp):
            continue
        name = own.get(node.name, node.name)
        while name in taken:  # a copy of a producer that the graph has too
            name += "_copy"
        taken.add(name)
        names[node.name] = name
        parts.append(node.replace(name=name, inputs=tuple(names[operand] for operand in node.inputs)))
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.name == region.name:
            nodes.extend(parts)
        elif node.name not in gone:
            nodes.append(node)
    return graph.replace(nodes=tuple(nodes))
