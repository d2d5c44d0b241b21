"""A region on its way to a kernel plan: named arguments, bound sizes, its row program."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from fusegen.dims import Dim
from fusegen.ir import (
    AdaptivePoolOp,
    ConstOp,
    Graph,
    InputOp,
    MatmulOp,
    Node,
    Op,
    ParamOp,
    PointwiseOp,
    ReduceOp,
    RegionOp,
    ReshapeOp,
)
from fusegen.plan import pooled
from fusegen.plan.details import Detail
from fusegen.plan.rowdraft import Style
from fusegen.plan.rowprogram import OutputArg, RowProgram, TensorArg
from fusegen.plan.rows import RowLowering
from fusegen.plan.sizes import Sizes
from fusegen.plan.types import KernelPlan
from fusegen.pointwise import DOUBLE
from fusegen.printer import format_node
from fusegen.spaces import channels, convreduce, poolrows, prologue
from fusegen.spaces.rowspace import RowSpace, analyze, analyze_rows

_KEEPS_SIZES = ("attention", "contraction", "gemm_views", "pointwise", "reduce_views", "row_reduce", "row_stream")
"""Templates all of whose sizes are those of their operands, or of views of these."""


def is_arithmetic(body: Graph, reductions: tuple[str, ...] = (), but: tuple[type[Op], ...] = ()) -> bool:
    """Whether ``body`` is made of what there is in double, of these reductions alone; ``but``: beside such ops."""
    return all(
        isinstance(node.op, (InputOp, ConstOp, ReshapeOp, *but))
        or (isinstance(node.op, PointwiseOp) and node.op.fn in DOUBLE)
        or (isinstance(node.op, ReduceOp) and node.op.fn in reductions)
        for node in body.nodes
    )


class Region:
    """A region node with its kernel arguments named and its run-time sizes bound."""

    def __init__(self, graph: Graph, node: Node):
        assert isinstance(node.op, RegionOp)
        self.graph, self.node, self.whole = graph, node, node.op.body
        self.before, self.body = None, self.whole
        if node.op.template == "contraction":
            self.before, self.body = prologue.split(self.whole)
        self.head, self.tail = self.body, None
        if node.op.template == "contraction":
            self.head, self.tail = channels.split(self.body)
        elif node.op.template == "conv_reduce":
            self.head = convreduce.split(self.body).before
        self.pooled = None
        if node.op.template.startswith("row") and poolrows.takes(self.body):
            self.pooled = poolrows.split(self.body)
            self.head = self.pooled.after
        counts = {"p": 0, "x": 0}
        self.args: dict[str, TensorArg] = {}
        for inside, outside in zip(self.whole.inputs, node.inputs, strict=True):
            letter = "p" if isinstance(graph.node(outside).op, ParamOp) else "x"
            self.args[inside.name] = TensorArg(name=f"{letter}{counts[letter]}", node=outside, type=inside.type)
            counts[letter] += 1
        others: list[Dim] = [
            n.op.value for n in self.whole.nodes if isinstance(n.op, ConstOp) and isinstance(n.op.value, str)
        ]
        others += [size for n in self.whole.nodes if isinstance(n.op, AdaptivePoolOp) for size in n.op.size]
        if node.op.template in _KEEPS_SIZES and not self.pooled:  # a product of which may be an axis of its operand
            others += [size for inside in self.body.nodes for size in inside.type.shape]
        self.operands = tuple(self.args.values())
        self.sizes = Sizes(self.operands, others)
        if self.before:  # who reads the data reads what the chain before it is of
            self.args[self.before.outputs[0]] = self.args[prologue.source(self.before).name]
        if self.pooled:
            pooled.define(self.pooled, self.sizes)

    @cached_property
    def space(self) -> RowSpace:
        if self.pooled:
            return self.pooled.space
        rows = self.node.op
        return (analyze_rows if isinstance(rows, RegionOp) and rows.template.startswith("row") else analyze)(self.head)

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
        outputs = tuple(output for output in self.outputs if output.node in self.head.outputs)
        if not outputs:  # what follows from it is stored
            outputs = (self.outputs[0].replace(node=self.head.outputs[0]),)
        rows = lowering(self.head, space, self.args, self.sizes, style, source)
        if self.pooled:
            rows.values[space.source] = pooled.element(rows, self.pooled)
        return rows.program(outputs)

    def lower_part(self, part: Graph, space: RowSpace, source: str, style: Style) -> RowProgram:
        """A part of the body that has one result, over ``source``, its data's name in the template."""
        output = self.outputs[0].replace(node=part.outputs[0])
        return RowLowering(part, space, self.args, self.sizes, style, source).program((output,))

    def lower_before(self, head: Node) -> RowProgram | None:
        """What happens to every value of the data of ``head`` before its products, ``v`` in the template."""
        if self.before is None:
            return None
        return self.lower_part(self.before, prologue.space(self.before, head), "v", Style("{}", "{}"))

    def lower_tail(self, statistics: dict[str, str]) -> RowProgram:
        """What follows from the ``statistics`` of a row, which the template knows by these names."""
        assert self.tail is not None
        nodes = [self.tail.node(name) for name in statistics]
        args = self.args | {n.name: TensorArg(name=statistics[n.name], node=n.name, type=n.type) for n in nodes}
        outputs = tuple(output for output in self.outputs if output.node in self.tail.outputs)
        style = Style("{}", "{}", outer="row")
        space = analyze(self.tail, nodes[0].name)
        return RowLowering(self.tail, space, args, self.sizes, style, statistics[nodes[0].name]).program(outputs)

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
        args = self.operands
        precise = any(isinstance(node.op, MatmulOp) and node.op.precise for node in self.whole.nodes)
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
            computes=tuple(format_node(n) for n in self.whole.nodes if not isinstance(n.op, InputOp)),
            counters=counters,
            workspace=workspace,
            tf32="never" if tf32 == "matmul" and precise else tf32,
            only_hopper=only_hopper,
            parts=parts,
            aligned=aligned,
        )
