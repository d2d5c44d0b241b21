"""Which objects the statements of a module change as they run, by the names that these have at module level."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _root(node: ast.AST) -> str | None:
    """The name that an attribute, element or call is of: ``TABLE`` of ``TABLE["a"].append``."""
    while isinstance(node, (ast.Subscript, ast.Attribute, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _written(node: ast.AST) -> Iterator[str]:
    """The roots of ``TABLE[key] = 1``, ``TABLE.size += 1`` and ``TABLE.append(1)``."""
    places: list[ast.AST] = []
    match node:
        case ast.Assign(targets=targets):
            places = [place for place in targets if isinstance(place, (ast.Subscript, ast.Attribute))]
        case ast.AugAssign(target=ast.Subscript() | ast.Attribute() as place):
            places = [place]
        case ast.Expr(value=ast.Call(func=ast.Attribute() as place)):
            places = [place]
    yield from (root for place in places if (root := _root(place)))


def _running(statement: ast.stmt) -> Iterator[ast.AST]:
    """The parts of a statement that run with it: of a function its decorators, of a class its body, too."""
    if isinstance(statement, _DEFINITIONS):
        for decorator in statement.decorator_list:
            yield from ast.walk(decorator)
        for inner in statement.body if isinstance(statement, ast.ClassDef) else ():
            yield from _running(inner)
        return
    yield statement
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            yield from _running(child)
        elif not isinstance(child, ast.Lambda):
            yield from ast.walk(child)


def _called(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that are called."""
    return {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


class _Changes:
    """What statements change, through the functions and classes of the module that they call as well."""

    def __init__(self, statements: list[ast.stmt]):
        self._defined: dict[str, ast.stmt] = {s.name: s for s in statements if isinstance(s, _DEFINITIONS)}
        self._inside: dict[str, set[str]] = {}

    def of(self, statement: ast.stmt) -> set[str]:
        """The names whose objects ``statement`` may change."""
        nodes = list(_running(statement))
        found, called = {root for node in nodes for root in _written(node)}, _called(nodes)
        if isinstance(statement, _DEFINITIONS):  # what decorates it is called with it, what it derives from is told
            roots = {root for decorator in statement.decorator_list if (root := _root(decorator))}
            found |= roots - self._defined.keys()
            called |= roots
            called |= {base for base in self._bases(statement) if self._hears_of_subclasses(base)}
        for name in called & self._defined.keys():
            found |= self._through(name)
        return found

    def _bases(self, statement: ast.stmt) -> set[str]:
        bases = statement.bases if isinstance(statement, ast.ClassDef) else []
        return {base.id for base in bases if isinstance(base, ast.Name)}

    def _hears_of_subclasses(self, name: str) -> bool:
        body = getattr(self._defined.get(name), "body", [])
        return any(isinstance(member, ast.FunctionDef) and member.name == "__init_subclass__" for member in body)

    def _through(self, name: str) -> set[str]:
        """What a call of the function or class ``name`` may change, functions that it calls or makes included."""
        if name in self._inside:
            return self._inside[name]
        self._inside[name] = set()
        nodes = list(ast.walk(self._defined[name]))
        own = {node.arg for node in nodes if isinstance(node, ast.arg)}
        found = {root for node in nodes for root in _written(node)} - own
        found |= {global_ for node in nodes if isinstance(node, ast.Global) for global_ in node.names}
        for called in _called(nodes) & self._defined.keys():
            found |= self._through(called)
        self._inside[name] = found
        return found


def changes_of(statements: list[ast.stmt]) -> list[set[str]]:
    """What each of a module's statements changes."""
    return list(map(_Changes(statements).of, statements))
