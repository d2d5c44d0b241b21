"""Rows of pooled data: the elements of a window, read and joined where a row's kernel wants one element."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from fusegen import dims
from fusegen.dims import Dim
from fusegen.ir import Node
from fusegen.literals import hex_float
from fusegen.plan.rowdraft import Value, factor
from fusegen.plan.rows import RowLowering
from fusegen.plan.sizes import Sizes
from fusegen.spaces.poolrows import PooledRows
from fusegen.spaces.poolspace import fixed_count, output_size

_FAR = 2**16
"""Strides whose product with a position of 32 bits may need more."""


@dataclass(frozen=True)
class _Digit:
    """A base axis of the rows (None: its only position), of which an operand has ``size`` elements.

    It is at ``shift + step * position``, which may be before the first element (``low``) or behind the last (``high``).
    """

    axis: int | None
    size: Dim
    step: int = 1
    shift: int = 0
    low: bool = False
    high: bool = False
    pooled: bool = False


@dataclass(kw_only=True)
class _Place(RowLowering):
    """The chain before a pooling for one place in its windows; its statements are among those of ``rows``."""

    rows: RowLowering
    parts: PooledRows
    place: tuple[int, ...]

    def pooled(self, i: int) -> _Digit:
        """The place along pooled axis ``i``."""
        op, axis = self.parts.op, self.parts.planes + i
        base = next(iter(self.parts.space.axes[self.parts.pool.name][axis]), None)
        shift = self.place[i] * op.dilation[i] - op.padding[i]
        left = (op.kernel[i] - 1 - self.place[i]) * op.dilation[i]
        size = self.parts.before_space.shape[axis]
        return _Digit(base, size, op.stride[i], shift, shift < 0, op.ceil or left < op.padding[i], True)

    def digits(self, order: list[int]) -> list[_Digit]:
        """Those of a tensor with these axes of what is pooled."""
        own, shape = self.parts.space.axes[self.parts.pool.name], self.rows.space.shape
        found: list[_Digit] = []
        for axis in order:
            if axis < self.parts.planes:
                found += [_Digit(base, shape[base]) for base in own[axis]]
            else:
                found.append(self.pooled(axis - self.parts.planes))
        return found

    def run(self, digits: list[_Digit]) -> tuple[int, str, str]:
        """How many of the first ``digits`` are one position along a group of the rows' axes; its name; its C++."""
        first, shape = digits[0].axis, self.rows.space.shape
        if first is None:
            return 1, "", "0"
        name, group = next((name, group) for name, group in self.rows.groups() if first in group)
        own = [axis for axis in group if shape[axis] != 1]
        start, count = own.index(first), 1
        most = len(own) - start if start == 0 or all(isinstance(shape[axis], int) for axis in own) else 1
        for digit, axis in zip(digits[1:], own[start + 1 : start + most], strict=False):
            if digit.axis != axis or digits[0].pooled or digit.pooled:
                break
            count += 1
        after = [shape[axis] for axis in own[start + count :]]
        size = dims.product(shape[axis] for axis in own[start : start + count]) if start else None
        return count, name, self.rows.coordinate(name, after, size)

    def moved(self, digit: _Digit, text: str) -> str:
        text = text if digit.step == 1 else f"{factor(text)} * {digit.step}"
        return f"({text} {'+-'[digit.shift < 0]} {abs(digit.shift)})" if digit.shift else f"({text})"

    def terms(self, order: list[int], strides: list[Dim] | None = None) -> list[tuple[str, str]]:
        """As of the rows, of what is pooled, all of an operand; outside of it, of its nearest element."""
        digits, terms = self.digits(order), list[tuple[str, str]]()
        while digits:
            first = digits[0]
            count, name, text = self.run(digits)
            digits = digits[count:]
            text = self.moved(first, text)
            text = f"({text} < 0 ? 0 : {text})" if first.low else text
            size = factor(self.text(first.size))
            text = f"({text} < {size} ? {text} : {size} - 1)" if first.high else text
            stride = self.rows.sizes.product([digit.size for digit in digits])
            far = "ll" if isinstance(stride, int) and stride >= _FAR else ""
            terms.append((name, text if stride == 1 else f"{text} * {factor(dims.cpp(stride))}{far}"))
        return terms

    def inside(self) -> str:
        """C++ of whether there is such an element; empty where there always is."""
        tests = []
        for digit in map(self.pooled, range(len(self.place))):
            text = self.moved(digit, self.run([digit])[2])
            tests += [f"{text} >= 0"] if digit.low else []
            tests += [f"{text} < {factor(self.text(digit.size))}"] if digit.high else []
        return " && ".join(tests)

    def data(self, node: Node) -> Value:
        return self.operand(node, self.space.axes[node.name])


def define(parts: PooledRows, sizes: Sizes) -> None:
    """Let the sizes of the pooling's result be what follows from those of its data: rounding hides that."""
    for axis, size in enumerate(parts.before_space.shape[parts.planes :]):
        sizes.define(parts.op.size[axis], output_size(parts.op, axis, sizes.local(size)))


def element(rows: RowLowering, parts: PooledRows) -> Value:
    """The pooled element that ``rows`` are made of, as statements of theirs."""
    op, node = parts.op, parts.pool
    peak = op.fn == "max"
    near = peak and all(d == 1 and p < k for d, p, k in zip(op.dilation, op.padding, op.kernel, strict=True))
    join = "nan_max({0}, {1})" if peak else "{0} + {1}"
    total: Value | None = None
    for place in itertools.product(*map(range, op.kernel)):
        own = _Place(
            parts.before,
            parts.before_space,
            rows.args,
            rows.sizes,
            rows.style,
            "",
            drafts=rows.drafts,
            positions=rows.positions,
            operands=rows.operands,
            helpers=rows.helpers,
            rows=rows,
            parts=parts,
            place=place,
        )
        own.lower()
        rows.special += own.special
        value = own.values[parts.before.outputs[0]]
        if (test := own.inside()) and not near:  # else the nearest element is in the window too
            text = f"({test} ? {{0}} : {'-INFINITY' if peak else '0.0f'})"
            value = rows.draft(text, value, element=True, node=node, comment="0 where there is none")
        total = value if total is None else rows.draft(join, total, value, element=True, node=node)
    assert total is not None
    if peak:
        rows.helpers.add("nan_max")
    count = None if peak else fixed_count(op)
    return rows.draft(f"{{0}} * {hex_float(1 / count)}" if count else "{0}", total, element=True, node=node)
