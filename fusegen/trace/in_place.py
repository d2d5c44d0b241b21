"""An exported program without writes: in-place ops become what they compute, and who reads later reads that.

torch does the same for any program (``run_decompositions``), in twice the time of the export. Here only values
that nothing else shows are written to: an activation in place, the counters and statistics of norms.
"""

from __future__ import annotations

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec, TensorArgument

_STATISTICS = {"aten::batch_norm": "training", "aten::instance_norm": "use_input_stats"}
"""Ops that write to running statistics, which their schemas do not say, and the argument that says when."""
_COMPOSITE = (
    *(f"aten::conv{transposed}{rank}d" for transposed in ("", "_transpose") for rank in (1, 2, 3)),
    *(f"aten::{norm}_norm" for norm in ("batch", "group", "instance", "layer", "rms")),
    *(f"aten::{fn}_pool{rank}d" for fn in ("max", "adaptive_avg", "avg") for rank in (1, 2, 3)),
    "aten::linear",
)
"""Ops made of others, whose schemas need not tell the truth, that return memory of their own."""


def _argument(node: fx.Node, name: str) -> object:
    assert isinstance(node.target, OpOverload)
    names = [argument.name for argument in node.target._schema.arguments]
    position = names.index(name)
    return node.args[position] if position < len(node.args) else node.kwargs.get(name)


def _statistics(node: fx.Node) -> list[fx.Node]:
    """The running statistics that a norm writes to."""
    flag = _STATISTICS.get(node.target._schema.name) if isinstance(node.target, OpOverload) else None
    if flag is None or not _argument(node, flag):
        return []
    found = (_argument(node, name) for name in ("running_mean", "running_var"))
    return [value for value in found if isinstance(value, fx.Node)]


def _returns_its_own(node: fx.Node) -> bool:
    """True when the result of ``node`` shares no memory with another value."""
    if not isinstance(node.target, OpOverload):
        return False
    schema = node.target._schema
    composite = node.target._can_decompose() and torch.Tag.pointwise not in node.target.tags
    shared = any(value.alias_info is not None for value in schema.returns)
    return not shared and (not composite or schema.name in _COMPOSITE)


def _value_of(node: fx.Node) -> OpOverload | None:
    """The op that computes what the in-place op of ``node`` writes."""
    name, overload = node.target._schema.name, node.target._overloadname  # type: ignore[union-attr]
    packet = getattr(torch.ops.aten, name.removeprefix("aten::").removesuffix("_"), None)
    found = getattr(packet, overload, None) if name.startswith("aten::") and name.endswith("_") else None
    written = node.args[0].meta["val"] if isinstance(node.args[0], fx.Node) else None
    tensors = [value.meta.get("val") for value in node.all_input_nodes]
    same = all(isinstance(v, torch.Tensor) and v.dtype == getattr(written, "dtype", None) for v in tensors)
    return found if isinstance(found, OpOverload) and same else None  # other types would be promoted


def without_writes(program: ExportedProgram) -> bool:
    """Replace every write of ``program``; False, and nothing is changed, where one shows elsewhere."""
    inputs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    buffers = {name for name, spec in inputs.items() if spec.kind is InputKind.BUFFER}
    root: dict[fx.Node, fx.Node] = {}
    seen: set[fx.Node] = set()
    """Values that may share memory with a later one."""
    writes: list[tuple[fx.Node, OpOverload]] = []
    for node in program.graph.nodes:
        if isinstance(node.target, HigherOrderOperator):
            return False
        if not isinstance(node.target, OpOverload):
            continue
        if any(value.name not in buffers or len(value.users) > 1 for value in _statistics(node)):
            return False
        if node.target._schema.is_mutable:
            written, value = node.args[0] if node.args else None, _value_of(node)
            if value is None or not isinstance(written, fx.Node):
                return False
            root[node] = root.get(written, written)
            own = root[node].name in buffers or _returns_its_own(root[node])
            if not own or root[node] in seen:
                return False
            writes.append((node, value))
        elif not _returns_its_own(node):
            seen.update(root.get(value, value) for value in node.all_input_nodes)
    order = {node: place for place, node in enumerate(program.graph.nodes)}
    for node, value in writes:
        _replace(program, node, value, order)
    results = {spec.arg.name for spec in program.graph_signature.output_specs}
    program.graph.eliminate_dead_code(
        lambda node: node.op in ("placeholder", "output") or node.name in results or bool(_statistics(node))
    )
    return True


def _replace(program: ExportedProgram, node: fx.Node, value: OpOverload, order: dict[fx.Node, int]) -> None:
    """``node`` by ``value``, for whoever reads it or what it writes from there on."""
    written = node.args[0]
    assert isinstance(written, fx.Node)
    with program.graph.inserting_before(node):
        computed = program.graph.call_function(value, node.args, node.kwargs)
    computed.meta, order[computed] = node.meta, order[node]
    for read in (written, node):
        read.replace_all_uses_with(computed, lambda user: order[user] > order[node])
    program.graph.erase_node(node)
    signature = program.graph_signature
    for spec in signature.output_specs:
        if spec.arg.name in (written.name, node.name):
            spec.arg = TensorArgument(computed.name)
    buffers = {spec.arg.name: spec.target for spec in signature.input_specs if spec.kind is InputKind.BUFFER}
    if written.name in buffers:
        path = buffers[written.name]
        signature.output_specs.append(OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(computed.name), path))
