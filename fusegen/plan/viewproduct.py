"""Plans matrix products whose factors are computed as they are read, from behind views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

from fusegen import dims
from fusegen.costs import viewproduct as costs
from fusegen.ir import Graph, Node
from fusegen.machines import MACHINES
from fusegen.plan.details import FactorElement, ViewProductPlan
from fusegen.plan.region import Region
from fusegen.plan.rowdraft import Style, Value
from fusegen.plan.rowprogram import OutputArg, Store
from fusegen.plan.types import KernelPlan
from fusegen.plan.views import ViewLowering
from fusegen.spaces import placement, viewproduct, viewspace
from fusegen.spaces.placement import Joined, Places
from fusegen.spaces.rowspace import RowSpace
from fusegen.tuning import choose


@dataclass
class ElementLowering(ViewLowering):
    """Statements for an element of each node of ``wanted``, at its places, over C++ of the nodes that are ``given``."""

    from_anywhere: ClassVar[bool] = False
    pointer: ClassVar[str] = "args.{}"
    wanted: Mapping[str, Places] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, region: Region, body: Graph, wanted: Mapping[str, Places], given: Mapping[str, str]) -> Self:
        """For a kernel of ``region``."""
        first = body.node(next(iter(wanted)))
        space = RowSpace(first.type.shape, first.name, (), {})
        lowering = cls(body, space, region.args, region.sizes, Style("{}", "{}"), "v")
        lowering.wanted, lowering.given = wanted, given
        return lowering

    def lower(self) -> None:
        for name, places in self.wanted.items():
            self.values[name] = self.element(name, places, "")

    def compute(self, node: Node, places: Places, guard: str) -> Value:
        if (text := self.given.get(node.name)) is not None:
            return Value(text, True, 0, literal=text)
        return super().compute(node, places, guard)

    def store(self, output: OutputArg) -> Store:
        strides = placement.row_major(self.body.node(output.node).type.shape)
        index = self.offset(self.joined(zip(self.wanted[output.node], strides, strict=True))) or "0"
        value = self.reference(self.values[output.node])
        return Store(output=output.name, value=value, index=index, per_element=True)

    def lanes(self, side: str) -> Literal["k", "side"]:
        """Along which numbers most operands have neighbours: those of terms, or of rows or columns."""
        along = self.neighbours(side)
        return "side" if along[side] > along[viewproduct.TERM] else "k"

    def neighbours(self, side: str) -> dict[str, int]:
        """Elements of operands that are neighbours where numbers of terms are, or of rows or columns."""
        along = {viewproduct.TERM: 0, side: 0}
        for operand in self.operands.values():
            node = next(node for node, arg in self.args.items() if arg.name == operand.arg)
            for digit, stride in self.moving(self.digits[operand.name]):
                if stride == digit.stride == 1 and isinstance(digit.of, str) and digit.of in along:
                    along[digit.of] += dims.numel(self.body.node(node).type.shape, self.body.sizes)
        return along

    def near(self) -> tuple[str, ...]:
        """Operands whose neighbours are those of the column, whatever column it is."""
        found = []
        for operand in self.operands.values():
            joined = self.digits[operand.name]
            steps = [(d, step) for d, step in self.moving(joined) if d.of == viewproduct.COLUMN]
            alone = len(steps) == 1 and steps[0][0].stride == steps[0][1] == 1 and steps[0][0].size == steps[0][0].total
            if alone and not operand.guard and self.mentions(joined, viewproduct.COLUMN) == 1:
                found.append(operand.name)
        return tuple(found)

    def mentions(self, joined: Joined, number: str) -> int:
        """How many digits of a place are of ``number``."""
        inside = [self.joined(digit.of.terms) for digit, _ in joined if not isinstance(digit.of, str)]
        return sum(digit.of == number for digit, _ in joined) + sum(self.mentions(own, number) for own in inside)


def factor_element(
    region: Region, body: Graph, factor: Node, places: Places, side: str, head: str = ""
) -> FactorElement:
    """An element of ``factor``, computed as it is read; ``v`` is the result of the product ``head``, if it needs it."""
    lowering = ElementLowering.of(region, body, {factor.name: places}, {head: "v"})
    rows = lowering.program((region.outputs[0].replace(node=factor.name),))
    return FactorElement(
        rows=rows.replace(stores=()), value=rows.stores[0].value, lanes=lowering.lanes(side), near=lowering.near()
    )


def plan(region: Region, name: str) -> KernelPlan:
    """One launch for a product, what its factors are made of, and what follows it."""
    found = viewproduct.check(region.body)
    result = region.body.node(region.body.outputs[0])
    epilogue = ElementLowering.of(region, region.body, {result.name: found.result}, {found.head.name: "v"})
    shapes = [*(node.type.shape for node in region.body.inputs), result.type.shape, *viewspace.numbered(region.body)]
    detail = ViewProductPlan(
        matrices=region.sizes.product(found.matrices),
        lines=region.sizes.product(found.lines),
        inputs=region.sizes.local(found.inputs),
        outputs=region.sizes.local(found.outputs),
        tile=choose(f"{found.head.name} tile", costs.tiles(region.body, found, MACHINES["sm_90"])),
        left=factor_element(region, region.body, found.left, found.left_places, viewproduct.ROW),
        right=factor_element(region, region.body, found.right, found.right_places, viewproduct.COLUMN),
        rows=epilogue.program(region.outputs),
        reach=tuple(dict.fromkeys(region.sizes.product(shape) for shape in shapes)),
    )
    return region.plan(f"{name}_gemm_views", detail)
