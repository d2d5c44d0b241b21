"""Where a kernel of rows finds an element: offsets into tensors, over the template's names for positions."""

from __future__ import annotations

from dataclasses import dataclass

from fusegen import dims
from fusegen.dims import Dim, Dims
from fusegen.ir import GatherElementsOp, Graph, Node
from fusegen.plan.rowdraft import Style, factor, fetched_place, total
from fusegen.plan.rowprogram import TensorArg
from fusegen.plan.sizes import Sizes
from fusegen.spaces.parts import Fetched, Part, root_of, uncut
from fusegen.spaces.rowspace import AxisMap, RowSpace


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

    def axes_of(self, node: Node, axes: AxisMap) -> list[int]:
        """The base axes of a ``node`` mapped to ``axes``, without those of one element."""
        return [axis for bases, size in zip(axes, node.type.shape, strict=True) if size != 1 for axis in bases]

    def part_terms(self, node: Node, part: Part, axes: AxisMap) -> tuple[list[tuple[str, str]], tuple[Dim, ...]]:
        """C++ terms of the offset into the operand that ``node``, mapped to ``axes``, is a ``part`` of, the first being
        where it starts; and all distances but those of neighbours, which are whole accesses if accesses are to be.
        """
        shape, order, strides = self.space.shape, list[int](), list[Dim]()
        whole: Dims = part.whole.type.shape
        own_axes = list(enumerate(range(node.type.rank)))  # of the operand, and of the node
        if (named := part.named) is not None:
            behind = 0 if isinstance(named.op, GatherElementsOp) else named.index.type.rank - 1
            own_axes = [(a, a if a < named.op.axis else a + behind) for a in range(len(whole)) if a != named.op.axis]
        start: Dim = 0
        for axis, own in own_axes:
            start = dims.add(start, self.sizes.product([part.starts[axis], *whole[axis + 1 :]]))
            if node.type.shape[own] == 1:
                continue
            bases = [base for base in axes[own] if shape[base] != 1]
            order += bases
            strides += [
                self.sizes.product([*(shape[base] for base in bases[i + 1 :]), *whole[axis + 1 :]])
                for i in range(len(bases))
            ]
        terms = [("", dims.cpp(start))] if start != 0 else []
        apart = [stride for i, stride in enumerate(strides) if not self.follows(order, strides, i)]
        if named is not None:
            apart.append(self.sizes.product(whole[named.op.axis + 1 :]))
            name, text = self.fetched(named, whole[named.op.axis], axes)
            terms.append((name, text if apart[-1] == 1 else f"{text} * {factor(dims.cpp(apart[-1]))}"))
        terms += self.terms(order, strides)
        return terms, tuple(size for size in (start, *apart) if size not in (0, 1))

    def fetched(self, named: Fetched, size: Dim, axes: AxisMap) -> tuple[str, str]:
        """C++ of the place along an axis of ``size`` that an index names, and the position that it is over."""
        op, index = named.op, named.index
        own = axes if isinstance(op, GatherElementsOp) else axes[op.axis : op.axis + index.type.rank]
        numbers, starts = uncut(index, self.body.by_name)
        terms = self.terms(self.axes_of(index, own))
        if numbers is not index:
            terms, _ = self.part_terms(index, Part(numbers, starts), own)
        names = [name for name, _ in terms] or [""]
        arg = self.args[root_of(numbers, self.body.by_name).name]
        text = fetched_place(f"args.{arg.name}", total(text for _, text in terms), self.text(size), op)
        return "l" if "l" in names else names[-1], text

    def follows(self, order: list[int], strides: list[Dim], i: int) -> bool:
        """Whether what is ``strides[i]`` apart are runs of what the next axis of the same group has, one by one."""
        if i + 1 == len(order) or all(not {order[i], order[i + 1]} <= set(group) for _, group in self.groups()):
            return False
        return strides[i] == dims.mul(strides[i + 1], self.sizes.local(self.space.shape[order[i + 1]]))

    def terms(self, order: list[int], strides: list[Dim] | None = None) -> list[tuple[str, str]]:
        """C++ terms of the offset into a contiguous tensor whose axes are these base axes, in this order; or into one
        where neighbours along them are ``strides`` (over binding names) apart.

        Each with the name of the position that it is over.
        """
        shape = self.space.shape

        def stride_of(i: int) -> str:
            return self.product([shape[a] for a in order[i + 1 :]]) if strides is None else dims.cpp(strides[i])

        def lies_together(first: int, last: int) -> bool:
            return not strides or all(self.follows(order, strides, i) for i in range(first, last))

        terms: list[tuple[str, str]] = []
        groups = self.groups()
        done: set[int] = set()
        for position, axis in enumerate(order):
            if axis in done:
                continue
            name, group = next((name, group) for name, group in groups if axis in group)
            whole = [a for a in group if shape[a] != 1]
            run = whole[whole.index(axis) :]  # of the group's axes, as many as lie together
            while run != order[position : position + len(run)] or not lies_together(position, position + len(run) - 1):
                run.pop()
            done.update(run)
            stride, coordinate = stride_of(position + len(run) - 1), name
            if run != whole:
                after = [shape[a] for a in group if a > run[-1]]
                size = dims.product(shape[a] for a in run) if run[0] != whole[0] else None
                coordinate = f"({self.coordinate(name, after, size)})"
            terms.append((name, coordinate if stride == "1" else f"{coordinate} * {factor(stride)}"))
        return terms

    def position_along(self, axes: tuple[int, ...]) -> str:
        """The position along an axis of a value that is made of these base axes."""
        return total(text for _, text in self.terms(list(axes)))

    def coordinate(self, name: str, after: list[Dim], size: Dim | None) -> str:
        """The position along neighbouring axes of a group; ``size``: of all of them, when others are before them."""
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
