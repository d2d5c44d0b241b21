"""What the emitter needs of a reference class, however it came about."""

from __future__ import annotations

from fusegen.ir import Frozen

PREFIX = "_fusegen_"
REFERENCE = "_fusegen_reference"


class ForwardParameter(Frozen):
    """One parameter of ``forward`` after ``self``; ``default`` is Python text in the generated module.

    ``given``: the value that the example inputs have for it, as text, where that is no tensor.
    """

    name: str
    kind: str = "positional"
    """``positional_only``, ``positional``, ``keyword_only``, ``args`` or ``kwargs``."""
    default: str | None = None
    given: str | None = None

    def __str__(self) -> str:
        stars = {"args": "*", "kwargs": "**"}.get(self.kind, "")
        return f"{stars}{self.name}" + (f"={self.default}" if self.default is not None else "")


class CarriedModel(Frozen):
    """The reference class as text of the generated module.

    ``prelude``: the imports, helpers and constants that the class needs, under prefixed names.
    ``class_text``: the whole ``class ModelNew``, with ``forward`` renamed to ``_fusegen_reference``.
    ``held``: tensors of the reference that are plain attributes, and buffers (not of the state_dict) of ``ModelNew``.
    ``names``: names of the source file that the generated module holds -> their names there.
    """

    class_name: str
    prelude: str
    class_text: str
    forward: tuple[ForwardParameter, ...]
    self_name: str = "self"
    forward_decorators: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    names: dict[str, str] = {}
