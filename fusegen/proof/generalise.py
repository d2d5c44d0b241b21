"""Large constant sizes as size symbols: a graph that means the same and can be evaluated small.

Every axis of every value belongs to a class of axes that must have one size (a weight's columns, the
activations that they meet, the bias added to them). A class that no op ties to a number of its own
(a group count, a regrouped axis, a kernel extent) becomes a symbol whose traced value is the constant, and a
proof may choose it small. Channels of convolutions, which must be numbers, become small ones. The spatial
sizes that a convolution computes follow from those that it reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import networkx as nx

from fusegen import dims, ops
from fusegen.dims import Dim, Dims
from fusegen.ir import (
    AdaptivePoolOp,
    ArgReduceOp,
    AttentionOp,
    CatOp,
    ConvOp,
    ExpandOp,
    FillOp,
    FlipOp,
    GatherElementsOp,
    GatherOp,
    Graph,
    InterpolateOp,
    MatmulOp,
    Node,
    NormalizeOp,
    PadOp,
    PermuteOp,
    PointwiseOp,
    PoolOp,
    RangeOp,
    ReduceOp,
    ResampleOp,
    ReshapeOp,
    ScanOp,
    SliceOp,
    SoftmaxOp,
    TapSumOp,
    TensorType,
    TriangleOp,
    UnfoldOp,
    WindowSumOp,
)
from fusegen.verify import verify

LARGE = 16
CHANNELS = (3, 5, 7, 11, 13)

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
        case PointwiseOp() | ExpandOp() | NormalizeOp():
            return broadcast()
        case SoftmaxOp() | ScanOp() | FlipOp():
            return along(range(node.type.rank))
        case ArgReduceOp(axis=axis, keepdim=keepdim):
            kept = [own for own in range(operands[0].type.rank) if own != axis]
            return (pair(operands[0], own, node, own if keepdim else i) for i, own in enumerate(kept))
        case ReduceOp(axes=axes, keepdim=keepdim):
            rank = operands[0].type.rank
            kept = [axis for axis in range(rank) if axis not in axes]
            return (pair(operands[0], axis, node, axis if keepdim else i) for i, axis in enumerate(kept))
        case PermuteOp(order=order):
            return along(order)
        case ReshapeOp():
            return _kept(_runs(node, operands[0]))
        case MatmulOp(transposed=transposed, left_transposed=left):
            a, b = operands[:2]
            inner, outer = (-1, -2) if transposed else (-2, -1)
            found = [pair(a, -2 if left else -1, b, inner), pair(b, outer, node, -1)]
            found += [pair(a, -1 if left else -2, node, -2)]
            found += [pair(a, axis, node, axis) for axis in range(a.type.rank - 2)]
            found += [pair(b, axis, node, axis) for axis in range(b.type.rank - 2)]
            found += [pair(c, 0, node, -1) for c in operands[2:]]
            return iter(found)
        case ConvOp(transposed=transposed, groups=groups):
            x, w = operands[:2]
            found = [pair(x, 0, node, 0)]
            if groups == 1:
                found += [pair(x, 1, w, 0 if transposed else 1), pair(w, 1 if transposed else 0, node, 1)]
                found += [pair(b, 0, node, 1) for b in operands[2:]]
            return iter(found)
        case WindowSumOp():
            return along((0, 1))
        case TapSumOp(conv=conv) if conv.groups == 1:
            return (pair(operands[0], 1 - axis if conv.transposed else axis, node, axis) for axis in (0, 1))
        case TriangleOp():
            return along(range(node.type.rank))
        case RangeOp() | FillOp():  # of its operand, the device alone
            return iter(())
        case AttentionOp():
            query, key, value = operands[:3]
            found = [pair(query, -1, key, -1), pair(query, -2, node, -2)]
            found += [pair(key, -2, value, -2), pair(value, -1, node, -1)]
            found += [pair(o, axis, node, axis) for o in (query, key, value) for axis in range(node.type.rank - 2)]
            for mask in operands[3:]:
                found += [pair(mask, -1, key, -2)] if mask.type.shape[-1] != 1 else []
                others = range(-mask.type.rank, -1)
                found += [pair(mask, axis, node, axis) for axis in others if mask.type.shape[axis] != 1]
            return iter(found)
        case GatherOp(axis=axis):
            x, index = operands
            found = [pair(x, own, node, own) for own in range(axis)]
            found += [pair(index, own, node, axis + own) for own in range(index.type.rank)]
            return iter([*found, *(pair(x, own, node, own - x.type.rank) for own in range(axis + 1, x.type.rank))])
        case GatherElementsOp(axis=axis):
            x, index = operands
            spread = {own for own in range(index.type.rank) if index.type.shape[own] != node.type.shape[own]}
            found = [pair(x, own, node, own) for own in range(x.type.rank) if own != axis]
            return iter([*found, *(pair(index, own, node, own) for own in range(index.type.rank) if own not in spread)])
        case UnfoldOp(axis=axis):
            free = [own for own in range(operands[0].type.rank) if own != axis]
            return (pair(operands[0], own, node, own + (own > axis)) for own in free)
        case SliceOp() | ResampleOp() | InterpolateOp() | CatOp() | PadOp() | PoolOp() | AdaptivePoolOp():
            own = set(_structure(node, operands))
            free = [axis for axis in range(node.type.rank) if (node.name, axis) not in own]
            return (pair(operand, axis, node, axis) for operand in operands for axis in free)
    return None


def _kept(runs: Iterable[tuple[list[Axis], list[Axis]]] | None) -> Iterator[tuple[Axis, Axis]] | None:
    """The axes that are one on both sides."""
    if runs is None:
        return None
    return ((own[0], reshaped[0]) for own, reshaped in runs if len(own) == len(reshaped) == 1)


def _structure(node: Node, operands: Sequence[Node]) -> Iterator[Axis]:
    """Axes whose size is a number to the op."""
    own: tuple[int, ...]
    match node.op:
        case SliceOp(axis=axis) | ResampleOp(axis=axis) | InterpolateOp(axis=axis) | CatOp(axis=axis):
            own = (axis,)
        case GatherOp(axis=axis) | GatherElementsOp(axis=axis):
            yield (operands[0].name, axis)
            return
        case RangeOp():
            yield (node.name, 0)
            return
        case UnfoldOp(axis=axis):
            yield from ((operands[0].name, axis), (node.name, axis), (node.name, axis + 1))
            return
        case PadOp(before=before, after=after):
            own = tuple(axis for axis, around in enumerate(zip(before, after, strict=True)) if any(around))
        case PoolOp(rank=rank) | AdaptivePoolOp(rank=rank):
            own = tuple(range(node.type.rank - rank, node.type.rank))
        case ReshapeOp():
            for run, reshaped in _runs(node, operands[0]) or ():
                if len(run) > 1 and len(reshaped) > 1:
                    yield from (*run, *reshaped)
            return
        case WindowSumOp():
            yield (node.name, 2)
            return
        case TapSumOp():
            yield from ((node.name, 2), *((operands[0].name, axis) for axis in range(2, operands[0].type.rank)))
            return
        case ConvOp(groups=groups):
            w = operands[1]
            yield from ((w.name, axis) for axis in range(2, w.type.rank))
            if groups > 1:
                yield from ((o.name, 1) for o in (node, operands[0]))
                yield from ((o.name, axis) for o in operands[1:] for axis in range(min(2, o.type.rank)))
            return
        case _:
            return
    yield from ((o.name, axis) for o in (node, *operands) for axis in own)


def _runs(node: Node, operand: Node) -> list[tuple[list[Axis], list[Axis]]] | None:
    """Axes of a reshape's operand, and those of its result that hold the same elements; axes of size 1 are in none."""
    first, second = ([(n.name, i) for i, size in enumerate(n.type.shape) if size != 1] for n in (operand, node))
    sizes = ([size for size in n.type.shape if size != 1] for n in (operand, node))
    found = dims.regrouped(*map(tuple, sizes))
    return None if found is None else [([first[i] for i in a], [second[j] for j in b]) for a, b in found]


@dataclass(frozen=True)
class _Classes:
    free: list[set[Axis]]
    """Axes whose size is free to change."""
    computed: list[set[Axis]]
    """Axes of what a convolution computes: their size follows from what it reads."""
    merged: list[tuple[set[Axis], list[Axis]]]
    """Axes that a reshape splits or has merged, and what into: their size is the product."""


def _classes(graph: Graph) -> _Classes:
    ties: nx.Graph[Axis] = nx.Graph()
    fixed: set[Axis] = set()
    reads: dict[Axis, Axis] = {}
    """A spatial axis that a convolution computes -> the one that it reads."""
    splits: list[tuple[Axis, list[Axis]]] = []
    by_name = graph.by_name
    for node in graph.nodes:
        axes = [(node.name, axis) for axis in range(node.type.rank)]
        ties.add_nodes_from(axes)
        if ops.is_leaf(node.op):
            continue
        operands = [by_name[name] for name in node.inputs]
        pairs = _pairs(node, operands)
        if pairs is None:
            fixed.update(axes, ((o.name, axis) for o in operands for axis in range(o.type.rank)))
            continue
        ties.add_edges_from(pairs)
        fixed.update(_structure(node, operands))
        if isinstance(node.op, ConvOp):
            reads.update(((node.name, axis), (operands[0].name, axis)) for axis in range(2, node.type.rank))
        if isinstance(node.op, ReshapeOp):
            runs = [sorted(run, key=len) for run in _runs(node, operands[0]) or ()]
            splits += [(short[0], long) for short, long in runs if len(short) == 1 < len(long)]
    classes = [set(found) for found in nx.connected_components(ties)]
    of = {axis: i for i, axes in enumerate(classes) for axis in axes}
    parts = {of[axis]: tuple(of[part] for part in into) for axis, into in splits}
    numbers = {of[axis] for axis in fixed}
    computed = {of[axis] for axis in reads}
    numbers |= {i for i in computed if any(ops.is_leaf(by_name[name].op) for name, _ in classes[i])}
    for axis, into in splits:  # of two ways to split an axis, of parts that are split again or computed: numbers
        if parts[of[axis]] != tuple(of[part] for part in into) or {*parts, *computed} & {of[part] for part in into}:
            numbers.add(of[axis])
    numbers |= computed & set(parts)
    follow = [(of[axis], of[read]) for axis, read in reads.items()]
    follow += [(of[axis], of[part]) for axis, into in splits for part in into]
    while more := {then for number, then in follow if number in numbers} - numbers:
        numbers |= more
    return _Classes(
        free=[axes for i, axes in enumerate(classes) if i not in numbers | computed | set(parts)],
        computed=[axes for i, axes in enumerate(classes) if i in computed - numbers],
        merged=[(classes[of[axis]], into) for axis, into in splits if of[axis] not in numbers],
    )


def generalise(graph: Graph, every: bool = False) -> Graph:
    """``graph`` with every free size that is computed, or a constant above ``LARGE``, a symbol ``k0, k1, ...`` of that
    traced value, or one of ``CHANNELS``. ``every``: with every free size but 1.

    Raises ``GraphError`` where an op takes numbers only.
    """
    names: dict[Axis, Dim] = {}
    sizes: dict[str, int] = {}
    classes = _classes(graph)
    channels = {
        (name, 1) for node in graph.nodes if isinstance(node.op, ConvOp) for name in (node.name, *node.inputs[:1])
    }
    numbers = itertools.cycle(CHANNELS)
    for axes in classes.free:
        known = {graph.node(name).type.shape[axis] for name, axis in axes}
        size = known.pop() if len(known) == 1 else 0
        replaced = size > (1 if every else LARGE) if isinstance(size, int) else every or not size.isidentifier()
        if replaced:
            if axes & channels and isinstance(size, int):
                names.update(dict.fromkeys(axes, next(numbers)))
                continue
            name = f"k{len(sizes)}"
            sizes[name] = dims.evaluate(size, graph.sizes)
            names.update(dict.fromkeys(axes, name))
    for axes, parts in classes.merged:
        size = dims.product(names.get((name, axis), graph.node(name).type.shape[axis]) for name, axis in parts)
        names.update(dict.fromkeys(axes, size))
    follows = {axis: axes for axes in classes.computed for axis in axes}
    types: dict[str, TensorType] = {}

    def general(node: Node) -> Node:
        shape: Dims = tuple(names.get((node.name, axis), size) for axis, size in enumerate(node.type.shape))
        op = node.op.replace(shape=shape) if isinstance(node.op, (ReshapeOp, ExpandOp, FillOp)) else node.op
        found = ops.infer(op, tuple(types[name] for name in node.inputs), node.type.replace(shape=shape))
        for axis, size in enumerate(found.shape):
            if (axes := follows.get((node.name, axis))) is not None:
                names.update(dict.fromkeys(axes, size))
        types[node.name] = found
        return node.replace(op=op, type=found)

    found = graph.replace(nodes=tuple(map(general, graph.nodes)), sizes={**graph.sizes, **sizes})
    verify(found)
    return found
