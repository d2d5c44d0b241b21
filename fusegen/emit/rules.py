"""The rules that every generated module obeys, checked on the finished text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fusegen.carry import FORBIDDEN, PREFIX
from fusegen.carry.scopes import bound_names
from fusegen.errors import EmitError

_NEVER = re.compile(r"__file__|\bget_inputs\b|\bget_init_inputs\b|\b__future__\b")


def violations(text: str) -> Iterator[str]:
    """What the text does that a generated module must not do."""
    for pattern in (FORBIDDEN, _NEVER):
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"line {line} contains {match[0]!r}"
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        yield f"line {error.lineno}: {error.msg}"
        return
    names, _ = bound_names(tree.body)
    for name in sorted(names):
        if name != "ModelNew" and not name.startswith(PREFIX):
            yield f"defines {name!r} at module level"
    if "ModelNew" not in names:
        yield "defines no ModelNew"


def check_rules(text: str) -> None:
    """Raises ``EmitError`` naming every broken rule; nothing that breaks one is ever written."""
    broken = list(violations(text))
    if broken:
        raise EmitError("the generated module breaks the emission rules: " + "; ".join(broken[:5]))
