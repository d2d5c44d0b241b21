"""Run-time sizes of a kernel: which operand axes supply them, and any size as an expression over those."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sympy
from torch.utils._sympy.functions import FloorDiv

from fusegen import dims
from fusegen.dims import Dim
from fusegen.plan.rowprogram import Binding, Given, TensorArg

_AXIS_NAMES = {
    2: ("batch", "features"),
    3: ("batch", "channels", "width"),
    4: ("batch", "channels", "height", "width"),
    5: ("batch", "channels", "depth", "height", "width"),
}


class Unplanned(Exception):
    """Why a region has no kernel after all."""


class UnboundSize(Unplanned):
    """A size that no operand axis of the kernel determines."""


class Sizes:
    """Names for the run-time sizes of a kernel: its operands' axes, and ``others`` that do not follow from them."""

    def __init__(self, args: Sequence[TensorArg], others: Iterable[Dim] = ()):
        self.bindings: list[Binding] = []
        self.given: list[Given] = []
        self._names: dict[Dim, str] = {}
        self._defined: dict[str, Dim] = {}
        taken: set[str] = set()
        for position, arg in enumerate(args):
            axis_names = _AXIS_NAMES.get(arg.type.rank, ())
            for axis, size in enumerate(arg.type.shape):
                if isinstance(size, int) or size in self._names:
                    continue
                name = axis_names[axis] if axis_names and axis_names[axis] not in taken else f"size{len(taken)}"
                taken.add(name)
                self._names[size] = name
                self.bindings.append(Binding(name=name, arg=position, axis=axis))
        self._solved = self._solve()
        for size in others:
            if isinstance(size, str) and size not in self._names and dims.solve(size, self._solved) is None:
                self._names[size] = f"given{len(self.given)}"
                self.given.append(Given(name=self._names[size], size=size))
                self._solved = self._solve()

    def _solve(self) -> dict[sympy.Expr, sympy.Expr]:
        """Symbols and quotients of the graph over binding names, where some size is linear in one."""
        solved: dict[sympy.Expr, sympy.Expr] = {}
        for size, name in sorted(self._names.items(), key=lambda item: len(str(item[0]))):
            if (found := dims.linear(size)) is None or found[0] in solved:
                continue
            unknown, slope, offset = found
            bound = sympy.Symbol(name, positive=True, integer=True)
            solved[unknown] = bound if (slope, offset) == (1, 0) else FloorDiv(bound - offset, slope)
        return solved

    @property
    def names(self) -> tuple[str, ...]:
        """What statements of the kernel may call a size."""
        return (*(binding.name for binding in self.bindings), *(given.name for given in self.given))

    def define(self, size: Dim, local: Dim) -> None:
        """Let ``size`` be ``local``, an expression over binding names: rounding hides what it came from."""
        if isinstance(size, str):
            self._defined.setdefault(size, local)

    def local(self, size: Dim) -> Dim:
        """``size`` over binding names. Raises ``UnboundSize``."""
        found = self._found(size)
        if found is None:
            raise UnboundSize(f"no operand of the kernel has a size that gives {size}")
        return found

    def _found(self, size: Dim) -> Dim | None:
        if isinstance(size, int):
            return size
        if size in self._defined:
            return self._defined[size]
        if size in self._names:
            return self._names[size]
        found = dims.solve(size, self._solved)
        return self._multiple(size) if found is None else found

    def _multiple(self, size: str) -> Dim | None:
        """``size`` as a multiple of one that has a name and follows from no others: the elements of as many rows."""
        for known, name in self._names.items():
            times = dims.exact_quotient(size, known) if dims.linear(known) is None else None
            factor = None if times is None else self._found(times)
            if factor is not None:
                return dims.mul(factor, name)
        return None

    def product(self, sizes: Iterable[Dim]) -> Dim:
        """The product of ``sizes``, each taken over binding names first: a product hides which axis is which."""
        return dims.product(map(self.local, sizes))

    def checks(self, args: Sequence[TensorArg]) -> tuple[tuple[int, int, Dim], ...]:
        """(operand, axis, size over binding names) for every axis that is not itself a binding."""
        bound = {(b.arg, b.axis) for b in self.bindings}
        return tuple(
            (position, axis, self.local(size))
            for position, arg in enumerate(args)
            for axis, size in enumerate(arg.type.shape)
            if (position, axis) not in bound
        )
