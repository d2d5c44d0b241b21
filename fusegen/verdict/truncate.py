"""The part of a model that comes before its first flattening op, where errors cannot hide."""

from __future__ import annotations

from fusegen import ops
from fusegen.ir import Graph


def before_flattening(graph: Graph) -> Graph | None:
    """``graph`` cut off at the operands of its first flattening ops; None where there is nothing to see.

    An error of a convolution can vanish in a softmax or a sigmoid. What the heavy ops before it
    computed is the output here. Ops that follow another flattening op are not cut at again.
    """
    heavy: set[str] = set()
    flat: set[str] = set()
    ends: dict[str, None] = {}
    for node in graph.nodes:
        if not flat.isdisjoint(node.inputs):
            flat.add(node.name)
        elif ops.flattens(node.op):
            flat.add(node.name)
            ends.update(dict.fromkeys(name for name in node.inputs if name in heavy))
        elif ops.is_heavy(node.op) or not heavy.isdisjoint(node.inputs):
            heavy.add(node.name)
    if not ends:
        return None
    return graph.replace(outputs=tuple(ends), strided=(), tuple_output=len(ends) > 1, updates=()).prune()
