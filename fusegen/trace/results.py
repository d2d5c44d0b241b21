"""How a forward returns its tensors: alone, in a tuple, or in lists, tuples and dicts of any depth."""

from __future__ import annotations

from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.utils._pytree import tree_structure, tree_unflatten

from fusegen.errors import TraceError


def results(program: ExportedProgram) -> Any:
    """How forward returns its tensors: a number in the place of each; None for a tensor or a tuple of tensors.

    Raises ``TraceError`` for what is not built of lists, tuples and dicts.
    """
    specs = program.graph_signature.output_specs
    numbers = range(sum(spec.kind is OutputKind.USER_OUTPUT for spec in specs))
    spec = program.call_spec.out_spec
    if spec is None or spec.type is None or spec == tree_structure(tuple(numbers)):
        return None
    found = tree_unflatten(numbers, spec)

    def check(value: Any) -> None:
        if type(value) not in (int, list, tuple, dict):
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
