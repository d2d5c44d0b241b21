"""Rounded quotients of sizes: as integers, and numbers where the graph has none.

``math.ceil(size / stride)``, as padding to "same" sizes asks, is to torch a function of a floating-point number, with
which nothing cancels: every layer's size would hold those of all layers before it. Padding itself is by numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import sympy
import torch
from torch.nn.functional import pad
from torch.utils._sympy.functions import CeilToInt, FloorDiv, FloorToInt, IntTrueDiv


def _quotient(number: sympy.Expr) -> tuple[sympy.Expr, int] | None:
    """What ``number`` divides by what, if both are whole and the latter is a positive constant.

    Of sizes, which are below 2^53, a quotient that is not whole is never rounded to one that is.
    """
    if not isinstance(number, IntTrueDiv):
        return None
    whole, by = number.args
    return (whole, int(by)) if whole.is_integer and by.is_Integer and by.is_positive else None


def _ceil(number: sympy.Expr) -> sympy.Expr | None:
    """ceil(a / n) = (a + n - 1) // n."""
    found = _quotient(number)
    return found and FloorDiv(found[0] + found[1] - 1, found[1])


def _floor(number: sympy.Expr) -> sympy.Expr | None:
    """floor(a / n) = a // n."""
    found = _quotient(number)
    return found and FloorDiv(*found)


@contextmanager
def _asked_first(function: Any, rule: Callable[[sympy.Expr], sympy.Expr | None]) -> Iterator[None]:
    """Within it, what ``rule`` makes of an argument is the value of sympy's ``function``, if it is anything."""
    own, asked = function.__dict__["eval"], function.eval
    function.eval = lambda number: rule(number) or asked(number)
    try:
        yield
    finally:
        function.eval = own


@contextmanager
def as_integers() -> Iterator[None]:
    """Within it, ``math.ceil`` and ``math.floor`` of a size over a constant are quotients of integers."""
    with _asked_first(CeilToInt, _ceil), _asked_first(FloorToInt, _floor):
        yield


PADDING: tuple[Callable[..., Any], ...] = (pad, torch._C._nn.pad, torch.constant_pad_nd)
"""Functions of a tensor and of how much is put around it."""


def fix(amounts: Iterable[object]) -> None:
    """Fix the sizes that ``amounts`` have quotients of, at once: torch would ask about those of every further layer."""
    for amount in amounts:
        if isinstance(amount, torch.SymInt) and amount.node.expr.has(FloorDiv):
            for size in amount.node.expr.free_symbols:
                amount.node.shape_env.evaluate_expr(size)
