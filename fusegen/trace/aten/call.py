"""What importers of ATen ops are made of: the call, its values, the table that they register in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from fusegen.dims import Dim
from fusegen.ir import DType, Op, PointwiseOp, TensorType


@dataclass(frozen=True)
class Value:
    """A tensor operand: its node and type."""

    name: str
    type: TensorType


class Build(Protocol):
    """What importers build nodes with."""

    def add(self, op: Op, *operands: Value) -> Value: ...

    def several(self, op: Op, results: tuple[TensorType, ...], *operands: Value) -> tuple[Value, ...]:
        """The results of an op that has as many."""

    def scalar(self, value: float | Dim, like: Value) -> Value: ...

    def as_tensor(self, value: Value) -> Value:
        """``value``, or the tensor of a number that is none yet."""

    def at_least(self, size: Dim, bound: Dim) -> bool:
        """Whether ``size >= bound`` at the traced sizes; a condition of the graph where other sizes could differ."""

    def not_empty(self, size: Dim) -> None:
        """A condition of the graph, of which arithmetic, whose sizes are at least 1, knows nothing."""

    def first_input(self, dtype: DType) -> Value | None:
        """The model's first input of this element type."""

    def update(self, buffer: Value, value: Value) -> None:
        """Make ``value`` the next value of ``buffer``, as an op does that writes to it unseen by the trace."""


@dataclass(frozen=True)
class Call:
    """One ATen call: arguments by schema name (defaults filled in), the traced result types."""

    build: Build
    args: dict[str, Any]
    results: tuple[TensorType, ...]

    @property
    def result(self) -> TensorType:
        return self.results[0]

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    def plain(self, *names: str) -> bool:
        """True when the named optional arguments are absent or false."""
        return not any(self.args.get(name) for name in names)


Imported: TypeAlias = "Value | tuple[Value | None, ...] | None"
"""One value (the first result's), or one for each result of the op; None where the IR has no form of it."""
Importer: TypeAlias = Callable[[Call], Imported]
IMPORTERS: dict[str, Importer] = {}


def register(*overloads: str) -> Callable[[Importer], Importer]:
    def decorate(function: Importer) -> Importer:
        IMPORTERS.update(dict.fromkeys(overloads, function))
        return function

    return decorate


def axes_of(value: Any, rank: int) -> tuple[int, ...]:
    """An axis argument (none, one or several, from either end) as sorted axes; none or empty: all."""
    if value is None or value == []:
        return tuple(range(rank))
    chosen = value if isinstance(value, (list, tuple)) else [value]
    return tuple(sorted(axis % rank for axis in chosen))


def spread(value: Any, rank: int) -> tuple[int, ...]:
    """An int-or-list argument as one int per axis."""
    values = [value] if isinstance(value, int) else list(value)
    return tuple(values * rank if len(values) == 1 else values)


def numbers(call: Call, flags: Value, like: Value) -> Value:
    """Truth values as ones and zeros of the element type of ``like``."""
    return call.build.add(PointwiseOp(fn="where"), flags, call.build.scalar(1.0, like), call.build.scalar(0.0, like))


def pointwise(call: Call, fn: str, *operands: Any) -> Value:
    """An elementwise node; numbers and truth values among the operands take the type of the others."""
    values = [o for o in operands if isinstance(o, Value)]
    like = next((v for v in values if v.type.dtype is not DType.BOOL), Value("", call.result))

    def promoted(position: int, value: Any) -> Value:
        if not isinstance(value, Value):
            return call.build.scalar(value, like)
        chooses = fn == "where" and position == 0
        if value.type.dtype is not DType.BOOL or like.type.dtype is DType.BOOL or chooses:
            return value
        return numbers(call, value, like)

    return call.build.add(PointwiseOp(fn=fn), *(promoted(i, o) for i, o in enumerate(operands)))
