"""Plans of poolings: a window per result, what precedes it on every load and what follows it on every store."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace

from fusegen import dims
from fusegen.dims import Dim
from fusegen.ir import AdaptivePoolOp, Node, PoolOp
from fusegen.plan.details import PoolAxis, PoolData, Pooling, PoolPlan
from fusegen.plan.region import Region
from fusegen.plan.rowdraft import Style, Value, total
from fusegen.plan.rowprogram import OutputArg, Phase, RowProgram
from fusegen.plan.rows import RowLowering
from fusegen.plan.types import KernelPlan
from fusegen.spaces.parts import part_of, root_of
from fusegen.spaces.poolspace import PlaneSpace, PoolRegion, fixed_count, in_planes, output_size, split
from fusegen.spaces.rowspace import AxisMap

MAX_WINDOW = 32
"""Elements of a window that a thread reads at once, without a loop."""
MAX_HELD = 56
"""Elements and results that a thread holds: enough on their way to hide latency, few enough for registers."""
MAX_STEPS = 256
"""Elements that a thread reads row by row, without a loop."""
MIN_THREADS = 1 << 16
"""Threads below which several results of one leave too few to hide latency: two fifths of what an H100 holds."""
_ABSENT = PoolAxis(kernel=1, stride=1, padding=0, dilation=1, size=1, output=1, clipped=False)


def _merged(op: PoolOp | AdaptivePoolOp) -> list[tuple[int, ...]]:
    """The pooled axes, the last ones as one where every window is an element of them: rows are longer."""
    axes: list[tuple[int, ...]] = [(axis,) for axis in range(op.rank)]
    if isinstance(op, AdaptivePoolOp):
        return axes
    structure = zip(op.kernel, op.stride, op.padding, strict=True)
    single = [own == (1, 1, 0) for own in structure]
    while len(axes) > 1 and single[axes[-2][0]] and single[axes[-1][0]]:
        axes[-2:] = [axes[-2] + axes[-1]]
    return axes


def _merge(space: PlaneSpace, merged: list[tuple[int, ...]]) -> PlaneSpace:
    pooled = tuple(tuple(base for axis in own for base in space.pooled[axis]) for own in merged)
    return replace(space, pooled=pooled)


def _axis(parts: PoolRegion, axes: tuple[int, ...], size: Dim, output: Dim) -> PoolAxis:
    op, axis = parts.op, axes[0]
    if isinstance(op, AdaptivePoolOp):
        return PoolAxis(kernel=1, stride=1, padding=0, dilation=1, size=size, output=output, clipped=False)
    return PoolAxis(
        kernel=op.kernel[axis],
        stride=op.stride[axis],
        padding=op.padding[axis],
        dilation=op.dilation[axis],
        size=size,
        output=output,
        clipped=op.padding[axis] > 0 or op.ceil,
    )


class _Lowering(RowLowering):
    """Indices over the positions along each of the pooled axes."""

    def groups(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        assert isinstance(self.space, PlaneSpace)
        pooled = self.space.pooled
        return ((self.style.outer, self.space.outer_axes), *zip("zyx"[-len(pooled) :], pooled, strict=True))


@dataclass
class _Before(_Lowering):
    """The chain before the pooling. What has whole planes of elements the template reads."""

    found: dict[str, PoolData] = field(default_factory=dict)
    columns: bool = False
    """What all rows share is read once for several of them."""

    def data(self, node: Node) -> Value:
        if node.name != self.space.source:
            return super().data(node)
        self.found[self.source] = self.laid_out(node, self.space.axes[node.name], self.source)
        return Value(self.source, True, 0, array=True)

    def operand(self, node: Node, axes: AxisMap) -> Value:
        assert isinstance(self.space, PlaneSpace)
        value, part = super().operand(node, axes), part_of(node, self.body.by_name)
        pooled = [axis for own in self.space.pooled for axis in own]
        plane = tuple(self.space.shape[axis] for axis in pooled)
        order = self.axes_of(node, axes)
        column = order == pooled[-1:] and self.columns
        if pooled and order[-len(pooled) :] == pooled and not column and (part is None or in_planes(node, part, plane)):
            self.found[value.name] = self.laid_out(node, axes, value.name)
        return value

    def assemble(self, phases: tuple[Phase, ...], outputs: tuple[OutputArg, ...]) -> RowProgram:
        """Without what the template reads."""
        self.operands = {key: own for key, own in self.operands.items() if own.name not in self.found}
        chain = super().assemble(phases, outputs)
        words = set(re.findall(r"\w+", " ".join(own.start for own in self.found.values())))
        return chain.replace(sizes=tuple(sorted({*chain.sizes, *words.intersection(self.sizes.names)})))

    def laid_out(self, node: Node, axes: AxisMap, name: str) -> PoolData:
        part = part_of(node, self.body.by_name)
        arg = self.args[root_of(part.whole if part else node, self.body.by_name).name]
        order = self.axes_of(node, axes)
        spread = order != list(self.space.base_axes(self.space.source))
        if part is None and not spread:
            return PoolData(name=name, arg=arg.name)
        terms = self.terms(order) if part is None else self.part_terms(node, part, axes)[0]
        start = total(text for along, text in terms if along in ("", "plane"))
        return PoolData(name=name, arg=arg.name, start=start, spread=spread)


_STYLE = Style("{}", "{}", outer="plane", moves_rows=True)


def _lower_before(
    region: Region, parts: PoolRegion, space: PlaneSpace, columns: bool
) -> tuple[RowProgram, tuple[PoolData, ...]]:
    """The chain before the pooling, and what it is of, the source first."""
    lowering = _Before(parts.before, space, region.args, region.sizes, _STYLE, "v", columns=columns)
    chain = lowering.program(tuple(region.outputs[0].replace(node=name) for name in parts.before.outputs))
    return chain, tuple(sorted(lowering.found.values(), key=lambda own: own.name != chain.source))


@dataclass
class _After(_Lowering):
    """The chain after the poolings, which the template knows by ``names``."""

    names: dict[str, str] = field(default_factory=dict)

    def data(self, node: Node) -> Value:
        return Value(self.names[node.name], True, 0) if node.name in self.names else super().data(node)


def _poolings(parts: PoolRegion, chain: RowProgram) -> tuple[Pooling, ...]:
    """What each makes of the results of the ``chain`` before them."""
    found: list[Pooling] = []
    for pool in parts.pools:
        assert isinstance(pool.op, (PoolOp, AdaptivePoolOp))
        same = sum(own.fn == pool.op.fn for own in found)
        value = chain.stores[parts.before.outputs.index(pool.inputs[0])].value
        found.append(Pooling(fn=pool.op.fn, value=value, name=f"{pool.op.fn}{same or ''}"))
    return tuple(found)


def _lower_after(region: Region, parts: PoolRegion, space: PlaneSpace, pools: tuple[Pooling, ...]) -> RowProgram:
    names = [f"pooled_{pool.name}" if len(pools) > 1 else "pooled" for pool in pools]
    known = dict(zip((node.name for node in parts.pools), names, strict=True))
    lowering = _After(parts.after, space, region.args, region.sizes, _STYLE, names[0], names=known)
    return lowering.program((region.outputs[0].replace(node=parts.after.outputs[0]),))


def _varying(chain: RowProgram, data: tuple[PoolData, ...]) -> dict[str, set[str]]:
    """What each value of ``chain`` varies along: some of ``plane``, ``z``, ``y``, ``x``. ``data`` along all."""
    positions = {"plane", "z", "y", "x"}
    found = {own.name: positions for own in data}
    texts = [(operand.name, operand.index) for operand in chain.operands]
    texts += [(s.name, s.expr) for phase in chain.phases for s in (*phase.elements, *phase.scalars)]
    for name, text in texts:
        words = set(re.findall(r"\w+", text))
        found[name] = (words & positions).union(*(found[word] for word in words if word in found))
    return found


def _span(axis: PoolAxis, outputs: int) -> int:
    """Positions along an axis that the windows of ``outputs`` neighbouring results read."""
    reach = (outputs - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1
    return min(reach, outputs * axis.kernel)


def _across(axis: PoolAxis, vector: int) -> int:
    """Neighbouring results of a thread: their windows begin ``vector`` elements after those of its neighbour."""
    return vector // math.gcd(vector, axis.stride)


def _held(axes: tuple[PoolAxis, PoolAxis, PoolAxis], outputs: int, vector: int, tensors: int, pools: int) -> int:
    """Elements and results of a thread: ``outputs`` of these below each other, accesses of ``vector`` elements."""
    depth, rows, columns = axes
    across = _across(columns, vector)
    return tensors * depth.kernel * _span(rows, outputs) * _span(columns, across) + pools * outputs * across


def _outputs(axes: tuple[PoolAxis, PoolAxis, PoolAxis], vector: int, below: int, tensors: int, pools: int) -> int:
    """Results below each other for a thread, of ``below`` that there are."""
    fits = (n for n in (8, 4, 2) if n <= below and _held(axes, n, vector, tensors, pools) <= MAX_HELD)
    return next(fits, 1)


def _row_by_row(
    axes: tuple[PoolAxis, PoolAxis, PoolAxis], vector: int, below: int, tensors: int, pools: int, results: int
) -> int:
    """The same where a thread holds one row at a time, which the windows of several results share; 1 if they do not.

    (Means of 7x7 have 8 results from 14 rows: what a row comes to is added up once.)
    """
    depth, rows, columns = axes
    across = _across(columns, vector)
    row = _span(columns, across)
    for n in (8, 4, 2):
        held, steps = tensors * row + pools * n * across, depth.kernel * _span(rows, n) * row
        shared = 2 * _span(rows, n) <= n * rows.kernel and n <= below and n * across * MIN_THREADS <= results
        if shared and held <= MAX_HELD and steps <= MAX_STEPS:
            return n
    return 1


def _vectors(axis: PoolAxis, unrolled: bool, adaptive: bool) -> tuple[int, ...]:
    """Widths of aligned accesses to rows of these windows, the widest first."""
    if unrolled:  # in rows of several windows, padding included, which begin at a multiple of any width
        return (4, 2, 1)
    if adaptive:  # where the windows of the call are as long as each other, of whole accesses
        return (4, 1)
    if axis.clipped or axis.dilation != 1:
        return (1,)
    return tuple(v for v in (4, 2, 1) if axis.kernel % v == axis.stride % v == 0)


def _ragged(axis: PoolAxis, vectors: tuple[int, ...], size: int, output: int) -> int:
    """The widest accesses to rows of ``size`` elements whose ``output`` results no width divides among threads."""
    fitting = [vector for vector in vectors if vector > 1 and size % vector == 0]
    if any(output % _across(axis, vector) == 0 for vector in fitting):
        return 0
    return max(fitting, default=0)


def _apart(axes: tuple[PoolAxis, PoolAxis, PoolAxis], adaptive: bool, size: int, output: int) -> bool:
    """Whether windows share no element and no access of 16 bytes; ``size``, ``output``: elements and results of a row.

    (What several threads need is better read through L1: means of 5x5 with strides of 5 took 46 us so, past it 60.)
    """
    if adaptive:
        return size % (4 * output) == 0
    return axes[2].kernel % 4 == 0 and all(axis.dilation * (axis.kernel - 1) < axis.stride for axis in axes)


def plan(region: Region, name: str) -> KernelPlan:
    """One kernel for a pooling and the elementwise chains around it."""
    parts = split(region.body)
    op, pool = parts.op, parts.pool
    planes = pool.type.rank - op.rank
    before = region.body.node(pool.inputs[0]).type.shape
    lengths = []
    for axis in range(op.rank):
        size = region.sizes.local(before[planes + axis])
        output = output_size(op, axis, size)
        if isinstance(op, AdaptivePoolOp):
            output = region.sizes.local(output)
        else:
            region.sizes.define(op.size[axis], output)
        lengths.append((size, output))
    merged = _merged(op)
    present = [_axis(parts, own, *(dims.product(lengths[axis][n] for axis in own) for n in (0, 1))) for own in merged]
    rank = len(merged)
    count = region.sizes.product(before[:planes])
    if rank == 1:
        middle = _ABSENT.replace(size=count, output=count)
        axes = (_ABSENT, middle, present[0])
    else:
        first, second, third = [*[_ABSENT] * (3 - rank), *present]
        axes = (first, second, third)
    adaptive = isinstance(op, AdaptivePoolOp)
    short = not adaptive and math.prod(axis.kernel for axis in axes) <= MAX_WINDOW
    below = dims.evaluate(pool.type.shape[planes + merged[-2][0]], region.body.sizes) if rank > 1 else 4
    size, output = (
        dims.evaluate(dims.product(shape[planes + axis] for axis in merged[-1]), region.body.sizes)
        for shape in (before, pool.type.shape)
    )
    chain, data = _lower_before(region, parts, _merge(parts.before_space, merged), short)
    pools = _poolings(parts, chain)
    vectors, by_rows = _vectors(axes[2], short, adaptive), False
    outputs = tuple(_outputs(axes, vector, below, len(data), len(pools)) if short else 1 for vector in vectors)
    if not short and not adaptive:
        results = dims.numel(pool.type.shape, region.body.sizes)
        found = {v: _row_by_row(axes, v, below, len(data), len(pools), results) for v in _vectors(axes[2], True, False)}
        most = max(found.values())
        if by_rows := most > 1:
            vectors = tuple(vector for vector, own in found.items() if own == most)
            outputs = (most,) * len(vectors)
    unrolled = short or by_rows
    varying = {
        name: {"y"} if along == {"plane"} and rank == 1 else along for name, along in _varying(chain, data).items()
    }
    column = {o.name for o in chain.operands if short and varying[o.name] == {"x"}}
    detail = PoolPlan(
        pools=pools,
        adaptive=adaptive,
        axes=axes,
        planes=1 if rank == 1 else count,
        rows_are_planes=rank == 1,
        count_include_pad=isinstance(op, AdaptivePoolOp) or op.count_include_pad,
        fixed_count=fixed_count(op),
        vectors=vectors,
        outputs=outputs,
        ragged=_ragged(axes[2], vectors, size, output) if unrolled else 0,
        unrolled=unrolled,
        by_rows=by_rows,
        data=data,
        before=chain,
        after=_lower_after(region, parts, _merge(parts.after_space, merged), pools),
        of_plane=tuple(name for name, along in varying.items() if along <= {"plane"}),
        of_row=tuple(name for name, along in varying.items() if not along <= {"plane"} and "x" not in along),
        of_column=tuple(o.name for o in chain.operands if o.name in column),
        apart=_apart(axes, adaptive, size, output),
    )
    return region.plan(f"{name}_pool", detail)
