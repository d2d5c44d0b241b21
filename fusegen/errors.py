"""One class per failure that a user can see. The CLI maps them to exit codes."""

from __future__ import annotations


class FusegenError(Exception):
    """Base of every error that fusegen reports. ``exit_code`` is what the CLI returns."""

    exit_code = 2

    def __init__(self, message: str, *, node: str | None = None, source: str | None = None, hint: str | None = None):
        self.message, self.node, self.source, self.hint = message, node, source, hint
        where = " ".join(part for part in (f"node {node}" if node else "", f"at {source}" if source else "") if part)
        super().__init__(f"{message} ({where})" if where else message)


class ModelFileError(FusegenError):
    """The model file cannot be loaded: syntax, missing ``Model``, a constructor or ``get_inputs`` that raises."""


class TraceError(FusegenError):
    """The model cannot be traced: data-dependent control flow, a mutated input, an unknown output."""


class UnsupportedOpError(FusegenError):
    """An op has no lowering and no eager node can stand in for it."""


class GraphFormatError(FusegenError):
    """A graph description (JSON) is malformed."""


class GraphError(FusegenError):
    """A graph breaks an invariant; inside the compiler this is a bug, in a graph.json a user error."""


class OutputPathError(FusegenError):
    """The output cannot be written, or would overwrite the model."""


class EmitError(FusegenError):
    """The model's source cannot be carried into the generated file."""


class TargetError(FusegenError):
    """The target architecture is not one that the compiler knows rates for."""


class MismatchError(FusegenError):
    """Numbers differ: the rewrite proof, or the generated module against the reference."""

    exit_code = 1


class ToolchainError(FusegenError):
    """nvcc, ninja, a host compiler or a GPU is missing or unusable."""

    exit_code = 3
