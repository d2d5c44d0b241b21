"""Specs at other sizes: a copy of a model file with its module-level values replaced."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPECS = sorted(path.stem for path in (ROOT / "specs").glob("*.py"))
SMALL = {
    "batch_size": 2,
    "length": 40,
    "height": 11,
    "width": 14,
    "depth": 6,
    "in_features": 24,
    "out_features": 40,
}
"""Sizes at which every spec runs in milliseconds on a CPU."""


def variant(spec: str, folder: Path, **values: object) -> Path:
    """Write ``specs/<spec>.py`` to ``folder`` with the named module-level values; return its path.

    A name that the spec does not assign is an error, so that a test cannot change nothing by mistake.
    """
    text = (ROOT / "specs" / f"{spec}.py").read_text(encoding="utf-8")
    lines, left = text.splitlines(), dict(values)
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign):
            continue
        target = node.targets[0]
        names = [t.id for t in (target.elts if isinstance(target, ast.Tuple) else [target]) if isinstance(t, ast.Name)]
        for name in names:
            if name in left:
                lines[node.end_lineno - 1] += f"\n{name} = {left.pop(name)!r}"  # type: ignore[operator]
    if left:
        raise KeyError(f"{spec} does not assign {sorted(left)}")
    path = folder / f"{spec}.py"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def small(spec: str, folder: Path) -> Path:
    """The spec at ``SMALL`` sizes."""
    text = (ROOT / "specs" / f"{spec}.py").read_text(encoding="utf-8")
    assigned = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    return variant(spec, folder, **{name: value for name, value in SMALL.items() if name in assigned})
