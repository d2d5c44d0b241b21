"""The symbols of a trace's sizes, and the questions that torch.export has put to them."""

from __future__ import annotations

import sympy
import torch
from torch import fx
from torch.utils._sympy.functions import Max

from fusegen import dims, guards
from fusegen.errors import TraceError


class SizeArithmeticError(TraceError):
    """A size, or a number made of sizes, has no form in the graph: fixed sizes have."""


def unsaid(expr: sympy.Basic, node: str | None = None, source: str | None = None) -> SizeArithmeticError:
    """The error for an expression without a form."""
    return SizeArithmeticError(f"arithmetic on sizes that is none of whole numbers: {expr}", node=node, source=source)


def name_sizes(inputs: list[fx.Node]) -> tuple[dict[sympy.Symbol, sympy.Expr], dict[str, int]]:
    """Names for the size symbols that say which input axis they are, and the traced values of those."""
    renames: dict[sympy.Symbol, sympy.Expr] = {}
    sizes: dict[str, int] = {}
    for position, node in enumerate(inputs):
        for axis, size in enumerate(node.meta["val"].shape):
            expr = getattr(getattr(size, "node", None), "expr", None)
            if expr is not None and expr.is_Symbol and expr not in renames:
                name = dims.symbol(position, axis)
                renames[expr] = sympy.Symbol(name, positive=True, integer=True)
                sizes[name] = size.node.hint
    return renames, sizes


def conditions(
    inputs: list[fx.Node], renames: dict[sympy.Symbol, sympy.Expr], sizes: dict[str, int]
) -> dict[str, None]:
    """The guards of the trace as Python conditions; equalities with a lone symbol are substituted in ``renames``."""
    symbolic = (size for node in inputs for size in node.meta["val"].shape if isinstance(size, torch.SymInt))
    if (some := next(symbolic, None)) is None:
        return {}
    env = some.node.shape_env
    asked = [guard.expr.xreplace(env.replacements).xreplace(renames) for guard in env.guards]
    for guard in asked:
        if isinstance(guard, sympy.Eq):
            for symbol, other in ((guard.rhs, guard.lhs), (guard.lhs, guard.rhs)):
                if symbol.is_Symbol and not other.has(symbol) and not other.is_Symbol:
                    renames.update({k: v.xreplace({symbol: other}) for k, v in renames.items()})
                    sizes.pop(symbol.name, None)
                    break
    known = {sympy.Symbol(name, positive=True, integer=True) for name in sizes}
    found: dict[str, None] = {}
    for guard in asked:
        if not isinstance(guard, sympy.core.relational.Relational) or not guard.free_symbols <= known:
            continue
        if isinstance(guard, sympy.Ne) and guard.rhs in (0, 1) and guard.lhs.is_Symbol:
            continue  # asked of every size: see guards.py
        if any(sympy.S.One in part.args for part in guard.atoms(Max)):
            continue  # of strides, max(size, 1), which nothing here depends on
        operator_text = {"Ne": "!=", "Eq": "=="}.get(guard.rel_op, guard.rel_op)
        try:
            condition = f"{dims.number(guard.lhs)} {operator_text} {dims.number(guard.rhs)}"
        except ValueError as error:
            raise unsaid(guard) from error
        if not guards.holds(condition, sizes):  # rounded in another order
            raise unsaid(guard)
        found[condition] = None
    return found
