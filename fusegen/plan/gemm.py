"""Plans of matrix products: on tensor cores, or in plain fp32 where memory or latency bounds them."""

from __future__ import annotations

import re
from math import prod
from typing import Literal, TypedDict

from fusegen import dims
from fusegen.costs import contractions, gemm, matmul_tiling, narrow, simt, tensor_gemm
from fusegen.dims import Dim
from fusegen.ir import HALVES, MatmulOp, Node, PointwiseOp, ReshapeOp, TriangleOp
from fusegen.plan.details import ContractionPlan, GemmPlan, HalfGemmPlan, NarrowPlan, SimtGemmPlan, Triangle
from fusegen.plan.region import Region, is_arithmetic
from fusegen.plan.rowdraft import Style, indexed
from fusegen.plan.rowprogram import RowProgram
from fusegen.plan.rows import RowLowering
from fusegen.plan.types import KernelPlan
from fusegen.spaces.rowspace import feature_axes, feature_axis, with_rows
from fusegen.tuning import choose

_CUT_TILES = 512  # counters: fewer tiles than this are ever cut, two for each cluster


class _FeatureLowering(RowLowering):
    """Knows operands that vary with the feature alone: a block reads them once for all of its rows."""

    def vector(self, order: list[int], index: str) -> Literal["", "source", "row"]:
        return "row" if tuple(order) == feature_axes(self.space, self.body.node(self.space.source)) else ""


class _BatchLowering(_FeatureLowering):
    """Knows the matrix of a batch that a row is of, and its line there: a tile is of one matrix."""

    def coordinate(self, name: str, after: list[Dim], size: Dim | None) -> str:
        node = self.body.node(self.space.source)
        lines = list(gemm.factors(self.body, node).lines)
        count = len(node.type.shape) - 1 - len(lines)
        if name != self.style.outer or not count:
            return super().coordinate(name, after, size)
        if not after and size == dims.product(lines):
            return "line"
        if after[-len(lines) :] != lines:
            return super().coordinate(name, after, size)
        return super().coordinate("matrix", after[: -len(lines)], size)


def _triangle(region: Region, node: Node) -> Triangle | None:
    """The part of the product ``node`` that its kernel keeps, if it drops one before anything else reads it."""
    body, axes, name = region.body, region.space.axes, node.name
    if region.space.row_axes or len(gemm.factors(body, node).lines) != 1:
        return None
    while name not in body.outputs and len(readers := set(body.users[name])) == 1:
        (name,) = readers
        match body.node(name).op:
            case TriangleOp(upper=upper, diagonal=diagonal):
                same = axes[name][-2:] == axes[node.name][-2:]
                return Triangle(upper=upper, diagonal=diagonal) if same else None
            case PointwiseOp() | ReshapeOp():
                continue
            case _:
                break
    return None


_PLACES = frozenset({"outer", "line", "l", "place", "row"})
"""What the texts of a kernel call a result's places in its matrix."""


def _symmetric(region: Region, node: Node, rows: RowProgram) -> Triangle | None:
    """The half of a product of data by itself that is computed, if what follows is the same on either side."""
    assert isinstance(node.op, MatmulOp)
    itself = node.inputs[0] == node.inputs[1] and node.op.transposed != node.op.left_transposed
    if not itself or len(node.inputs) > 2 or region.before is not None or region.space.row_axes:
        return None
    texts = [operand.index for operand in rows.operands]
    texts += [statement.expr for phase in rows.phases for statement in (*phase.elements, *phase.scalars)]
    apart = any(operand.per_element for operand in rows.operands)
    stores = [store.per_element and store.like_source for store in rows.stores]
    if apart or stores != [True] or _PLACES.intersection(re.findall(r"\w+", " ".join(texts))):
        return None
    return Triangle(upper=True, diagonal=0, mirrored=True)


def portable(region: Region, alone: bool = False) -> ContractionPlan:
    """The product on the tensor cores of any device from sm_80 on. ``alone``: no other kernel computes it on any."""
    node = region.body.node(region.space.source)
    assert isinstance(node.op, MatmulOp)
    x, w = (region.body.node(operand) for operand in node.inputs)
    outputs, batched = int(node.type.shape[-1]), w.type.rank > 2
    tiles = matmul_tiling.matmul_tilings(outputs, bool(region.space.row_axes))
    return ContractionPlan(
        head="matmul",
        source=region.args[x.name].name,
        weight=region.args[w.name].name,
        weight_transposed=node.op.transposed,
        weight_batched=batched,
        batch=region.sizes.product(x.type.shape[:-2]) if batched else 1,
        height=region.sizes.product(x.type.shape[-2:-1] if batched else x.type.shape[:-1]),
        inputs=int(x.type.shape[-1]),
        outputs=outputs,
        products=choose(f"{node.name} tile", tiles) if alone else next(iter(tiles.values())),
        before=region.lower_before(node),
        rows=region.lower(with_rows(region.space, (feature_axis(node),)), Style("{}[j]", "{}"), "v"),
    )


class _Factors(TypedDict):
    """What plans of batched products have in common."""

    source: str
    weight: str
    weight_transposed: bool
    weight_batched: bool
    height: Dim
    lines: Dim
    inputs: Dim
    outputs: Dim


def _factors(region: Region, node: Node) -> _Factors:
    assert isinstance(node.op, MatmulOp)
    x, w = (region.body.node(operand) for operand in node.inputs)
    factors = gemm.factors(region.body, node)
    height, lines = region.sizes.product(node.type.shape[:-1]), region.sizes.product(factors.lines)
    return {
        "source": region.args[x.name].name,
        "weight": region.args[w.name].name,
        "weight_transposed": node.op.transposed,
        "weight_batched": w.type.rank > 2 and lines != height,
        "height": height,
        "lines": lines,
        "inputs": region.sizes.local(factors.inputs),
        "outputs": region.sizes.local(factors.outputs),
    }


_FEW_PRODUCTS = 1 << 20
"""Products of a matrix product that are added up in double in less than the time of a launch. What follows may leave
little of a sum: a softmax of variances, the power of a product."""


def _simt(region: Region, node: Node, name: str) -> KernelPlan:
    assert isinstance(node.op, MatmulOp)
    factors = gemm.factors(region.body, node)
    matrices, sizes = factors.traced(region.body)
    space = with_rows(region.space, feature_axes(region.space, node))
    transposed, fixed = node.op.transposed, isinstance(dims.product(factors.lines), int)
    whole = simt.row_layout(sizes, matrices, transposed) if region.space.row_axes else None
    layout = whole or simt.layout(sizes, matrices, transposed, fixed)
    few = matrices * prod(sizes) <= _FEW_PRODUCTS
    double = few and layout.blocks <= 1 and is_arithmetic(region.body, ("sum", "mean", "var", "prod"), but=(MatmulOp,))
    detail = SimtGemmPlan(
        **_factors(region, node),
        widths=layout.widths,
        features=layout.features,
        own=layout.own,
        parts=layout.parts,
        steps=layout.ahead,
        blocks=layout.blocks,
        few=few,
        double=double,
        rows=region.lower(space, Style("{}[j]" if whole else "{}", "{}", double=double), "v"),
    )
    return region.plan(f"{name}_gemm_simt", detail)


def plan(region: Region, name: str) -> KernelPlan:
    """One kernel for a matrix product and what follows it; rows run along its features."""
    node = region.body.node(region.space.source)
    assert isinstance(node.op, MatmulOp)
    x, w = (region.body.node(operand) for operand in node.inputs)
    factors = gemm.factors(region.body, node)
    height = region.sizes.product(node.type.shape[:-1])
    space = with_rows(region.space, feature_axes(region.space, node))
    if node.type.dtype in HALVES:
        inputs, outputs = int(factors.inputs), int(factors.outputs)
        source, weight = region.args[x.name].name, region.args[w.name].name
        half = HalfGemmPlan(
            source=source,
            weight=weight,
            weight_transposed=node.op.transposed,
            height=height,
            inputs=inputs,
            outputs=outputs,
            dtype=node.type.dtype,
            rows=region.lower(space, Style("{}", "{}", quick=True), "v"),
        )
        return region.plan(f"{name}_gemm_half_sm90", half, only_hopper=True, aligned=(source, weight))
    if gemm.streams(region.body, region.space, node):
        inputs, outputs = int(factors.inputs), int(factors.outputs)
        layout = narrow.layout(inputs, outputs)
        assert layout is not None
        found = NarrowPlan(
            source=region.args[x.name].name,
            weight=region.args[w.name].name,
            weight_transposed=node.op.transposed,
            height=height,
            inputs=inputs,
            outputs=outputs,
            rows_at_once=layout.rows,
            warps=layout.warps,
            resident=layout.resident,
            rows=region.lower(space, Style("{}[j]", "{}"), "v"),
        )
        return region.plan(f"{name}_linear_narrow", found, only_hopper=not layout.portable)
    form = gemm.form(region.body, region.space, node)
    if form == "simt":
        return _simt(region, node, name)
    group = gemm.group(region.space, node)
    alone = form != "prepared"  # one kernel
    if form == "in place":
        widths = instructions = choose(f"{node.name} tile", gemm.in_place_rows(region.body, node))
    elif form == "streamed":
        _, (lines, _, _) = factors.traced(region.body)
        widths = instructions = (tensor_gemm.streamed_rows(lines),)
    elif form == "outer":
        widths = instructions = (tensor_gemm.OUTER_ROWS,)
    elif form == "short":
        widths = instructions = (tensor_gemm.FEATURES,)
    else:
        matrices, sizes = factors.traced(region.body)
        widths = choose(f"{node.name} tile", tensor_gemm.tiles(*sizes, matrices))
        instructions = tuple(sorted({columns for width in widths for columns in (width, width // 2)}))
    style = Style(indexed("i", factors.outputs), "{}", moves_rows=True, parts=True)
    rows = region.lower(region.space if group else space, style, "v", _FeatureLowering if group else _BatchLowering)
    one_by_one = form in ("in place", "short", "outer")  # a block computes whole sums
    symmetric = None if one_by_one or group else _symmetric(region, node, rows)
    detail = GemmPlan(
        **_factors(region, node),
        before=region.lower_before(node),
        source_transposed=node.op.left_transposed,
        form=form,
        beside=form == "in place" and gemm.finishes_beside(region.body, node),
        cluster=1 if alone else tensor_gemm.cluster(dims.evaluate(factors.outputs, region.body.sizes)),
        widths=widths,
        instructions=instructions,
        summed=node.op.summed,
        averaged=node.op.averaged,
        group=group,
        triangle=None if form in ("short", "outer") else _triangle(region, node) or symmetric,
        rows=rows,
    )
    counters, workspace = (None, False) if one_by_one else (dims.add(height, _CUT_TILES), True)
    if contractions.not_portable(region.body, region.space, node):
        return region.plan(
            f"{name}_gemm_sm90", detail, counters=counters, workspace=workspace, tf32="matmul", only_hopper=True
        )
    workspace = workspace or region.before is not None  # for what the portable kernel's products are of
    return region.plan(
        f"{name}_gemm", portable(region), hopper=detail, counters=counters, workspace=workspace, tf32="matmul"
    )
