"""Rows of pooled data: a reduction that reads the windows of a pooling, whose result is never written.

A small window is a few elements, which a row's kernel reads as it would one. It pays where a row is read once, because
registers hold it or nothing more is asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fusegen import dims
from fusegen.ir import AdaptivePoolOp, Graph, InputOp, Node, PoolOp, ReduceOp, SoftmaxOp
from fusegen.machines import Machine
from fusegen.spaces.once import once
from fusegen.spaces.poolspace import MAX_REPEATED, cut, fixed_count, operations, repeated
from fusegen.spaces.rowspace import NotFusable, RowSpace, analyze, analyze_rows
from fusegen.tuning import faster

MOST = 9
"""Elements of a window."""
_BLOCK = 4096
"""Elements of the rows of a block, unless one row is longer."""
_ARITHMETIC = 0.25
"""Share of the rate of multiply-adds that a chain of elementwise functions reaches."""
_EARLY = 1.5e-6
"""What a launch saves that comes while the kernel before it ends."""
_SCATTERED = 1.5e-6
"""What a row waits longer for windows than for whole vectors."""


@dataclass(frozen=True)
class PooledRows:
    """A region's parts: the chain up to the pooling, and the rows that follow, whose source it is, as an input."""

    pool: Node
    before: Graph
    after: Graph
    before_space: RowSpace
    space: RowSpace

    @property
    def op(self) -> PoolOp:
        assert isinstance(self.pool.op, PoolOp)
        return self.pool.op

    @property
    def planes(self) -> int:
        """Axes before those that are pooled."""
        return self.pool.type.rank - self.op.rank


def takes(body: Graph) -> bool:
    """True for a pooling beside reductions."""
    pools = any(isinstance(node.op, (PoolOp, AdaptivePoolOp)) for node in body.nodes)
    return pools and any(isinstance(node.op, (ReduceOp, SoftmaxOp)) for node in body.nodes)


def split(body: Graph) -> PooledRows:
    """The parts of a region that ``takes``. Raises ``NotFusable``."""
    pool, before, after = cut(body)
    (pooled,) = pool.inputs
    if outside := [name for name in body.outputs if name == pool.name or name in before.by_name]:
        raise NotFusable(f"{outside[0]} is read outside the kernel too")
    if not isinstance(pool.op, PoolOp) or math.prod(pool.op.kernel) > MOST:
        raise NotFusable(f"the windows of {pool.name} have more than {MOST} elements, or differ in size")
    if pool.op.fn == "mean" and fixed_count(pool.op) is None:
        raise NotFusable(f"the windows of {pool.name} are means of different numbers of elements")
    shape = before.node(pooled).type.shape
    source = next((n for n in before.nodes if isinstance(n.op, InputOp) and n.type.shape == shape), None)
    if source is None:
        raise NotFusable(f"no operand has the elements of {pooled}")
    before_space = analyze(before, source.name)
    whole = tuple((axis,) if size != 1 else () for axis, size in enumerate(shape))
    if before_space.row_axes or before_space.shape != shape or before_space.axes[pooled] != whole:
        raise NotFusable(f"{pooled} does not have the axes of {source.name}")
    space = analyze(after, pool.name)
    parts = PooledRows(pool, before, after, before_space, space)
    if not space.row_axes:
        raise NotFusable(f"no reduction follows {pool.name}")
    if any(len(axes) > 1 for axes in space.axes[pool.name][parts.planes :]):
        raise NotFusable(f"an axis that {pool.name} pools is split")
    return parts


@once
def rows(body: Graph) -> RowSpace:
    """The space of a body whose rows may be pooled data, or parts of operands. Raises ``NotFusable``."""
    return split(body).space if takes(body) else analyze_rows(body)


def _read_once(parts: PooledRows) -> bool:
    """Whether a row is read once, each of its windows at a place that takes no division to find."""
    space, after = parts.space, parts.after
    if space.on_chip:
        return sum(space.is_element(name) for name in after.outputs) <= 1
    pooled = {axis for axes in space.axes[parts.pool.name][parts.planes :] for axis in axes}
    again = {node.name for node in after.nodes if isinstance(node.op, (ReduceOp, SoftmaxOp))}
    for node in after.nodes:
        again |= {node.name} if again & set(node.inputs) else set()
    elements = [name for name in (*again, *after.outputs) if name in space.axes and space.is_element(name)]
    return not elements and not pooled & set(space.row_axes)


def refusal(body: Graph, machine: Machine) -> str | None:
    """Why the pooling in ``body`` has a kernel of its own, or None. Raises ``NotFusable`` too."""
    parts = split(body)
    space, sizes = parts.space, body.sizes
    results, elements = (dims.numel(shape, sizes) for shape in (parts.pool.type.shape, parts.before_space.shape))
    if results == 0:
        return "it is empty"
    if not _read_once(parts):
        return "registers do not hold its rows, whose windows would be read again or found by divisions"
    if operations(parts.before) * (repeated(body, parts.pool) - 1) > MAX_REPEATED:
        return f"{parts.pool.inputs[0]} would be computed again for every window that it is in"
    data = sum(dims.numel(n.type.shape, sizes) for n in parts.before.nodes if isinstance(n.op, InputOp))
    read, result = (4 * count / machine.bandwidth for count in (data, results))
    share = min(1.0, 2 * results / max(space.length, _BLOCK) / machine.multiprocessors) if space.on_chip else 1.0
    work = operations(parts.before) / (_ARITHMETIC * machine.flops)
    alone = machine.launch - _EARLY + max(read + result, work * elements) + result / share
    inside = _SCATTERED + max(read, work * results * math.prod(parts.op.kernel)) / share
    reason = f"its windows are expected to take {alone * 1e6:.1f} us apart, {inside * 1e6:.1f} us in the rows' kernel"
    answers = {"the rows' kernel": (None, inside), "a kernel of their own": (reason, alone)}
    return faster(f"{parts.pool.name} windows in", answers)
