"""How a forward returns its tensors: alone, in a tuple, or in lists, tuples and dicts of any depth, beside None."""

from __future__ import annotations

from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputKind, OutputSpec
from torch.utils._pytree import tree_structure, tree_unflatten

from fusegen.errors import TraceError


def is_none(spec: OutputSpec) -> bool:
    """Whether forward returns None in this place."""
    return isinstance(spec.arg, ConstantArgument) and spec.arg.value is None


def is_named(value: object) -> bool:
    """Whether ``value`` is one of torch's own tuples with names, such as ``max`` returns."""
    return type(value).__module__ == "torch.return_types"


def results(program: ExportedProgram) -> Any:
    """How forward returns its tensors: a number in the place of each; None for a tensor or a tuple of tensors.

    Raises ``TraceError`` for what is not built of lists, tuples and dicts.
    """
    specs = [spec for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    numbers = iter(range(len(specs)))
    leaves = [None if is_none(spec) else next(numbers) for spec in specs]
    structure = program.call_spec.out_spec
    whole = None not in leaves
    if structure is None or (whole and (structure.type is None or structure == tree_structure(tuple(leaves)))):
        return None
    found = tree_unflatten(leaves, structure)

    def check(value: Any) -> None:
        if value is None:
            return
        if type(value) not in (int, list, tuple, dict) and not is_named(value):
            raise TraceError(
                f"forward returns a {type(value).__name__}", hint="return tensors in lists, tuples or dicts"
            )
        for key, part in value.items() if isinstance(value, dict) else enumerate([] if type(value) is int else value):
            if not isinstance(key, (int, str)):
                raise TraceError(
                    f"forward returns a dict with a {type(key).__name__} as key", hint="use strings as keys"
                )
            check(part)

    check(found)
    return found
