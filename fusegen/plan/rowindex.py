"""Where a kernel of rows finds an element: offsets into tensors, over the template's names for positions."""

from __future__ import annotations

from dataclasses import dataclass

from fusegen import dims
from fusegen.dims import Dim
from fusegen.ir import Graph
from fusegen.plan.rowdraft import Style, factor
from fusegen.plan.rowprogram import TensorArg
from fusegen.plan.sizes import Sizes
from fusegen.spaces.rowspace import RowSpace


@dataclass
class RowIndices:
    """Of one region's ``body``. ``args`` maps its inputs to kernel arguments."""

    body: Graph
    space: RowSpace
    args: dict[str, TensorArg]
    sizes: Sizes
    style: Style
    source: str

    def text(self, size: Dim) -> str:
        """C++ of a size over binding names."""
        return dims.cpp(self.sizes.local(size))

    def product(self, sizes: list[Dim]) -> str:
        return dims.cpp(self.sizes.product(sizes))

    def groups(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The template's names for positions, and the base axes that each runs along."""
        space = self.space
        return (
            (self.style.outer, space.outer_axes),
            ("l", space.row_axes),
            ("middle", space.middle_axes),
            ("inner", space.inner_axes),
        )

    def terms(self, order: list[int]) -> list[tuple[str, str]]:
        """C++ terms of the offset into a contiguous tensor whose axes are these base axes, in this order.

        Each with the name of the position that it is over.
        """
        shape = self.space.shape
        terms: list[tuple[str, str]] = []
        groups = self.groups()
        done: set[int] = set()
        for position, axis in enumerate(order):
            if axis in done:
                continue
            name, group = next((name, group) for name, group in groups if axis in group)
            whole = [a for a in group if shape[a] != 1]
            if order[position : position + len(whole)] == whole:  # the whole group at once: its own coordinate
                done.update(whole)
                stride = self.product([shape[a] for a in order[position + len(whole) :]])
                terms.append((name, name if stride == "1" else f"{name} * {factor(stride)}"))
                continue
            done.add(axis)
            after = [shape[a] for a in group if a > axis]
            split = any(shape[a] != 1 for a in group if a < axis)
            coordinate = self.coordinate(name, after, shape[axis] if split else None)
            stride = self.product([shape[a] for a in order[position + 1 :]])
            terms.append((name, f"({coordinate})" if stride == "1" else f"({coordinate}) * {factor(stride)}"))
        return terms

    def coordinate(self, name: str, after: list[Dim], size: Dim | None) -> str:
        """The position along one axis of a group; ``size`` is given when other axes of the group are before it."""
        step = self.product(after)
        text = name if step == "1" else f"{name} / {factor(step)}"
        return text if size is None else f"{text} % {factor(self.text(size))}"

    def by_outer(self, order: list[int]) -> bool:
        """Whether, in such a tensor, what has the same ``outer`` lies together."""
        outer = [axis for axis in self.space.outer_axes if self.space.shape[axis] != 1]
        return order[: len(outer)] == outer or not set(outer).intersection(order)

    def by_column(self, order: list[int]) -> bool:
        """Whether, in such a tensor, neighbours along the source's last axis have their own elements."""
        return any(set(order).intersection(axes) for axes in self.space.axes[self.space.source][-1:])
