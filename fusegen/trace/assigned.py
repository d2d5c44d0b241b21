"""State beside parameters and buffers: tensors become buffers, and what else a forward assigns is noted."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves


@dataclass
class Assigned:
    """Attributes by their dotted names, with the line that assigns them where that is in the model file."""

    changed: dict[str, str | None] = field(default_factory=dict)
    """Had another value before: a later call may depend on it."""
    added: dict[str, str | None] = field(default_factory=dict)
    buffers: set[str] = field(default_factory=set)


def plain_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Tensors that modules hold beside parameters and buffers, by their dotted names."""
    return {
        f"{path}.{name}" if path else name: value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    }


def tensors_in_containers(model: nn.Module) -> tuple[str, ...]:
    """The dotted names of lists and the like in which modules hold tensors beside parameters and buffers."""
    own = {id(value) for value in (*model.parameters(), *model.buffers())}
    torchs = vars(nn.Module()).keys()
    return tuple(
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if name not in torchs and isinstance(value, (list, tuple, dict))
        if any(isinstance(leaf, torch.Tensor) and id(leaf) not in own for leaf in tree_leaves(value))
    )


def hold(model: nn.Module, chosen: Container[str] | None = None) -> tuple[str, ...]:
    """Make buffers of the tensors that modules hold as plain attributes, so that a graph can read and write them.

    Returns their dotted names. Numbers stay, parameters and buffers that have another name besides, and those not
    ``chosen``. A tensor that several modules hold is one for each.
    """
    plain, shared = plain_tensors(model), shared_tensors(model)
    named = [*model.parameters(), *model.buffers()]
    held = []
    for path, value in plain.items():
        if (chosen is None or path in chosen) and value.dim() > 0 and not any(value is other for other in named):
            owner, _, name = path.rpartition(".")
            module = model.get_submodule(owner)
            delattr(module, name)
            module.register_buffer(name, value.clone() if path in shared else value, persistent=False)
            held.append(path)
    return tuple(held)


def shared_tensors(model: nn.Module) -> frozenset[str]:
    """The dotted names of plain attributes that several modules hold: to write to one is to write to all."""
    plain = plain_tensors(model)
    return frozenset(p for p, value in plain.items() if sum(value is other for other in plain.values()) > 1)


@contextmanager
def added_removed(model: nn.Module) -> Iterator[None]:
    """What the block adds to modules of ``model`` as plain attributes is gone after it: a fresh instance has none."""
    before = [(module.__dict__, set(module.__dict__)) for module in model.modules()]
    try:
        yield
    finally:
        for own, names in before:
            for name in own.keys() - names:
                del own[name]


def _line(path: Path) -> str | None:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename != str(path):
        frame = frame.f_back
    return f"{path.name}:{frame.f_lineno}" if frame.f_code.co_filename == str(path) else None


def _is_same(one: object, other: object) -> bool:
    plain = (bool, int, float, str, tuple, torch.dtype, torch.device, type(None))
    return one is other or (isinstance(one, plain) and type(one) is type(other) and one == other)


def _is_bookkeeping(module: nn.Module, name: str) -> bool:
    """The mode, and the lists in which recurrent modules hold their own parameters."""
    return name == "training" or (isinstance(module, nn.RNNBase) and name.startswith("_flat_weight"))


@contextmanager
def watched(model: nn.Module, path: Path) -> Iterator[Assigned]:
    """Within it, plain attributes that are assigned to modules of ``model`` are noted."""
    found = Assigned()
    names = {id(module): name + "." if name else "" for name, module in model.named_modules()}
    assign = nn.Module.__setattr__

    def noted(module: nn.Module, name: str, value: Any) -> None:
        before = module.__dict__
        kept = (before.get(kind, {}) for kind in ("_parameters", "_buffers", "_modules"))
        if id(module) in names and name in before.get("_buffers", {}):
            found.buffers.add(names[id(module)] + name)
        if id(module) in names and not _is_bookkeeping(module, name) and not any(name in slots for slots in kept):
            full = names[id(module)] + name
            if name not in before:
                found.added.setdefault(full, _line(path))
            elif full not in found.added and not _is_same(before[name], value):
                found.changed.setdefault(full, _line(path))
        assign(module, name, value)

    setattr(nn.Module, "__setattr__", noted)  # noqa: B010 - its declared type has fewer values
    try:
        yield found
    finally:
        setattr(nn.Module, "__setattr__", assign)  # noqa: B010
