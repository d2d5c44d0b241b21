"""A region on its way to a kernel plan: named arguments, bound sizes, its row program."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from fusegen.dims import Dim
from fusegen.ir import ConstOp, Graph, InputOp, Node, ParamOp, RegionOp
from fusegen.plan.details import Detail
from fusegen.plan.rowprogram import OutputArg, RowProgram, TensorArg
from fusegen.plan.rows import RowLowering, Style
from fusegen.plan.sizes import Sizes
from fusegen.plan.types import KernelPlan
from fusegen.printer import format_node
from fusegen.rowspace import RowSpace, analyze


class Region:
    """A region node with its kernel arguments named and its run-time sizes bound."""

    def __init__(self, graph: Graph, node: Node):
        assert isinstance(node.op, RegionOp)
        self.node, self.body = node, node.op.body
        counts = {"p": 0, "x": 0}
        self.args: dict[str, TensorArg] = {}
        for inside, outside in zip(self.body.inputs, node.inputs, strict=True):
            letter = "p" if isinstance(graph.node(outside).op, ParamOp) else "x"
            self.args[inside.name] = TensorArg(name=f"{letter}{counts[letter]}", node=outside, type=inside.type)
            counts[letter] += 1
        constants = (inside.op.value for inside in self.body.nodes if isinstance(inside.op, ConstOp))
        self.sizes = Sizes(tuple(self.args.values()), [value for value in constants if isinstance(value, str)])

    @cached_property
    def space(self) -> RowSpace:
        return analyze(self.body)

    @property
    def outputs(self) -> tuple[OutputArg, ...]:
        found = []
        for i, node in enumerate(map(self.body.node, self.body.outputs)):
            shape = tuple(map(self.sizes.local, node.type.shape))
            found.append(OutputArg(name=f"y{i}", node=node.name, dtype=node.type.dtype, shape=shape))
        return tuple(found)

    def product(self, axes: tuple[int, ...]) -> Dim:
        return self.sizes.product(self.space.shape[axis] for axis in axes)

    def lower(
        self, space: RowSpace, style: Style, source: str, lowering: type[RowLowering] = RowLowering
    ) -> RowProgram:
        return lowering(self.body, space, self.args, self.sizes, style, source).program(self.outputs)

    def plan(
        self,
        name: str,
        detail: Detail,
        *,
        hopper: Detail | None = None,
        counters: Dim | None = None,
        workspace: bool = False,
        tf32: Literal["conv", "matmul"] | None = None,
        only_hopper: bool = False,
        parts: tuple[KernelPlan, ...] = (),
        aligned: tuple[str, ...] = (),
    ) -> KernelPlan:
        args = tuple(self.args.values())
        return KernelPlan(
            name=name,
            node=self.node.name,
            args=args,
            bindings=tuple(self.sizes.bindings),
            checks=self.sizes.checks(args),
            outputs=self.outputs,
            given=tuple(self.sizes.given),
            detail=detail,
            hopper=hopper,
            computes=tuple(format_node(n) for n in self.body.nodes if not isinstance(n.op, InputOp)),
            counters=counters,
            workspace=workspace,
            tf32=tf32,
            only_hopper=only_hopper,
            parts=parts,
            aligned=aligned,
        )
