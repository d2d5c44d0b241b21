"""Plans of convolutions for sm_90a: taps as shifts along the grid of slots, tile shapes, and the text."""

from __future__ import annotations

import itertools
import math
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from fusegen.compiler import compile_file, optimise
from fusegen.costs import contractions, direct, hopper, library, precision
from fusegen.costs.hopper_taps import Taps
from fusegen.emit import kernels
from fusegen.emit.render import environment
from fusegen.ir import ConvOp
from fusegen.plan import contraction, conv_sm90
from fusegen.plan.details import ContractionAxis, HopperConvPlan, InPlacePlan, TapResidue
from fusegen.plan.rowprogram import RowProgram, Store
from fusegen.plan.types import KernelPlan, KernelStep
from fusegen.trace import trace
from tests.models import write

NVCC = shutil.which("nvcc")
_ROWS = RowProgram(
    length=1,
    source="v",
    operands=(),
    phases=(),
    stores=(Store(output="y0", value="v[i][j]", index="0", per_element=True, like_source=True),),
)


def _plan(
    conv: ConvOp, axis: ContractionAxis, channels: tuple[int, int] = (16, 16), precise: bool = False
) -> HopperConvPlan | str:
    traced = ((int(axis.size), int(axis.output)),)
    operands = conv_sm90.Operands("conv", "x0", "p0", "batch", 4)
    return conv_sm90.plan(conv, (axis,), traced, channels, False, lambda split: _ROWS, operands, precise)


def _random_axis(rng: random.Random) -> tuple[ConvOp, ContractionAxis]:
    transposed = rng.random() < 0.5
    kernel, stride, dilation = rng.randint(1, 5), rng.randint(1, 4), rng.randint(1, 3)
    padding, extra = rng.randint(0, 4), 0
    size = rng.randint(1, 12)
    reach = dilation * (kernel - 1) + 1
    if transposed:
        extra = rng.randrange(max(stride, dilation))
        output = (size - 1) * stride - 2 * padding + reach + extra
    else:
        output = (size + 2 * padding - reach) // stride + 1
    conv = ConvOp(
        transposed=transposed, stride=(stride,), padding=(padding,), dilation=(dilation,), output_padding=(extra,)
    )
    axis = ContractionAxis(
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        output_padding=extra,
        size=size,
        output=output,
    )
    return conv, axis


def _defined(conv: ConvOp, axis: ContractionAxis, position: int) -> set[tuple[int, int]]:
    """(tap, input position) of every product in one output, by definition."""
    found = set()
    for k in range(axis.kernel):
        if conv.transposed:
            i, rest = divmod(position + axis.padding - k * axis.dilation, axis.stride)
        else:
            i, rest = position * axis.stride - axis.padding + k * axis.dilation, 0
        if rest == 0 and 0 <= i < int(axis.size):
            found.add((k, i))
    return found


def _computed(plan: HopperConvPlan, axis: ContractionAxis, sample: int, position: int) -> set[tuple[int, int]]:
    """The same, as the kernel finds them on the flattened slots of several samples."""
    step, origin = plan.out_step[2], plan.out_origin[2]
    base, phase = divmod(position - origin, step)
    taps = Taps(axis.kernel, axis.stride, axis.padding, axis.dilation, plan.transposed)
    pitch = taps.pitch(int(axis.size), int(axis.output))
    assert 0 <= base < pitch
    found = set()
    for residue in plan.residues:
        for shift in residue.taps:
            distance = phase + axis.stride * (plan.reach[2] - shift)
            if not plan.transposed:
                distance = axis.stride * shift + residue.at[2]
            k, rest = divmod(distance, axis.dilation)
            owner, slot = divmod(sample * pitch + base + shift, pitch)
            i = slot * plan.in_step[2] + plan.in_origin[2] + residue.at[2]
            if 0 <= i < int(axis.size) and rest == 0 and 0 <= k < axis.kernel:
                assert owner == sample, "a tap reads another sample"
                found.add((k, i))
    return found


def test_every_tap_of_every_phase_is_a_shift() -> None:
    """Random kernels, strides, paddings, dilations: exactly the products of the definition."""
    rng = random.Random(0)
    checked = 0
    while checked < 3000:
        conv, axis = _random_axis(rng)
        if int(axis.output) <= 0:
            continue
        plan = _plan(conv, axis)
        assert isinstance(plan, HopperConvPlan)
        for position in range(int(axis.output)):
            assert _computed(plan, axis, 1, position) == _defined(conv, axis, position), (conv, axis, position)
        checked += 1


def test_a_tap_that_a_phase_lacks_is_known() -> None:
    """There a weight of zero meets the input, which an infinite one must not survive."""
    rng = random.Random(1)
    seen = {True: 0, False: 0}
    for _ in range(2000):
        conv, axis = _random_axis(rng)
        plan = _plan(conv, axis)
        assert isinstance(plan, HopperConvPlan)
        lacks = False
        for phase in range(axis.stride if conv.transposed else 0):
            for shift in plan.residues[0].taps:
                distance = phase + axis.stride * (plan.reach[2] - shift)
                lacks |= distance % axis.dilation != 0 or distance // axis.dilation >= axis.kernel
        assert plan.idle_taps == lacks, (conv, axis)
        seen[lacks] += 1
    assert min(seen.values()) > 100


def test_phases_side_by_side_share_a_block() -> None:
    axis = ContractionAxis(kernel=4, stride=2, padding=1, dilation=1, output_padding=1, size=64, output=129)
    conv = ConvOp(transposed=True, stride=(2,), padding=(1,), dilation=(1,), output_padding=(1,))
    plan = _plan(conv, axis)
    assert isinstance(plan, HopperConvPlan)
    assert plan.phases == (1, 2)
    assert plan.outer_phases == ((0, 0, 0),)


@pytest.mark.parametrize(("channels", "reason"), [((2, 64), "multiply zeros"), ((64, 4), "multiply zeros")])
def test_refusals_say_why(channels: tuple[int, int], reason: str) -> None:
    axis = ContractionAxis(kernel=3, stride=1, padding=1, dilation=1, output_padding=0, size=64, output=64)
    conv = ConvOp(transposed=False, stride=(1,), padding=(1,), dilation=(1,), output_padding=(0,))
    plan = _plan(conv, axis, channels)
    assert isinstance(plan, str)
    assert reason in plan


def _full_fp32(channels: tuple[int, int], kernel: int = 3) -> HopperConvPlan | str:
    size = 64
    axis = ContractionAxis(
        kernel=kernel, stride=1, padding=0, dilation=1, output_padding=0, size=size, output=size - kernel + 1
    )
    conv = ConvOp(transposed=False, stride=(1,), padding=(0,), dilation=(1,), output_padding=(0,))
    return _plan(conv, axis, channels, precise=True)


def test_halves_of_the_weights_are_columns_side_by_side() -> None:
    plan = _full_fp32((3, 64))
    assert isinstance(plan, HopperConvPlan)
    assert (plan.precise, plan.columns, plan.width, plan.channel_tiles) == (True, 64, 128, 1)
    plan = _full_fp32((8, 128))
    assert isinstance(plan, HopperConvPlan)
    assert (plan.columns, plan.width, plan.channel_tiles) == (64, 128, 2)


@pytest.mark.parametrize(
    ("channels", "kernel", "promotes"),
    [((8, 64), 9, False), ((8, 64), 10, True), ((9, 64), 5, True), ((4, 64), 17, False)],
)
def test_long_sums_leave_the_tensor_cores(channels: tuple[int, int], kernel: int, promotes: bool) -> None:
    plan = _full_fp32(channels, kernel)
    assert isinstance(plan, HopperConvPlan)
    assert plan.promotes == promotes


@pytest.mark.parametrize("taps", [(0, 1), (0, 1, 2), (0, 3, 4, 7), (0, 2, 4, 6, 8)])
def test_taps_of_few_channels_go_in_pairs(taps: tuple[int, ...]) -> None:
    """Every tap meets its own weights once; of an odd number, the one that is met twice has two tiles, of halves."""
    residue = TapResidue(at=(0, 0, 0), first_row=0, rows=1, taps=taps)
    tiles, met = residue.tiles(4), list[int]()
    for step in residue.steps(4):
        assert step.tap in taps
        assert step.tap + step.apart in taps
        for at, tile in ((step.tap, step.tile), (step.tap + step.apart, step.tile + 1)):
            assert tiles[tile] == at
            met.append(tile)
    assert sorted(met) == list(range(len(tiles)))
    assert sorted(set(tiles)) == list(taps)
    twice = [tap for tap in taps if tiles.count(tap) == 2]
    assert len(twice) == len(tiles) - len(taps) == len(taps) % 2
    assert all(tiles[tiles.index(tap) + 1] == tap for tap in twice)


def test_steps_of_more_channels_cover_a_stage() -> None:
    residue = TapResidue(at=(0, 0, 0), first_row=0, rows=1, taps=(0, 1, 2))
    assert [(s.tap, s.quad, s.tile) for s in residue.steps(16)] == [(t, q, t) for t in (0, 1, 2) for q in (0, 2)]


class _Softmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(64, 128, 4, 2, 1, output_padding=1)
        self.bias = nn.Parameter(torch.zeros(128, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid((torch.softmax(self.conv(x), 1) + self.bias) * 2.0)


class _Streamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(64, 128, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(nn.functional.hardswish(self.conv(x)))


class _Line(nn.Module):
    """Loads of its products are shared by none."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(32, 64, 9, 1, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(128, 128, 1)
        self.other = nn.Parameter(torch.zeros(16, 128, 102, 72))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x) * self.other + x)


def _kernel(
    model: nn.Module, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, in_halves: bool = False
) -> KernelPlan:
    monkeypatch.setattr(hopper, "pays_in_halves", lambda *_: in_halves)
    monkeypatch.setattr(contractions, "refusal", lambda body, space, machine: None)
    graph = trace(model, (torch.zeros(shape),), Path(__file__)).graph
    program, _ = optimise(graph, "sm_90", False, lambda stage: None)
    (step,) = program.steps
    assert isinstance(step, KernelStep)
    return step.plan


def _text(plan: KernelPlan, in_place: bool = False) -> str:
    env = environment()
    assert isinstance(plan.hopper, HopperConvPlan)
    detail = plan.hopper.alternative if in_place else plan.hopper
    body = env.get_template("conv_sm90.cu.j2").render(plan=plan, detail=detail)
    helpers = "\n".join(kernels.helper_functions(body, kernels._helpers(env)))
    headers = "".join(f"#include <{header}>\n" for header in ("cuda.h", "cuda_runtime.h", "cstdint"))
    return f"{headers}namespace {{\n{helpers}\n}}\nnamespace k {{\n{body}\n}}\n"


def test_a_row_of_channels_is_shared_by_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 channels times two phases are two blocks: a softmax exchanges one number a pixel between them."""
    plan = _kernel(_Softmax(), (2, 64, 9, 9), monkeypatch)
    assert isinstance(plan.hopper, HopperConvPlan)
    assert (plan.hopper.split, plan.hopper.cluster, plan.hopper.stream) == (2, 2, False)
    text = _text(plan)
    assert text.count("mailbox.reduce_shifted(") == 1
    assert text.count("mailbox.reduce(") == 0


@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
@pytest.mark.parametrize(
    ("model", "shape", "way"),
    [
        (_Softmax, (128, 64, 64, 64), "prepared"),
        (_Softmax, (128, 64, 64, 64), "in halves"),
        (_Streamed, (96, 64, 144, 144), "prepared"),
        (_Streamed, (96, 64, 144, 144), "in halves"),
        (_Streamed, (96, 64, 144, 144), "in place"),
        (_Line, (64, 32, 4096), "in place"),
        (_Residual, (16, 128, 102, 72), "prepared"),
        (_Residual, (16, 128, 102, 72), "in halves"),
        (_Residual, (16, 128, 102, 72), "in place"),
    ],
)
def test_ptxas_spills_nothing(
    model: type[nn.Module],
    shape: tuple[int, ...],
    way: str,
    arch: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert NVCC is not None
    with torch.device("meta"):
        plan = _kernel(model(), shape, monkeypatch, way == "in halves")
    source = tmp_path / "kernel.cu"
    source.write_text(_text(plan, way == "in place"))
    code = f"-gencode=arch=compute_{arch[3:]},code={arch}"
    command = [NVCC, "-O3", "-std=c++17", code, "-Xptxas", "-v", "-cubin", str(source), "-o", str(tmp_path / "k.cubin")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    report = result.stdout + result.stderr
    assert report.count("0 bytes spill stores") == report.count("spill stores") == (3 if way == "in halves" else 2)
    assert "C75" not in report  # ptxas ignoring setmaxnreg or serialising products


def _loaded(plan: InPlacePlan, skew: int) -> dict[tuple[tuple[int, int, int], int], set[tuple[int, int, int, int]]]:
    """By tap and channel quad: what lanes with two positions and two channel quads load, as (channel, z, y, x)."""
    _, rows, columns = plan.box
    found: dict[tuple[tuple[int, int, int], int], set[tuple[int, int, int, int]]] = {}
    for number, unit in enumerate(plan.units):
        for group in unit:
            for step in group.products:
                tap = plan.taps[number * plan.unit_taps + step.tap]
                places = [group.loads[load // plan.vector] + load % plan.vector for load in step.loads]
                read = set()
                for place in places:
                    line, x = divmod(place, columns)
                    line, y = divmod(line, rows)
                    channel, z = divmod(line, plan.box[0])
                    read.add((channel, z, y, x - skew))
                assert (tap, step.quad) not in found
                found[tap, step.quad] = read
    return found


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_products_in_place_load_what_their_taps_read(rank: int, transposed: bool) -> None:
    """Every tap once for every eight channels, at its own place; the second position of a lane is 32 slots on."""
    rng = random.Random(rank)
    checked = 0
    while checked < 40:
        kernel, padding, dilation = rng.randint(1, 4), rng.randint(0, 3), rng.randint(1, 2)
        stride, size = rng.randint(1, 2 if transposed else 4), rng.choice([32, 40, 64])
        reach = dilation * (kernel - 1) + 1
        output = (size - 1) * stride + reach - 2 * padding if transposed else (size + 2 * padding - reach) // stride + 1
        axis = ContractionAxis(
            kernel=kernel, stride=stride, padding=padding, dilation=dilation, output_padding=0, size=size, output=output
        )
        every = (1,) * rank
        conv = ConvOp(
            transposed=transposed,
            stride=tuple(stride * n for n in every),
            padding=tuple(padding * n for n in every),
            dilation=tuple(dilation * n for n in every),
            output_padding=(0,) * rank,
        )
        operands = conv_sm90.Operands("conv", "x0", "p0", "batch", 4)
        channels, traced = (rng.choice([16, 20, 64]), rng.choice([16, 40, 128])), ((size, output),) * rank
        plan = conv_sm90.plan(
            conv, (axis,) * rank, traced, channels, False, lambda split: _ROWS, operands, False, in_place=True
        )
        if isinstance(plan, str) or plan.alternative is None:
            continue
        found = plan.alternative
        assert found.in_place
        taps = Taps(kernel, stride, padding, dilation, transposed)
        absent = (0,) * (3 - rank)
        offsets = {(*absent, *at) for at in itertools.product(taps.offsets, repeat=rank)}
        assert set(found.in_place.taps) == offsets
        skew, step = taps.in_origin % 4, taps.in_step
        loaded = _loaded(found.in_place, skew)
        assert {(tap, quad) for tap in offsets for quad in range(0, found.chunk // 4, 2)} == set(loaded)
        _, rows, columns = found.in_place.tile
        far = (32 // columns % rows * (step if rank > 1 else 1), 32 % columns * step)
        for (tap, quad), read in loaded.items():
            z, y, x = tap
            ends = ((y, x), (y + far[0], x + far[1]))
            assert read == {(channel, z, *end) for end in ends for channel in (4 * quad, 4 * quad + 4)}
        box = found.in_place.box
        assert box[2] >= (columns - 1) * step + taps.offsets[-1] + 1 + skew
        assert box[1] >= (rows - 1) * step + taps.offsets[-1] + 1 if rank > 1 else box[1] >= 1
        assert box[2] % 4 == 0
        assert math.prod(box) % 32 in (8, 24)
        checked += 1


@pytest.mark.parametrize(("stride", "vector"), [(2, 2), (3, 1), (4, 4), (6, None), (8, None)])
def test_lanes_of_a_strided_convolution_meet_in_no_bank(stride: int, vector: int | None) -> None:
    size = 63 * stride + 3
    axis = ContractionAxis(kernel=3, stride=stride, padding=0, dilation=1, output_padding=0, size=size, output=64)
    conv = ConvOp(transposed=False, stride=(stride,) * 2, padding=(0, 0), dilation=(1, 1), output_padding=(0, 0))
    operands = conv_sm90.Operands("conv", "x0", "p0", "batch", 4)
    plan = conv_sm90.plan(
        conv, (axis,) * 2, ((size, 64),) * 2, (16, 16), False, lambda split: _ROWS, operands, False, in_place=True
    )
    assert isinstance(plan, HopperConvPlan)
    if vector is None:
        assert plan.alternative is None
        return
    assert plan.alternative
    assert plan.alternative.in_place
    assert plan.alternative.in_place.vector == vector
    box = math.prod(plan.alternative.in_place.box)
    at_once = 32 // vector
    for first in range(0, 32, at_once):  # lanes whose loads are one access
        lanes = range(first, first + at_once)
        words = {lane % 4 * box + lane // 4 * stride + i for lane in lanes for i in range(vector)}
        assert len({word % 32 for word in words}) == 32


@pytest.mark.parametrize(
    ("module", "abreast"),
    [
        (nn.Conv2d(48, 32, 3), 3),
        (nn.Conv1d(144, 8, 7), 7),
        (nn.Conv2d(48, 32, 3, (2, 1)), 3),
        (nn.ConvTranspose2d(48, 32, 3), 3),
        (nn.Conv2d(48, 33, 3), 1),  # columns enough of its own
        (nn.Conv2d(47, 32, 3), 1),  # short sums
        (nn.Conv2d(48, 24, (3, 7)), 1),  # 168 columns
        (nn.Conv1d(144, 8, 3, dilation=5), 1),  # ten slots of 64 would be for others alone
        (nn.Conv2d(48, 32, 3, (1, 2)), 1),
        (nn.ConvTranspose2d(48, 32, 4, 2), 1),
    ],
)
def test_taps_of_few_outputs_are_columns_of_one_product(module: nn.Conv2d, abreast: int) -> None:
    transposed = isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d))
    structure = zip(module.kernel_size, module.stride, module.padding, module.dilation, strict=True)
    taps = [Taps(kernel, stride, int(pad), far, transposed) for kernel, stride, pad, far in structure]
    assert hopper.abreast(taps, module.in_channels, module.out_channels) == abreast


@pytest.mark.parametrize(
    ("outputs", "kernel", "together"),
    [(16, 3, True), (128, 3, False), (16, (3, 1, 3), False)],  # products wait for input; do not; share no rows of it
)
def test_products_that_wait_bring_rows_of_a_layer_together(
    outputs: int, kernel: int | tuple[int, int, int], together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hopper, "reads_in_place", lambda *_: False)
    monkeypatch.setattr(hopper, "pays_in_halves", lambda *_: False)
    monkeypatch.setattr(library, "seconds", lambda *_: math.inf)
    module = nn.Sequential(nn.Conv3d(32, outputs, kernel), nn.Tanh())
    graph = trace(module, (torch.empty(8, 32, 24, 50, 61, device="meta"),), Path("m.py")).graph
    program, _ = optimise(graph, "sm_90", False, lambda stage: None)
    (kernel_step,) = (step for step in program.steps if isinstance(step, KernelStep))
    plan = kernel_step.plan.hopper
    assert isinstance(plan, HopperConvPlan)
    assert (plan.rings == 1 and not plan.all_rows and not plan.stream) == together
    if together:  # beside a tile's own slots, those of two rows and two taps further
        assert plan.slots >= 64 * plan.warpgroups + 2 * 59 + 2


@pytest.mark.parametrize(
    ("samples", "size", "warpgroups"),
    [
        (1, 33792, 4),  # 132 blocks of 256 slots; of 192 there are more than multiprocessors
        (1, 44544, 3),  # both take two turns: two of three tiles are less than two of four
        (64, 33792, 4),  # many turns: a fourth warpgroup hides more latency
    ],
)
def test_warpgroups_leave_the_busiest_block_least(samples: int, size: int, warpgroups: int) -> None:
    axis = ContractionAxis(kernel=3, stride=1, padding=1, dilation=1, output_padding=0, size=size, output=size)
    conv = ConvOp(transposed=False, stride=(1,), padding=(1,), dilation=(1,), output_padding=(0,))
    operands = conv_sm90.Operands("conv", "x0", "p0", "batch", samples)
    plan = conv_sm90.plan(conv, (axis,), ((size - 2, size - 2),), (64, 64), False, lambda split: _ROWS, operands, False)
    assert isinstance(plan, HopperConvPlan)
    assert plan.warpgroups == warpgroups


@pytest.mark.parametrize(
    ("module", "shape", "rounded"),
    [
        ("nn.Conv2d(64, 64, 3)", (64, 30, 40), True),
        ("nn.Conv3d(17, 24, (2, 3, 2), 1, 1)", (17, 6, 11, 12), True),
        ("nn.Conv2d(48, 200, 1)", (48, 9, 20), False),
        ("nn.ConvTranspose2d(16, 20, 4, 2, 1)", (16, 9, 12), False),
    ],
)
def test_products_read_what_was_loaded_where_the_next_loads_write_other_registers(
    module: str, shape: tuple[int, ...], rounded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of one batch is converted: what its products read would be loaded again while they are on the way."""
    monkeypatch.setattr(hopper, "reads_in_place", lambda *_: True)
    monkeypatch.setattr(hopper, "pays_in_halves", lambda *_: False)
    monkeypatch.setattr(library, "seconds", lambda *_: math.inf)
    monkeypatch.setattr(precision, "allows_tf32", lambda *_: True)
    monkeypatch.setattr(direct, "is_small", lambda *_: False)
    monkeypatch.setattr(contraction, "_is_slower", lambda *_: False)
    path = write(
        tmp_path, "return self.m(x).relu()", f"self.m = {module}", f"torch.rand(8, {', '.join(map(str, shape))})"
    )
    source = compile_file(path).source
    kernel = source[source.index("_in_place_kernel {") : source.index("}  // namespace k0_contraction_in_place")]
    assert ("CU_TENSOR_MAP_DATA_TYPE_TFLOAT32" in kernel) is rounded
    assert ("to_tf32(__uint_as_float(x0))" in kernel) is not rounded
    batches = kernel.count("wgmma.commit_group") - kernel.count("to_tf32(__uint_as_float(x0))")
    assert batches > 1 if rounded else batches == 0
