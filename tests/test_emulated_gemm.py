"""Tiles of products that are cut into many runs, on the CPU: how rows are split before, and runs added up after.

The tensor cores' part is a function that reads rows and leaves every block's runs where the kernel does.
"""

from __future__ import annotations

import ctypes
import math
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from fusegen import interpret
from fusegen.compiler import Compiled, compile_file
from fusegen.costs import tensor_gemm
from fusegen.ir import ParamOp
from fusegen.plan.details import GemmPlan
from fusegen.plan.types import KernelStep
from fusegen.trace import load_model_file
from tests.emulated import Kernel, _library
from tests.models import write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]

MODELS = {  # parameters of the linear layer, what the forward returns, inputs
    "stored": ((1280, 200), "F.gelu(self.linear(x)) * self.p", ["70, 1280"]),
    "chain_before": ((1290, 200), "self.linear(F.silu(x).exp() / self.q) * self.p", ["70, 1290"]),
    "one_block": ((1290, 77), "self.linear(x).abs() - self.p", ["33, 1290"]),
    "columns": ((1283, 600), "self.linear(x).tanh() * self.p", ["130, 1283"]),
    "weights": ((1280, 300), "(x @ self.w).relu() + self.p", ["70, 1280"]),
    "groups": ((1280, 384), "F.group_norm(self.linear(x), 12, self.p)", ["70, 1280"]),
    "short_rows": ((1280, 96), "torch.softmax(self.linear(x) * 9, 1)", ["70, 1280"]),
    "maximum": ((1280, 256), "(F.gelu(self.linear(x)) * 2).amax(1)", ["70, 1280"]),
    "reductions": ((1280, 300), "(lambda z: z.amax(1) + z.amin(1) * z.mean(1))(self.linear(x))", ["70, 1280"]),
    "logsumexp": ((1280, 1100), "torch.logsumexp(self.linear(x) * 3, 1)", ["70, 1280"]),
    "long": ((1280, 2100), "self.linear(x).relu().sum(1)", ["40, 1280"]),
    "two": ((1, 1), "torch.matmul(x, y).abs() - 1", ["70, 1290", "1290, 200"]),
    "columns_of_left": ((1, 1), "torch.matmul(x.T, y).abs() - 1", ["1290, 70", "1290, 200"]),
    "batch": ((1, 1), "torch.matmul(x, y).abs() - 1", ["3, 70, 1290", "3, 1290, 130"]),
    "batch_of_weights": ((1280, 200), "torch.matmul(x, self.v.mT).amax(2)", ["3, 70, 1280"]),
}

MULTIPLY = """
template <int WIDTH>
int multiply(const Args& args, int64_t blocks) {
    if (!args.joined) return 1;
    SIZES
    const Schedule& s = args.schedule;
    for (unsigned block = 0; block < blocks; ++block) {
        Segment work;
        for (unsigned i = 0; segment(s, block / CLUSTER, blocks / CLUSTER, i, work); ++i) {
            const unsigned matrix = work.tile / MATRIX_TILES, tile = work.tile % MATRIX_TILES;
            const unsigned first = (tile / s.row_tiles * CLUSTER + block % CLUSTER) * FEATURES;
            const int64_t row_tile = matrix * s.row_tiles + tile % s.row_tiles;
            if (first >= outputs) continue;
            float* to = run_of(args, block / CLUSTER, work.tile, block % CLUSTER, WIDTH);
            for (int n = 0; n < WIDTH * FEATURES; ++n) {
                const int at = n / FEATURES, feature = first + n % FEATURES;
                double sum = 0.0;
                for (int64_t k = work.first * CHUNK; feature < outputs && k < work.last * CHUNK && k < inputs; ++k) {
                    const int in_chunk = k % CHUNK, j = k % STEP;
                    const int piece = in_chunk / STEP * 2 + (PIECE), byte = (WORD) * 4 + (HALF) * 2;
                    const int64_t place = (row_tile * chunks + k / CHUNK) * 2 * WIDTH + at;
                    const unsigned char* line = args.halves + place * 128;
                    _Float16 high, low;
                    memcpy(&high, line + (piece ^ (at & 7)) * 16 + byte, 2);
                    memcpy(&low, line + WIDTH * 128 + (piece ^ (at & 7)) * 16 + byte, 2);
                    const float* weight = args.weight + matrix * of_matrix;
                    const int64_t along = TRANSPOSED ? feature * inputs + k : k * outputs + feature;
                    sum += (double(high) + double(low)) * weight[along];
                }
                to[n] = float(sum);
            }
        }
    }
    return 0;
}
"""
SPLIT = """
inline uint32_t halves(float a, float b) { return to_half(a) | to_half(b) << 16; }
inline void split(float a, float b, uint32_t& high, uint32_t& low) {
    high = halves(a, b);
    low = halves(a - from_half(high), b - from_half(high >> 16));
}
"""


def without_tensor_cores(text: str, transposed: bool, own_weights: bool) -> str:
    """The kernel's text with ``MULTIPLY`` for what needs them."""
    for name in ("halves", "split"):
        text = re.sub(rf"^__device__ __forceinline__ \w+ {name}\(.*?^}}\n", "", text, flags=re.S | re.M)
    inputs, outputs = (
        name if re.search(rf"constexpr int64_t .*\b{name} =", text) else f"args.{name.lower()}"
        for name in ("INPUTS", "OUTPUTS")
    )
    sizes = [
        f"const int64_t inputs = {inputs}, outputs = {outputs};",
        f"const int64_t chunks = {'CHUNKS' if inputs == 'INPUTS' else 'args.schedule.chunks'};",
        f"const int64_t of_matrix = {'inputs * outputs' if own_weights else '0'};",
    ]
    places = ("j / 2 % 2", "j / 4", "j % 2") if transposed else ("j / 8", "j % 4", "j % 8 / 4")
    values = {
        "SIZES": "\n    ".join(sizes),
        "MATRIX_TILES": "s.matrix_tiles" if "unsigned int matrix_tiles;" in text else "(1u << 30)",
        "TRANSPOSED": str(transposed).lower(),
        **dict(zip(("(PIECE)", "(WORD)", "(HALF)"), (f"({place})" for place in places), strict=True)),
    }
    multiply = MULTIPLY
    for name, value in values.items():
        multiply = multiply.replace(name, value)
    begin = text.index("// host\n")
    text = text[:begin] + multiply + text[begin:]
    text, count = re.subn(
        r"enqueue_clusters\(CLUSTER, run<WIDTH>.*?\);", "multiply<WIDTH>(args, layout.clusters * CLUSTER);", text
    )
    assert count == 1
    return re.sub(r"^(// A power of two that brings)", SPLIT + r"\n\1", text, count=1, flags=re.M)


class Product(Kernel):
    """A product without tensor cores, on a device of 132 multiprocessors."""

    variant = "sm90"

    def compiled(self, compiled: Compiled, folder: Path) -> ctypes.CDLL:
        detail = self.plan.hopper or self.plan.detail
        assert isinstance(detail, GemmPlan)
        translate = partial(
            without_tensor_cores, transposed=detail.weight_transposed, own_weights=detail.weight_batched
        )
        return _library(compiled, self.name, folder, translate, "#define multiprocessors() 132\n")


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_float64(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_gemm, "seconds", lambda *_: 0.0)
    monkeypatch.setattr(tensor_gemm, "in_place_seconds", lambda *_: math.inf)
    (inputs, outputs), body, shapes = MODELS[name]
    init = f"self.linear = nn.Linear({inputs}, {outputs})\nself.p = nn.Parameter(torch.randn({outputs}))\n"
    init += f"self.q = nn.Parameter(torch.rand({inputs}) + 0.5)\n"
    init += f"self.w = nn.Parameter(torch.randn({inputs}, {outputs}))\n"
    init += f"self.v = nn.Parameter(torch.randn(3, {outputs}, {inputs}))"
    names = ", ".join(("x", "y")[: len(shapes)])
    drawn = ", ".join(f"torch.randn({shape})" for shape in shapes)
    path = write(tmp_path, f"return {body}", init, drawn, names)
    compiled = compile_file(path)
    (plan,) = (step.plan for step in compiled.program.steps if isinstance(step, KernelStep))
    kernel = Product(compiled, plan, tmp_path)
    torch.manual_seed(0)
    parameters = dict(load_model_file(path).model_class().named_parameters())
    data = [torch.randn([int(size) for size in shape.split(",")]) for shape in shapes]
    graph = compiled.program.after

    def operand(node: str) -> torch.Tensor:
        op = graph.node(node).op
        return parameters[op.path].detach().contiguous() if isinstance(op, ParamOp) else data[op.position]

    for special in (None, torch.inf, torch.nan):
        if special is not None:
            data[0].view(-1)[5] = special
        operands = [operand(arg.node) for arg in plan.args]
        (y,) = kernel(operands, *([0] if plan.tf32 else []))
        (r,) = interpret.run(kernel.body, [value.double() for value in operands], {})
        assert torch.equal(y.isnan(), r.isnan())
        assert torch.equal(y.isinf(), r.isinf())
        both = r.isfinite()
        assert (y.double() - r)[both].abs().max() <= 2e-6 * r[both].abs().max()
