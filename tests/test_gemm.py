"""Matrix products on sm_90a: which regions a kernel takes, with which tiles, and what nvcc makes of them."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from math import inf
from pathlib import Path

import pytest

from fusegen.compiler import Compiled, compile_file
from fusegen.costs import gemm, narrow, tensor_gemm
from fusegen.emit.render import environment
from fusegen.ir import MatmulOp
from fusegen.machines import machine
from fusegen.plan.details import ContractionPlan, GemmPlan, NarrowPlan, Triangle
from fusegen.plan.types import EagerStep, KernelStep
from tests.models import traced, write

H200 = machine("sm_90")
TILES = """
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#define __host__
#define __device__
#define __forceinline__ inline
constexpr int FEATURES = 128, CLUSTER = 2;
constexpr int64_t DIAGONAL = DIAGONAL_VALUE;
INCLUDE
int main(int, char** sizes) {
    const unsigned rows = atoi(sizes[1]), columns = atoi(sizes[2]), width = atoi(sizes[3]);
    unsigned edges = 0;
    for (unsigned column = 0; column < columns; ++column) edges += edge_of(column, rows, width);
    const unsigned first = RESULTS_FIRST ? edges : rows * columns - edges;
    for (unsigned n = 0; n < rows * columns; ++n) {
        const Place p = n < first ? place_of<true>(n, rows, width) : place_of<false>(n - first, rows, width);
        printf("%d %u %u\\n", n < first, p.row_tile, p.column);
    }
}
"""
HEAVY = "self.linear = nn.Linear(4096, {})"


def compiled(tmp_path: Path, body: str, outputs: int = 4096, target: str = "sm_90") -> Compiled:
    return compile_file(write(tmp_path, body, HEAVY.format(outputs), "torch.rand(512, 4096)"), target=target)


def product(found: Compiled) -> GemmPlan | None:
    details = [step.plan.hopper or step.plan.detail for step in found.program.steps if isinstance(step, KernelStep)]
    return next((detail for detail in details if isinstance(detail, GemmPlan)), None)


@pytest.mark.parametrize(
    ("body", "steps"),
    [
        ("return F.gelu(self.linear(x)) * 2", 1),
        ("return torch.logsumexp(self.linear(x).tanh(), 1)", 1),
        ("y = self.linear(x)\nreturn y.amax(1) + y.mean(1)", 1),
        ("return F.group_norm(self.linear(x).tanh(), 256)", 1),  # groups of 16 lie in one tile
        ("return self.linear(x).view(-1, 32, 128).amax(2)", 1),
        ("return self.linear(x).view(-1, 32, 128) * self.linear.bias.view(32, 128)", 1),
        ("return F.group_norm(self.linear(x), 16)", 2),  # of 256 do not
        ("return F.layer_norm(self.linear(x), [4096])", 2),
        ("return self.linear(x).view(-1, 32, 128).transpose(0, 1)", 2),  # a view is free
        ("return torch.softmax(self.linear(x), 1)", 2),  # no block has a whole row
        ("return torch.var(self.linear(x), 1)", 2),
        ("y = self.linear(x)\nreturn y - y.mean(1, keepdim=True)", 2),
    ],
)
def test_what_follows_a_product_joins_it_unless_it_needs_whole_rows(tmp_path: Path, body: str, steps: int) -> None:
    found = compiled(tmp_path, body)
    assert product(found) is not None
    assert len(found.program.steps) == steps


def test_rows_that_a_warp_holds_whole_are_finished_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_gemm, "seconds", lambda *_: 0.0)
    found = compiled(tmp_path, "return torch.softmax(self.linear(x), 1)", outputs=tensor_gemm.FEATURES)
    assert product(found) is not None
    assert len(found.program.steps) == 1


def test_small_products_keep_the_library(tmp_path: Path) -> None:
    assert product(compiled(tmp_path, "return F.gelu(self.linear(x))", outputs=16)) is None


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("factor", ["self.linear.weight.T", "self.linear.weight"])
def test_a_device_without_wgmma_has_a_kernel_of_its_own(tmp_path: Path, factor: str, target: str) -> None:
    found = compiled(tmp_path, f"return F.gelu(x @ {factor})", target=target)
    (step,) = found.program.steps
    assert isinstance(step, KernelStep)
    assert isinstance(step.plan.detail, ContractionPlan)
    assert isinstance(step.plan.hopper, GemmPlan)
    assert step.plan.detail.weight_transposed == step.plan.hopper.weight_transposed == factor.endswith(".T")
    assert not step.plan.only_hopper


def test_rows_of_many_blocks_are_reduced_on_hopper_alone(tmp_path: Path) -> None:
    body = "return torch.logsumexp(self.linear(x), 1)"
    assert product(compiled(tmp_path, body, target="sm_80")) is None
    (step,) = compiled(tmp_path, body).program.steps
    assert isinstance(step, KernelStep)
    assert step.plan.only_hopper


@pytest.mark.parametrize(
    ("equation", "shape"), [("bk,kn->bn", (512,)), ("btk,kn->btn", (8, 64)), ("bk,nk->bn", (512,)), ("kn,bk->bn", ())]
)
def test_an_einsum_that_is_a_product_is_one(tmp_path: Path, equation: str, shape: tuple[int, ...]) -> None:
    factors = "x, self.linear.weight" if shape else "self.linear.weight, x"
    rows = ", ".join(map(str, shape or (512,)))
    body = f"return F.gelu(torch.einsum('{equation}', {factors}))"
    found = product(compile_file(write(tmp_path, body, HEAVY.format(4096), f"torch.rand({rows}, 4096)")))
    assert found is not None
    assert found.weight_transposed == ("nk" in equation)


def two(tmp_path: Path, result: str, a: tuple[int, ...], b: tuple[int, ...], target: str = "sm_90") -> Compiled:
    inputs = f"torch.rand({a}), torch.rand({b})"
    return compile_file(write(tmp_path, f"return {result}", inputs=inputs, arguments="a, b"), target=target)


@pytest.mark.parametrize(
    ("result", "a", "b", "steps"),
    [
        ("torch.matmul(a, b)", (2048, 1024), (1024, 4096), 1),
        ("torch.matmul(a.T, b.T)", (1024, 2048), (4096, 1024), 1),
        ("F.gelu(torch.einsum('km,kn->mn', a, b)) * 2", (1024, 2048), (1024, 4096), 1),
        ("torch.bmm(a, b)", (16, 512, 1024), (16, 1024, 1024), 1),
        ("torch.matmul(a.mT, b) + 1", (4, 4, 1024, 512), (4, 4, 1024, 1024), 1),
        ("torch.matmul(a, b)", (4, 64, 64, 512), (512, 768), 1),  # one matrix of more rows
        ("torch.matmul(a.transpose(1, 2), b)", (8, 512, 2048), (512, 768), 1),
        ("torch.softmax(a @ b.mT * 0.1, -1)", (16, 1024, 2048), (16, 128, 2048), 1),
        ("torch.softmax(a @ b.mT * 0.1, -1)", (16, 1024, 1024), (16, 1024, 1024), 2),  # no block has a whole row
    ],
)
def test_a_product_of_two_tensors_has_a_kernel(
    tmp_path: Path, result: str, a: tuple[int, ...], b: tuple[int, ...], steps: int
) -> None:
    found = two(tmp_path, result, a, b)
    detail = product(found)
    assert detail is not None
    assert len(found.program.steps) == steps
    assert not isinstance(detail.inputs, int)  # as all sizes of inputs
    assert detail.batched == (len(b) > 2 or "transpose" in result)
    assert detail.weight_batched == (len(b) > 2)
    assert two(tmp_path, result, a, b, "sm_80").program.steps[0].kind == "eager"


@pytest.mark.parametrize(
    ("result", "a", "b"),
    [
        ("torch.matmul(a, b)", (65536, 512), (512, 8)),  # narrow: memory bounds it
        ("torch.bmm(a, b)", (96, 256, 64), (96, 64, 64)),  # half a tile's features
    ],
)
def test_products_that_the_library_computes_as_fast_are_left_to_it(
    tmp_path: Path, result: str, a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    step = two(tmp_path, result, a, b).program.steps[0]
    assert isinstance(step, EagerStep)
    assert "worth it up to" in step.reason


@pytest.mark.parametrize(
    ("result", "a", "b", "kernel"),
    [
        ("torch.matmul(a, b)", (16, 64), (64, 64), "gemm_simt"),  # small
        ("torch.bmm(a, b).abs()", (3, 8, 7), (3, 7, 5), "gemm_simt"),
        ("torch.matmul(a, b.T) * 2", (1, 4096), (1000, 4096), "gemm_simt"),  # a row: memory bounds it
        ("torch.matmul(a, b.T) * 2", (256, 1024), (1024, 1024), "gemm_sm90"),
        ("torch.matmul(a.T, b) * 2", (2048, 256), (2048, 512), "gemm_sm90"),  # stored as columns
        ("torch.matmul(a, b).softmax(1)", (1024, 64), (64, 128), "gemm_sm90"),  # features are finished together
    ],
)
def test_small_products_are_in_plain_fp32(
    tmp_path: Path, result: str, a: tuple[int, ...], b: tuple[int, ...], kernel: str
) -> None:
    (step,) = two(tmp_path, result, a, b).program.steps
    assert isinstance(step, KernelStep)
    assert (step.plan.hopper or step.plan.detail).template == kernel


@pytest.mark.parametrize(
    ("result", "a", "b", "kernels"),
    [
        ("torch.einsum('bihd,bjhd->bhij', a, b)", (256, 49, 3, 32), (256, 49, 3, 32), ["gemm_views"]),
        # Heavy: a kernel turns the factor that lies across.
        (
            "torch.einsum('bihd,bjhd->bhij', a, b)",
            (16, 512, 8, 64),
            (16, 512, 8, 64),
            ["pointwise", "pointwise", "gemm_sm90"],
        ),
        ("(a[..., None] - a[..., None, :]).exp().tril() @ b", (512, 64), (512, 64, 64), ["gemm_views"]),
        ("a[:, 1:] @ F.pad(b, (0, 1))", (300, 17, 20), (300, 20, 15), ["gemm_views"]),
    ],
)
def test_small_products_read_from_behind_views(
    tmp_path: Path, result: str, a: tuple[int, ...], b: tuple[int, ...], kernels: list[str]
) -> None:
    plans = [step.plan for step in two(tmp_path, result, a, b).program.steps if isinstance(step, KernelStep)]
    assert [(plan.hopper or plan.detail).template for plan in plans] == kernels


def test_rows_of_small_products_are_reduced_by_a_kernel_of_their_own(tmp_path: Path) -> None:
    steps = two(tmp_path, "torch.matmul(a, b).softmax(1)", (64, 1024), (1024, 128)).program.steps
    assert [step.plan.detail.template for step in steps if isinstance(step, KernelStep)] == ["gemm_simt", "row_reduce"]


@pytest.mark.parametrize(("a", "b"), [((64, 0), (0, 32)), ((3, 64, 0), (3, 0, 32)), ((3, 0, 8), (3, 8, 32))])
def test_products_of_nothing_are_left_to_the_library(tmp_path: Path, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    step = two(tmp_path, "torch.matmul(a, b)", a, b).program.steps[0]
    assert isinstance(step, EagerStep)
    assert "it is empty" in step.reason


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("return F.relu(self.linear(x))", 16),
        ("return torch.softmax(self.linear(x), 1)", 3),
        ("y = self.linear(x)\nreturn y.amax(1) + y.var(1)", 10),
    ],
)
def test_few_features_stream_through_a_kernel_of_their_own(
    tmp_path: Path, target: str, body: str, outputs: int
) -> None:
    init = f"self.linear = nn.Linear(256, {outputs})"
    found = compile_file(write(tmp_path, body, init, "torch.rand(60000, 256)"), target=target)
    (step,) = found.program.steps
    assert isinstance(step, KernelStep)
    assert isinstance(step.plan.detail, NarrowPlan)
    assert not step.plan.only_hopper


def test_weights_that_fill_shared_memory_need_hopper_or_the_library() -> None:
    sizes = [narrow.layout(inputs, 16) for inputs in (1024, 2048, 8192)]
    assert [None if found is None else found.portable for found in sizes] == [True, False, None]
    assert narrow.layout(256, 33) is None


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "measured"),
    [(65536, 1024, 16, 85.8), (65536, 512, 8, 43.2), (131072, 256, 4, 41.1), (32768, 1024, 32, 78.1)],
)
def test_times_of_few_features_fit_the_measured_ones(rows: int, inputs: int, outputs: int, measured: float) -> None:
    predicted = narrow.seconds(rows, inputs, outputs, H200)
    assert predicted is not None
    assert predicted * 1e6 == pytest.approx(measured, rel=0.2)


def test_times_fit_the_measured_ones() -> None:
    for rows, inputs, outputs, measured in (
        (1536, 6144, 8192, 0.742e-3),
        (160, 24576, 24576, 0.990e-3),
        (1024, 8192, 8192, 0.705e-3),
        (16384, 1024, 4096, 0.817e-3),
        (2048, 4096, 4096, 0.386e-3),
    ):
        assert tensor_gemm.seconds(rows, inputs, outputs, H200) == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("rows", [1, 64, 65, 160, 1000, 1536])
def test_tiles_cover_every_height(rows: int) -> None:
    for found in tensor_gemm.tiles(rows, 4096, 4096).values():
        assert list(found) == sorted(set(found))
        assert all(width % 16 == 0 and width <= 192 for width in found)


def test_operands_of_a_batch_are_found_without_divisions_by_sizes(tmp_path: Path) -> None:
    """A head's own, a batch's, and those that vary with the columns or the lines of every matrix."""
    body = "return ((x @ y.mT * self.p + of_batch + of_columns).relu() - of_lines)"
    lines, columns = "torch.rand(4, 6, 1000, 72)", "torch.rand(4, 6, 900, 72)"
    others = "torch.rand(4, 1, 1, 1), torch.rand(4, 6, 1, 900), torch.rand(4, 6, 1000, 1)"
    init, names = "self.p = nn.Parameter(torch.rand(6, 1, 1))", "x, y, of_batch, of_columns, of_lines"
    found = compile_file(write(tmp_path, body, init, f"{lines}, {columns}, {others}", names))
    detail = product(found)
    assert detail
    indices = [operand.index.strip("()") for operand in detail.rows.operands]
    assert {"matrix % 6", "matrix / 6", "outer"} < set(indices)
    assert len(indices) == 4
    assert not any("outer" in index for index in indices if index != "outer")


def test_tiles_that_many_blocks_share_are_narrow() -> None:
    """What the others leave is added up, for every row of a tile."""
    few, many = (max(next(iter(tensor_gemm.tiles(1024, 4096, outputs).values()))) for outputs in (256, 8192))
    assert few < many
    assert many == 176


def build(found: Compiled, folder: Path, *options: str) -> str:
    """Compile the kernels of ``found``; what nvcc says."""
    source = re.search(r'^_fusegen_CUDA_SOURCE = r"""\n(.*?)"""', found.source, re.S | re.M)
    assert source
    (folder / "k.cu").write_text(source[1])
    command = ["nvcc", "-std=c++17", "-O3", "-gencode=arch=compute_90a,code=sm_90a", *options, "k.cu"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("axis", [1, 2])
def test_sizes_beyond_its_offsets_are_refused(axis: int, tmp_path: Path) -> None:
    """By the launcher, before it asks for a device. Rows, inputs and features are bound in this order."""
    found = two(tmp_path, "torch.matmul(a, b)", (2048, 1024), (1024, 4096))
    build(found, tmp_path, "-shared", "-Xcompiler=-fPIC", "-o", "k.so")
    launch = ctypes.CDLL(str(tmp_path / "k.so")).k0_gemm_sm90
    sizes = [1, 1, 1]
    sizes[axis] = 1 << 31
    operands: list[None] = [None] * 5  # both factors, result, workspace, counters
    assert launch(*operands, *map(ctypes.c_int64, [*sizes, 0]), None) == 1  # cudaErrorInvalidValue


@pytest.mark.parametrize(
    ("result", "triangle"),
    [
        ("torch.triu(a @ b)", Triangle(upper=True, diagonal=0)),
        ("(torch.relu(a @ b) * 2).tril(-3) + 1", Triangle(upper=False, diagonal=-3)),
        ("(a @ b).view(64, 32, 1024).tril()", None),  # of other matrices
        ("(lambda y: y.tril() + y)(a @ b)", None),  # its other side is read, too
    ],
)
def test_triangles_of_products_leave_out_tiles(tmp_path: Path, result: str, triangle: Triangle | None) -> None:
    found = two(tmp_path, result, (2048, 512), (512, 1024))
    detail = product(found)
    assert detail is not None
    assert detail.triangle == triangle
    assert [step.kind for step in found.program.steps] == ["kernel"]


@pytest.mark.parametrize(
    ("result", "both"),
    [
        ("torch.tanh(a @ a.mT)", True),
        ("torch.relu(a.mT @ a) * self.scale", True),
        ("a @ a.mT / a.shape[1] - 1", True),
        ("torch.triu(a @ a.mT)", False),  # its other side is zero
        ("a @ a.mT + self.row", False),
        ("a @ (a * 2).mT", False),
        ("(a.relu() @ a.mT) * 0.5", False),
    ],
)
def test_a_product_by_itself_is_computed_on_one_side(tmp_path: Path, result: str, both: bool) -> None:
    init = "self.scale, self.row = nn.Parameter(torch.rand(1)), nn.Parameter(torch.rand(2048))"
    detail = product(compile_file(write(tmp_path, f"return {result}", init, "torch.rand(2048, 1536)", "a")))
    assert detail is not None
    assert (detail.triangle is not None and detail.triangle.mirrored) == both


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("form", ["prepared", "in place", "in plain fp32"])
@pytest.mark.parametrize("result", ["torch.triu(a @ b, 2)", "(a @ b).tril() * 2", "(a.mT @ b).tril(-1).abs()"])
def test_triangles_and_turned_factors_compile(result: str, form: str, tmp_path: Path) -> None:
    if form == "in plain fp32" and "mT" in result:
        pytest.skip("that kernel takes rows as they are stored")
    drawn = "torch.rand(4, 256, 256), torch.rand(4, 256, 256)"
    path = write(tmp_path, f"return {result}", inputs=drawn, arguments="a, b")
    names = [node.name for node in traced(path).graph.nodes if isinstance(node.op, MatmulOp)]
    pins = {point: choice for name in names for point, choice in ((f"{name} rows", form), (f"{name} by", "kernel"))}
    found = compile_file(path, pins=pins)
    (step,) = found.program.steps
    assert isinstance(step, KernelStep)
    assert "warning" not in build(found, tmp_path, "-c", "-o", "k.o")


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize(
    ("upper", "diagonal"), [(True, 0), (True, -200), (True, 515), (False, 0), (False, 77), (False, -900)]
)
def test_tiles_of_a_triangle_are_those_that_have_results(upper: bool, diagonal: int, tmp_path: Path) -> None:
    """Each tile once, with results or without, as its corners tell."""
    template = environment().get_template("_gemm_triangle.cu.j2")
    text = template.render(triangle=Triangle(upper=upper, diagonal=diagonal))
    (tmp_path / "tiles.cpp").write_text(
        TILES.replace("DIAGONAL_VALUE", str(diagonal))
        .replace("INCLUDE", text)
        .replace("RESULTS_FIRST", str(int(upper)))
    )
    subprocess.run(["g++", "-std=c++17", "-o", "tiles", "tiles.cpp"], cwd=tmp_path, check=True)
    for rows, columns, width in ((3, 2, 192), (22, 16, 192), (9, 1, 64), (1, 5, 96)):
        run = subprocess.run([tmp_path / "tiles", str(rows), str(columns), str(width)], capture_output=True, check=True)
        found = {tuple(map(int, line.split())) for line in run.stdout.decode().splitlines()}
        expected = set()
        for row in range(rows):
            for column in range(columns):
                near, far = 256 * column - (width * (row + 1) - 1), 256 * (column + 1) - 1 - width * row
                expected.add((int(far >= diagonal if upper else near <= diagonal), row, column))
        assert found == expected


@pytest.mark.parametrize(
    ("result", "rows", "inputs", "outputs", "in_place"),
    [
        ("F.gelu(self.linear(x)) * 2", 512, 512, 512, True),
        ("torch.softmax(self.linear(x), 1)", 2048, 256, 128, True),  # whole rows in a tile
        ("F.gelu(self.linear(x)) * 2", 4096, 2048, 2048, False),
    ],
)
def test_products_of_few_tiles_split_their_rows_for_themselves(
    tmp_path: Path, result: str, rows: int, inputs: int, outputs: int, in_place: bool
) -> None:
    init = f"self.linear = nn.Linear({inputs}, {outputs})"
    found = compile_file(write(tmp_path, f"return {result}", init, f"torch.rand({rows}, {inputs})"))
    (step,) = found.program.steps
    detail = product(found)
    assert isinstance(step, KernelStep)
    assert detail is not None
    assert (detail.form == "in place") == in_place
    assert step.plan.workspace != in_place  # no rows to prepare, no parts of a tile to add up in memory
    assert (step.plan.counters is None) == in_place


@pytest.mark.parametrize(
    ("forward", "shapes", "rows"),
    [
        ("a.T @ b", ((1_000_000, 96), (1_000_000, 64)), 128),
        ("a @ b", ((200, 300_000), (300_000, 256)), 128),
        ("torch.bmm(a, b.mT).abs()", ((6, 64, 30_000), (6, 48, 30_000)), 64),
    ],
)
def test_long_sums_of_few_results_read_both_factors_once(
    forward: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], rows: int, tmp_path: Path
) -> None:
    drawn = ", ".join(f"torch.rand({shape})" for shape in shapes)
    detail = product(compile_file(write(tmp_path, f"return {forward}", inputs=drawn, arguments="a, b")))
    assert detail is not None
    assert detail.form == "streamed"
    assert detail.widths == (rows,)


@pytest.mark.parametrize(
    ("forward", "shapes", "form"),
    [
        ("a @ b", ((4096, 32), (32, 4096)), "short"),
        ("torch.sigmoid(a @ b.T * 0.1)", ((8192, 19), (4094, 19)), "short"),
        ("(a.T @ b).exp()", ((20, 4096), (20, 2048)), "short"),
        ("torch.bmm(a, b.mT) + a.sum(2, True)", ((8, 1024, 16), (8, 1024, 16)), "short"),
        ("(a @ b.T).relu()", ((4096, 3), (4094, 3)), "outer"),
        ("(a.T @ b).exp()", ((15, 4096), (15, 2048)), "outer"),
        ("torch.bmm(a, b.mT) + a.sum(2, True)", ((8, 1024, 7), (8, 1024, 7)), "outer"),
    ],
)
def test_few_terms_of_many_results_stay_in_the_block(
    forward: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], form: str, tmp_path: Path
) -> None:
    drawn = ", ".join(f"torch.rand({shape})" for shape in shapes)
    found = compile_file(write(tmp_path, f"return {forward}", inputs=drawn, arguments="a, b"))
    detail = product(found)
    assert detail is not None
    assert detail.form == form
    messages = build(found, tmp_path, "-Xptxas", "-v", "-c", "-o", "k.o")
    assert max(map(int, re.findall(r"(\d+) bytes spill stores", messages))) <= (0 if form == "short" else 64)


def test_more_terms_than_registers_hold_leave_their_size_free(tmp_path: Path) -> None:
    path = write(
        tmp_path, "return (a @ b).exp()", inputs="torch.rand(9000, 33), torch.rand(33, 9000)", arguments="a, b"
    )
    found = compile_file(path)
    detail = product(found)
    assert detail is not None
    assert detail.form not in ("short", "outer")
    assert not isinstance(detail.inputs, int)


def test_no_block_adds_up_more_than_a_chain_may_have() -> None:
    assert tensor_gemm.streamed_seconds(256, 1 << 21, 256, H200) < inf  # four tiles, which all blocks share
    assert tensor_gemm.streamed_seconds(256, 1 << 17, 256, H200, matrices=132) == inf


def test_rows_of_many_tiles_are_reduced_apart_where_splitting_in_place_saves_more(tmp_path: Path) -> None:
    init = "self.linear = nn.Linear(512, 512)"
    found = compile_file(write(tmp_path, "return F.gelu(self.linear(x)).amax(1)", init, "torch.rand(512, 512)"))
    detail = product(found)
    assert detail is not None
    assert detail.form == "in place"
    assert len(found.program.steps) == 2


# Measured on an H200 (benchmarks/results/h200-product-sizes.json): matrices, rows, features, inputs, microseconds.
IN_PLACE = (
    (1, 64, 128, 256, 10.9),
    (1, 394, 512, 512, 13.8),
    (1, 16, 64, 2048, 19.6),
    (1, 4096, 512, 512, 39.1),
    (1, 16384, 128, 512, 41.4),
    (1, 1024, 1000, 1024, 38.3),
    (16, 256, 512, 512, 38.2),
    (16, 512, 512, 512, 68.5),
)
LIBRARY = (
    (1, 64, 512, 512, 13.7),
    (1, 4096, 512, 512, 59.3),
    (1, 16384, 256, 256, 55.1),
    (1, 16384, 512, 256, 110.2),
    (4, 64, 64, 512, 23.9),
    (16, 256, 512, 512, 53.0),
    (1, 16, 1000, 1024, 20.9),
    (1, 64, 1000, 1024, 18.0),
)


def test_expected_times_are_those_measured() -> None:
    for matrices, rows, outputs, inputs, measured in IN_PLACE:
        found = tensor_gemm._in_place_seconds(64, rows, inputs, outputs, H200, matrices)
        assert found == pytest.approx(measured * 1e-6, rel=0.15), (matrices, rows, inputs, outputs)


def test_the_library_is_never_expected_to_be_much_slower_than_measured() -> None:
    for matrices, rows, outputs, inputs, measured in LIBRARY:
        found = gemm._library_seconds(rows, inputs, outputs, H200, matrices, True)
        assert found <= 1.05 * measured * 1e-6, (matrices, rows, inputs, outputs)


@pytest.mark.parametrize(
    ("result", "height", "beside"),
    [
        ("torch.relu(y)", 64, True),
        ("torch.sigmoid(y) * 2", 64, True),
        ("F.gelu(y)", 32, False),
        ("torch.tanh(F.selu(y))", 32, False),
    ],
)
def test_what_functions_take_decides_on_the_rows_of_a_tile(
    result: str, height: int, beside: bool, tmp_path: Path
) -> None:
    """Two blocks of a multiprocessor wait less; long text is not written out for several rows."""
    body = f"y = self.linear(x)\nreturn {result}"
    path = write(tmp_path, body, "self.linear = nn.Linear(64, 1024)", "torch.rand(1024, 64)")
    found = product(compile_file(path))
    assert found is not None
    assert found.form == "in place"
    assert found.widths == (height,)
    assert found.beside is beside


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize(
    ("body", "inputs", "outputs"),
    [
        ("return torch.softmax(self.linear(x), 1)", 203, 10),
        ("return F.gelu(self.linear(x)) * 2", 512, 32),
        ("return torch.softmax(self.linear(x), 1)", 203, 100),
        ("y = self.linear(x)\nreturn y.amax(1) + y.prod(1)", 64, 1000),
        ("return x + self.linear(x).tanh() * x", 256, 256),
        ("return F.group_norm(self.linear(x), 19)", 256, 304),
    ],
)
@pytest.mark.parametrize("form", ["prepared", "in place", "streamed"])
def test_compiles_without_spills(
    body: str, inputs: int, outputs: int, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_gemm, "seconds", lambda *_: 0.0)
    monkeypatch.setattr(tensor_gemm, "in_place_seconds", lambda *_: -1.0 if form == "in place" else inf)
    monkeypatch.setattr(tensor_gemm, "streamed_seconds", lambda *_: -1.0 if form == "streamed" else inf)
    init = f"self.linear = nn.Linear({inputs}, {outputs})"
    found = compile_file(write(tmp_path, body, init, f"torch.rand(200, {inputs})"))
    messages = build(found, tmp_path, "-Xptxas", "-v", "-c", "-o", "k.o")
    spilled = max(map(int, re.findall(r"(\d+) bytes spill stores", messages)))
    assert spilled <= 64  # of what the roles of a block share, outside of their loops
    assert "C75" not in messages  # products serialized, or fences added by the compiler
