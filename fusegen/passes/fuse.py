"""Groups nodes into regions, one kernel each, by iteration space and data dependence.

A region grows from a sink towards its producers. A producer joins when everything that reads it is
already inside (so it never has to be written) and the whole still fits one row space.
"""

from __future__ import annotations

from typing import Literal

from fusegen import contractions, ops, poolspace
from fusegen.ir import (
    AdaptivePoolOp,
    ConstOp,
    ConvOp,
    Graph,
    InputOp,
    MatmulOp,
    Node,
    ParamOp,
    PermuteOp,
    PointwiseOp,
    PoolOp,
    ReduceOp,
    RegionOp,
    ReshapeOp,
    RuleRefused,
    SoftmaxOp,
    WindowSumOp,
)
from fusegen.machines import DEFAULT_TARGET, Machine, machine
from fusegen.passes.rewrite import Outcome
from fusegen.rowspace import NotFusable, analyze

Template = Literal["window_sum", "contraction", "pool", "row_reduce", "pointwise"]
_POOLS = (PoolOp, AdaptivePoolOp)
_WORK = (PointwiseOp, ReduceOp, SoftmaxOp, WindowSumOp, ConvOp, MatmulOp, *_POOLS)
_JOINABLE = (PointwiseOp, ReduceOp, SoftmaxOp, ReshapeOp, PermuteOp, *_POOLS)
FUSION = "fuse into one kernel"


def region_body(graph: Graph, members: set[str]) -> tuple[Graph, tuple[str, ...]]:
    """The body of a region over ``members`` (one result: the last member), and its operands in order."""
    nodes = [node for node in graph.nodes if node.name in members]
    by_name = graph.by_name
    external = dict.fromkeys(name for node in nodes for name in node.inputs if name not in members)
    constants = [by_name[name] for name in external if isinstance(by_name[name].op, ConstOp)]
    operands = tuple(name for name in external if not isinstance(by_name[name].op, ConstOp))
    inputs = [by_name[name].replace(op=InputOp(position=i), inputs=()) for i, name in enumerate(operands)]
    body = Graph(name=nodes[-1].name, nodes=(*inputs, *constants, *nodes), outputs=(nodes[-1].name,), sizes=graph.sizes)
    return body, operands


def _unit(node: Node, by_name: dict[str, Node]) -> set[str] | None:
    """The nodes that join a region together with ``node``; None when it cannot join any."""
    if isinstance(node.op, _JOINABLE):
        return {node.name}
    if isinstance(node.op, ConvOp) and isinstance(by_name[node.inputs[0]].op, WindowSumOp):
        return {node.name, *node.inputs}
    if isinstance(node.op, (ConvOp, MatmulOp)):
        return {node.name}
    return None


def _refusal(graph: Graph, members: set[str], machine: Machine) -> str | None:
    body, _ = region_body(graph, members)
    try:
        if _template(body) == "pool":
            poolspace.split(body)
            return None
        space = analyze(body)
    except NotFusable as error:
        return str(error)
    return contractions.refusal(body, space, machine) if _template(body) == "contraction" else None


def _grow(graph: Graph, sink: Node, free: set[str], refused: dict[str, str], machine: Machine) -> set[str] | None:
    """The largest region that ends in ``sink``, or None when the sink itself is no kernel."""
    by_name, users, results = graph.by_name, graph.users(), set(graph.results)
    members = _unit(sink, by_name)
    if members is None or not members <= free:
        return None
    if reason := _refusal(graph, members, machine):
        refused[sink.name] = reason
        return None
    for node in reversed(graph.nodes):  # every reader of a node is decided before the node
        name = node.name
        if name in members or ops.is_leaf(node.op) or not members & set(users[name]):
            continue
        unit = _unit(node, by_name)
        if unit is None or not unit <= free:
            continue
        if name in results:
            refused[name] = "it is an output of the model, so it is written anyway"
        elif not set(users[name]) <= members:
            refused[name] = "it is read outside the kernel too"
        elif reason := _refusal(graph, members | unit, machine):
            refused[name] = f"with {sink.name}: {reason}"
        else:
            members |= unit
    return members


def _template(body: Graph) -> Template:
    if any(isinstance(node.op, WindowSumOp) for node in body.nodes):
        return "window_sum"
    if any(isinstance(node.op, (ConvOp, MatmulOp)) for node in body.nodes):
        return "contraction"
    if any(isinstance(node.op, _POOLS) for node in body.nodes):
        return "pool"
    return "row_reduce" if analyze(body).row_axes else "pointwise"


def run(graph: Graph, target: str = DEFAULT_TARGET) -> Outcome:
    """%m = reduce.max(%x); %e = exp(%m)  ->  %e = region(%x) { the same nodes }."""
    if any(isinstance(node.op, RegionOp) for node in graph.nodes):
        return Outcome(graph)
    free = {node.name for node in graph.nodes if not isinstance(node.op, (InputOp, ParamOp, ConstOp))}
    regions: dict[str, set[str]] = {}
    refused: dict[str, str] = {}
    for sink in reversed(graph.nodes):
        if sink.name not in free:
            continue
        members = _grow(graph, sink, free, refused, machine(target))
        if members is None:
            continue
        if not any(isinstance(graph.node(name).op, _WORK) for name in members):
            continue  # a lone reshape is a view, not a kernel
        regions[sink.name] = members
        free -= members
    nodes: list[Node] = []
    inside = set().union(*regions.values()) if regions else set()
    for node in graph.nodes:
        if node.name in regions:
            body, operands = region_body(graph, regions[node.name])
            nodes.append(node.replace(op=RegionOp(template=_template(body), body=body), inputs=operands))
        elif node.name not in inside:
            nodes.append(node)
    refusals = tuple(
        RuleRefused(identity=FUSION, node=name, reason=reason) for name, reason in refused.items() if name not in inside
    )
    return Outcome(graph.replace(nodes=tuple(nodes)).prune(), (), refusals)
