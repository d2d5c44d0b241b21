"""Ops that torch's own rules take apart into ops of the IR: losses, distances, functions made of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram

from fusegen.trace.whole import KEPT

APART = frozenset(
    {
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "broadcast_tensors",
        "chain_matmul",
        "cosine_embedding_loss",
        "cosine_similarity",
        "cross_entropy_loss",
        "diff",
        "dot",
        "hardshrink",
        "hinge_embedding_loss",
        "huber_loss",
        "kl_div",
        "kron",
        "l1_loss",
        "linalg_multi_dot",
        "linalg_vecdot",
        "logaddexp",
        "logaddexp2",
        "margin_ranking_loss",
        "meshgrid",
        "mse_loss",
        "mv",
        "nansum",
        "outer",
        "pairwise_distance",
        "poisson_nll_loss",
        "renorm",
        "sinc",
        "smooth_l1_loss",
        "soft_margin_loss",
        "softshrink",
        "special_erf",
        "special_erfc",
        "special_log1p",
        "triplet_margin_loss",
    }
)
"""Names of ATen ops."""


_OWN = frozenset(dir(torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())))
"""Names of what the module has by itself in which torch takes a program apart."""
_MODEL = "model."


def taken_apart(program: ExportedProgram, table: dict[Any, Callable[..., Any]]) -> ExportedProgram:
    """``program`` with the ops of ``table`` replaced.

    torch makes a module of it, in which a model's own ``code`` or ``graph`` finds its name taken: it gets another one
    meanwhile.
    """
    taken = any(name.partition(".")[0] in _OWN for name in (*program.state_dict, *program.constants))
    if taken:
        _rename(program, _MODEL.__add__)
    decomposed: ExportedProgram = program.run_decompositions(table)
    if taken:
        _rename(decomposed, lambda name: name.removeprefix(_MODEL))
    return decomposed


def _rename(program: ExportedProgram, renamed: Callable[[str], str]) -> None:
    """Parameters, buffers and constants of ``program``."""
    held = (program.state_dict, program.constants)
    for spec in (*program.graph_signature.input_specs, *program.graph_signature.output_specs):
        if any(spec.target in tensors for tensors in held):
            spec.target = renamed(str(spec.target))
    for tensors in held:
        found = {renamed(name): value for name, value in tensors.items()}
        tensors.clear()
        tensors.update(found)


def decompositions(program: ExportedProgram) -> dict[Any, Callable[..., Any]]:
    """Torch's rules for the ops of ``APART`` and for those that a rule leads to; empty if none of them is there.

    Ops that stay whole have shape functions of ours (``trace.whole``).
    """
    targets = [node.target for node in program.graph.nodes]
    if not any(isinstance(target, torch._ops.OpOverload) and _is_apart(target) for target in targets):
        return {}
    table = torch.export.default_decompositions()
    rules = table.items()  # type: ignore[no-untyped-call]
    apart = {op: rule for op, rule in rules if isinstance(op, torch._ops.OpOverload) and _is_apart(op)}
    return {**apart, **KEPT}


def _is_apart(op: torch._ops.OpOverload) -> bool:
    return op.namespace == "aten" and op._schema.name.removeprefix("aten::") in APART
