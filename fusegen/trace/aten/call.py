"""What importers of ATen ops are made of: the call, its values, the table that they register in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from fusegen.dims import Dim
from fusegen.errors import GraphError
from fusegen.ir import INTEGERS, WIDE_INTEGERS, DType, Op, PointwiseOp, TensorType


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

    def first_input(self, dtype: DType | None) -> Value | None:
        """The model's first input of this element type, or of any."""

    def made_by(self, value: Value) -> tuple[Op, tuple[Value, ...]]:
        """The op of which ``value`` is the result, and its operands."""

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
    if like.type.dtype in WIDE_INTEGERS:
        return converted(call, flags, like.type.dtype)
    return call.build.add(PointwiseOp(fn="where"), flags, call.build.scalar(1.0, like), call.build.scalar(0.0, like))


def converted(call: Call, value: Value, dtype: DType) -> Value:
    """``value``, or what it is in another element type."""
    same = value.type.dtype is dtype
    return value if same else call.build.add(PointwiseOp(fn=f"to_{dtype.value}"), value)


def _common(call: Call, operands: tuple[Any, ...]) -> Value:
    """A value of the element type that the operands are brought to, as torch promotes them.

    Integers are floats beside floats, and where a function gives floats. Raises ``GraphError`` where promotion depends
    on ranks.
    """
    tensors = [o for o in operands if isinstance(o, Value) and o.type.dtype is not DType.BOOL]
    if not tensors:
        return Value("", call.result)
    if floats := [value for value in tensors if value.type.dtype not in INTEGERS]:
        return floats[0]
    if call.result.dtype is DType.FLOAT32 or any(isinstance(o, float) for o in operands):
        return Value("", call.result.replace(dtype=DType.FLOAT32))
    if all(value.type.rank == 0 for value in tensors) and call.result.rank == 0:
        raise GraphError("one integer, a count of calls, is torch's to compute: no kernel does it sooner")
    dtypes = {value.type.dtype for value in tensors}
    if len(dtypes) > 1 and (not dtypes <= WIDE_INTEGERS or any(value.type.rank == 0 for value in tensors)):
        raise GraphError("integers of several widths are left to torch")
    return max(tensors, key=lambda value: value.type.dtype.bytes)


_OF_TRUTHS = ("and", "or", "xor", "not")


def pointwise(call: Call, fn: str, *operands: Any) -> Value:
    """An elementwise node; its operands, numbers among them, are brought to one element type. Raises ``GraphError``."""
    like = _common(call, operands)

    def promoted(position: int, value: Any) -> Value:
        if not isinstance(value, Value):
            return call.build.scalar(value, like)
        own, wanted = value.type.dtype, like.type.dtype
        if own is wanted or wanted is DType.BOOL or fn in _OF_TRUTHS or (fn == "where" and position == 0):
            return value
        if own is DType.BOOL:
            return numbers(call, value, like)
        return converted(call, value, wanted) if {own, wanted} <= {DType.FLOAT32, *WIDE_INTEGERS} else value

    return call.build.add(PointwiseOp(fn=fn), *(promoted(i, o) for i, o in enumerate(operands)))
