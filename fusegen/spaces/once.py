"""Analyses that many ask for: of each graph done once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from fusegen.ir import Graph

T = TypeVar("T")


def once(analysis: Callable[[Graph], T]) -> Callable[[Graph], T]:
    """``analysis``, whose result, or the error that it raises, is kept with the graph that it is of."""

    @wraps(analysis)
    def known(graph: Graph) -> T:
        if analysis not in graph.analyses:
            try:
                graph.analyses[analysis] = analysis(graph)
            except Exception as error:
                graph.analyses[analysis] = error
        found: T | Exception = graph.analyses[analysis]
        if isinstance(found, Exception):
            raise found.with_traceback(None)
        return found

    return known
