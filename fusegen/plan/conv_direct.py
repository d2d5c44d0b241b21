"""Plans of convolutions whose groups are too narrow for tensor cores."""

from __future__ import annotations

from typing import Literal

from fusegen import inference
from fusegen.costs import contractions, direct, direct_shared, precision
from fusegen.ir import Graph
from fusegen.plan.conv_axes import axes_of, line_of
from fusegen.plan.details import ABSENT_AXIS, DirectConvPlan
from fusegen.plan.region import Region
from fusegen.plan.rowdraft import Style
from fusegen.plan.rowprogram import RowProgram
from fusegen.plan.rows import RowLowering
from fusegen.plan.types import KernelPlan
from fusegen.spaces.rowspace import RowSpace


class _Lowering(RowLowering):
    """Tensors laid out like the result are read as it is stored, several elements at once."""

    def vector(self, order: list[int], index: str) -> Literal["", "source", "row"]:
        return "source" if tuple(order) == self.space.base_axes(self.space.source) else ""

    def step(self, order: list[int]) -> str:
        """Within a row of the result, whose positions a thread need not find one by one."""
        space = self.space
        last = [axis for axis in space.axes[space.source][-1] if space.shape[axis] != 1]
        if len(last) != 1 or not set(order).intersection(space.inner_axes):
            return ""
        if last[0] not in order:
            return "0"
        return self.product([space.shape[axis] for axis in order[order.index(last[0]) + 1 :]])


class _LineLowering(_Lowering):
    """Rows are whole planes or volumes, along which operands of fewer axes are not at equal distances."""

    def step(self, order: list[int]) -> str:
        return ""


def _lower(region: Region, part: Graph, space: RowSpace, source: str, line: bool) -> RowProgram:
    output = region.outputs[0].replace(node=part.outputs[0])
    if contractions.reduces(part):  # every value of all channels of a position
        style = Style("{}[m]", "{}", outer="sample", moves_rows=True)
        return RowLowering(part, space, region.args, region.sizes, style, source).program((output,))
    style = Style("{}", "{}", outer="sample", moves_rows=True)
    lowering = _LineLowering if line else _Lowering
    return lowering(part, space, region.args, region.sizes, style, source).program((output,))


def detail_of(region: Region, part: Graph | None = None) -> DirectConvPlan:
    """Such a convolution and the elementwise chains around it, in ``part`` of a body. Raises ``NotFusable``."""
    parts = direct.split(part or region.body)
    conv = parts.conv
    x, w = (region.body.node(name) for name in conv.inputs)
    present = axes_of(region, parts.op, conv, x, w)
    if line := inference.is_line(parts.op, inference.kernel_size(w.type)):
        present = (line_of(region, x),)
    first, second, third = [*[ABSENT_AXIS] * (3 - len(present)), *present]
    inputs, outputs = inference.group_channels(parts.op, x.type, w.type)
    tiles = direct.region_tiles(region.body, conv)
    return DirectConvPlan(
        transposed=parts.op.transposed,
        rank=len(present),
        axes=(first, second, third),
        batch=region.sizes.local(x.type.shape[0]),
        groups=parts.op.groups,
        inputs=inputs,
        outputs=outputs,
        source=region.args[parts.before_space.source].name,
        weight=region.args[conv.inputs[1]].name,
        precise=not precision.allows_tf32(region.body, conv),
        tiles=tiles,
        chunk=direct_shared.weights_kept(tiles, inference.kernel_size(w.type), inputs, outputs),
        before=_lower(region, parts.before, parts.before_space, "v", line),
        after=_lower(region, parts.after, parts.after_space, "sum", line),
    )


def plan(region: Region, name: str, detail: DirectConvPlan | None = None) -> KernelPlan:
    """One kernel for such a convolution and what is around it."""
    detail = detail or detail_of(region)
    return region.plan(f"{name}_conv_direct", detail, tf32=None if detail.precise else "conv")
