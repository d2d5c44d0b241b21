"""Convolutions of groups of few channels: which have the kernel, what shares it, and what its tiles read."""

from __future__ import annotations

import random
from itertools import product
from math import prod
from pathlib import Path

import pytest

from fusegen.compiler import Compiled, compile_file
from fusegen.costs import direct_shared, direct_tiles
from fusegen.ir import ConvOp
from fusegen.plan.details import DirectConvPlan
from fusegen.plan.types import KernelStep
from fusegen.spaces.rowspace import NotFusable
from tests.models import write

DEPTHWISE = "\n".join(f"self.{name} = nn.Conv2d(16, 16, 3, padding=1, groups=16)" for name in "cd")


def compiled(tmp_path: Path, body: str, init: str = DEPTHWISE, x: str = "torch.empty(32, 16, 64, 64)") -> Compiled:
    return compile_file(write(tmp_path, body, f"{init}\nself.s = nn.Parameter(torch.randn(16, 1, 1))", x))


def templates(found: Compiled) -> list[str]:
    return [step.plan.detail.template if isinstance(step, KernelStep) else "torch" for step in found.program.steps]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return self.c(x)", ["conv_direct"]),
        ("return F.hardswish(self.c(x)) * self.s + x", ["conv_direct"]),
        ("return F.relu6(self.c(F.relu6(x * self.s + 1)))", ["conv_direct"]),  # chains on either side
        (
            "return self.c(F.gelu(F.mish(F.gelu(x)) * 2))",
            ["pointwise", "conv_direct"],
        ),  # costly to evaluate for every tile
        ("y = x.relu()\nreturn self.c(y) + y", ["pointwise", "conv_direct"]),  # read by more than the convolution
        ("return self.d(self.c(x).relu())", ["conv_direct", "conv_direct"]),
        ("return self.c(x).softmax(1)", ["conv_direct", "row_reduce"]),
        ("return self.c(x).relu().amax((2, 3))", ["conv_direct"]),
        ("return F.gelu(self.c(x.relu() * 2)).mean((2, 3)).flatten(1) + 1", ["conv_direct"]),  # chains on all sides
        ("return self.c(x).relu().mean((2, 3)).softmax(1)", ["conv_direct", "row_reduce"]),  # of several groups
        ("return self.c(x).relu().mean(3)", ["conv_direct", "row_stream"]),
        ("y = self.c(x).relu()\nreturn y * y.mean((2, 3), True).sigmoid()", ["conv_direct", "row_stream"]),
        ("return F.max_pool2d(self.c(x), 2)", ["conv_direct", "pool"]),
        ("y = self.c(x)\nreturn y, y.relu()", ["conv_direct", "pointwise"]),
    ],
)
def test_what_shares_a_kernel_with_a_depthwise_convolution(body: str, expected: list[str], tmp_path: Path) -> None:
    assert templates(compiled(tmp_path, body)) == expected


@pytest.mark.parametrize(
    ("init", "x", "expected"),
    [
        ("nn.Conv1d(64, 16, 1, stride=2)", "torch.empty(128, 64, 16384)", True),
        ("nn.ConvTranspose3d(3, 16, 2, stride=2)", "torch.empty(64, 3, 16, 32, 32)", True),
        ("nn.ConvTranspose3d(3, 8, 3, stride=2, padding=1)", "torch.empty(64, 3, 16, 32, 32)", False),  # idle phases
        ("nn.Conv2d(32, 16, 3, padding=1)", "torch.empty(64, 32, 64, 64)", False),  # it would wait for its products
        ("nn.Conv1d(64, 24, 1, stride=2)", "torch.empty(128, 64, 16384)", False),  # no tile has so many outputs
    ],
)
def test_up_to_sixteen_outputs_that_wait_for_memory(init: str, x: str, expected: bool, tmp_path: Path) -> None:
    found = compile_file(write(tmp_path, "return self.c(x).tanh()", f"self.c = {init}", x))
    assert ("conv_direct" in templates(found)) == expected


def test_groups_in_full_fp32_of_more_outputs_that_wait_for_memory(tmp_path: Path) -> None:
    """Of one tap, which cuDNN does not round."""
    found = {}
    for groups in (1, 3):
        module = f"self.c = nn.Conv2d(240, 60, 1, groups={groups})"
        path = write(tmp_path, "return self.c(x).relu()", module, "torch.empty(32, 240, 56, 56)")
        found[groups] = templates(compile_file(path))
    assert found == {1: ["contraction"], 3: ["conv_direct"]}


def test_of_one_tap_it_is_a_product(tmp_path: Path) -> None:
    """Elementwise, as any scale and activation."""
    init = "self.c = nn.ConvTranspose2d(16, 16, 1, groups=16)"
    assert templates(compiled(tmp_path, "return self.c(x).relu()", init)) == ["pointwise"]
    strided = "self.c = nn.Conv2d(16, 16, 1, stride=2, groups=16)"
    assert templates(compiled(tmp_path, "return self.c(x).relu()", strided)) == ["conv_direct"]


def test_statistics_of_a_batch_norm_read_the_result(tmp_path: Path) -> None:
    """A kernel for them and for what they are applied to, as after any other convolution."""
    init = f"{DEPTHWISE}\nself.n = nn.BatchNorm2d(16)"
    found = templates(compiled(tmp_path, "return self.n(self.c(x)).relu()", init))
    assert found == ["conv_direct", "row_stream"]


@pytest.mark.parametrize(
    ("module", "direct_"),
    [
        ("nn.Conv2d(16, 48, 3, groups=16)", True),
        ("nn.Conv2d(16, 8, 3, groups=4)", True),
        ("nn.ConvTranspose2d(16, 16, 4, 2, 1, groups=16)", True),
        ("nn.ConvTranspose2d(16, 4, 1, 3, groups=2)", True),  # phases without taps
        ("nn.ConvTranspose2d(16, 14, 6, 5, groups=2)", True),
        ("nn.Conv2d(16, 8, 3, padding=1, groups=2)", True),
        ("nn.Conv2d(16, 128, 3, groups=2)", False),  # eight outputs of a group are an operand of the tensor cores
        ("nn.Conv2d(16, 128, 3, groups=16)", True),  # and would have little to multiply
        ("nn.Conv2d(16, 64, 3)", False),
        ("nn.Conv2d(16, 32, 1, stride=4, groups=2)", True),  # little for tensor cores to do
        ("nn.Conv2d(16, 4, 1, stride=4)", True),
        ("nn.ConvTranspose2d(16, 3, 1, 3)", True),
        ("nn.Conv2d(16, 16, 51, padding=25, groups=16)", False),
    ],
)
def test_which_convolutions_have_the_kernel(module: str, direct_: bool, tmp_path: Path) -> None:
    assert ("conv_direct" in templates(compiled(tmp_path, "return self.c(x).relu()", f"self.c = {module}"))) == direct_


def test_explain_names_both_times(tmp_path: Path) -> None:
    choices = compiled(tmp_path, "return self.c(x).relu()").choices
    (expected,) = (times for point, times in choices.items() if point.endswith(" by"))
    assert list(expected) == ["kernel", "library"]  # the chosen first


def test_a_tensor_laid_out_like_the_result_is_read_as_it_is_stored(tmp_path: Path) -> None:
    (step,) = compiled(tmp_path, "return self.c(x) * self.s + x").program.steps
    assert isinstance(step, KernelStep)
    detail = step.plan.detail
    assert isinstance(detail, DirectConvPlan)
    assert {operand.arg: operand.vector for operand in detail.after.operands} == {"p0": "", "p2": "", "x0": "source"}


def random_conv(rng: random.Random) -> tuple[ConvOp, tuple[int, ...], tuple[int, ...]]:
    """A convolution, its kernel and the lengths of its result."""
    rank, transposed = rng.randint(1, 3), rng.random() < 0.5
    kernel, stride, dilation = (tuple(rng.randint(1, 4) for _ in range(rank)) for _ in range(3))
    padding = tuple(rng.randint(0, d * (k - 1)) for k, d in zip(kernel, dilation, strict=True))
    op = ConvOp(
        transposed=transposed,
        stride=stride,
        padding=padding,
        dilation=dilation,
        output_padding=(0,) * rank,
        groups=4,
    )
    return op, kernel, tuple(rng.randint(1, 40) for _ in range(rank))


def test_tiles_span_exactly_what_their_windows_read() -> None:
    """From the definition: the inputs of a tile's results lie within the lines that are counted."""
    rng = random.Random(0)
    phases = 0
    for _ in range(500):
        op, kernel, lengths = random_conv(rng)
        outputs = rng.randint(1, 7)
        try:
            found = direct_tiles.tiles(op, kernel, (rng.randint(1, 40), outputs), lengths, rng.choice((1, 1000)))
        except NotFusable:
            continue
        assert all(prod(tile.results) * tile.outputs <= direct_tiles.MAX_RESULTS for tile in found)
        assert all(1 <= tile.outputs <= outputs for tile in found)
        assert len({tile.ahead for tile in found}) == 1 or prod(kernel[:-1]) == 1  # the same bits by any access
        for tile, axis in product(found, range(op.rank)):
            at = 3 - op.rank + axis
            results, phased = tile.results[at], at < 2 and tile.phased[at]
            phases += phased
            assert phased or results % op.stride[axis] == 0 or not op.transposed  # every tile begins in the same phase
            for first in range(op.stride[axis] if phased else 1):
                reads = set()
                step = op.stride[axis] if phased else 1
                for r, k in product(range(results), range(kernel[axis])):
                    if op.transposed:
                        at_padded = first + r * step + (0 if phased else op.padding[axis])
                        place, rest = divmod(at_padded - k * op.dilation[axis], op.stride[axis])
                        reads |= set() if rest else {place}
                    else:
                        reads.add(r * op.stride[axis] + k * op.dilation[axis])
                spanned = direct_tiles.Along.of(op, kernel, axis, phased).lines(results)
                assert not reads or max(reads) - min(reads) < spanned
                if not op.transposed:
                    assert max(reads) + 1 == spanned
    assert phases


def test_tiles_of_shared_weights_take_the_same_turns() -> None:
    """Whatever the width of an access: what is added up in which order must not depend on where tensors lie."""
    rng = random.Random(0)
    several = 0
    for _ in range(300):
        op, kernel, lengths = random_conv(rng)
        op = op.replace(groups=1)
        inputs, outputs = rng.randint(1, 200), rng.randint(1, 20)
        found = direct_shared.Work(op, kernel, inputs, outputs, lengths, rng.choice((1, 64))).tiles()
        if not found:
            continue
        assert found[-1].vector == 1
        assert len({(tile.shares, tile.ahead) for tile in found}) == 1
        assert inputs % found[0].ahead == 0  # a turn has all its channels, or none
        assert direct_shared.weights_kept(found, kernel, inputs, outputs) % (found[0].shares * found[0].ahead) == 0
        for tile in found:
            assert tile.outputs == outputs
            assert tile.blocks * tile.threads <= 1024
            results = tile.results[3 - op.rank :]
            assert not op.transposed or all(own % step == 0 for own, step in zip(results, op.stride, strict=True))
            across = results[-1] // op.stride[-1] if op.transposed else results[-1] * op.stride[-1]
            assert across % tile.vector == 0  # every tile begins at an access
        several += found[0].shares > 1
    assert several
