"""Kernels of the same iteration space that read the same data become one, which reads it once.

Growing a region follows data dependence upwards from one sink; siblings, each a sink of its own, have none
between them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from fusegen import dims
from fusegen.ir import ConstOp, Graph, ParamOp, Template
from fusegen.machines import Machine
from fusegen.passes.groups import Group, Grouping
from fusegen.passes.refusals import few_results, refusal
from fusegen.passes.templates import template_of
from fusegen.spaces import poolrows

_KINDS = ("pointwise", "row_reduce", "row_stream", "reduce_views")
_WORTH = 4
"""Results, at most, for every element that is read once instead of twice; of few results a launch is worth it."""


def _union(first: Group, second: Group) -> Group:
    """Both; what one of them writes is no copy."""
    owned = first.owned | second.owned
    return Group(first.members | second.members, (first.copies | second.copies) - owned)


def _results(body: Graph) -> int:
    return max(dims.numel(body.node(name).type.shape, body.sizes) for name in body.outputs)


def _shares_data(grouping: Grouping, first: Group, second: Group, machine: Machine) -> bool:
    """Whether both read the same tensors, or one of them what the other writes, and reading once is worth it.

    What one reads of the other's, growing has seen; of the same rows, it may not have known that.
    """
    (body, operands), (other, others) = grouping.body(first), grouping.body(second)
    handed = (first.owned & set(others)) | (second.owned & set(operands))
    shared = [grouping.by_name[name] for name in operands if name in others] + grouping.in_order(handed)
    data = [node for node in shared if not isinstance(node.op, (ParamOp, ConstOp))]
    read = sum(dims.numel(node.type.shape, body.sizes) for node in data)
    for reader, read_by, writer in ((other, others, first), (body, operands, second)):
        if writer.owned & set(read_by) and _WORTH * _results(reader) > read:
            return False
    few = few_results(body, machine) and few_results(other, machine)
    return bool(data) and (few or _WORTH * read >= max(_results(body), _results(other)))


def _fits(body: Graph, kinds: set[Template]) -> bool:
    """Whether the kernel of both is as good as theirs: a row in registers stays there, others are stored once."""
    kind = template_of(body)
    if kinds == {"pointwise"}:
        return kind == "pointwise" and len({body.node(name).type.shape for name in body.outputs}) == 1
    if "row_reduce" in kinds:
        return kind == "row_reduce"
    if "reduce_views" in kinds:
        return kinds == {kind}
    space = poolrows.rows(body)
    return kind == "row_stream" and sum(map(space.is_element, body.outputs)) <= 1


def _together(grouping: Grouping, first: Group, second: Group, machine: Machine) -> Group | None:
    """Both in one kernel, or None."""
    if not _shares_data(grouping, first, second, machine):
        return None
    both = _union(first, second)
    if refusal(grouping, both, machine) is not None or grouping.is_cyclic(both):
        return None
    kinds = {template_of(grouping.body(group)[0]) for group in (first, second)}
    return both if _fits(grouping.body(both)[0], kinds) else None


def _pairs(grouping: Grouping) -> Iterator[tuple[str, str]]:
    """Kernels that read a tensor in common, or of which one, of rows, writes what the other reads: the later first."""
    readers: dict[str, list[str]] = {}
    for name, group in grouping.groups.items():
        body, operands = grouping.body(group)
        if (kind := template_of(body)) in _KINDS:
            for tensor in (*operands, *(body.outputs if kind != "pointwise" else ())):
                readers.setdefault(tensor, []).append(name)
    pairs = (pair for names in readers.values() for pair in itertools.combinations(names, 2))
    return iter(dict.fromkeys(pairs))


def merge(grouping: Grouping, machine: Machine) -> None:
    """%a = region(%x) { .. }; %b = region(%x) { .. }  ->  %a, %b = region(%x) { .. }."""
    into: dict[str, str] = {}
    for pair in _pairs(grouping):
        first, second = (into.get(name, name) for name in pair)
        if first == second:
            continue
        both = _together(grouping, grouping.groups[first], grouping.groups[second], machine)
        if both is not None:
            grouping.merge(first, second, both)
            into |= {name: first for name, kept in into.items() if kept == second} | {second: first}
