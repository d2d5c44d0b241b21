"""Which names of a piece of source refer to the module's globals, and renaming exactly those."""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Iterable, Iterator, Mapping

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
BUILTINS = frozenset(dir(builtins)) | {"__name__", "__class__"}


def parameters(arguments: ast.arguments) -> list[str]:
    """Every parameter name, in order."""
    plain = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    extra = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return [a.arg for a in (*plain, *extra)]


def target_names(target: ast.AST) -> Iterator[str]:
    """Names that assigning to ``target`` binds."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Starred):
        yield from target_names(target.value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from target_names(element)


def import_names(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Names that an import binds (``*`` is left out)."""
    for alias in node.names:
        if alias.name != "*":
            yield alias.asname or (alias.name.split(".")[0] if isinstance(node, ast.Import) else alias.name)


def bound_names(statements: Iterable[ast.AST]) -> tuple[set[str], set[str]]:
    """(names that the statements bind in their own scope, names that they declare global)."""
    bound: set[str] = set()
    declared: set[str] = set()
    outer: set[str] = set()
    pending = list(statements)
    while pending:
        node = pending.pop()
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                bound.add(name)
                pending += [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
            case ast.ClassDef(name=name):
                bound.add(name)
                pending += [*node.decorator_list, *node.bases, *(k.value for k in node.keywords)]
            case ast.Lambda():
                pending += [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            case ast.Global(names=names):
                declared.update(names)
            case ast.Nonlocal(names=names):
                outer.update(names)
            case ast.Import() | ast.ImportFrom():
                bound.update(import_names(node))
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                bound.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                bound.add(name)
                pending += ast.iter_child_nodes(node)
            case ast.MatchMapping(rest=str(name)):
                bound.add(name)
                pending += ast.iter_child_nodes(node)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                pending += [child.target for child in ast.walk(node) if isinstance(child, ast.NamedExpr)]
                pending.append(node.generators[0].iter)
            case _:
                pending += ast.iter_child_nodes(node)
    return bound - declared - outer, declared


class Renamer(ast.NodeTransformer):
    """Renames references to module globals by ``names``, whatever scope they occur in.

    Locals, parameters, attributes and keyword names stay. ``used`` collects every global name met,
    mapped to the first line that uses it, so an empty ``names`` makes this the free-name analysis.
    Private names (``__x``) of a class are written out as Python would mangle them, because the class
    itself may be renamed.
    """

    def __init__(self, names: Mapping[str, str]):
        self.names = names
        self.used: dict[str, int] = {}
        self._scopes: list[tuple[str, set[str], set[str]]] = []
        self._classes: list[str] = []

    def _mangle(self, name: str) -> str:
        if not self._classes or not name.startswith("__") or name.endswith("__"):
            return name
        owner = self._classes[-1].lstrip("_")
        return f"_{owner}{name}" if owner else name

    def _is_global(self, name: str) -> bool:
        for depth, (kind, bound, declared) in enumerate(reversed(self._scopes)):
            if kind == "class" and depth:
                continue
            if name in declared or name in bound:
                return name in declared
        return True

    def _global(self, name: str, line: int) -> str:
        self.used.setdefault(name, line)
        return self.names.get(name, name)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        is_global = self._is_global(node.id) and self._mangle(node.id) == node.id
        node.id = self._global(node.id, node.lineno) if is_global else self._mangle(node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = self._mangle(node.attr)
        return node

    def visit_Global(self, node: ast.Global) -> ast.AST:
        node.names = [self._global(name, node.lineno) for name in node.names]
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self._mangle(node.arg)
        if node.annotation is not None:
            node.annotation = self.visit(node.annotation)
        return node

    def _outer_parts(self, node: Function) -> None:
        node.args.defaults = [self.visit(d) for d in node.args.defaults]
        node.args.kw_defaults = [d and self.visit(d) for d in node.args.kw_defaults]
        extra = [a for a in (node.args.vararg, node.args.kwarg) if a is not None]
        for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, *extra):
            self.visit_arg(arg)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        node.decorator_list = [self.visit(d) for d in node.decorator_list]
        if node.returns is not None:
            node.returns = self.visit(node.returns)
        names = parameters(node.args)
        self._outer_parts(node)
        if not self._scopes or node.name in self._scopes[-1][2]:
            node.name = self._global(node.name, node.lineno) if self._is_global(node.name) else node.name
        else:
            node.name = self._mangle(node.name)
        bound, declared = bound_names(node.body)
        self._scopes.append(("function", bound | (set(names) - declared), declared))
        node.body = [self.visit(s) for s in node.body]
        self._scopes.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        names = parameters(node.args)
        self._outer_parts(node)
        self._scopes.append(("function", set(names) | bound_names([node.body])[0], set()))
        node.body = self.visit(node.body)
        self._scopes.pop()
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list = [self.visit(d) for d in node.decorator_list]
        node.bases = [self.visit(b) for b in node.bases]
        node.keywords = [self.visit(k) for k in node.keywords]
        original = node.name
        if not self._scopes:
            node.name = self._global(node.name, node.lineno)
        self._classes.append(original)
        bound, declared = bound_names(node.body)
        self._scopes.append(("class", bound, declared))
        node.body = [self.visit(s) for s in node.body]
        self._scopes.pop()
        self._classes.pop()
        return node

    def _comprehension(self, node: Comprehension) -> ast.AST:
        first = node.generators[0]
        first.iter = self.visit(first.iter)
        bound = {name for g in node.generators for name in target_names(g.target)}
        self._scopes.append(("function", bound, set()))
        for generator in node.generators:
            generator.target = self.visit(generator.target)
            generator.ifs = [self.visit(condition) for condition in generator.ifs]
            if generator is not first:
                generator.iter = self.visit(generator.iter)
        if isinstance(node, ast.DictComp):
            node.key, node.value = self.visit(node.key), self.visit(node.value)
        else:
            node.elt = self.visit(node.elt)
        self._scopes.pop()
        return node

    visit_ListComp = _comprehension
    visit_SetComp = _comprehension
    visit_DictComp = _comprehension
    visit_GeneratorExp = _comprehension


def global_uses(node: ast.AST) -> dict[str, int]:
    """Global names that ``node`` refers to (definitions at module level included) -> first line."""
    renamer = Renamer({})
    renamer.visit(copy.deepcopy(node))
    return renamer.used
