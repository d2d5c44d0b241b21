"""Expressions of the program's steps over the names that generated text has for their values."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping

from fusegen.carry import reword
from fusegen.errors import EmitError
from fusegen.ir import Graph


def local(name: str) -> str:
    """A node's name as a local variable of the compiled forward."""
    return f"v_{name}"


def comment(text: str) -> str:
    """A step's comment on one line, without the words that a generated module may not hold."""
    return " ".join(reword(text).split())


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]):
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.names.get(node.id, node.id)
        return node


def python(text: str, values: Mapping[str, str], graph: Graph) -> str:
    """``text`` with the nodes' variables by the names in ``values``. Raises ``EmitError`` for a name without value."""
    names = {"torch": "_fusegen_torch", **{local(node): name for node, name in values.items()}}
    tree = ast.parse(text, mode="eval")
    known = {*names, *graph.sizes, *dir(builtins)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in known:
            raise EmitError(f"a step uses {node.id!r}, which a generated module lacks: {text}")
    return ast.unparse(_Renamed(names).visit(tree))
