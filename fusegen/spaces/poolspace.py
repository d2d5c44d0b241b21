"""Regions around a pooling: what happens to every element before it and to every result after it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fusegen import dims
from fusegen.dims import Dim, Dims
from fusegen.ir import AdaptivePoolOp, ConstOp, DType, Graph, InputOp, Node, PointwiseOp, PoolOp
from fusegen.pointwise import POINTWISE
from fusegen.spaces.parts import Part, cut_up, parts_in
from fusegen.spaces.rowspace import AxisMap, NotFusable, RowSpace, analyze, with_rows

MAX_REPEATED = 64
"""Operations per element that overlapping windows may repeat: about what writing and reading it again costs."""
_SPECIAL = 4
"""Operations in the time of one special function."""
CHANNELS = 1
"""The axis of a convolution's channels."""


@dataclass(frozen=True)
class PlaneSpace(RowSpace):
    """Elementwise, with the base axes that each pooled axis is made of apart from those of the planes before them."""

    pooled: AxisMap = ()

    @property
    def outer_axes(self) -> tuple[int, ...]:
        inside = {axis for axes in self.pooled for axis in axes}
        return tuple(axis for axis in range(len(self.shape)) if axis not in inside)


@dataclass(frozen=True)
class PoolRegion:
    """A region's parts: the chain up to its poolings and the chain after them, each a graph with its space.

    The poolings, of the same windows, are inputs of ``after``; what they pool are results of ``before``. ``parts``:
    slices of operands that ``before`` reads where they lie.
    """

    pools: tuple[Node, ...]
    before: Graph
    after: Graph
    before_space: PlaneSpace
    after_space: PlaneSpace
    parts: dict[str, Part]

    @property
    def pool(self) -> Node:
        """The first of them."""
        return self.pools[0]

    @property
    def op(self) -> PoolOp | AdaptivePoolOp:
        """Its windows, which those of all are; it counts as all means do."""
        ops = [pool.op for pool in self.pools if isinstance(pool.op, (PoolOp, AdaptivePoolOp))]
        return next((op for op in ops if op.fn == "mean"), ops[0])


def windows(op: PoolOp | AdaptivePoolOp) -> PoolOp | AdaptivePoolOp:
    """``op`` without what it does to them: equal for the same windows."""
    if isinstance(op, AdaptivePoolOp):
        return op.replace(fn="max")
    return op.replace(fn="max", count_include_pad=True, divisor=None)


def output_size(op: PoolOp | AdaptivePoolOp, axis: int, size: Dim) -> Dim:
    """The result's length on a pooled axis of length ``size``."""
    if isinstance(op, AdaptivePoolOp):
        return op.size[axis]
    reach = op.dilation[axis] * (op.kernel[axis] - 1) + 1
    stride, padding = op.stride[axis], op.padding[axis]
    spare = dims.add(size, 2 * padding - reach)
    if not op.ceil:
        return dims.add(dims.floordiv(spare, stride), 1)
    begin_inside = dims.add(dims.floordiv(dims.add(size, padding - 1), stride), 1)
    return dims.minimum(dims.add(dims.floordiv(dims.add(spare, stride - 1), stride), 1), begin_inside)


def fixed_count(op: PoolOp | AdaptivePoolOp) -> int | None:
    """What every sum over a window is divided by, where that is one number."""
    if isinstance(op, AdaptivePoolOp):
        return None
    if op.divisor is not None:
        return op.divisor
    whole = not op.ceil and (op.count_include_pad or not any(op.padding))
    return math.prod(op.kernel) if whole else None


def _elementwise(part: Graph, source: str, shape: Dims, planes: int, parts: dict[str, Part]) -> PlaneSpace:
    """The space of a chain from ``source`` to a result of this ``shape`` that lies in memory alike.

    ``planes``: the axes of the result before those that are pooled. Raises ``NotFusable``.
    """
    space = analyze(part, source, parts)
    if space.row_axes:
        raise NotFusable("a reduction reads the pooling")
    whole = tuple(axis for axis, size in enumerate(space.shape) if size != 1)
    for result in map(part.node, part.outputs):
        if result.type.shape != shape or space.base_axes(result.name) != whole:
            raise NotFusable(f"{result.name} does not have the axes of the pooling")
        if result.type.dtype is not DType.FLOAT32:
            raise NotFusable(f"{result.name} is {result.type.dtype.value}")
    return PlaneSpace(space.shape, space.source, (), space.axes, space.axes[part.outputs[0]][planes:])


def along_channels(part: Graph, source: str) -> RowSpace:
    """As ``along``, the axis that of the channels."""
    return along(part, source, CHANNELS)


def along(part: Graph, source: str, axis: int) -> RowSpace:
    """The space of a chain from ``source`` to a result laid out alike, rows along ``axis``. Raises ``NotFusable``.

    No reshape may split axes: that of ``source`` is then no axis of the space.
    """
    space, shape, result = analyze(part, source), part.node(source).type.shape, part.node(part.outputs[0])
    if space.row_axes:
        raise NotFusable(f"a reduction reads {source}")
    whole = tuple(number for number, size in enumerate(shape) if size != 1)
    if space.shape != shape or space.base_axes(result.name) != whole:
        raise NotFusable(f"{result.name} does not have the axes of {source}")
    if result.type.dtype is not DType.FLOAT32:
        raise NotFusable(f"{result.name} is {result.type.dtype.value}")
    return with_rows(space, (axis,))


def over_channels(part: Graph, source: str) -> RowSpace:
    """The space of a chain that may reduce over the channels of ``source``: rows along these. Raises ``NotFusable``."""
    space = analyze(part, source)
    if space.shape != part.node(source).type.shape:
        raise NotFusable(f"a reshape splits the axes of {source}")
    if not set(space.row_axes) <= {CHANNELS}:
        raise NotFusable(f"a reduction of {source} runs over other axes than the channels")
    return with_rows(space, (CHANNELS,))


def repeated(graph: Graph, pool: Node) -> float:
    """How many windows an element is in, on average; of those of a number as traced, neighbours have one in common at
    most."""
    op = pool.op
    assert isinstance(op, (PoolOp, AdaptivePoolOp))
    if isinstance(op, AdaptivePoolOp):
        shape = graph.node(pool.inputs[0]).type.shape
        lengths = [dims.evaluate(size, graph.sizes) for size in shape[pool.type.rank - op.rank :]]
        results = [dims.evaluate(size, graph.sizes) for size in op.size]
        pairs = zip(lengths, results, strict=True)
        return math.prod(1.0 if size % count == 0 else (size + count) / size for size, count in pairs)
    return math.prod(max(1.0, kernel / stride) for kernel, stride in zip(op.kernel, op.stride, strict=True))


def poolings(body: Graph) -> tuple[Node, ...]:
    """Those of a region. Raises ``NotFusable``."""
    pools = tuple(node for node in body.nodes if isinstance(node.op, (PoolOp, AdaptivePoolOp)))
    if any(pool.type.dtype is not DType.FLOAT32 for pool in pools):
        raise NotFusable(f"{pools[0].name} is {pools[0].type.dtype.value}; poolings have kernels in float32")
    return pools


def cut(body: Graph) -> tuple[Node, Graph, Graph]:
    """The pooling of a region, what it pools, and what follows: there it is an input. Raises ``NotFusable``."""
    pools = poolings(body)
    if len(pools) != 1:
        raise NotFusable("two poolings that do not compose")
    (pool,) = pools
    return pool, *around(body, pool)


def around(body: Graph, *nodes: Node) -> tuple[Graph, Graph]:
    """What ``nodes`` slide over, and what follows them: there they are inputs. Raises ``NotFusable``."""
    sources = tuple(dict.fromkeys(node.inputs[0] for node in nodes))
    needed = set(sources)
    for other in reversed(body.nodes):
        if other.name in needed:
            needed.update(other.inputs)
    before = body.replace(name=sources[0], nodes=tuple(n for n in body.nodes if n.name in needed), outputs=sources)
    names = [node.name for node in nodes]
    rest = [
        n.replace(op=InputOp(position=names.index(n.name)), inputs=()) if n.name in names else n
        for n in body.nodes
        if n.name in names or n.name not in needed or _leaf(n)
    ]
    read = {name for n in rest for name in n.inputs} | set(names)
    after = body.replace(nodes=tuple(n for n in rest if n.name in read or not _leaf(n)))
    for n in after.nodes:
        if any(name not in after.by_name for name in n.inputs):
            raise NotFusable(f"{n.name} reads what {names[0]} slides over")
    return before, after


def _alike(pools: tuple[Node, ...]) -> None:
    """Raises ``NotFusable`` where poolings have other windows than the first, or count otherwise."""
    ops = [pool.op for pool in pools if isinstance(pool.op, (PoolOp, AdaptivePoolOp))]
    means = {op for op in ops if op.fn == "mean"}
    if len(set(map(windows, ops))) > 1 or len({pool.type.shape for pool in pools}) > 1 or len(means) > 1:
        raise NotFusable("two poolings that do not compose, of different windows")


def operations(part: Graph) -> int:
    """Of the elementwise functions of a chain, for one element."""
    rows = [POINTWISE[node.op.fn] for node in part.nodes if isinstance(node.op, PointwiseOp)]
    return sum(row.flops + _SPECIAL * row.special for row in rows)


def _share_data(before: Graph) -> None:
    """Raises ``NotFusable`` where what is pooled has no tensors of elements in common, each with some of the others."""
    size = dims.numel(before.node(before.outputs[0]).type.shape, before.sizes)
    whole = {node.name for node in before.inputs if dims.numel(node.type.shape, before.sizes) >= size}
    first, *left = [whole & before.needed(name) for name in before.outputs]
    while left:
        near = next((data for data in left if data & first), None)
        if near is None:
            raise NotFusable("two poolings, of different data")
        left.remove(near)
        first = first | near


def split(body: Graph) -> PoolRegion:
    """The parts of a region with a pooling. Raises ``NotFusable``."""
    pools = poolings(body)
    _alike(pools)
    pool, (before, after) = pools[0], around(body, *pools)
    assert isinstance(pool.op, (PoolOp, AdaptivePoolOp))
    if any(other.name in before.by_name for other in pools):
        raise NotFusable("two poolings that do not compose")
    _share_data(before)
    pooled = before.outputs[0]
    shape = before.node(pooled).type.shape
    size = dims.product(shape)
    planes = pool.type.rank - pool.op.rank
    parts = {name: part for name, part in parts_in(before).items() if part.named is None}
    apart = cut_up(before, parts)
    data = [node for node in before.inputs if node.name not in apart]
    data += [node for node in map(before.node, parts) if in_planes(node, parts[node.name], shape[planes:])]
    data = [node for node in data if dims.product(node.type.shape) == size]
    if not data:
        raise NotFusable(f"no operand has the elements of {pooled}")
    source = max(data, key=lambda node: node.type.shape == shape)
    if operations(before) * (repeated(body, pool) - 1) > MAX_REPEATED * len(before.outputs):
        raise NotFusable(f"{pooled} would be computed again for every window that it is in")
    return PoolRegion(
        pools,
        before,
        after,
        _elementwise(before, source.name, shape, planes, parts),
        _elementwise(after, pool.name, pool.type.shape, planes, {}),
        parts,
    )


def in_planes(node: Node, part: Part, plane: Dims) -> bool:
    """Whether ``node``, which lies in ``part`` of an operand, is whole runs of its memory as long as a ``plane``."""
    cut = [axis for axis, size in enumerate(part.whole.type.shape) if node.type.shape[axis] != size]
    together = dims.product(node.type.shape[cut[-1] + 1 :] if cut else node.type.shape)
    return dims.exact_quotient(together, dims.product(plane)) is not None


def _leaf(node: Node) -> bool:
    return isinstance(node.op, (InputOp, ConstOp))
