"""The example inputs of a model: its tensors among forward's arguments, and others like them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from fusegen import dims
from fusegen.interpret import input_shapes
from fusegen.ir import Graph


def tensors(inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    """Those among ``inputs``, in order."""
    return [value for value in inputs if isinstance(value, torch.Tensor)]


def with_tensors(inputs: tuple[Any, ...], values: Iterable[Any]) -> tuple[Any, ...]:
    """``inputs`` with ``values`` in the places of its tensors."""
    chosen = iter(values)
    return tuple(next(chosen) if isinstance(value, torch.Tensor) else value for value in inputs)


def told_apart(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """``inputs`` without one that is there twice, of which torch.export reads the last one in all places."""
    seen: set[int] = set()

    def own(value: torch.Tensor) -> torch.Tensor:
        known = id(value) in seen
        seen.add(id(value))
        return value.clone() if known else value

    return with_tensors(inputs, map(own, tensors(inputs)))


def resized(inputs: tuple[Any, ...], graph: Graph, sizes: Mapping[str, int]) -> tuple[Any, ...]:
    """Fake inputs like ``inputs`` of other sizes."""
    with FakeTensorMode():
        shapes = zip(input_shapes(graph, sizes), tensors(inputs), strict=True)
        return with_tensors(inputs, [torch.empty(shape, dtype=value.dtype) for shape, value in shapes])


def renewed(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """``inputs`` without what an earlier export has noted about their sizes."""
    if not any(isinstance(value, FakeTensor) for value in inputs):
        return inputs
    with FakeTensorMode():
        return with_tensors(inputs, [torch.empty(x.shape, dtype=x.dtype) for x in tensors(inputs)])


def all_sizes(inputs: tuple[Any, ...]) -> frozenset[str]:
    """Every size of every input but the first of each, the batch's."""
    return frozenset(dims.symbol(i, axis) for i, x in enumerate(tensors(inputs)) for axis in range(1, x.dim()))


def is_literal(value: object) -> bool:
    """True for plain values whose text says them: what a call is compared with."""
    return value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value))
