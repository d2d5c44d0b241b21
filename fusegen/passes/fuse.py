"""Groups nodes into regions, one kernel each, by iteration space and data dependence.

A region grows from a sink towards its producers. A producer joins when the whole still fits one row
space and everything that reads it is already inside, so that it never has to be written; or as a copy,
where computing it again costs no more traffic than reading it; or as a further result of the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusegen import ops
from fusegen.costs import viewproduct
from fusegen.ir import (
    ArgReduceOp,
    AttentionOp,
    CatOp,
    ConvOp,
    DType,
    GatherOp,
    GetItemOp,
    Graph,
    InputOp,
    MatmulOp,
    Node,
    ParamOp,
    PermuteOp,
    PointwiseOp,
    PoolOp,
    RecurrenceOp,
    ReduceOp,
    RegionOp,
    ReshapeOp,
    RuleRefused,
    ScanOp,
    SliceOp,
    SoftmaxOp,
    WindowSumOp,
)
from fusegen.machines import DEFAULT_TARGET, Machine, machine
from fusegen.passes import siblings
from fusegen.passes.attention_groups import attended
from fusegen.passes.conv_groups import axis_sums, over_boxes, reduced, swept, with_statistics
from fusegen.passes.groups import Group, Grouping, in_order
from fusegen.passes.left_out import (
    before_windows,
    beside,
    computed_for_all,
    computed_once,
    cut_out,
    left_behind,
    numbered_apart,
    read_where_it_lies,
    spread_over_elements,
    spread_over_results,
    woven_apart,
)
from fusegen.passes.pool_groups import combined
from fusegen.passes.refusals import OTHER, refusal
from fusegen.passes.rewrite import Outcome
from fusegen.passes.templates import AXIS_SUMS, POOLS, template_of
from fusegen.spaces import poolrows, viewspace
from fusegen.spaces.parts import CUT

_JOINABLE = (PointwiseOp, ReduceOp, ArgReduceOp, ScanOp, SoftmaxOp, *viewspace.FETCHES, *POOLS)
_SMALL = (PointwiseOp, ReduceOp, ArgReduceOp, ReshapeOp)
FUSION = "fuse into one kernel"


def _unit(node: Node, by_name: Mapping[str, Node]) -> set[str] | None:
    """The nodes that join a region together with ``node``; None when it cannot join any."""
    if isinstance(node.op, _JOINABLE):
        return {node.name}
    if isinstance(node.op, ConvOp) and isinstance(by_name[node.inputs[0]].op, WindowSumOp):
        return {node.name, *node.inputs}
    if isinstance(node.op, (ConvOp, MatmulOp)):
        return {node.name}
    return None


def _grow(grouping: Grouping, sink: Node, free: set[str], refused: dict[str, str], machine: Machine) -> Group | None:
    """The largest region that ends in ``sink``, or None when the sink itself is no kernel."""
    graph, by_name, users = grouping.graph, grouping.by_name, grouping.users
    unit = _unit(sink, by_name)
    if unit is None or not unit <= free:
        return None
    group = Group(frozenset(unit))
    reason = refusal(grouping, group, machine)
    if (behind := _behind_views(grouping, group, free)) and refusal(grouping, behind, machine) is None:
        group, reason = behind, None
    if (fetched := _fetched_in_order(grouping, sink, free)) and refusal(grouping, fetched, machine) is None:
        group, reason = fetched, None
    if (joined := _joined_rows(grouping, sink, free)) and refusal(grouping, joined, machine) is None:
        group, reason = joined, None
    if reason and isinstance(sink.op, ReshapeOp) and isinstance(by_name[sink.inputs[0]].op, PermuteOp):
        copied = group.plus(sink.inputs, copied=True)  # both are one copy in torch
        if sink.inputs[0] in free and refusal(grouping, copied, machine) is None:
            group, reason = copied, None
    if reason:
        known = refused.get(sink.name)  # why it joined no kernel of a reader says more
        refused[sink.name] = f"{known}; alone: {reason}" if known and isinstance(sink.op, ConvOp) else known or reason
        return None
    decided: set[str] = set()
    for node in reversed(graph.nodes[: graph.place[sink.name]]):  # every reader of a node is decided before the node
        name = node.name
        if name in group.members or name in decided or ops.is_leaf(node.op) or group.members.isdisjoint(users[name]):
            continue
        unit = _unit(node, by_name)
        if unit is None or not unit <= free:
            continue
        rows = any(isinstance(by_name[member].op, (ReduceOp, SoftmaxOp)) for member in group.members)
        if windows := rows and isinstance(node.op, PoolOp):
            taken, left = before_windows(grouping, node, free, machine)
            unit, decided = unit | taken, decided | left
        alone = name not in grouping.results and set(users[name]) <= group.owned
        views = all(isinstance(by_name[member].op, ReshapeOp) for member in group.members)
        if views and grouping.is_read(name, group):
            continue  # what is viewed is written anyway
        if not alone and isinstance(node.op, ReshapeOp) and viewspace.copies(node, graph):
            refused[name] = f"with {sink.name}: what is turned is written once, for all that read it"
            continue
        candidates = [group.plus(unit)]
        part = rows and isinstance(node.op, CUT)  # read where it lies
        again = grouping.can_copy(node) and not computed_for_all(grouping, node, group, machine)
        if not alone and (part or again):
            candidates.insert(0, group.plus(unit, copied=True))
        elif not alone and (pairs := grouping.of_few(node)) and pairs <= free:
            candidates.insert(0, group.plus(pairs, copied=True))
        if behind := _behind_views(grouping, group.plus(unit), free):
            candidates.insert(0, behind)
        if rows and (cut := cut_out(grouping, node, group.members, free)):
            candidates.append(group.plus(unit).plus(cut, copied=True))
            candidates.append(group.plus(unit | cut, copied=True))
        more = unit if windows else _up_to_data(grouping, unit, free)
        if more != unit:
            candidates.append(group.plus(more))
        if not alone and (others := beside(grouping, node, group, free)):
            candidates.append(group.plus(unit | others))
        if compared := _comparisons(grouping, group.members | unit, free):
            candidates.append(group.plus(unit).plus(compared, copied=True))
        for candidate in candidates:
            reason = refusal(grouping, candidate, machine) or left_behind(grouping, candidate, unit, free, machine)
            reason = reason or computed_once(grouping, candidate, node, free, machine)
            reason = reason or read_where_it_lies(grouping, candidate, node, free, machine)
            reason = reason or woven_apart(grouping, candidate, node, free, machine)
            reason = reason or numbered_apart(grouping, candidate, node, free)
            reason = reason or spread_over_results(grouping, candidate)
            reason = reason or spread_over_elements(grouping, candidate, node, machine)
            if reason is None and not (alone and candidate is candidates[0]) and grouping.is_cyclic(candidate):
                reason = "what reads it outside the kernel comes before the kernel"
            if reason is None:
                group = candidate
                break
            if candidate.members <= group.members | unit:  # what comes before it is no part of the reason
                why = f"with {sink.name}: {reason}"
                refused[name] = refused.get(name, why) if reason == OTHER else why
    body, _ = grouping.body(group)
    if viewspace.takes(body) and not viewspace.pays(body):
        return None
    return _absorb(grouping, group, free, machine)


def _behind_views(grouping: Grouping, group: Group, free: set[str]) -> Group | None:
    """``group`` with the views around the factors of its product, behind which a kernel may read, if it has any."""
    product = grouping.product(group)
    if product is None:
        return None
    views, pending = set[str](), [product.name]
    while pending:
        for name in grouping.by_name[pending.pop()].inputs:
            view = isinstance(grouping.by_name[name].op, viewspace.VIEWS)
            if view and name in free and name not in group.members | views:
                views.add(name)
                pending.append(name)
    return group.plus(views, copied=True) if views else None


def _fetched_in_order(grouping: Grouping, sink: Node, free: set[str]) -> Group | None:
    """The group of what is fetched and then read in another order of axes, by kernels: it may as well lie so."""
    if not isinstance(sink.op, PermuteOp) or sink.name in grouping.results:
        return None
    (name,) = sink.inputs
    alone = name in free and set(grouping.users[name]) == {sink.name} and name not in grouping.results
    fetched = alone and isinstance(grouping.by_name[name].op, GatherOp)
    return Group(frozenset((sink.name, name))) if fetched and grouping.fusable_readers(sink.name) else None


def _joined_rows(grouping: Grouping, sink: Node, free: set[str]) -> Group | None:
    """The group of a join of what rows come to, and nothing else reads."""
    members, pending = {sink.name}, list(sink.inputs) if isinstance(sink.op, CatOp) else []
    while pending:
        node = grouping.by_name[pending.pop()]
        if ops.is_leaf(node.op) or node.name in members:
            continue
        joinable = isinstance(node.op, (ReduceOp, PointwiseOp, ReshapeOp)) and node.name in free
        if not joinable or node.name in grouping.results or not set(grouping.users[node.name]) <= members:
            return None
        members.add(node.name)
        pending += [] if isinstance(node.op, ReduceOp) else node.inputs
    return Group(frozenset(members)) if len(members) > 1 else None


def _is_better_viewed(grouping: Grouping, sink: Node, group: Group, free: set[str], machine: Machine) -> bool:
    """Whether ``sink`` only views what a larger kernel can write: what splits or joins axes, some kernels do not."""
    if not isinstance(sink.op, ReshapeOp) or sink.inputs[0] not in group.owned:
        return False
    before = _grow(grouping, grouping.by_name[sink.inputs[0]], free, {}, machine)
    return before is not None and group.members - {sink.name} < before.members


def _up_to_data(grouping: Grouping, unit: set[str], free: set[str]) -> set[str]:
    """``unit`` and what it comes from, up to a reduction: a kernel that has the data knows its sizes."""
    found, pending = set(unit), list(unit)
    while pending:
        for name in grouping.by_name[pending.pop()].inputs:
            producer = grouping.by_name[name]
            if name in free and name not in found and isinstance(producer.op, (PointwiseOp, ReshapeOp, ReduceOp)):
                found.add(name)
                pending += [] if isinstance(producer.op, ReduceOp) else [name]
    return found


def _comparisons(grouping: Grouping, members: frozenset[str] | set[str], free: set[str]) -> set[str]:
    """Comparisons that ``members`` read, and others too: what is compared may be the only data of the kernel."""
    read = {name for member in members for name in grouping.by_name[member].inputs} - members
    nodes = (grouping.by_name[name] for name in read & free)
    return {node.name for node in nodes if node.type.dtype is DType.BOOL and grouping.can_copy(node)}


def _absorb(grouping: Grouping, group: Group, free: set[str], machine: Machine) -> Group:
    """``group`` with the row values that follow from it or from its data: running statistics, a second mean."""
    body, operands = grouping.body(group)
    if not template_of(body).startswith("row"):
        return group
    for node in grouping.graph.nodes:
        if node.name in group.members or node.name not in free or not isinstance(node.op, _SMALL):
            continue
        reduces = isinstance(node.op, (ReduceOp, ArgReduceOp))
        if not reduces and group.members.isdisjoint(node.inputs):
            continue  # it follows from nothing that the kernel has
        if not grouping.is_read(node.name):  # other kernels have copied it
            continue
        unit = {node.name}
        pending = [name for name in node.inputs if name not in group.members]
        while pending:  # what parameters and scalars alone go into, or nothing else reads
            producer = grouping.by_name[pending.pop()]
            if ops.is_leaf(producer.op) or producer.name in operands:
                continue
            if not isinstance(producer.op, (PointwiseOp, ReshapeOp, SliceOp)) or producer.name not in free:
                break
            if group.members & set(producer.inputs) and not set(grouping.users[producer.name]) <= unit:
                break
            unit.add(producer.name)
            pending.extend(name for name in producer.inputs if name not in group.members)
        else:
            candidate = group.plus(unit)
            if refusal(grouping, candidate, machine) is None and not grouping.is_cyclic(candidate):
                space = poolrows.rows(grouping.body(candidate)[0])
                if space.row_axes and node.name in space.axes and not space.is_element(node.name):
                    group = candidate
    return group


def _region(node: Node, body: Graph, operands: tuple[str, ...]) -> list[Node]:
    """The region node in place of the group that ends in ``node``, and a node for each of several results."""
    op = RegionOp(template=template_of(body), body=body)
    outputs = [body.node(name) for name in body.outputs]
    if len(outputs) == 1:
        return [outputs[0].replace(op=op, inputs=operands)]
    name = f"{node.name}_kernel"
    region = node.replace(name=name, op=op, inputs=operands, type=outputs[0].type)
    return [region, *(n.replace(op=GetItemOp(index=i), inputs=(name,)) for i, n in enumerate(outputs))]


def _turned(grouping: Grouping, free: set[str], machine: Machine) -> dict[str, Group]:
    """The groups of permutations that kernels read, row by row, or the library's products of many matrices that do not
    lie evenly: torch would copy them for that, in twice the time.

    Views of views are one.
    """
    read = {name for group in grouping.groups.values() for name in grouping.body(group)[1]}
    products = [node for node in grouping.graph.nodes if node.name in free and isinstance(node.op, MatmulOp)]
    read |= {name for node in products for name in node.inputs if viewproduct.is_gathered(grouping.by_name[name])}
    names = {name for name in read & free if isinstance(grouping.by_name[name].op, PermuteOp)}
    grouping.lay_by_rows(names)
    found = dict[str, Group]()
    for name in sorted(names):
        group, above = Group(frozenset((name,))), grouping.by_name[name].inputs
        while above[0] in free - names and isinstance(grouping.by_name[above[0]].op, (ReshapeOp, *viewspace.STRIDED)):
            group, above = group.plus(above, copied=True), grouping.by_name[above[0]].inputs
        if refusal(grouping, group, machine) is None and viewspace.pays(grouping.body(group)[0]):
            found[name] = group
    return found


def _lies_like_a_parameter(grouping: Grouping, node: Node) -> bool:
    """True for a view of a parameter that is as good as one: its first rows, and a matrix of a product."""
    if not node.inputs or not isinstance(grouping.by_name[node.inputs[0]].op, ParamOp):
        return False
    first = isinstance(node.op, SliceOp) and (node.op.axis, node.op.step) == (0, 1)
    readers = [grouping.by_name[name].op for name in grouping.users[node.name]]
    matrix = isinstance(node.op, ReshapeOp) and all(isinstance(reader, MatmulOp) for reader in readers)
    return first or (matrix and bool(readers))


def _layer(grouping: Grouping, node: Node) -> Group:
    """A recurrent layer with all of its results."""
    users = (grouping.by_name[name] for name in grouping.users[node.inputs[-1]])
    return Group(frozenset(n.name for n in users if isinstance(n.op, RecurrenceOp) and n.inputs == node.inputs))


def run(graph: Graph, target: str = DEFAULT_TARGET) -> Outcome:
    """%m = reduce.max(%x); %e = exp(%m)  ->  %e = region(%x) { the same nodes }."""
    if any(isinstance(node.op, RegionOp) for node in graph.nodes):
        return Outcome(graph)
    grouping = Grouping(graph)
    free = {n.name for n in graph.nodes if not ops.is_leaf(n.op) and not _lies_like_a_parameter(grouping, n)}
    refused: dict[str, str] = {}
    for kind in AXIS_SUMS:
        for node in graph.nodes:
            if isinstance(node.op, kind) and node.name in free:
                sums = axis_sums(grouping, node, free)
                grouping.add(node.name, sums)
                free -= sums.owned
    for node in graph.nodes:
        if isinstance(node.op, RecurrenceOp) and node.name in free:
            layer = _layer(grouping, node)
            grouping.add(grouping.in_order(layer.owned)[-1].name, layer)
            free -= layer.owned
    for node in graph.nodes:
        if isinstance(node.op, (MatmulOp, AttentionOp)) and (
            found := attended(grouping, node, free, refused, machine(target))
        ):
            grouping.add(grouping.in_order(found.owned)[-1].name, found)
            free -= found.owned
    for node in graph.nodes:  # first, for a norm's kernel would take the statistics
        if not isinstance(node.op, ConvOp) or node.name not in free:
            continue
        group = over_boxes(grouping, node, free) or reduced(grouping, node, free, refused, machine(target))
        group = group or with_statistics(grouping, node, free, machine(target))
        if group := group or swept(grouping, node, free, refused, machine(target)):
            last = grouping.in_order(group.owned)[-1].name
            grouping.add(last, group)
            free -= group.owned
    for sink in tuple(combined(grouping, free)):
        group = _grow(grouping, sink, free, {}, machine(target))
        if group and sum(isinstance(grouping.by_name[name].op, POOLS) for name in group.owned) > 1:
            grouping.add(sink.name, group)
            free -= group.owned
    for sink in reversed(graph.nodes):
        if sink.name not in free or not grouping.is_read(sink.name):
            continue
        group = _grow(grouping, sink, free, refused, machine(target))
        if group is None or _is_better_viewed(grouping, sink, group, free, machine(target)):
            continue
        if all(isinstance(graph.node(name).op, ReshapeOp) for name in group.members):
            continue  # a view, not a kernel
        grouping.add(sink.name, group)
        free -= group.owned
    for name, turned in _turned(grouping, free, machine(target)).items():
        grouping.add(name, turned)
    siblings.merge(grouping, machine(target))
    inside = {name for group in grouping.groups.values() for name in group.owned}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.name in grouping.groups:
            nodes += _region(node, *grouping.body(grouping.groups[node.name]))
        elif node.name not in inside and (isinstance(node.op, InputOp) or grouping.is_read(node.name)):
            nodes.append(node)  # what kernels have copied need not be read any more
    known = {name for group in grouping.groups.values() for name in group.members}
    refusals = tuple(
        RuleRefused(identity=FUSION, node=name, reason=reason)
        for name, reason in refused.items()
        if name not in known or name in grouping.groups  # its kernel writes what another one could have read on chip
    )
    return Outcome(graph.replace(nodes=in_order(nodes)).prune(), (), refusals)
