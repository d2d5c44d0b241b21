"""Large constant sizes as size symbols: a graph that means the same and can be evaluated small.

Every axis of every value belongs to a class of axes that must have one size (a weight's columns, the
activations that they meet, the bias added to them). A class that no op ties to a number of its own
(a group count, a regrouped axis, a kernel extent) becomes a symbol whose traced value is the constant:
costs stay what they are, and a proof may choose it small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import networkx as nx

from fusegen.dims import Dims
from fusegen.ir import (
    ConstOp,
    ConvOp,
    ExpandOp,
    Graph,
    InputOp,
    MatmulOp,
    Node,
    ParamOp,
    PermuteOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    SoftmaxOp,
)
from fusegen.verify import verify

LARGE = 64
"""Constant sizes above this become symbols."""

Axis = tuple[str, int]


def _pairs(node: Node, operands: Sequence[Node]) -> Iterator[tuple[Axis, Axis]] | None:
    """Axes that must have one size, or None when the op may depend on a size in a way of its own."""

    def pair(first: Node, i: int, second: Node, j: int) -> tuple[Axis, Axis]:
        return (first.name, i % first.type.rank), (second.name, j % second.type.rank)

    def broadcast() -> Iterator[tuple[Axis, Axis]]:
        for operand in operands:
            for axis in range(1, operand.type.rank + 1):
                if operand.type.shape[-axis] == node.type.shape[-axis]:
                    yield pair(operand, -axis, node, -axis)

    def along(kept: Sequence[int]) -> Iterator[tuple[Axis, Axis]]:
        return (pair(operands[0], axis, node, i) for i, axis in enumerate(kept))

    match node.op:
        case PointwiseOp() | ExpandOp():
            return broadcast()
        case SoftmaxOp():
            return along(range(node.type.rank))
        case ReduceOp(axes=axes, keepdim=keepdim):
            rank = operands[0].type.rank
            kept = [axis for axis in range(rank) if axis not in axes]
            return (pair(operands[0], axis, node, axis if keepdim else i) for i, axis in enumerate(kept))
        case PermuteOp(order=order):
            return along(order)
        case ReshapeOp():
            return _unit_reshape(node, operands[0])
        case MatmulOp(transposed=transposed, left_transposed=left):
            a, b = operands[:2]
            inner, outer = (-1, -2) if transposed else (-2, -1)
            found = [pair(a, -2 if left else -1, b, inner), pair(b, outer, node, -1)]
            found += [pair(a, -1 if left else -2, node, -2)]
            found += [pair(a, axis, node, axis) for axis in range(a.type.rank - 2)]
            found += [pair(b, axis, node, axis) for axis in range(b.type.rank - 2)]
            found += [pair(c, 0, node, -1) for c in operands[2:]]
            return iter(found)
        case ConvOp():
            return iter([pair(operands[0], 0, node, 0)])
    return None


def _unit_reshape(node: Node, operand: Node) -> Iterator[tuple[Axis, Axis]] | None:
    """Axes of a reshape that only inserts or removes axes of size 1."""
    first, second = ([i for i, size in enumerate(n.type.shape) if size != 1] for n in (operand, node))
    if [operand.type.shape[i] for i in first] != [node.type.shape[i] for i in second]:
        return None
    return (((operand.name, i), (node.name, j)) for i, j in zip(first, second, strict=True))


def _classes(graph: Graph) -> Iterator[set[Axis]]:
    """Classes of axes whose size is free to change."""
    ties: nx.Graph[Axis] = nx.Graph()
    fixed: set[Axis] = set()
    by_name = graph.by_name
    for node in graph.nodes:
        axes = [(node.name, axis) for axis in range(node.type.rank)]
        ties.add_nodes_from(axes)
        if isinstance(node.op, (InputOp, ParamOp, ConstOp)):
            continue
        operands = [by_name[name] for name in node.inputs]
        pairs = _pairs(node, operands)
        if pairs is None:
            fixed.update(axes, ((o.name, axis) for o in operands for axis in range(o.type.rank)))
            continue
        ties.add_edges_from(pairs)
        if isinstance(node.op, ConvOp):  # all but the batch is structure
            fixed.update((o.name, axis) for o in (node, operands[0]) for axis in range(1, o.type.rank))
            fixed.update((o.name, axis) for o in operands[1:] for axis in range(o.type.rank))
    return (c for c in nx.connected_components(ties) if not c & fixed)


def generalise(graph: Graph) -> Graph:
    """``graph`` with every free constant size above ``LARGE`` a symbol ``k0, k1, ...`` of that traced value."""
    names: dict[Axis, str] = {}
    sizes: dict[str, int] = {}
    for axes in _classes(graph):
        known = {graph.node(name).type.shape[axis] for name, axis in axes}
        if len(known) == 1 and isinstance(size := known.pop(), int) and size > LARGE:
            name = f"k{len(sizes)}"
            sizes[name] = size
            names.update(dict.fromkeys(axes, name))

    def general(node: Node) -> Node:
        shape: Dims = tuple(names.get((node.name, axis), size) for axis, size in enumerate(node.type.shape))
        op = node.op.replace(shape=shape) if isinstance(node.op, (ReshapeOp, ExpandOp)) else node.op
        return node.replace(op=op, type=node.type.replace(shape=shape))

    found = graph.replace(nodes=tuple(map(general, graph.nodes)), sizes={**graph.sizes, **sizes})
    verify(found)
    return found
