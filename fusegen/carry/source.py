"""Carries a model class, and everything of its module that it needs, into a generated module.

Only what the class reaches is taken: imports, helper functions and classes, constants. Every such name
gets the prefix ``_fusegen_``, because harnesses execute the generated file inside the globals of the
reference, where a second ``batch_size`` would change the reference's own inputs.
"""

from __future__ import annotations

import ast
import copy
import importlib
import sys
from collections.abc import Iterable, Iterator

from fusegen.carry.attempts import resolved
from fusegen.carry.changes import changes_of
from fusegen.carry.clean import Cleaner, escape_words
from fusegen.carry.description import attribute_path
from fusegen.carry.model import PREFIX, REFERENCE, CarriedModel, ForwardParameter
from fusegen.carry.scopes import BUILTINS, Renamer, bound_names, global_uses, import_names
from fusegen.errors import EmitError

RESERVED = frozenset(
    {
        *("contextlib", "hashlib", "os", "pathlib", "queue", "shutil", "sys", "tempfile", "warnings", "torch"),
        *("CUDA_SOURCE", "GLUE_SOURCE", "NAMESPACE", "FLAGS", "TENSORS", "DEFAULTS"),
        *("forward_ad", "global_hooks", "ops", "calls", "devices", "problem", "noted", "lock", "fakes"),
        *(
            "apply",
            "build",
            "register",
            "load",
            "fused",
            "operands",
            "report",
            "backward",
            "forward",
            "reference",
            "found",
        ),
        *("Attempt", "Recompute", "Mode", "Function", "named"),
    }
)
"""Names (without the prefix) that the generated module's own code uses."""

_SHARED = frozenset(
    {"torch", "os", "sys", "contextlib", "warnings", "hashlib", "pathlib", "tempfile", "shutil", "queue"}
)
_REFUSED = (ast.Try, ast.TryStar)
_NAMED = f"""def {PREFIX}named(name):

    def named(thing):
        thing.__name__ = name
        return thing
    return named"""
"""What lets functions and classes keep their ``__name__``, where the module asks for any (registries do)."""


class _Source:
    """The parsed file: its module-level statements by the names that they bind."""

    def __init__(self, text: str, class_name: str, where: str):
        self.where, self.class_name = where, class_name
        try:
            self.tree = ast.parse(text)
        except SyntaxError as error:
            raise EmitError(f"syntax error: {error.msg}", source=f"{where}:{error.lineno}") from error
        self.tree.body = list(resolved(self.tree.body))
        self.postponed = any(isinstance(s, ast.ImportFrom) and s.module == "__future__" for s in self.tree.body)
        plain = [s for s in self.tree.body if not isinstance(s, (ast.If, *_REFUSED))]
        self.tree = Cleaner(self.postponed, BUILTINS | bound_names(plain)[0]).visit(self.tree)
        self.statements = [s for s in self.tree.body if not _is_future(s)]
        self.binds = [bound_names([s])[0] for s in self.statements]
        found = [s for s in self.statements if isinstance(s, ast.ClassDef) and s.name == class_name]
        if not found:
            raise EmitError(f"no class {class_name} at module level", source=where)
        self.model = found[-1]
        self._resolve_star_imports()
        self.changes = changes_of(self.statements)

    def error(self, message: str, node: ast.AST | int, hint: str | None = None) -> EmitError:
        line = node if isinstance(node, int) else getattr(node, "lineno", 0)
        return EmitError(message, source=f"{self.where}:{line}", hint=hint)

    def _resolve_star_imports(self) -> None:
        """Rewrites ``from torch.x import *`` to the names of it that the file uses."""
        used = {name for statement in self.statements for name in global_uses(statement)}
        for statement, binds in zip(self.statements, self.binds, strict=True):
            if not (isinstance(statement, ast.ImportFrom) and any(a.name == "*" for a in statement.names)):
                continue
            self._check_import(statement)
            public = _public_names(statement.module or "")
            names = sorted((used & public) - set().union(*self.binds))
            statement.names = [ast.alias(name) for name in names]
            binds.update(names)

    def _check_import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.ImportFrom):
            if node.level:
                raise self.error("relative import: a generated file stands alone", node)
            modules = [node.module or ""]
        else:
            modules = [alias.name for alias in node.names]
        for module in modules:
            root = module.split(".")[0]
            if root == "threading":
                raise self.error("imports threading, which generated files must not name", node)
            if root == "torch":
                continue
            if root not in sys.stdlib_module_names:
                raise self.error(
                    f"imports {module}: a generated file imports torch and the standard library only",
                    node,
                    hint=f"keep {root} out of what {self.class_name} uses",
                )
            if isinstance(node, ast.ImportFrom) and any(a.name == "*" for a in node.names):
                raise self.error(f"from {module} import *: name what you import", node)

    def check(self, node: ast.stmt) -> None:
        """Refuses what a generated file must not contain."""
        for child in ast.walk(node):
            if isinstance(child, _REFUSED):
                raise self.error("try blocks cannot be carried", child, hint="move it out of the model")
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                self._check_import(child)
            if isinstance(child, ast.Name) and child.id == "__file__":
                raise self.error("__file__ cannot be carried: the generated file lies elsewhere", child)

    def needed(self) -> list[int]:
        """Indices of the module-level statements that the class reaches, in file order."""
        chosen: set[int] = set()
        names: set[str] = set()
        pending = list(global_uses(self.model).items())
        while pending:
            name, line = pending.pop()
            if name in names or name == self.class_name:
                continue
            names.add(name)
            for index in self._providers(name):
                if index not in chosen:
                    chosen.add(index)
                    statement = self.statements[index]
                    uses = {} if isinstance(statement, (ast.Import, ast.ImportFrom)) else global_uses(statement)
                    pending += uses.items()
            if name not in BUILTINS and name != "__file__" and not any(name in binds for binds in self.binds):
                raise self.error(f"{name!r} is not defined in the file", line)
        for index in chosen:
            statement = self.statements[index]
            definition = isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))
            if not definition and self.class_name in global_uses(statement):
                raise self.error(f"a module-level statement that uses {self.class_name} cannot be carried", statement)
        return sorted(chosen)

    def _providers(self, name: str) -> Iterator[int]:
        """Statements that bind ``name`` or change the object that it names."""
        imported = any(
            name in binds and isinstance(s, (ast.Import, ast.ImportFrom))
            for s, binds in zip(self.statements, self.binds, strict=True)
        )
        for index, (statement, binds) in enumerate(zip(self.statements, self.binds, strict=True)):
            if statement is self.model:
                continue
            if name in binds or (not imported and name in self.changes[index]):
                yield index


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _public_names(module: str) -> set[str]:
    loaded = importlib.import_module(module)
    return set(getattr(loaded, "__all__", [n for n in vars(loaded) if not n.startswith("_")]))


def _new_names(source: _Source, indices: Iterable[int]) -> dict[str, str]:
    """Old -> new name of everything carried; the class itself becomes ModelNew."""
    names = {source.class_name: "ModelNew"}
    for index in indices:
        statement = source.statements[index]
        for name in sorted(source.binds[index]):
            same = isinstance(statement, ast.Import) and any(
                name == a.name and a.asname in (None, name) for a in statement.names
            )
            new = PREFIX + name
            while (new[len(PREFIX) :] in RESERVED and not (same and name in _SHARED)) or new in names.values():
                new += "_"
            names.setdefault(name, new)
    return names


def _import_lines(node: ast.Import | ast.ImportFrom, names: dict[str, str]) -> list[str]:
    """The import under prefixed names. ``import a.b`` binds ``a`` and must also load ``a.b``."""
    if isinstance(node, ast.ImportFrom):
        wanted = list(zip(node.names, import_names(node), strict=True))
        return [f"from {node.module} import {a.name} as {names[bound]}" for a, bound in wanted if bound in names]
    lines = []
    for alias, bound in zip(node.names, import_names(node), strict=True):
        if bound not in names:
            continue
        if alias.asname is None and "." in alias.name:
            lines.append(f"import {alias.name} as {PREFIX}{alias.name.replace('.', '_')}_")
            lines.append(f"import {bound} as {names[bound]}")
        else:
            lines.append(f"import {alias.name} as {names[bound]}")
    return lines


def _forward_parameters(arguments: ast.arguments) -> tuple[str, tuple[ForwardParameter, ...]]:
    """The name of ``self``, and the parameters after it."""
    positional = [(a.arg, "positional_only") for a in arguments.posonlyargs]
    positional += [(a.arg, "positional") for a in arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults += arguments.defaults
    found = [
        ForwardParameter(name=name, kind=kind, default=None if d is None else escape_words(ast.unparse(d)))
        for (name, kind), d in zip(positional, defaults, strict=True)
    ]
    if arguments.vararg:
        found.append(ForwardParameter(name=arguments.vararg.arg, kind="args"))
    for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        text = None if default is None else escape_words(ast.unparse(default))
        found.append(ForwardParameter(name=arg.arg, kind="keyword_only", default=text))
    if arguments.kwarg:
        found.append(ForwardParameter(name=arguments.kwarg.arg, kind="kwargs"))
    return found[0].name, tuple(found[1:])


def _forward_of(source: _Source, model: ast.ClassDef) -> ast.FunctionDef:
    """The class's ``forward``, or one that calls the inherited forward of a carried base class."""
    for member in model.body:
        if isinstance(member, ast.FunctionDef) and member.name == "forward":
            return member
    classes = {s.name: s for s in source.statements if isinstance(s, ast.ClassDef)}
    for base in model.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            inherited = copy.deepcopy(_forward_of(source, classes[base.id]))
            inherited.decorator_list = []
            arguments = [a.arg for a in (*inherited.args.posonlyargs, *inherited.args.args)][1:]
            call = f"super().forward({', '.join(arguments)})"
            inherited.body = [ast.Return(ast.parse(call, mode="eval").body)]
            return inherited
    raise source.error(f"class {model.name} defines no forward method", model)


def carry_model(
    source_text: str, class_name: str = "Model", where: str = "model", held: tuple[str, ...] = ()
) -> CarriedModel:
    """The class and all it needs, ready for a generated module. Raises ``EmitError`` with the line.

    ``where`` names the file in errors. ``held``: attributes that are to be buffers.
    """
    source = _Source(source_text, class_name, where)
    indices = source.needed()
    carried = [*(source.statements[i] for i in indices), source.model]
    for statement in carried:
        source.check(statement)
    names = _new_names(source, indices)

    prelude: list[str] = []
    asked = any(map(_asks_for_name, carried))
    if asked:
        prelude += ["", "", _NAMED, "", ""]
        _check_subclasses(source, carried)
    for index in indices:
        statement = source.statements[index]
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            prelude += _import_lines(statement, names)
        else:
            renamed = _renamed(statement, names)
            if asked and isinstance(renamed, (ast.FunctionDef, ast.ClassDef)):
                own = ast.parse(f"{PREFIX}named({statement.name!r})", mode="eval").body  # type: ignore[attr-defined]
                renamed.decorator_list.append(ast.fix_missing_locations(own))
            gap = ["", ""] if isinstance(renamed, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)) else []
            prelude += [*gap, escape_words(ast.unparse(renamed)), *gap]

    original = copy.deepcopy(source.model)
    if held:
        _hold(source, original, held)
    forward = copy.deepcopy(_forward_of(source, original))
    original.body = [m for m in original.body if not _is_forward(m)] + [forward]
    model = _renamed(original, names)
    if not isinstance(model, ast.ClassDef) or not isinstance(model.body[-1], ast.FunctionDef):
        raise source.error("the class cannot be carried", source.model)
    reference = model.body[-1]
    reference.name = REFERENCE
    self_name, parameters = _forward_parameters(reference.args)
    decorators = tuple(ast.unparse(d) for d in reference.decorator_list)
    reference.decorator_list = []
    return CarriedModel(
        class_name=class_name,
        prelude=_squeeze(prelude),
        class_text=escape_words(ast.unparse(model)),
        forward=parameters,
        self_name=self_name,
        forward_decorators=decorators,
        held=held,
        names=names,
    )


def _asks_for_name(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Attribute) and part.attr == "__name__" for part in ast.walk(node))


def _check_subclasses(source: _Source, carried: list[ast.stmt]) -> None:
    """Refuses registries by names that classes have while they are made, when ``_NAMED`` has not changed them yet."""
    nodes = [node for statement in carried for node in ast.walk(statement)]
    for node in (n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == "__init_subclass__"):
        if _asks_for_name(node):
            raise source.error(
                "__init_subclass__ asks for __name__, which is another in the generated module",
                node,
                hint="give the subclasses a keyword of their own to be found by",
            )


def _hold(source: _Source, model: ast.ClassDef, held: tuple[str, ...]) -> None:
    """Let the constructor of ``model`` end with making buffers of its attributes ``held``."""
    constructors = [m for m in model.body if isinstance(m, ast.FunctionDef) and m.name == "__init__"]
    if not constructors or any(isinstance(node, ast.Return) for node in ast.walk(constructors[0])):
        what = "inherits its constructor" if not constructors else "returns from its constructor"
        raise source.error(f"class {model.name} {what} and holds tensors beside buffers: {', '.join(held)}", model)
    this = constructors[0].args.args[0].arg
    for path in held:
        owner, _, name = path.rpartition(".")
        module = attribute_path(owner, this) if owner else this
        text = f"{module}.register_buffer({name!r}, {module}.__dict__.pop({name!r}), persistent=False)"
        constructors[0].body += ast.parse(text).body


def _is_forward(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "forward"


def _renamed(statement: ast.stmt, names: dict[str, str]) -> ast.stmt:
    renamed: ast.stmt = Renamer(names).visit(copy.deepcopy(statement))
    return ast.fix_missing_locations(renamed)


def _squeeze(lines: list[str]) -> str:
    """The lines with at most two empty ones in a row, none at the ends."""
    text = "\n".join(lines).strip("\n")
    while "\n\n\n\n" in text:
        text = text.replace("\n\n\n\n", "\n\n\n")
    return text
