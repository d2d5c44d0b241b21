"""Integers in kernels: ranges, masks, classes and conversions are torch's, in graphs and in kernels."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fusegen import interpret
from fusegen.compiler import Compiled, compile_file
from fusegen.costs import attention, viewproduct
from fusegen.errors import GraphFormatError
from fusegen.ir import EagerOp, Graph, PointwiseOp, to_json
from fusegen.passes import left_out
from fusegen.plan.details import AttentionPlan, PointwisePlan, ViewProductPlan
from fusegen.plan.types import KernelStep
from fusegen.trace import load_model_file
from fusegen.verify import from_json
from tests import modular
from tests.emitted import bodies
from tests.emulated import steps
from tests.emulated.programs import OnTheCPU
from tests.models import traced, write

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

SPELLINGS = """
    i + 1
    i - j
    3 - i
    i * 2 + j
    torch.add(i, j, alpha=3)
    -i
    i.abs()
    i ** 2
    i // 3
    i // -2
    torch.div(i, 3, rounding_mode='floor')
    i % 5
    i % -3
    i % (j.abs() + 1)
    torch.fmod(i, 4)
    i / 4
    i / (j * j + 1)
    i > 2
    i <= j
    i == 3
    i != j
    i > 0.5
    i >= x[..., 0]
    i + 0.5
    i * x[..., 0]
    i.clamp(-2, 3)
    i.clamp(min=0)
    i.clamp(max=2.5)
    torch.maximum(i, j)
    torch.minimum(i, j)
    torch.where(i > j, i, j)
    torch.where(i > j, i, 7)
    torch.where(x[..., 0] > 0, i, 0) + 0.5
    i.masked_fill(i > 1, 0)
    i.float()
    i.to(torch.int32)
    i.to(torch.int32) + j
    i.to(torch.int32) * 2
    (i > 0).long() * 16
    (i > 0).int()
    (i > 0) + 1
    i.type_as(x) * 2
    i.bool()
    i & 3
    i | j
    i ^ j
    ~i
    torch.logical_and(i, j > 1)
    torch.heaviside(i, j)
    torch.fmax(i, j)
    torch.fmin(i, j)
    torch.isposinf(i)
    torch.deg2rad(i)
    torch.xlogy(i, j)
    i.any(1)
    i.all(0, keepdim=True)
    torch.count_nonzero(i, 0) * 0.5
    i.repeat_interleave(3, 1) + 1
    torch.tensordot(x, x[0], dims=([1, 2], [0, 1]))
    x.long()
    (x * 5).int() - 1
    (x * 3).long().float()
    x.sign().long()
    torch.sign(i)
    torch.relu(i)
    torch.exp(i)
    torch.sin(i) + torch.sigmoid(j)
    i.sqrt()
    torch.arange(7, device=x.device) - i[:, :1]
    torch.arange(3, 12, device=x.device)
    torch.arange(3, 12, 2, device=x.device) * 2
    torch.arange(9, -4, -3, device=x.device)
    torch.arange(i.shape[0], device=x.device)
    torch.arange(1, 2 * i.shape[0] + 1, device=x.device) + 1
    torch.arange(-i.shape[0], i.shape[0], device=x.device)
    torch.arange(i.shape[1], dtype=torch.float32, device=x.device) / 3
    torch.arange(i.shape[1], dtype=torch.int32, device=x.device)
    torch.arange(i.shape[1], device=x.device).float()[None] * x[..., 0]
    torch.zeros_like(i) + 1
    torch.full_like(i, 5) - i
    torch.ones(4, dtype=torch.long, device=x.device) * 3
    F.one_hot(i.abs(), 60)
    F.one_hot(i.abs(), 60).float() * x[:, :1]
    i + i.shape[0]
"""
INPUTS = "torch.randn(5, 7, 60), torch.randint(-9, 10, (5, 7)), torch.randint(-3, 4, (5, 7))"


def spelled(graph: Graph) -> list[str]:
    return [node.op.target for node in graph.nodes if isinstance(node.op, EagerOp)]


@pytest.mark.parametrize("spelling", [line.strip() for line in SPELLINGS.strip().splitlines()])
def test_every_spelling_is_of_the_vocabulary(spelling: str, tmp_path: Path) -> None:
    """And means what torch means by it."""
    path = write(tmp_path, f"return {spelling}", "pass", INPUTS, "x, i, j")
    graph = traced(path).graph
    assert not spelled(graph)
    model = load_model_file(path).model_class()
    for shape in ((5, 7), (1, 7), (12, 7)):
        x, i, j = torch.randn(*shape, 60) * 4, torch.randint(-9, 10, shape), torch.randint(-3, 4, shape)
        (found,) = interpret.run(graph, [x, i, j], {})
        expected = model(x, i, j)
        assert found.dtype is expected.dtype
        torch.testing.assert_close(found, expected, equal_nan=True)


def kinds(found: Compiled) -> list[str]:
    return [step.plan.detail.template if isinstance(step, KernelStep) else "torch" for step in found.program.steps]


ROTARY = """
t = torch.arange(x.shape[2], device=x.device).float()
f = torch.outer(t, 10000.0 ** (-torch.arange(0, 8, 2, device=x.device).float() / 8))
e = torch.cat([f, f], -1)
a, b = x.chunk(2, -1)
return x * e.cos() + torch.cat([-b, a], -1) * e.sin()
"""
BUCKETS = """
k = torch.arange(x.shape[-1], device=x.device)
d = k[None, :] - k[:, None]
a = d.abs()
large = 8 + (torch.log(a.float().clamp(min=1) / 8) / 2.7725887 * 8).long()
b = (d > 0).long() * 16 + torch.where(a < 8, a, large.clamp(max=15))
"""
X, IDS, LENGTHS = "torch.randn(3, 4, 9, 8)", "torch.randint(0, 12, (3, 9))", "torch.randint(1, 9, (3,))"
MODELS: dict[str, tuple[str, str, str, list[str]]] = {
    "classes": ("return F.one_hot(i, 12).float() * 2", IDS, "i", ["pointwise"]),
    "classes as they are": ("return F.one_hot(i, 12)", IDS, "i", ["pointwise"]),
    "weights of classes": (
        "return (F.one_hot(i, 12).float() * w).sum(-1)",
        f"{IDS}, torch.randn(12)",
        "i, w",
        ["reduce_views"],
    ),
    "padding": (
        "m = torch.arange(x.shape[2], device=x.device)[None] < n[:, None]\nreturn (x * m[:, None, :, None]).mean(2)",
        f"{X}, {LENGTHS}",
        "x, n",
        ["reduce_views"],
    ),
    "padding in place": (
        "m = torch.arange(x.shape[2], device=x.device)[None] < n[:, None]\n"
        "return x.masked_fill(~m[:, None, :, None], 0.5) + 1",
        f"{X}, {LENGTHS}",
        "x, n",
        ["pointwise"],
    ),
    "causal": (
        "k = torch.arange(x.shape[-1], device=x.device)\n"
        "return torch.where(k[None, :] <= k[:, None], x, -torch.inf).softmax(-1)",
        "torch.randn(3, 4, 8, 8)",
        "x",
        ["pointwise", "row_reduce"],
    ),
    "rotary": (f"{ROTARY}", X, "x", ["pointwise"]),
    "buckets": (f"{BUCKETS}return x + b.float()", "torch.randn(3, 4, 40, 40)", "x", ["pointwise"]),
    "buckets as they are": (f"{BUCKETS}return b", "torch.randn(3, 4, 300, 300)", "x", ["pointwise"]),
    "sines": (
        "t = torch.arange(x.shape[2], device=x.device)[:, None]\n"
        "d = torch.exp(torch.arange(0, 8, 2, device=x.device) * -1.1)\n"
        "return x + torch.stack([torch.sin(t * d), torch.cos(t * d)], -1).flatten(1)",
        X,
        "x",
        ["pointwise"],
    ),
    "places": (
        "k = torch.arange(x.shape[-1], device=x.device)\nreturn x * ((k * 3 + 1) % 5 - k // 2).flip(0)",
        X,
        "x",
        ["pointwise"],
    ),
    "parts of a range": (
        "k = torch.arange(2 * x.shape[-1] + 3, device=x.device)[3::2]\nreturn torch.tanh(x.flip(2)) + k",
        X,
        "x",
        ["pointwise"],
    ),
    "narrow": (
        "k = (i.int() * 7 - 3).clamp(-5, 50)\nreturn torch.where(k > 20, -k, k % 9)",
        IDS,
        "i",
        ["pointwise"],
    ),
    "rounded": ("return (x * 3 + 0.5).long() - (x * 2).int()", X, "x", ["pointwise"]),
    "quantised": ("y = (x * 20).round().long().clamp(-128, 127)\nreturn y.float() * 0.05", X, "x", ["pointwise"]),
    "padded numbers": (
        "return F.pad(i * 2, (1, 2), value=7) + torch.cat([i, i[:, :3] - 1], 1)",
        IDS,
        "i",
        ["pointwise"],
    ),
    "triangles": ("return (i[:, :, None] * i[:, None]).tril() + 1", IDS, "i", ["pointwise"]),
    "a count": (
        "return x / (i > 3).sum(-1).float()[:, None, None, None]",
        f"{X}, {IDS}",
        "x, i",
        ["reduce_views", "pointwise"],
    ),
}


TABLE = f"""
{ROTARY.strip().replace("return ", "q = ")}
a, b = y.chunk(2, -1)
return q, y * e.cos() + torch.cat([-b, a], -1) * e.sin()
"""


def test_a_table_of_functions_is_one_kernel(tmp_path: Path) -> None:
    """What several kernels read for many elements each is computed once; for few, where it is read."""
    for samples, tables in ((256, [True, False, False]), (1, [False, True, True])):
        drawn = ", ".join([f"torch.randn({samples}, 16, 256, 8)"] * 2)
        found = compile_file(write(tmp_path, TABLE, "pass", drawn, "x, y"))
        assert kinds(found) == ["pointwise"] * 3
        functions = [
            {node.op.fn for node in body.nodes if isinstance(node.op, PointwiseOp)} for body in bodies(found.program)
        ]
        assert [{"sin", "cos"} <= names for names in functions] == tables


@needs_compiler
def test_a_table_is_what_torch_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out, "work", lambda node: 10**9 * (node.type.shape[-1] == 8))
    path = write(tmp_path, TABLE, "pass", f"{X}, {X}", "x, y")
    found = compile_file(path)
    assert kinds(found) == ["pointwise"] * 3
    model, played = load_model_file(path).model_class(), OnTheCPU(found, "table", tmp_path)
    given = data(f"{X}, {X}", 2, 0)
    for result, expected in zip(played(*given), model(*given), strict=True):
        torch.testing.assert_close(result, expected)


MASKED = "torch.where(k[:, None] >= k, x @ y.mT, -torch.inf).softmax(-1) @ y"
PRODUCTS = {
    "attention": (f"k = torch.arange(x.shape[-2], device=x.device)\nreturn {MASKED}", AttentionPlan),
    "factors": (
        "k = torch.arange(x.shape[-1], device=x.device)\n"
        "return (x.transpose(1, 2) * (k * 2 - 3)[:, None]) @ (y * (k > 3))",
        ViewProductPlan,
    ),
}


@needs_compiler
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_have_integers_in_their_factors(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewproduct, "seconds", lambda *_: -1.0)
    monkeypatch.setattr(attention, "seconds", lambda *_: -1.0)
    body, kind = PRODUCTS[name]
    path = write(tmp_path, body, "pass", "torch.randn(2, 70, 16), torch.randn(2, 70, 16)", "x, y")
    found = compile_file(path)
    assert steps(found, kind)
    model, played = load_model_file(path).model_class(), OnTheCPU(found, "products", tmp_path)
    for size in (70, 9):
        given = [torch.randn(2, size, 16) for _ in range(2)]
        torch.testing.assert_close(played(*given), model(*given), rtol=1e-4, atol=1e-4)


ONE_KERNEL = """
import faulthandler, resource, sys
from pathlib import Path
import torch
from fusegen.compiler import compile_file
from fusegen.plan.details import PointwisePlan
from tests.emulated import Kernel, steps
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
faulthandler.disable()
path, folder, number = sys.argv[1:]
found = compile_file(Path(path))
(plan,) = steps(found, PointwisePlan)
Kernel(found, plan, Path(folder))([torch.tensor([[0, 1, int(number), 2]])])
"""


@needs_compiler
def test_a_class_that_is_none_ends_the_kernel(tmp_path: Path) -> None:
    """As torch's own assertion does; the emulated trap ends the process, so each has one of its own."""
    path = write(tmp_path, "return F.one_hot(i, 5).float() * 2", "pass", "torch.randint(0, 5, (3, 4))", "i")
    for number, ends in ((4, False), (5, True), (-1, True)):
        folder = tmp_path / f"of_{number}"
        folder.mkdir()
        command = [sys.executable, "-c", ONE_KERNEL, str(path), str(folder), str(number)]
        run = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
        assert run.returncode < 0 if ends else run.returncode == 0, run.stderr
    found = compile_file(path)
    with pytest.raises((IndexError, RuntimeError)):
        interpret.run(found.program.before, [torch.tensor([[0, 7]])], {})


def test_descriptions_tell_integers_from_floats(tmp_path: Path) -> None:
    """Also where one leaves out the point of a float."""
    graph = traced(write(tmp_path, "return x[..., 0] * 2 + i * 3", "pass", INPUTS, "x, i, j")).graph
    assert from_json(to_json(graph)) == graph
    assert from_json(to_json(graph).replace('"value": 2.0', '"value": 2')) == graph
    with pytest.raises(GraphFormatError, match=r"a number 3\.0 of int64"):
        from_json(to_json(graph).replace('"value": 3', '"value": 3.0'))


def test_positions_are_as_wide_as_a_range_is_long(tmp_path: Path) -> None:
    """However few of its numbers are read."""
    body = "k = torch.arange(2**33, device=x.device)[:: 2**31]\nreturn x[:, :4, 0, 0] * k"
    (plan,) = steps(compile_file(write(tmp_path, body, "pass", X)), PointwisePlan)
    assert isinstance(plan.detail, PointwisePlan)
    assert str(2**33) in map(str, plan.detail.reach)


def test_a_range_of_floats_is_short(tmp_path: Path) -> None:
    """Every number is one of float32, at the sizes of every call."""
    body = "return x * torch.arange({}, dtype=torch.float32, device=x.device)"
    graph = traced(write(tmp_path, body.format("x.shape[3]"), "pass", X)).graph
    assert any("16777216" in condition for condition in graph.constraints)
    graph = traced(write(tmp_path, body.format("0.5, 8.5") + "[: x.shape[3]]", "pass", X)).graph
    assert spelled(graph) == ["aten.arange.start"]


def test_ranges_are_exact_modulo_a_prime(tmp_path: Path) -> None:
    body = "return torch.arange(4, 40, 3, device=x.device) * 5 - torch.arange(12, device=x.device).float()"
    graph = traced(write(tmp_path, body, "pass", X)).graph
    x = torch.zeros(3, 4, 9, 8)
    (found,), (exact,) = modular.evaluate(graph, {"x": x}), interpret.run(graph, [x], {})
    assert torch.equal(found, exact.long() % modular.PRIME)


def test_what_becomes_an_integer_is_rounded_as_eager_does(tmp_path: Path) -> None:
    """No rule joins its factors, and no compiler its product and sum; beside it both may."""
    body = "return (x / 3 * 5 + 0.25).long().float() + (x / 3 * 5 + 0.5)"
    found = compile_file(write(tmp_path, body, "pass", X))
    (plan,) = steps(found, PointwisePlan)
    assert isinstance(plan.detail, PointwisePlan)
    texts = [statement.expr for phase in plan.detail.rows.phases for statement in phase.elements]
    assert sum("_rn(" in text for text in texts) == 3


def data(inputs: str, grow: int, seed: int) -> list[torch.Tensor]:
    """Random inputs as a model file draws them, of more or of fewer samples."""
    torch.manual_seed(seed)
    drawn: list[torch.Tensor] = eval(f"[{inputs}]", {"torch": torch})
    return [value if value.dim() == 1 and value.is_floating_point() else torch.cat([value] * grow) for value in drawn]


@needs_compiler
@pytest.mark.parametrize("name", MODELS)
def test_kernels_compute_what_torch_does(name: str, tmp_path: Path) -> None:
    body, inputs, arguments, expected_kinds = MODELS[name]
    path = write(tmp_path, body, "pass", inputs, arguments)
    found = compile_file(path)
    assert kinds(found) == expected_kinds
    model, played = load_model_file(path).model_class(), OnTheCPU(found, "integers", tmp_path)
    for seed, grow in enumerate((1, 2, 1)):
        given = data(inputs, grow, seed)
        result, expected = played(*given), model(*given)
        assert result.dtype is expected.dtype
        torch.testing.assert_close(result, expected, equal_nan=True)


def some_integers(rng: random.Random) -> str:
    """A forward of integers [batch, 9], of inputs and of ranges, in a result of floats or of integers."""
    n = "x.shape[1]"
    start, step = rng.randint(-9, 9), rng.choice((-3, -1, 1, 2))
    ranges = (
        f"torch.arange({n}, device=x.device)",
        f"torch.arange({start}, {start} + {n} * {step}, {step}, device=x.device)",
    )
    lines, known = [f"r, s = {', '.join(ranges)}"], ["i", "j", "i + r", "s - j", "s.expand_as(i)", "(x * 5).long()"]
    for place in range(rng.randint(3, 6)):
        a, b, c = (rng.choice(known) for _ in range(3))
        number = rng.choice((-4, -1, 2, 3, 7))
        text = rng.choice(
            (
                f"({a}) + ({b})",
                f"({a}) * {number} - ({b})",
                f"({a}) // {number}",
                f"({a}) % {number}",
                f"({a}).abs().clamp({number}, 20)",
                f"torch.where(({a}) > ({b}), {c}, {number})",
                f"torch.where((({a}) <= s) & (({b}) != {number}), {c}, ({a}) ^ 5)",
                f"({a}).masked_fill(({b}) >= r, {number}).flip(1)",
                f"torch.maximum({a}, {b}) - (({c}) == {number}).long()",
                f"torch.cat([({a})[:, 2:], ({b})[:, :2]], 1)",
                f"F.pad(({a})[:, 1:], (0, 1), value={number})",
                f"(({a}).float() * 0.3 + x).round().int() + ({b})",
            )
        )
        lines.append(f"v{place} = {text}")
        known.append(f"v{place}")
    last = known[-1]
    results = (
        f"x * ({last})",
        f"({last}) * 2",
        f"torch.sin({last}) + x",
        f"(({last}) > r).float() - x",
        f"(x * ({last})).sum(1)",
    )
    return "\n".join([*lines, f"return {rng.choice(results)}"])


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("seed", range(16))
def test_any_integers_are_torchs(seed: int, tmp_path: Path) -> None:
    inputs = "torch.randn(3, 9), torch.randint(-9, 10, (3, 9)), torch.randint(-3, 4, (3, 9))"
    path = write(tmp_path, some_integers(random.Random(seed)), "pass", inputs, "x, i, j")
    found = compile_file(path)
    assert "torch" not in kinds(found)
    model, played = load_model_file(path).model_class(), OnTheCPU(found, "any", tmp_path)
    for batch, length in ((3, 9), (5, 9), (1, 12), (2, 4)):
        shape = (batch, length)
        given = [torch.randn(shape), torch.randint(-9, 10, shape), torch.randint(-3, 4, shape)]
        torch.testing.assert_close(played(*given), model(*given), rtol=1e-5, atol=1e-5)
