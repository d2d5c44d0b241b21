"""What torch.export says when it fails, as one error of ours."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from fusegen.errors import TraceError
from fusegen.trace.assigned import plain_tensors, tensors_in_containers
from fusegen.trace.model_file import first_line, location


def trace_error(error: BaseException, path: Path, model: nn.Module) -> TraceError:
    """Why ``model``, of the file ``path``, cannot be traced, with the line and what to do where that is known."""
    where = location(error, path)
    if "data-dependent" in str(error) or "DataDependent" in type(error).__name__:
        return TraceError(
            "control flow depends on tensor values",
            source=where or _mentioned_line(str(error), path),
            hint="use torch.where, or move the branch out of forward",
        )
    plain = ", ".join([*plain_tensors(model), *tensors_in_containers(model)])
    hint = f"register as buffers the tensors that are neither parameters nor buffers: {plain}" if plain else None
    if plain and isinstance(error, AssertionError) and "fake mode" in str(error):
        return TraceError("forward reads tensors that are neither parameters nor buffers", source=where, hint=hint)
    return TraceError(f"cannot trace: {type(error).__name__}: {first_line(error)}", source=where, hint=hint)


def _mentioned_line(text: str, path: Path) -> str | None:
    marker = f'File "{path}", line '
    if marker not in text:
        return None
    return f"{path.name}:{text.rsplit(marker, 1)[1].split(',')[0]}"
