"""fusegen: PyTorch models to readable, proven, fused CUDA in one Python file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusegen.errors import FusegenError

if TYPE_CHECKING:
    from fusegen.compiler import Compiled, compile_file, compile_model

__version__ = "0.1.0"
__all__ = ["Compiled", "FusegenError", "compile_file", "compile_model"]


def __getattr__(name: str) -> Any:
    """Import the compiler, and torch with it, on first use: the command line starts at once."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fusegen import compiler

    return getattr(compiler, name)
