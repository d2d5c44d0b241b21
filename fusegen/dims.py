"""Tensor sizes: integers, or arithmetic over the sizes of the inputs.

A ``Dim`` is an ``int`` (structure: fixed at compile time) or a Python expression string over size
symbols such as ``"2*x0_2 + 1"`` (known when the module is called). ``x0_2`` reads: axis 2 of input 0.
Strings are kept in sympy's canonical form, so equal sizes compare equal as text.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any, TypeAlias

import sympy
from torch.utils._sympy.functions import (
    CeilToInt,
    FloatPow,
    FloatTrueDiv,
    FloorDiv,
    FloorToInt,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    PythonMod,
    ToFloat,
    TruncToInt,
)

Dim: TypeAlias = int | str
Dims: TypeAlias = tuple[Dim, ...]

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: FloorDiv,
    ast.Mod: Mod,
}
_CALLS = {"min": sympy.Min, "max": sympy.Max}
_BUILTINS = {"__builtins__": {}, "min": min, "max": max}


def symbol(input_position: int, axis: int) -> str:
    """The size symbol of one axis of one input."""
    return f"x{input_position}_{axis}"


@lru_cache(maxsize=4096)
def parse(dim: Dim) -> sympy.Expr:
    """The sympy form of ``dim``. Raises ``ValueError`` on anything but size arithmetic."""
    if isinstance(dim, int):
        return sympy.Integer(dim)

    def walk(node: ast.AST) -> sympy.Expr:
        match node:
            case ast.Constant(value=int(value)):
                return sympy.Integer(value)
            case ast.Name(id=name):
                return sympy.Symbol(name, positive=True, integer=True)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -walk(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _BINARY[type(op)](walk(left), walk(right))
            case ast.Call(func=ast.Name(id=name), args=args) if name in _CALLS:
                return _CALLS[name](*map(walk, args))
        raise ValueError(f"not a size expression: {dim!r}")

    try:
        return walk(ast.parse(dim, mode="eval").body)
    except (SyntaxError, TypeError) as error:
        raise ValueError(f"not a size expression: {dim!r}") from error


def _print(expr: sympy.Expr, floordiv: str) -> str:
    """Text of ``expr`` with every sub-expression bracketed; valid Python and, with ``/``, C++."""

    def divisor(e: sympy.Expr) -> str:
        return f"({go(e)})" if e.is_Mul or e.is_Pow else go(e)

    def go(e: sympy.Expr) -> str:
        if e.is_Integer or e.is_Symbol:
            return f"({e})" if e.is_negative else str(e)
        if isinstance(e, FloorDiv):
            return f"({go(e.args[0])} {floordiv} {divisor(e.args[1])})"
        if isinstance(e, (Mod, PythonMod)):
            return f"({go(e.args[0])} % {divisor(e.args[1])})"
        if e.is_Add:
            terms = sorted(e.args, key=lambda t: (t.is_number, sympy.default_sort_key(t)))
            text = go(terms[0])
            for term in terms[1:]:
                negative = term.could_extract_minus_sign()
                text += f" - {go(-term)}" if negative else f" + {go(term)}"
            return f"({text})"
        if e.is_Mul:
            return "*".join(go(a) for a in e.args)
        if e.is_Pow and e.exp.is_Integer and e.exp > 0:
            return "*".join([go(e.base)] * int(e.exp))
        if isinstance(e, (sympy.Min, sympy.Max, Min, Max)):
            name = "min" if isinstance(e, (sympy.Min, Min)) else "max"
            return f"{name}({', '.join(sorted(go(a) for a in e.args))})"
        raise ValueError(f"not a size expression: {e}")

    text = go(expr)
    return text[1:-1] if expr.is_Add else text


def _lowest(expr: sympy.Expr) -> sympy.Expr:
    """A quotient in lowest terms: (2*x - 5) // 4  ->  (x - 3) // 2."""
    a, b = expr.args
    if not b.is_Integer or b < 2:
        return expr
    offset, rest = sympy.expand(a).as_coeff_Add()
    factors = [term.as_coeff_Mul()[0] for term in sympy.Add.make_args(rest)]
    if not offset.is_Integer or not all(factor.is_Integer for factor in factors):
        return expr
    common = math.gcd(int(b), *map(int, factors))
    if common == 1:
        return expr
    return FloorDiv(sympy.expand(rest / common) + int(offset) // common, b // common)


def _quotient(expr: sympy.Expr) -> sympy.Expr:
    """In lowest terms; the floor of what is not positive as a quotient of what is not negative: C++ rounds to zero."""
    lowest = _lowest(expr)
    if not isinstance(lowest, FloorDiv):
        return lowest
    a, b = lowest.args
    return -FloorDiv(sympy.expand(b - 1 - a), b) if a.is_nonpositive and b.is_positive else lowest


@lru_cache(maxsize=4096)
def canonical(expr: sympy.Expr | int) -> Dim:
    """The ``Dim`` of a sympy expression or an integer."""
    expanded = sympy.expand(expr)
    if not expanded.is_Integer and expanded.has(FloorDiv):
        expanded = sympy.expand(expanded.replace(lambda e: isinstance(e, FloorDiv), _quotient))
    return int(expanded) if expanded.is_Integer else _print(expanded, "//")


_FLOATS: Mapping[type[sympy.Expr], str] = {
    ToFloat: "{}",  # Python's arithmetic makes floats of integers by itself
    FloatTrueDiv: "{} / {}",
    IntTrueDiv: "{} / {}",
    FloatPow: "{} ** {}",
    TruncToInt: "int({})",
    FloorToInt: "int({} // 1)",
    CeilToInt: "-int(-{} // 1)",
}


def number(expr: sympy.Expr) -> str:
    """The Python text of a number made of sizes, whole or not. Raises ``ValueError`` where it has none."""
    if not expr.has(sympy.Float, *_FLOATS):
        return str(canonical(expr))
    if expr.is_Float:
        return repr(float(expr))
    texts = map(number, expr.args)
    parts = [text if re.fullmatch(r"[\w.]+", text) else f"({text})" for text in texts]
    if expr.is_Add or expr.is_Mul:
        return (" + " if expr.is_Add else " * ").join(parts)
    if type(expr) not in _FLOATS:
        raise ValueError(f"not arithmetic on sizes: {expr}")
    return _FLOATS[type(expr)].format(*parts)


def cpp(dim: Dim) -> str:
    """``dim`` as a C++ expression over ``int64_t`` symbols (floor division of non-negative values)."""
    return str(dim) if isinstance(dim, int) else _print(parse(dim), "/")


def evaluate(dim: Dim, sizes: Mapping[str, int]) -> int:
    """The value of ``dim``. Raises ``KeyError`` when a symbol has no size."""
    if isinstance(dim, int):
        return dim
    code = _code(dim)
    return int(eval(code, _BUILTINS, {name: sizes[name] for name in code.co_names if name not in _CALLS}))


@lru_cache(maxsize=4096)
def _code(dim: str) -> CodeType:
    """``dim`` as Python runs it: of what ``parse`` takes, and nothing else."""
    return compile(_print(parse(dim), "//"), "<size>", "eval")


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """``dim`` with the symbols of ``values`` replaced."""
    expr = parse(dim)
    return canonical(expr.xreplace({s: parse(values[s.name]) for s in expr.free_symbols if s.name in values}))


def symbols(dims: Iterable[Dim]) -> tuple[str, ...]:
    """Every size symbol in ``dims``, sorted."""
    return tuple(sorted({s.name for d in dims for s in parse(d).free_symbols}))


def divided(dim: Dim) -> set[str]:
    """The size symbols inside quotients and remainders of ``dim``."""
    parts = parse(dim).atoms(FloorDiv, Mod, PythonMod)
    return {symbol.name for part in parts for symbol in part.free_symbols}


def numerators(dim: Dim) -> list[Dim]:
    """What quotients and remainders in ``dim`` divide: of what is negative, C++ rounds to zero and Python down."""
    return [canonical(part.args[0]) for part in parse(dim).atoms(FloorDiv, Mod, PythonMod)]


def linear(dim: Dim) -> tuple[sympy.Expr, int, int] | None:
    """(unknown, a, b) where ``dim`` is ``a*unknown + b``: the unknown, a symbol or a quotient, follows from it."""
    offset, rest = parse(dim).as_coeff_Add()
    slope, unknown = rest.as_coeff_Mul()
    known = (unknown.is_Symbol or isinstance(unknown, FloorDiv)) and slope.is_Integer and offset.is_Integer
    return (unknown, int(slope), int(offset)) if known else None


def solve(dim: Dim, known: Mapping[sympy.Expr, sympy.Expr]) -> Dim | None:
    """``dim`` with the ``known`` symbols and quotients replaced; None where others are left."""
    expr = parse(dim).xreplace(dict(known))
    left = expr.free_symbols - {symbol for value in known.values() for symbol in value.free_symbols}
    return None if left else canonical(expr)


def _lift(fn: Callable[[Any, Any], Any], on_ints: Callable[[int, int], int]) -> Callable[[Dim, Dim], Dim]:
    @lru_cache(maxsize=4096)  # sympy takes up to 10 ms, for the lesser of two quotients
    def of_sizes(a: Dim, b: Dim) -> Dim:
        return canonical(fn(parse(a), parse(b)))

    def op(a: Dim, b: Dim) -> Dim:
        return on_ints(a, b) if isinstance(a, int) and isinstance(b, int) else of_sizes(a, b)

    return op


add = _lift(operator.add, operator.add)
sub = _lift(operator.sub, operator.sub)
mul = _lift(operator.mul, operator.mul)
floordiv = _lift(FloorDiv, operator.floordiv)
minimum = _lift(sympy.Min, min)
maximum = _lift(sympy.Max, max)


@lru_cache(maxsize=4096)
def exact_quotient(a: Dim, b: Dim) -> Dim | None:
    """``a / b`` where it is a whole number whatever the symbols, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    if b == 0:
        return None
    ratio = parse(a) / parse(b)
    # Quotients, remainders, minima: numbers like any symbol, whatever is inside them.
    opaque = {
        atom: sympy.Dummy(positive=True, integer=True) for atom in ratio.atoms(sympy.Function, sympy.Min, sympy.Max)
    }
    quotient = sympy.cancel(ratio.xreplace(opaque))
    if not quotient.is_polynomial() or any(not c.is_Integer for c in quotient.as_coefficients_dict().values()):
        return None
    return canonical(quotient.xreplace({dummy: atom for atom, dummy in opaque.items()}))


def product(dims: Iterable[Dim]) -> Dim:
    """The product of ``dims`` (1 when there are none)."""
    result: Dim = 1
    for dim in dims:
        result = mul(result, dim)
    return result


def keeps_order(axes: Iterable[int], shape: Dims) -> bool:
    """Whether data whose ``axes``, in a new order, have this ``shape`` stays where it lies: but for those of size 1."""
    moved = [axis for axis, size in zip(axes, shape, strict=True) if size != 1]
    return moved == sorted(moved)


def regrouped(before: Dims, after: Dims) -> list[tuple[range, range]] | None:
    """Runs of axes of a reshape that hold the same elements, the shortest possible; None where sizes do not tell."""
    groups, i, j = [], 0, 0
    while i < len(before) and j < len(after):
        first, second, left, right = i, j, before[i], after[j]
        i, j = i + 1, j + 1
        while left != right:
            if i < len(before) and exact_quotient(right, left) is not None:
                left, i = mul(left, before[i]), i + 1
            elif j < len(after) and exact_quotient(left, right) is not None:
                right, j = mul(right, after[j]), j + 1
            else:
                return None
        groups.append((range(first, i), range(second, j)))
    return groups if i == len(before) and j == len(after) else None


def numel(dims: Dims, sizes: Mapping[str, int]) -> int:
    """The element count of a tensor of shape ``dims`` at the given sizes."""
    return math.prod(evaluate(d, sizes) for d in dims)
