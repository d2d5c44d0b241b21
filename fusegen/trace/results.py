"""How a forward returns its results: alone, in a tuple, or in lists, tuples and dicts of any depth."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputKind, SymIntArgument, TensorArgument
from torch.utils._pytree import TreeSpec, tree_flatten, tree_structure, tree_unflatten

from fusegen import dims
from fusegen.dims import Dim
from fusegen.errors import TraceError
from fusegen.literals import python_float
from fusegen.trace.asked import name_sizes


@dataclass(frozen=True)
class Size:
    """A result that is a whole number, made of sizes or not."""

    dim: Dim


@dataclass(frozen=True)
class Constant:
    """Another result that is no tensor, as Python text."""

    text: str


def is_named(value: object) -> bool:
    """Whether ``value`` is one of torch's own tuples with names, such as ``max`` returns."""
    return type(value).__module__ == "torch.return_types"


def is_record(value: object) -> bool:
    """Whether ``value`` is a tuple with names of the model's own: ``typing.NamedTuple``, ``collections.namedtuple``."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _size(program: ExportedProgram, name: str) -> Dim:
    """The size, or arithmetic on sizes, that the node of this name is."""
    nodes = {node.name: node for node in program.graph.nodes}
    inputs = [nodes[user] for user in program.graph_signature.user_inputs if user in nodes]
    names, _ = name_sizes([node for node in inputs if isinstance(node.meta["val"], torch.Tensor)])
    expr = nodes[name].meta["val"].node.expr
    if not expr.free_symbols <= names.keys():
        raise ValueError(f"{expr} is not made of the sizes of inputs")
    return dims.canonical(expr.xreplace(names))


def _leaves(program: ExportedProgram, source: str | None) -> Iterator[int | Size | Constant]:
    """The number of each tensor among the tensors, and what the other results are."""
    tensors = 0
    for spec in program.graph_signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            continue
        match spec.arg:
            case TensorArgument():
                yield tensors
                tensors += 1
            case SymIntArgument(name=name):
                try:
                    yield Size(_size(program, name))
                except ValueError as error:
                    raise TraceError(f"forward returns a number that has no form: {error}", source=source) from error
            case ConstantArgument(value=None | bool() | str() as value):
                yield Constant(repr(value))
            case ConstantArgument(value=int() as number):
                yield Size(number)
            case ConstantArgument(value=float() as number):
                yield Constant(python_float(number))
            case _:
                raise TraceError(
                    "forward returns a number that is computed and is no size",
                    source=source,
                    hint="return it as a tensor",
                )
    if not tensors:
        raise TraceError("forward returns no tensor", source=source, hint="return at least one")


def results(program: ExportedProgram, source: str | None = None) -> Any:
    """How forward returns its results: a number in the place of each tensor, ``Size`` and ``Constant`` for others.

    None for a tensor or a tuple of tensors. Raises ``TraceError``, with ``source``, for what is not built of lists,
    tuples and dicts.
    """
    leaves = list(_leaves(program, source))
    structure = program.call_spec.out_spec
    whole = all(isinstance(leaf, int) for leaf in leaves)
    if structure is None or (whole and (structure.type is None or structure == tree_structure(tuple(leaves)))):
        return None
    found = tree_unflatten(leaves, structure)

    def check(value: Any) -> None:
        if isinstance(value, (int, Size, Constant)):
            return
        if type(value) not in (list, tuple, dict, OrderedDict) and not is_named(value) and not is_record(value):
            raise TraceError(
                f"forward returns a {type(value).__name__}",
                source=source,
                hint="return tensors in lists, tuples or dicts",
            )
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            if not isinstance(key, (int, str)):
                raise TraceError(
                    f"forward returns a dict with a {type(key).__name__} as key",
                    source=source,
                    hint="use strings as keys",
                )
            check(part)

    check(found)
    return found


def form(returned: Any, sizes: Mapping[str, int]) -> tuple[list[object], TreeSpec]:
    """What ``results`` found, at ``sizes``, to compare."""
    leaves, structure = tree_flatten(returned)
    return [dims.evaluate(x.dim, sizes) if isinstance(x, Size) else (x,) for x in leaves], structure
