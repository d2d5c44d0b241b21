"""Counts of truth values, int64 in torch, that only floats are made of: a float32 has them as well.

What reads them rounds to float32 anyway, and up to 2^24 there is nothing to round.
"""

from __future__ import annotations

import torch
from torch import fx

from fusegen.pointwise import BY_ATEN
from fusegen.trace.whole import aten_name

_SUMS = ("aten.sum.default", "aten.sum.dim_IntList")
_COUNTED = frozenset(
    {torch.bool, torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32}
)
"""Element types that the IR compares with zero."""
_OF_COUNTS = ("clamp", "clamp_min", "maximum", "add", "sub", "mul", "view", "reshape", "unsqueeze", "squeeze", "expand")
"""Ops of counts, and of numbers, that give counts."""
_TO_FLOATS = ("add", "sub", "rsub", "mul", "div", "pow", "_to_copy", "to", "type_as")
"""Ops that may give floats; functions of one operand do, too."""


def _dtype(value: object) -> torch.dtype | None:
    """Of a tensor that an fx node stands for."""
    found = value.meta.get("val") if isinstance(value, fx.Node) else None
    return found.dtype if isinstance(found, torch.Tensor) else None


def kept_as_floats(graph: fx.Graph) -> frozenset[fx.Node]:
    """The int64 tensors of ``graph`` that are counts of truth values, or follow from these, and end in floats alone."""
    kept: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op != "call_function" or _dtype(node) is not torch.int64:
            continue
        tensors = [value for value in node.all_input_nodes if _dtype(value) is not None]
        follows = _name(node) in _OF_COUNTS and kept.issuperset(tensors) and tensors
        if _is_count(node) or follows:
            kept.add(node)
    left = len(kept) + 1
    while len(kept) < left:  # one that does not end in floats takes what it is made of along
        left = len(kept)
        kept = {node for node in kept if node.users and all(_ends_in_floats(user, kept) for user in node.users)}
    return frozenset(kept)


def _is_count(node: fx.Node) -> bool:
    """Whether ``node`` says how many elements are true, along axes."""
    counted = node.args[0] if node.args else None
    if not isinstance(counted, fx.Node) or (dtype := _dtype(counted)) is None or not counted.meta["val"].dim():
        return False
    if _name(node) == "count_nonzero":
        return dtype in _COUNTED
    return aten_name(str(node.target)) in _SUMS and dtype is torch.bool and node.kwargs.get("dtype") is None


def _name(node: fx.Node) -> str:
    return aten_name(str(node.target)).removeprefix("aten.").partition(".")[0]


def _ends_in_floats(user: fx.Node, kept: set[fx.Node]) -> bool:
    if user in kept:
        return True
    overload = aten_name(str(user.target)).removeprefix("aten.")
    function = overload in BY_ATEN and len(user.all_input_nodes) == 1
    return _dtype(user) is torch.float32 and (function or _name(user) in _TO_FLOATS)
