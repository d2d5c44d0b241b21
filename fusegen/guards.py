"""The conditions on sizes under which a trace stands for its model.

torch.export notes every question that tracing put to a size: some decide what is computed, most only
how memory is laid out (contiguous? rounded up?), and it takes every size to be at least 2. Asking again
tells them apart: where the model, traced at sizes with another answer, comes out as the same graph, the
question does not matter.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType

from fusegen.ir import Graph

Sizes = Mapping[str, int]
_FUNCTIONS = {"min": min, "max": max, "int": int}
_LEAST = re.compile(r"\w+ >= \d+|.+ >= 0")
_ANSWERS = 2
"""Sizes with another answer at which the graph must be the same: it may be so at one by chance, as at a bound."""
_REACH = 64
"""How far from the traced and from the smallest size another answer is looked for."""


@functools.lru_cache(maxsize=4096)
def _compiled(condition: str) -> CodeType:
    return compile(condition, "<size condition>", "eval")


def holds(condition: str, sizes: Sizes) -> bool:
    """The truth of a condition over size symbols; false where it divides by a size of zero."""
    try:
        return bool(eval(_compiled(condition), {"__builtins__": {}, **_FUNCTIONS}, dict(sizes)))
    except ZeroDivisionError:
        return False


def all_hold(conditions: Iterable[str], sizes: Sizes) -> bool:
    """True when every condition holds."""
    return all(holds(condition, sizes) for condition in conditions)


def _is_question(condition: str) -> bool:
    """Everything but the least size of an axis, which an op asks of its operand, and what must not be negative."""
    return _LEAST.fullmatch(condition) is None


def positive(graph: Graph) -> list[str]:
    """Every computed axis has a size."""
    computed = {d for node in graph.nodes for d in node.type.shape if isinstance(d, str) and not d.isidentifier()}
    return [f"{d} >= 1" for d in sorted(computed)]


def smallest_sizes(graph: Graph) -> dict[str, int]:
    """The least sizes that the constraints and every shape allow, one after the other."""
    return _smallest(graph.sizes, [*graph.constraints, *positive(graph)])


def _smallest(sizes: Sizes, certain: list[str]) -> dict[str, int]:
    """One size after the other as small as the conditions ``certain`` let it be."""
    found = dict(sizes)
    for name, size in sizes.items():
        found[name] = next(v for v in range(1, size + 1) if v == size or all_hold(certain, {**found, name: v}))
    return found


def _symbols(condition: str) -> tuple[str, ...]:
    return tuple(name for name in _compiled(condition).co_names if name not in _FUNCTIONS)


def _neighbours(sizes: Sizes, names: Iterable[str]) -> Iterator[dict[str, int]]:
    """Sizes that differ in one of ``names``: near the traced one, then small."""
    for name in names:
        size = sizes[name]
        near = range(size - 1, max(size - _REACH, 0), -1)
        for value in dict.fromkeys((size + 1, *near, *range(1, _REACH))):
            yield {**sizes, name: value}


def _groups_of_ones(
    sizes: Sizes, names: list[str], certain: list[str], same: Callable[[Sizes], bool]
) -> tuple[str, ...]:
    """The least groups of sizes that, all at 1, change the graph.

    From large groups to small ones: what a group does not change, no part of it does, and what a part changes, it does.
    A pooling over all positions needs all of their sizes, so that most parts are never traced.
    """
    unchanged: list[frozenset[str]] = []
    at_fault: list[frozenset[str]] = []

    @functools.cache
    def search(group: frozenset[str]) -> None:
        """Add the least groups inside ``group`` to those at fault."""
        if not group or any(group <= known for known in unchanged):
            return
        ones = {**sizes, **dict.fromkeys(group, 1)}
        possible = all_hold(certain, ones)
        if possible and not any(fault <= group for fault in at_fault) and same(ones):
            unchanged.append(group)
            return
        for name in filter(group.__contains__, reversed(names)):  # positions come last, and change a graph together
            search(group - {name})
        if possible and not any(fault <= group for fault in at_fault):
            at_fault.append(group)

    whole = frozenset(names)
    if all_hold(certain, {**sizes, **dict.fromkeys(whole, 1)}):
        search(whole)
    groups = sorted(at_fault, key=lambda group: (len(group), [names.index(name) for name in names if name in group]))
    return tuple(f"{'*'.join(sorted(group))} > 1" for group in groups)


def settle(graph: Graph, same: Callable[[Sizes], bool]) -> Graph:
    """``graph`` with the constraints that matter; ``same`` traces again at the given sizes and compares."""
    shapes = positive(graph)
    kept = [c for c in graph.constraints if not _is_question(c)]
    added: tuple[str, ...] = ()
    open_questions = [c for c in graph.constraints if _is_question(c)]
    unchanged: list[Sizes] = []  # sizes as traced or 1, at which the graph is the same

    def as_traced(sizes: Sizes) -> bool:
        """The same, unless it is known: what a group of ones does not change, no part of it does."""
        if any(all(sizes[name] in (own, known[name]) for name, own in graph.sizes.items()) for known in unchanged):
            return True
        if not same(sizes):
            return False
        if all(sizes[name] in (own, 1) for name, own in graph.sizes.items()):
            unchanged.append(sizes)
        return True

    smallest = _smallest(graph.sizes, [*kept, *shapes])
    ones = [name for name, size in smallest.items() if size == 1]

    def near(question: str) -> Iterator[dict[str, int]]:
        return _neighbours(graph.sizes, _symbols(question))

    def others(question: str, candidates: Iterable[Sizes]) -> list[Sizes]:
        """The first sizes with another answer."""
        certain = [*kept, *shapes]
        found = (s for s in candidates if not holds(question, s) and all_hold(certain, s))
        return list(itertools.islice(found, _ANSWERS))

    if smallest != graph.sizes and same(smallest):  # enough where only sizes of 1 answer otherwise, as of memory layout
        larger = {c: (s for s in near(c) if 1 not in s.values()) for c in open_questions}
        open_questions = [c for c in open_questions if holds(c, smallest) or others(c, larger[c])]
    elif ones:
        added = _groups_of_ones(graph.sizes, ones, shapes, as_traced)
        kept += added
    while open_questions:
        question, *open_questions = open_questions
        asked = others(question, near(question)) or others(question, [smallest])
        if asked and all(map(as_traced, asked)):
            open_questions = [c for c in open_questions if any(holds(c, s) for s in asked)]
        else:
            kept.append(question)
    settled = [*(c for c in graph.constraints if c in kept), *added]
    return graph.replace(constraints=tuple(dict.fromkeys(settled)))
