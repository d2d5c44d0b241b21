"""Complex numbers: Fourier transforms and what is done of them are torch's, and kernels take over where they end."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from fusegen.trace.aten import Value


def is_complex(node: fx.Node) -> bool:
    """Whether a complex tensor is among what a call reads or computes."""
    values = tree_leaves([node.meta["val"], *(source.meta.get("val") for source in node.all_input_nodes)])
    return any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)


def unchanged(overload: str, named: dict[str, Any]) -> Value | None:
    """What a call would only give back: a slice of all, or what is written over all.

    ``named``: its arguments by name. None for other calls.
    """
    whole = named.get("start") in (None, 0) and named.get("end") in (None, sys.maxsize) and named.get("step") == 1
    found: Value | None = None
    if overload == "slice.Tensor" and whole:
        found = named["self"]
    elif overload == "copy.default" or (overload == "slice_scatter.default" and whole):
        found = named["src"] if named["src"].type == named["self"].type else None
    return found
