"""Why elementwise work stays out of a kernel that could take it: another one has it for less."""

from __future__ import annotations

from fusegen import dims
from fusegen.ir import (
    ArgReduceOp,
    CatOp,
    ConstOp,
    ConvOp,
    MatmulOp,
    Node,
    Op,
    PermuteOp,
    PointwiseOp,
    RangeOp,
    ReduceOp,
    ReshapeOp,
    ScanOp,
    SliceOp,
    SoftmaxOp,
    TriangleOp,
)
from fusegen.machines import Machine
from fusegen.passes.groups import Group, Grouping
from fusegen.passes.refusals import refusal
from fusegen.passes.templates import POOLS, template_of
from fusegen.pointwise import POINTWISE
from fusegen.spaces import poolrows, poolspace, viewspace


def _elements(grouping: Grouping, name: str) -> int:
    """Of a value, as traced."""
    return dims.numel(grouping.by_name[name].type.shape, grouping.graph.sizes)


def left_behind(grouping: Grouping, group: Group, unit: set[str], free: set[str], machine: Machine) -> str | None:
    """Why elementwise work before a view or a pooling stays out of its kernel, or None: its data's kernel takes it.

    The library adds a bias to a convolution in a pass of its own, and so takes none; to a product it does at once.
    Before a pooling, what other kernels take is read as often; softmaxes and scans are written anyway.
    """
    heads: tuple[type[Op], ...] = (ConvOp, MatmulOp, ReduceOp, ArgReduceOp, ScanOp, SoftmaxOp, *POOLS)
    body, _ = grouping.body(group)
    if template_of(body) == "pool":
        heads = (ScanOp, SoftmaxOp)
        if head := _one_head(grouping, unit, free):
            return f"the kernel of {head} takes all of it"
        if head := _before_overlaps(grouping, group, unit, free, machine):
            return f"the kernel of {head} computes it once for all windows"
    elif not viewspace.takes(body):
        return None
    results = max(_elements(grouping, name) for name in unit)
    pending, seen = [name for name in unit if isinstance(grouping.by_name[name].op, PointwiseOp)], set(unit)
    while pending:
        for name in grouping.by_name[pending.pop()].inputs:
            if name not in free or name in seen or not set(grouping.users[name]) <= seen:
                continue
            if isinstance(grouping.by_name[name].op, ConvOp) and ConvOp in heads:
                if refusal(grouping, Group(frozenset({name} | seen)), machine) is None:
                    return f"the kernel of {name} takes it"
            elif isinstance(grouping.by_name[name].op, (ScanOp, SoftmaxOp)) and results > _elements(grouping, name):
                continue  # pairs of elements, say
            elif isinstance(grouping.by_name[name].op, heads) and not grouping.is_spread(name):
                product = isinstance(grouping.by_name[name].op, MatmulOp)
                if product and refusal(grouping, group.plus({name} | seen), machine) is None:
                    continue  # and what is behind the view
                return f"the kernel of {name} takes it"
            if isinstance(grouping.by_name[name].op, (PointwiseOp, ReshapeOp)):
                seen.add(name)
                pending.append(name)
    return None


def _one_head(grouping: Grouping, unit: set[str], free: set[str]) -> str | None:
    """The convolution that several whole operands of ``unit`` are functions of, whose kernel has one result instead."""
    outside = {name for own in unit for name in grouping.by_name[own].inputs} - unit
    size = max(_elements(grouping, name) for name in unit)
    whole = [name for name in outside if _elements(grouping, name) == size]
    if len(whole) < 2 or not all(isinstance(grouping.by_name[name].op, PointwiseOp) for name in whole):
        return None
    heads, pending, seen = set[str](), list(whole), set[str]()
    while pending:
        name = pending.pop()
        if name in seen or _elements(grouping, name) < size:
            continue
        seen.add(name)
        node = grouping.by_name[name]
        if name not in free or not isinstance(node.op, (PointwiseOp, ConvOp)):
            return None
        if isinstance(node.op, ConvOp):
            heads.add(name)
        else:
            pending += node.inputs
    return heads.pop() if len(heads) == 1 else None


def _head_of(
    grouping: Grouping, readers: frozenset[str], unit: set[str], free: set[str]
) -> tuple[str, set[str]] | None:
    """The convolution or product that ``unit`` is a function of, which ``readers`` alone need, and all of the function:
    elementwise work of as many elements.
    """
    shape = grouping.by_name[max(unit, key=lambda name: _elements(grouping, name))].type.shape
    chain, pending, head = set(unit), list(unit), None
    while pending:
        for source in map(grouping.by_name.__getitem__, grouping.by_name[pending.pop()].inputs):
            alone = source.name in free and set(grouping.users[source.name]) <= chain | readers
            if source.name in chain or source.name == head or source.type.shape != shape:
                continue
            if not alone or source.name in grouping.results:
                return None
            if isinstance(source.op, (ConvOp, MatmulOp)) and head is None:
                head = source.name
            elif isinstance(source.op, PointwiseOp):
                chain.add(source.name)
                pending.append(source.name)
            else:
                return None
    return None if head is None else (head, chain)


def _before_overlaps(grouping: Grouping, group: Group, unit: set[str], free: set[str], machine: Machine) -> str | None:
    """The convolution or product whose kernel computes once what that of a pooling would for every window that an
    element is in, at length. Memory hides a few instructions.
    """
    pool = next(
        grouping.by_name[name] for name in sorted(group.members) if isinstance(grouping.by_name[name].op, POOLS)
    )
    assert isinstance(pool.op, POOLS)
    if not all(isinstance(grouping.by_name[name].op, PointwiseOp) for name in unit):
        return None
    found = _head_of(grouping, group.members, unit, free)
    if found is None:
        return None
    head, chain = found
    before = chain | (group.members & grouping.graph.needed(pool.name))
    instructions = sum(work(grouping.by_name[name]) for name in before)
    again = instructions * (poolspace.repeated(grouping.graph, pool) - 1) / machine.flops
    if again <= _OF_MEMORY * pool.type.dtype.bytes / machine.bandwidth:
        return None
    return head if refusal(grouping, Group(frozenset(chain | {head})), machine) is None else None


def computed_once(grouping: Grouping, group: Group, node: Node, free: set[str], machine: Machine) -> str | None:
    """Why elementwise work stays out of a kernel beside which others need it too, whose rows are read several times, or
    that is a product of it, or None: the kernel of the product before it computes it once, and knows a channel without
    dividing.

    Further data of every element is read where it is needed: by the product's kernel what others need the sum with.
    """
    if not isinstance(node.op, PointwiseOp):
        return None
    chain, pending, head = {node.name}, [node], None
    shared = not set(grouping.users[node.name]) <= group.owned
    while pending:
        for name in pending.pop().inputs:
            source = grouping.by_name[name]
            if name in chain or name == head or source.type.shape != node.type.shape:
                continue
            if isinstance(source.op, (ConvOp, MatmulOp)) and head is None and name in free:
                head = name
            elif isinstance(source.op, PointwiseOp) and name in free and set(grouping.users[name]) <= chain:
                chain.add(name)
                pending.append(source)
            elif not shared:
                return None
    if head is None or not set(grouping.users[head]) <= chain:
        return None
    if not shared:
        body, _ = grouping.body(group)
        space = poolrows.rows(body) if template_of(body) == "row_stream" else None
        streamed = space and not space.on_chip and any(space.is_element(name) for name in body.outputs)
        if not streamed and not _is_between_products(grouping, group, node, head, machine):
            return None
    taken = refusal(grouping, Group(frozenset(chain | {head})), machine) is None
    return f"the kernel of {head} computes it once" if taken else None


def _is_between_products(grouping: Grouping, group: Group, node: Node, first: str, machine: Machine) -> bool:
    """Whether ``node`` comes before the product of ``group`` and after another that has a kernel."""
    second = grouping.product(group)
    if second is None or not isinstance(grouping.by_name[first].op, MatmulOp):
        return False
    before = node.name in grouping.graph.needed(second.name)
    return before and refusal(grouping, Group(frozenset({first})), machine) is None


_SPREAD, _WORTH = 4, 1 << 18
"""Results that an element is computed again for, and elements from which on a kernel of their own is worth it."""


def spread_over_results(grouping: Grouping, group: Group) -> str | None:
    """Why no kernel of a product has a function of less data than it has results, or None: it would compute that again
    for every result.
    """
    members = [grouping.by_name[name] for name in sorted(group.members)]
    head = grouping.product(group)
    if head is None:
        return None
    before, results = grouping.graph.needed(head.name), _elements(grouping, head.name)
    for node in members:
        costly = isinstance(node.op, PointwiseOp) and (node.op.fn == "div" or POINTWISE[node.op.fn].flops > 1)
        if costly and node.name not in before:
            own = _elements(grouping, node.name)
            if own >= _WORTH and _SPREAD * own <= results:
                return f"{node.name} would be computed again for every {results // own} results"
    return None


_LAUNCHES, _OF_MEMORY = 4, 0.2
"""Launches that a function of few elements takes when it is computed again for all results, and how much of the time
that these take in memory, from which on a kernel of its own is worth it: less is hidden."""


def spread_over_elements(grouping: Grouping, group: Group, node: Node, machine: Machine) -> str | None:
    """Why a function of few elements stays out of a kernel that would compute it again for each of many, or None.

    What neighbours share, a thread computes once for several.
    """
    sizes, own = grouping.graph.sizes, node.type.shape
    if not work(node):
        return None
    shapes = [grouping.by_name[name].type.shape for name in group.members]
    largest = max(shapes, key=lambda shape: dims.numel(shape, sizes))
    results, few = dims.numel(largest, sizes), dims.numel(own, sizes)
    if not own or not largest or own[-1] == 1 or _SPREAD * few > results:
        return None
    seconds = work(node) * results / machine.flops
    memory = 2 * results * node.type.dtype.bytes / machine.bandwidth
    if seconds < max(_LAUNCHES * machine.launch, _OF_MEMORY * memory):
        return None
    return f"it would be computed again for every {results // few} elements"


def _are_numbers(grouping: Grouping, node: Node) -> bool:
    """Whether a function is one of positions, and of no data."""
    if isinstance(node.op, (PointwiseOp, ReshapeOp)):
        return all(_are_numbers(grouping, grouping.by_name[name]) for name in node.inputs)
    return isinstance(node.op, (ConstOp, RangeOp))


def numbered_apart(grouping: Grouping, group: Group, node: Node, free: set[str]) -> str | None:
    """Why a few functions of positions stay out of a kernel that weighs a softmax by them, or None: it is the softmax'
    kernel where it reads them, and kernels of rows make no numbers.
    """
    if not isinstance(node.op, PointwiseOp) or not _are_numbers(grouping, node):
        return None
    pending, most = list(group.owned), _elements(grouping, node.name) * _SPREAD
    while pending:
        for source in map(grouping.by_name.__getitem__, grouping.by_name[pending.pop()].inputs):
            if source.name in group.owned or source.name not in free:
                continue
            if isinstance(source.op, SoftmaxOp) and most <= _elements(grouping, source.name):
                return f"{source.name} and what is weighed are one kernel, which reads numbers and makes none"
            if isinstance(source.op, PointwiseOp):
                pending.append(source.name)
    return None


def work(node: Node) -> int:
    """Instructions for an element of a function, about; of anything else, none."""
    row = POINTWISE[node.op.fn] if isinstance(node.op, PointwiseOp) else None
    return 0 if row is None else row.work


def _readers(grouping: Grouping, name: str) -> set[str]:
    """Who reads a value, as it is or reshaped."""
    found = set[str]()
    for user in set(grouping.users[name]):
        view = isinstance(grouping.by_name[user].op, ReshapeOp)
        found |= _readers(grouping, user) if view else {user}
    return found


def computed_for_all(grouping: Grouping, node: Node, group: Group, machine: Machine) -> bool:
    """Whether several kernels read ``node``, a function, for many elements each: one of few results computes it sooner
    than all of them again.
    """
    readers = len(_readers(grouping, node.name))
    results = max(_elements(grouping, name) for name in group.members)
    if readers < 2 or _SPREAD * _elements(grouping, node.name) > results:
        return False
    return 2 * work(node) * results * readers > machine.launch * machine.flops


def beside(grouping: Grouping, node: Node, group: Group, free: set[str]) -> set[str]:
    """Functions of ``node`` that ``group`` lacks, as many as the one that it has: none of them is to be left out."""
    others = set(grouping.users[node.name]) - group.members
    shapes = {grouping.by_name[name].type.shape for name in grouping.outputs(group)}
    alike = all(
        isinstance(grouping.by_name[name].op, PointwiseOp) and {grouping.by_name[name].type.shape} == shapes
        for name in others
    )
    return others if alike and others <= free and node.name not in grouping.results else set()


def read_where_it_lies(grouping: Grouping, group: Group, node: Node, free: set[str], machine: Machine) -> str | None:
    """Why elementwise work of cut-out or turned data stays out of a kernel of rows, or None: that kernel would need
    copies of it, which take as long as the work itself where the data lies, or read some of it across its lines.
    """
    if not isinstance(node.op, PointwiseOp) or not template_of(grouping.body(group)[0]).startswith("row"):
        return None
    if cut := cut_out(grouping, node, group.members, free):
        return f"{min(cut)} is cut out, and would be copied"
    viewed = {name for name in set(node.inputs) & free - group.members if _is_viewed(grouping, name, node)}
    if viewed and refusal(grouping, group.plus(viewed, copied=True), machine) is not None:
        return f"{min(viewed)} is no data of its own, and would be written"
    across = {name for name in viewed if _is_turned(grouping.by_name[name])}
    shape = node.type.shape
    others = {name for name in set(node.inputs) - viewed if grouping.by_name[name].type.shape == shape}
    if across and any(grouping.by_name[name].type.shape == shape for name in grouping.outputs(group)):
        if others:
            return f"neighbours in {min(others)} are none in {min(across)}: a kernel of tiles reads both in lines"
        if any(_is_reduced_in_lines(grouping, group, grouping.by_name[name]) for name in across):
            return f"rows are lines of {min(across)} alone, and would be written across those of the result"
    return None


def woven_apart(grouping: Grouping, group: Group, node: Node, free: set[str], machine: Machine) -> str | None:
    """Why a function of several fetched tensors, such as the neighbours that are weighed in an interpolation, stays out
    of a kernel of rows, or None: rows read elements where they lie, so that each tensor would be written, and not the
    function alone.
    """
    if not isinstance(node.op, PointwiseOp):
        return None
    behind = [_fetched(grouping, name, node, free) for name in dict.fromkeys(node.inputs)]
    fetched, between = (set[str]().union(*found) for found in zip(*behind, strict=True))
    if sum(bool(own) for own, _ in behind) < 2 or len(fetched - group.members) < 2:
        return None
    if not template_of(grouping.body(group)[0]).startswith("row"):
        return None
    if refusal(grouping, group.plus(fetched | between, copied=True), machine) is None:
        return None
    return f"{len(fetched)} tensors would be written for it, of which it is one"


def _fetched(grouping: Grouping, name: str, reader: Node, free: set[str]) -> tuple[set[str], set[str]]:
    """Tensors as large as ``reader`` that lie nowhere, of which ``name`` is a function, and what is between."""
    fetched, between, pending = set[str](), set[str](), [name]
    while pending:
        node = grouping.by_name[pending.pop()]
        if node.name not in free or node.name in fetched | between or node.type.shape != reader.type.shape:
            continue
        if isinstance(node.op, PointwiseOp):
            between.add(node.name)
            pending += node.inputs
        elif isinstance(node.op, viewspace.ELSEWHERE) and not isinstance(node.op, CatOp):  # whose parts are written
            fetched.add(node.name)
    return fetched, between


def _is_reduced_in_lines(grouping: Grouping, group: Group, view: Node) -> bool:
    """Whether rows of ``group`` run along the last axis of what is turned to ``view``."""
    assert isinstance(view.op, PermuteOp)
    axis = view.op.order.index(view.type.rank - 1)
    for node in map(grouping.by_name.__getitem__, group.members):
        match node.op:
            case ReduceOp(axes=axes):
                reduced = axes
            case SoftmaxOp(axis=own):
                reduced = (own,)
            case _:
                continue
        if axis in reduced and grouping.by_name[node.inputs[0]].type.shape == view.type.shape:
            return True
    return False


def _is_turned(view: Node) -> bool:
    """Whether neighbours along the last axis lie apart."""
    return isinstance(view.op, PermuteOp) and view.op.order[-1] != len(view.op.order) - 1


def _is_viewed(grouping: Grouping, name: str, reader: Node) -> bool:
    """True for as many elements as ``reader`` has, in another order of axes than they lie in, or a triangle of them."""
    view = grouping.by_name[name]
    all_of_it = view.type.shape == reader.type.shape and name not in grouping.results
    return isinstance(view.op, (PermuteOp, TriangleOp)) and all_of_it


def cut_out(grouping: Grouping, node: Node, members: frozenset[str], free: set[str]) -> set[str]:
    """Parts that elementwise work ``node`` is done on, and that would be copied for a kernel of rows."""
    found = set()
    for name in node.inputs if isinstance(node.op, PointwiseOp) else ():
        part = grouping.by_name[name]
        cut = isinstance(part.op, SliceOp) and part.type.shape == node.type.shape and name in free - members
        if cut and not viewspace.lies_in_one_piece(part):
            found.add(name)
    return found


def before_windows(grouping: Grouping, pool: Node, free: set[str], machine: Machine) -> tuple[set[str], set[str]]:
    """Elementwise work on the elements of windows of ``pool``: what a row's kernel takes, and what another one has for
    free. With a convolution that takes the pooling too: then it is no part of the rows.
    """
    chain: set[str] = set()
    for node in reversed(grouping.graph.nodes):
        readers = set(grouping.users[node.name])
        if node.name not in free or not readers or not readers <= chain | {pool.name}:
            continue
        if isinstance(node.op, (PointwiseOp, ReshapeOp)):
            chain.add(node.name)
        elif isinstance(node.op, SoftmaxOp):
            return set(), chain
        elif isinstance(node.op, ConvOp):
            pooled = Group(frozenset({node.name, pool.name} | chain))
            return chain | {node.name} if refusal(grouping, pooled, machine) is None else chain, set()
        elif isinstance(node.op, MatmulOp):
            bias = [grouping.by_name[name].op for name in chain] == [PointwiseOp(fn="add")]
            taken = bias or refusal(grouping, Group(frozenset({node.name} | chain)), machine) is None
            return (set(), chain) if taken else (chain, set())
    return chain, set()
