"""Checks graphs: names, order, types, sizes. Also the reader of graph descriptions, which checks them."""

from __future__ import annotations

from pydantic import ValidationError

from fusegen import dims, ops
from fusegen.errors import GraphError, GraphFormatError
from fusegen.ir import INTEGERS, ConstOp, Graph, InputOp, Node, RegionOp


def verify(graph: Graph, checked: Graph | None = None) -> None:
    """Check names, order, types and outputs. Raises ``GraphError`` naming the node.

    ``checked``: the graph that ``graph`` was made of; a node of it computes what it did, of operands of the same types.
    """
    seen: set[str] = set()
    known = checked.by_name if checked else {}
    new = {node.name for node in graph.nodes if node is not known.get(node.name)}
    for node in graph.nodes:
        if node.name in seen:
            raise GraphError("two nodes share a name", node=node.name, source=node.source)
        if not seen.issuperset(node.inputs):
            missing = next(name for name in node.inputs if name not in seen)
            raise GraphError(f"reads {missing!r}, which no earlier node defines", node=node.name, source=node.source)
        seen.add(node.name)
        if node.name not in new and new.isdisjoint(node.inputs):
            continue
        unknown = [s for s in dims.symbols(node.type.shape) if s not in graph.sizes]
        if unknown:
            raise GraphError(f"size symbol {unknown[0]!r} has no traced value", node=node.name, source=node.source)
        try:
            inferred = ops.infer(node.op, tuple(graph.node(name).type for name in node.inputs), node.type)
        except GraphError as error:
            raise GraphError(error.message, node=node.name, source=node.source) from error
        if inferred != node.type:
            raise GraphError(f"is declared {node.type} but computes {inferred}", node=node.name, source=node.source)
        if isinstance(node.op, RegionOp):
            verify(node.op.body)
    for name in graph.results:
        if name not in seen:
            raise GraphError(f"output {name!r} is not a node")
    positions = [n.op.position for n in graph.inputs if isinstance(n.op, InputOp)]
    if positions != list(range(len(positions))):
        raise GraphError(f"input positions are {positions}, not 0..{len(positions) - 1}")


def _with_its_number(node: Node) -> Node:
    """A scalar whose number is a float where its type is: JSON may leave out the point."""
    if not isinstance(node.op, ConstOp) or not isinstance(node.op.value, int) or node.type.dtype in INTEGERS:
        return node
    return node.replace(op=node.op.replace(value=float(node.op.value)))


def from_json(text: str, where: str = "graph") -> Graph:
    """Parse and verify an operator-graph description. Raises ``GraphFormatError``."""
    try:
        graph = Graph.model_validate_json(text)
        graph = graph.replace(nodes=tuple(map(_with_its_number, graph.nodes)))
        verify(graph)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, first["loc"])) or "top level"
        raise GraphFormatError(f"{where}: {path}: {first['msg']}", hint="see docs/graph-format.md") from error
    except (GraphError, ValueError) as error:
        raise GraphFormatError(f"{where}: {error}", hint="see docs/graph-format.md") from error
    return graph
