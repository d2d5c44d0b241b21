"""Parameters and buffers that a model has under several names."""

from __future__ import annotations

from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind


def under_one_name(program: ExportedProgram) -> ExportedProgram:
    """``program`` that reads and writes each parameter and buffer under the first of its names.

    torch.export has an input for every name, and cannot functionalise writes to one tensor through two inputs. What it
    reads is the last one, wherever forward reads another; generated modules check that all names are of one tensor.
    """
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    specs = program.graph_signature.input_specs
    first: dict[tuple[InputKind, int], fx.Node] = {}
    for spec in list(specs):
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER):
            continue
        tensors = program.state_dict if spec.target in program.state_dict else program.constants
        node = nodes[spec.arg.name]
        known = first.setdefault((spec.kind, id(tensors[str(spec.target)])), node)
        if known is not node:
            node.replace_all_uses_with(known)
            program.graph.erase_node(node)
            specs.remove(spec)
            del tensors[str(spec.target)]
    if len(specs) < len(nodes):
        program.graph_module.recompile()
    return program
