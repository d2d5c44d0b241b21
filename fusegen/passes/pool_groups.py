"""The groups that begin at several poolings of the same windows: one kernel reads the data for all of them.

Growing from what reads them would take what combines them for a row or a product, and leave each a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusegen.ir import ConstOp, Node, ParamOp, PointwiseOp, ReshapeOp
from fusegen.passes.groups import Grouping
from fusegen.passes.templates import POOLS
from fusegen.spaces.poolspace import windows


def _data(grouping: Grouping, name: str) -> set[str]:
    """What a value is elementwise of, beside parameters and numbers."""
    found, seen, pending = set[str](), {name}, [name]
    while pending:
        node = grouping.by_name[pending.pop()]
        if isinstance(node.op, (PointwiseOp, ReshapeOp)):
            pending += set(node.inputs) - seen
            seen.update(node.inputs)
        elif not isinstance(node.op, (ParamOp, ConstOp)):
            found.add(node.name)
    return found


def _alike(grouping: Grouping, free: set[str]) -> Iterator[set[str]]:
    """Poolings of the same windows, those together of which some have data in common."""
    kinds: dict[object, list[Node]] = {}
    for node in grouping.graph.nodes:
        if isinstance(node.op, POOLS) and node.name in free and node.name not in grouping.results:
            kinds.setdefault((windows(node.op), node.type.shape), []).append(node)
    for pools in kinds.values():
        found: list[tuple[set[str], set[str]]] = []
        for pool in pools:
            names, data = {pool.name}, _data(grouping, pool.inputs[0])
            for other in [own for own in found if own[1] & data]:
                found.remove(other)
                names, data = names | other[0], data | other[1]
            found.append((names, data))
        yield from (names for names, _ in found if len(names) > 1)


def combined(grouping: Grouping, free: set[str]) -> Iterator[Node]:
    """What elementwise work makes of several such poolings, which nothing else reads: the last of it, for each."""
    for pools in _alike(grouping, free):
        shape = grouping.by_name[min(pools)].type.shape
        made: dict[str, set[str]] = {name: {name} for name in pools}  # by name: what it is made of, itself too
        found: Node | None = None
        for node in grouping.graph.nodes:
            if isinstance(node.op, PointwiseOp) and node.name in free and node.type.shape == shape:
                own = set[str]().union(*(made[name] for name in node.inputs if name in made))
                readers = {reader for name in own for reader in grouping.users[name]}
                if own:
                    made[node.name] = own | {node.name}
                if len(own & pools) > 1 and readers <= made[node.name] and not own & grouping.results:
                    found = node
        if found is not None:
            yield found
