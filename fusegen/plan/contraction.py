"""Plans of contractions: convolutions, transposed convolutions and matrix products with an epilogue."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod

from fusegen import inference
from fusegen.costs import contractions, direct, hopper, precision, tiling
from fusegen.ir import ConvOp, Node, ReduceOp, RegionOp
from fusegen.machines import machine
from fusegen.plan import conv_direct, conv_sm90, gemm
from fusegen.plan.conv_axes import axes_of, line_of
from fusegen.plan.conv_window import Pooling
from fusegen.plan.details import (
    ABSENT_AXIS,
    ContractionAxis,
    ContractionPlan,
    DirectConvPlan,
    HopperConvPlan,
    PlainConvPlan,
    PositionResult,
    StatisticsPlan,
)
from fusegen.plan.region import Region, is_arithmetic
from fusegen.plan.rowdraft import Style
from fusegen.plan.rowprogram import RowProgram
from fusegen.plan.types import KernelPlan
from fusegen.spaces import channels, convreduce
from fusegen.spaces.rowspace import feature_axis, with_rows
from fusegen.tuning import choose, faster


def _statistics(region: Region, node: Node) -> StatisticsPlan | None:
    """What the kernel finds of every channel, or of every sample's groups of them, beside its result."""
    rows = channels.rows(region.body)
    if region.tail is None or rows is None:
        return None
    names = {"mean": "mean", "var": "variance"}
    given = {n.name: names[n.op.fn] for n in region.body.nodes if isinstance(n.op, ReduceOp)}
    return StatisticsPlan(
        channels=int(node.type.shape[1]),
        groups=int(node.type.shape[1]) // rows.channels if rows.of_sample else 0,
        positions=region.sizes.product(node.type.shape[2:]),
        variance="variance" in given.values(),
        rows=region.lower_tail(given),
    )


def _reduced(region: Region) -> tuple[PositionResult, ...]:
    """What the kernel gives in place of its result."""
    assert isinstance(region.node.op, RegionOp)
    if region.node.op.template != "conv_reduce":
        return ()
    results = convreduce.split(region.body).results
    return tuple(PositionResult(fn=results[output.node], output=output.name) for output in region.outputs)


def hopper_conv(
    region: Region,
    node: Node,
    axes: tuple[ContractionAxis, ...],
    lower: Callable[[bool], RowProgram],
    *,
    reduces: bool = False,
    pooling: Pooling | None = None,
    statistics: StatisticsPlan | None = None,
    reduced: tuple[PositionResult, ...] = (),
    streamed: int = 0,
) -> HopperConvPlan | str:
    """The plan for Hopper's asynchronous tensor cores, or why there is none (``conv_sm90.plan``)."""
    assert isinstance(node.op, ConvOp)
    x, w = (region.body.node(operand) for operand in node.inputs)
    traced = tuple(zip(region.body.shape(x.name)[2:], region.body.shape(node.name)[2:], strict=True))
    if not pooling and inference.is_line(node.op, inference.kernel_size(w.type)):
        axes, traced = (line_of(region, x),), ((prod(size for size, _ in traced),) * 2,)
    operands = conv_sm90.Operands(
        node.name,
        region.args[x.name].name,
        region.args[w.name].name,
        region.sizes.local(x.type.shape[0]),
        region.body.shape(x.name)[0],
    )
    in_and_out = inference.conv_channels(node.op, x.type, w.type)
    precise = not precision.allows_tf32(region.body, node)
    rates = machine("sm_90")
    windows = pooling.windows if pooling else None
    in_halves = not precise and hopper.pays_in_halves(region.body, node, windows, rates)
    if pooling:
        in_place = not precise and hopper.pools_in_place(region.body, node, pooling.windows, rates)
    else:
        in_place = not precise and hopper.reads_in_place(region.body, node, rates)

    conv = node.op

    def made(operands: conv_sm90.Operands, precise: bool, in_place: bool, in_halves: bool) -> HopperConvPlan | str:
        return conv_sm90.plan(
            conv,
            axes,
            traced,
            in_and_out,
            reduces,
            lower,
            operands,
            precise,
            pooling,
            statistics,
            reduced,
            in_place,
            streamed,
            in_halves,
        )

    found = made(operands, precise, in_place and not in_halves, in_halves)
    if isinstance(found, str) or precise or not contractions.fp32_pays(region.body, node, reduces, rates):
        return found
    in_fp32 = made(operands._replace(node=f"{node.name} in fp32"), True, False, False)
    return found if isinstance(in_fp32, str) else found.replace(in_fp32=in_fp32)


def portable_conv(
    region: Region,
    node: Node,
    axes: tuple[ContractionAxis, ...],
    rows: RowProgram,
    whole: bool = False,
    alone: bool = False,
    merge: bool = False,
    stored: bool = False,
    swept: tuple[bool, bool, bool] = (False, False, False),
    reduced: bool = False,
) -> ContractionPlan:
    """A convolution by mma.sync, with ``rows`` after it; ``whole``: a block has all channels of its positions.

    ``alone``: no other kernel computes it on any device. ``merge``: as in ``Structure``. ``stored``: nothing is
    reduced, so tiles may be smaller where positions are few. ``swept``, ``reduced``: as in ``Structure``.
    """
    assert isinstance(node.op, ConvOp)
    x, w = (region.body.node(operand) for operand in node.inputs)
    inputs, outputs = inference.conv_channels(node.op, x.type, w.type)
    samples, _, *lengths = region.body.shape(node.name)
    positions = samples * node.op.groups * prod(lengths) if stored else None
    of_group = inference.group_channels(node.op, x.type, w.type)
    kernel = inference.kernel_size(w.type)
    structure = tiling.Structure(node.op, kernel, *of_group, whole, merge, positions, swept, reduced)
    return ContractionPlan(
        head="conv_transpose" if node.op.transposed else "conv",
        source=region.args[x.name].name,
        weight=region.args[w.name].name,
        batch=region.sizes.local(x.type.shape[0]),
        inputs=inputs,
        outputs=outputs,
        groups=node.op.groups,
        axes=axes,
        tiling=choose(f"{node.name} tile", tiling.conv_tilings(structure)) if alone else tiling.tile_conv(structure),
        precise=not precision.allows_tf32(region.body, node),
        rows=rows,
    )


def _is_slower(region: Region, node: Node, whole: bool) -> bool:
    """Whether Hopper's asynchronous tensor cores are expected to take longer than the portable kernel."""
    asynchronous, portable = contractions.tensor_core_seconds(region.body, node, whole, machine("sm_90"), finished=True)
    if inf in (asynchronous, portable):
        return False
    answers = {"asynchronous": (False, asynchronous), "portable": (True, portable)}
    return faster(f"{node.name} kernel", answers)


def _is_plain(region: Region, node: Node) -> bool:
    """Whether one launch in plain fp32 is expected to take less time than tensor cores and what they prepare."""
    rates, body = machine("sm_90"), region.body
    plain = contractions.plain_seconds(body, node, False, rates)
    if plain == inf:
        return False
    portable = contractions.portable_seconds(body, node, False, rates) + rates.launch  # for its packed weights
    tensor = min(portable, contractions.asynchronous_seconds(body, node, rates))
    return faster(f"{node.name} on", {"tensor cores": (False, tensor), "plain fp32": (True, plain)})


def _streamed(rows: RowProgram) -> int:
    """Operands that differ along channels and otherwise, where results are finished one by one and lie as its own.

    None if one of them does not lie sample by sample: distances within it are of 32 bits.
    """
    (store, *_) = rows.stores
    if any(phase.reductions for phase in rows.phases) or not (store.per_element and store.like_source):
        return 0
    apart = [operand for operand in rows.operands if operand.per_element and operand.index != "l"]
    return len(apart) if all(operand.by_outer for operand in apart) else 0


def _plain(region: Region, name: str, node: Node, axes: tuple[ContractionAxis, ...]) -> KernelPlan:
    assert isinstance(node.op, ConvOp)
    x, w = (region.body.node(operand) for operand in node.inputs)
    inputs, outputs = inference.conv_channels(node.op, x.type, w.type)
    first, second, third = [*[ABSENT_AXIS] * (3 - node.op.rank), *axes]
    double = is_arithmetic(region.body, but=(ConvOp,))
    detail = PlainConvPlan(
        transposed=node.op.transposed,
        axes=(first, second, third),
        batch=region.sizes.local(x.type.shape[0]),
        groups=node.op.groups,
        inputs=inputs,
        outputs=outputs,
        source=region.args[x.name].name,
        weight=region.args[w.name].name,
        double=double,
        rows=region.lower(with_rows(region.space, (feature_axis(node),)), Style("{}", "{}", double=double), "v"),
    )
    return region.plan(f"{name}_conv_plain", detail)


def _with_before(detail: HopperConvPlan, before: RowProgram) -> HopperConvPlan:
    """``detail`` and its kernel in fp32 with a chain before their products."""
    beside = detail.in_fp32
    assert detail.alternative is None  # which reads its input as it lies
    assert not isinstance(beside, DirectConvPlan)
    return detail.replace(before=before, in_fp32=beside and beside.replace(before=before))


def plan(region: Region, name: str, portable: bool = False) -> KernelPlan:
    """One kernel for a contraction and what follows it; rows run along its channels (features).

    ``portable``: without the one that needs Hopper's tensor cores.
    """
    node = region.body.node(region.space.source)
    if contractions.fits_gemm(region.body, region.space, node):
        return gemm.plan(region, name)
    if not isinstance(node.op, ConvOp):
        return region.plan(f"{name}_contraction", gemm.portable(region, alone=True), tf32="matmul")
    axes = axes_of(region, node.op, node, *map(region.body.node, node.inputs))
    space = with_rows(region.space, (feature_axis(node),))
    statistics, reduced = _statistics(region, node), _reduced(region)
    rows = region.lower(space, Style("{}" if reduced else "{}[j]", "{}"), "v")
    whole = any(phase.reductions for phase in rows.phases)
    stored = not (statistics or reduced or whole)
    if not portable and stored and not region.before and _is_plain(region, node):
        return _plain(region, name, node, axes)
    slower = not portable and not statistics and _is_slower(region, node, whole)
    streamed = 0 if statistics or reduced else _streamed(rows)

    def lower(split: bool) -> RowProgram:
        if streamed:
            return region.lower(space, Style("{}", "{}", moves_rows=True, quick=True), "result")
        return region.lower(space, Style("{}[i][j]", "{}[i]", moves_rows=True, quick=True, split=split), "v")

    asynchronous: HopperConvPlan | str | None = None
    if not portable and not slower:
        reduces = bool(region.space.row_axes)
        asynchronous = hopper_conv(
            region,
            node,
            axes,
            lower,
            reduces=reduces,
            statistics=statistics,
            reduced=reduced,
            streamed=streamed,
        )
    hopper_plan = None if isinstance(asynchronous, str) else asynchronous
    before = region.lower_before(node)
    if hopper_plan and before:
        hopper_plan = _with_before(hopper_plan, before)
    if hopper_plan and stored and not before and direct.pays_in_fp32(region.body, node, machine("sm_90")):
        hopper_plan = hopper_plan.replace(in_fp32=conv_direct.detail_of(region).replace(precise=True))
    alone = not portable and hopper_plan is None
    detail = portable_conv(region, node, axes, rows, whole, alone, not reduced, stored, reduced=bool(reduced))
    return region.plan(
        f"{name}_conv_reduce" if reduced else f"{name}_contraction",
        detail.replace(before=before, statistics=statistics, reduced=reduced),
        hopper=hopper_plan,
        workspace=True,
        tf32="conv",
    )
