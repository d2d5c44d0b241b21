"""Where a compile writes: checked before any work, written at the end, atomically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fusegen.emit import write_atomic
from fusegen.errors import OutputPathError

if TYPE_CHECKING:
    from fusegen.compiler import Compiled


def default_output(model: Path) -> Path:
    """``generated/<stem>.py`` in the current folder."""
    return Path("generated") / f"{model.stem}.py"


def _existing_parent(path: Path) -> Path:
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    return parent


def require_writable(out: Path, model: Path) -> None:
    """Raise ``OutputPathError`` when ``out`` cannot be written or is the model itself. Touches nothing."""
    if out.exists() and model.exists() and out.samefile(model):
        raise OutputPathError(f"{out} is the model itself", hint="choose another output with -o")
    if out.is_dir():
        raise OutputPathError(f"{out} is a directory", hint=f"try -o {out / (model.stem + '.py')}")
    parent = _existing_parent(out)
    if not parent.is_dir():
        raise OutputPathError(f"cannot write {out}: {parent} is not a directory", hint="choose another output with -o")
    if not os.access(parent, os.W_OK | os.X_OK) or (out.exists() and not os.access(out, os.W_OK)):
        raise OutputPathError(f"cannot write {out}: permission denied", hint="choose another output with -o")


@contextmanager
def generated_file(compiled: Compiled, model: Path, generated: Path | None) -> Iterator[Path]:
    """``generated`` if given, else the compiled source in a temporary folder."""
    if generated is not None:
        yield generated
        return
    with tempfile.TemporaryDirectory(prefix="fusegen_") as folder:
        path = Path(folder) / f"{model.stem}.py"
        write_atomic(path, compiled.source)
        yield path
