"""The symbols of a trace's sizes, and the questions that torch.export has put to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import sympy
import torch
from torch import fx
from torch.utils._sympy.functions import Max, Min

from fusegen import dims, guards
from fusegen.errors import TraceError
from fusegen.ir import EagerOp, Graph

Pairs: TypeAlias = Sequence[tuple[str, str]]
"""Names of sizes, two and two."""


class SizeArithmeticError(TraceError):
    """A size, or a number made of sizes, has no form in the graph: fixed sizes have."""


def unsaid(expr: sympy.Basic, node: str | None = None, source: str | None = None) -> SizeArithmeticError:
    """The error for an expression without a form."""
    return SizeArithmeticError(f"arithmetic on sizes that is none of whole numbers: {expr}", node=node, source=source)


def _symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, positive=True, integer=True)


def name_sizes(inputs: list[fx.Node]) -> tuple[dict[sympy.Symbol, sympy.Expr], dict[str, int]]:
    """Names for the size symbols that say which input axis they are, and the traced values of those."""
    renames: dict[sympy.Symbol, sympy.Expr] = {}
    sizes: dict[str, int] = {}
    for position, node in enumerate(inputs):
        for axis, size in enumerate(node.meta["val"].shape):
            expr = getattr(getattr(size, "node", None), "expr", None)
            if expr is not None and expr.is_Symbol and expr not in renames:
                name = dims.symbol(position, axis)
                renames[expr] = _symbol(name)
                sizes[name] = size.node.hint
    return renames, sizes


def _solution(guard: sympy.Basic, sizes: Iterable[str]) -> tuple[sympy.Symbol, sympy.Expr] | None:
    """A size, of the last input that has one, and what it is of the others where ``guard`` says that they are equal.

    Common factors say nothing: sizes are positive. What is positive whatever the others are comes before differences.
    """
    if not isinstance(guard, sympy.Eq):
        return None
    difference = (guard.lhs - guard.rhs).replace(Min, sympy.Min)  # which knows the lesser of n and n + 1
    factors = sympy.Mul.make_args(sympy.factor(difference))
    factors = [factor for factor in factors if factor.is_zero is not False]
    if len(factors) != 1:
        return None
    difference = sympy.expand(factors[0].as_base_exp()[0])
    found: list[tuple[sympy.Symbol, sympy.Expr]] = []
    names = list(map(_symbol, sizes))
    for symbol in reversed(names if difference.free_symbols <= set(names) else []):
        sign = difference.coeff(symbol)
        value = sympy.expand(symbol - difference * sign)
        if sign in (1, -1) and not value.has(symbol) and value.is_integer:
            found.append((symbol, value))
    return min(found, key=lambda solution: not solution[1].is_positive, default=None)


def conditions(
    inputs: list[fx.Node], renames: dict[sympy.Symbol, sympy.Expr], sizes: dict[str, int], equal: Pairs = ()
) -> dict[str, None]:
    """The guards of the trace as Python conditions; equal sizes have one name, by substitution in ``renames``.

    torch.export solves equations where a size is on one side alone; what it leaves would be other sizes to every op.
    ``equal`` are sizes to take for equal besides.
    """
    symbolic = (size for node in inputs for size in node.meta["val"].shape if isinstance(size, torch.SymInt))
    if (some := next(symbolic, None)) is None:
        return {}
    env = some.node.shape_env
    asked = [env.replace(guard.expr).xreplace(renames) for guard in env.guards]
    asked += [sympy.Eq(*map(_symbol, pair)) for pair in equal]
    while solution := next(filter(None, (_solution(guard, sizes) for guard in asked)), None):
        asked = [guard.xreplace(dict([solution])) for guard in asked]
        renames.update({name: value.xreplace(dict([solution])) for name, value in renames.items()})
        del sizes[solution[0].name]
    known = set(map(_symbol, sizes))
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


def _counterparts(graph: Graph, one: str, other: str) -> Iterator[tuple[str, str]]:
    """The sizes in one expression and those in another that are the same in the trace, from the last ones on."""
    left = list(reversed(dims.symbols([other])))
    for name in reversed(dims.symbols([one])):
        found = next((s for s in left if s != name and graph.sizes[s] == graph.sizes[name]), None)
        if found is not None:
            left.remove(found)
            yield name, found


def alike(graph: Graph) -> Pairs:
    """Sizes to take for equal, so that operands of ops that are left to torch have one shape for all that is known.

    Flattened images of two inputs have as many elements: they need not be images of one size, but are in the trace.
    """
    met = [
        {size for name in node.inputs for size in graph.node(name).type.shape}
        for node in graph.nodes
        if isinstance(node.op, EagerOp)
    ]
    asked = [tuple(constraint.split(" == ")) for constraint in graph.constraints if " == " in constraint]
    pairs = [_counterparts(graph, *sides) for sides in asked if any(sizes.issuperset(sides) for sizes in met)]
    return [pair for found in pairs for pair in found]
