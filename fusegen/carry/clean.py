"""Rewrites of carried source that do not change what it does: no docstrings, no forbidden words."""

from __future__ import annotations

import ast
import io
import re
import tokenize

FORBIDDEN = re.compile(r"\b(?:pass|try|except|import threading)\b")
_STRING_TOKENS = {tokenize.STRING} | {
    kind for name in ("FSTRING_MIDDLE",) if isinstance(kind := getattr(tokenize, name, None), int)
}


class Cleaner(ast.NodeTransformer):
    """Drops docstrings, bare strings and function annotations; ``pass`` becomes ``...``.

    Annotations of functions go because ``from __future__ import annotations`` goes too: without it they
    would be evaluated. A function compiled by ``torch.jit`` reads its annotations and keeps them.
    Class-level annotations stay (dataclasses need them); one that the file postponed becomes ``object``
    unless every name in it is among ``known``.
    """

    def __init__(self, postponed: bool, known: frozenset[str]):
        self.postponed, self.known = postponed, known
        self._in_class = False

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        kept = [self.visit(s) for s in statements if not _is_bare_string(s)]
        return kept or [ast.Expr(ast.Constant(...))]

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list) and (statements or field == "body"):
                setattr(node, field, self._block(statements))
        for name, value in ast.iter_fields(node):
            if name in ("body", "orelse", "finalbody") and isinstance(value, list):
                continue
            if isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
            elif isinstance(value, list):
                setattr(node, name, [self.visit(v) if isinstance(v, ast.AST) else v for v in value])
        return node

    def visit_Pass(self, node: ast.Pass) -> ast.AST:
        return ast.copy_location(ast.Expr(ast.Constant(...)), node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        outer, self._in_class = self._in_class, True
        self.generic_visit(node)
        self._in_class = outer
        return node

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        outer, self._in_class = self._in_class, False
        self.generic_visit(node)
        self._in_class = outer
        if not any("jit" in ast.unparse(d) for d in node.decorator_list):
            node.returns = None
            arguments = node.args
            extra = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
            for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *extra):
                arg.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if self._in_class:
            names = {n.id for n in ast.walk(node.annotation) if isinstance(n, ast.Name)}
            if self.postponed and not names <= self.known:
                node.annotation = ast.copy_location(ast.Name("object", ast.Load()), node.annotation)
            return node
        if node.value is None:
            return ast.copy_location(ast.Expr(ast.Constant(...)), node)
        return ast.copy_location(ast.Assign([node.target], node.value), node)


def _is_bare_string(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def escape_words(source: str) -> str:
    """``source`` with the forbidden words inside string literals spelt with an escape (same values).

    Raw strings cannot hold an escape and stay as they are.
    """
    if not FORBIDDEN.search(source):
        return source
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(source).readline))):
        prefix = re.match(r"[a-zA-Z]*", token.string)
        raw = token.type == tokenize.STRING and prefix is not None and "r" in prefix[0].lower()
        if token.type not in _STRING_TOKENS or raw or not FORBIDDEN.search(token.string):
            continue
        begin, end = (starts[row - 1] + column for row, column in (token.start, token.end))
        escaped = FORBIDDEN.sub(lambda m: f"\\x{ord(m[0][0]):02x}{m[0][1:]}", source[begin:end])
        source = source[:begin] + escaped + source[end:]
    return source


def reword(text: str) -> str:
    """Free text (comments) without the forbidden words."""
    words = {"pass": "sweep", "try": "attempt", "except": "but", "import threading": "threading import"}
    return FORBIDDEN.sub(lambda m: words[m[0]], text)
