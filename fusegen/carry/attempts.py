"""``try`` at module level: what a file falls back to is known where it is compiled."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any


def resolved(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """``statements``, with what a ``try`` has done in its place.

    ``try: from new import f`` / ``except ImportError: from old import f``  ->  ``from old import f``

    Its body is run again, after the imports before it. One that needs more than these stays as it is, and so does one
    that uses its exception.
    """
    known: dict[str, Any] = {"__name__": "model"}
    for statement in statements:
        for taken in _taken(statement, known) if isinstance(statement, ast.Try) else [statement]:
            yield taken
            if isinstance(taken, (ast.Import, ast.ImportFrom)):
                with suppress(Exception):
                    _run([taken], known)


def _run(statements: Sequence[ast.stmt], known: dict[str, Any]) -> None:
    module = ast.Module(body=list(statements), type_ignores=[])
    exec(compile(module, "<model>", "exec"), known)


def _taken(statement: ast.Try, known: dict[str, Any]) -> Iterator[ast.stmt]:
    """What runs of a ``try``: its body, or the handler of what that raises."""
    try:
        _run(statement.body, dict(known))
    except Exception as error:
        handler = _handler(statement, error, known)
        if handler is None:
            yield statement
            return
        yield from handler.body
    else:
        yield from [*statement.body, *statement.orelse]
    yield from statement.finalbody


def _handler(statement: ast.Try, error: Exception, known: dict[str, Any]) -> ast.ExceptHandler | None:
    if isinstance(error, NameError):  # of what the file defines before it
        return None
    for handler in statement.handlers:
        kinds: Any = Exception
        if handler.type is not None:
            kinds = eval(compile(ast.Expression(handler.type), "<model>", "eval"), dict(known))
        if isinstance(error, kinds):
            return None if handler.name is not None else handler
    return None
