"""Sizes of several inputs that a forward needs to be equal are one size, and a call of others takes the reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.functions import CeilToInt, FloorDiv

from fusegen import dims, guards, interpret
from fusegen.compiler import compile_file
from fusegen.ir import EagerOp
from fusegen.trace.asked import _solution
from fusegen.trace.quotients import as_integers
from tests.emitted import module_from, simulated
from tests.models import traced, write

CONTRAST = """
z = F.normalize(torch.cat([x, y]), dim=1)
eye = torch.eye(2 * x.shape[0], dtype=torch.bool, device=x.device)
return (z @ z.t() / 0.1).masked_fill(eye, -1e9).logsumexp(1).mean()
"""
LABELLED = """
u, v = torch.cat([x, y]), torch.cat([z, z])
same = (v[:, None] == v[None, :]).float()
return (u @ u.t() * same).sum(1)
"""
DICE = """
p, t = x.sigmoid().view(-1), y.view(-1)
return 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)
"""
JOINED = "return torch.cat([x, y], 1).exp() * torch.cat([y, x[:, :3], z], 1)"
FLAT = "return x.flatten(1) * y"
DIAGONAL = "s = x @ y.t()\nreturn s.amax(1) - torch.diagonal(s)"

EQUAL = {  # forward, shapes of its inputs, and the shapes that they are traced as
    "views_of_a_batch": (CONTRAST, ["8, 16", "8, 16"], [("x0_0", 16)] * 2),
    "labels_of_both": (LABELLED, ["8, 6", "8, 6", "8"], [("x0_0", "x0_1"), ("(-1)*x0_0 + 2*x2_0", "x0_1"), ("x2_0",)]),
    "flattened_images": (DICE, ["2, 7, 7, 7", "2, 7, 7, 7"], [("x0_0", "x0_1", "x0_2", "x0_3")] * 2),
    "one_fixed": ("return (x.view(-1) + y.view(-1)).view(x.shape).softmax(1)", ["8, 6", "8, 6"], [("x0_0", 6)] * 2),
    "flat_and_not": (FLAT, ["4, 5, 6", "4, 30"], [("x0_0", "x0_1", "x0_2"), ("x0_0", "x0_1*x0_2")]),
    "joined_parts": (JOINED, ["4, 5", "4, 7", "4, 2"], [("x0_0", "x2_1 + 3"), ("x0_0", "x1_1"), ("x0_0", "x2_1")]),
}


def model_of(body: str, shapes: Sequence[str], folder: Path) -> Path:
    names = "xyz"[: len(shapes)]
    return write(folder, body, inputs=", ".join(f"torch.rand({s})" for s in shapes), arguments=", ".join(names))


@pytest.mark.parametrize("name", EQUAL)
def test_equal_sizes_have_one_name(name: str, tmp_path: Path) -> None:
    body, shapes, expected = EQUAL[name]
    found = traced(model_of(body, shapes, tmp_path))
    graph = found.graph
    assert [node.type.shape for node in graph.inputs] == expected
    assert not any(isinstance(node.op, EagerOp) for node in graph.nodes)
    larger = {size: value + 3 for size, value in graph.sizes.items()}
    assert guards.all_hold(graph.constraints, larger)
    given = [torch.rand(shape) for shape in interpret.input_shapes(graph, larger)]
    torch.testing.assert_close(interpret.run(graph, given, {}, larger)[0], found.model(*given))


def test_a_size_that_has_to_be_the_lesser_is_the_same(tmp_path: Path) -> None:
    """The diagonal of scores is as long as the shorter side; ops of both need the batches to be one."""
    graph = traced(model_of(DIAGONAL, ["8, 6", "8, 6"], tmp_path)).graph
    x, y = (node.type.shape for node in graph.inputs)
    assert x == y
    assert [node.op.target for node in graph.nodes if isinstance(node.op, EagerOp)] == ["aten.diagonal.default"]


def test_products_that_are_equal_stay_free_where_it_helps_no_op(tmp_path: Path) -> None:
    body = "return x * 2 if x.numel() == y.numel() else x * 3"
    graph = traced(model_of(body, ["4, 6", "8, 3"], tmp_path)).graph
    assert list(graph.sizes) == ["x0_0", "x0_1", "x1_0", "x1_1"]
    assert guards.all_hold(graph.constraints, {"x0_0": 5, "x0_1": 6, "x1_0": 3, "x1_1": 10})
    assert not guards.all_hold(graph.constraints, {"x0_0": 5, "x0_1": 6, "x1_0": 3, "x1_1": 11})


def test_conditions_on_a_size_that_follows_from_another_stay(tmp_path: Path) -> None:
    body = "z = y + x[:, ::2]\nreturn z.exp() if y.shape[1] > 10 else z.sin()"
    found = traced(model_of(body, ["6, 40", "6, 20"], tmp_path))
    assert found.graph.inputs[1].type.shape == ("x0_0", "((x0_1 + 1) // 2)")
    taken = [n for n in range(1, 40) if guards.all_hold(found.graph.constraints, {"x0_0": 6, "x0_1": n})]
    assert taken == list(range(21, 40))


CALLS = {  # shapes of a call, and whether kernels run
    "views_of_a_batch": [("5, 16", "5, 16", True), ("1, 16", "1, 16", True), ("8, 5", "8, 5", False)],
    "flattened_images": [
        ("3, 2, 6, 5", "3, 2, 6, 5", True),
        ("2, 3, 6, 5", "3, 2, 6, 5", False),
        ("8, 6", "6, 8", False),
    ],
    "flat_and_not": [("2, 3, 4", "2, 12", True), ("2, 3, 4", "1, 12", False), ("2, 3, 4", "2, 1", False)],
}


@pytest.mark.filterwarnings("ignore:.*runs its reference forward")
@pytest.mark.parametrize("name", CALLS)
def test_calls_of_other_sizes_take_the_reference(name: str, tmp_path: Path) -> None:
    path = model_of(*EQUAL[name][:2], tmp_path)
    module = simulated(compile_file(path), f"generated_{name}")
    model, reference = module.ModelNew(), module_from(path.read_text(), "reference_model").Model()
    for first, second, fits in CALLS[name]:
        x, y = (torch.rand(*map(int, shape.split(","))) for shape in (first, second))
        module.calls.clear()
        torch.testing.assert_close(model(x, y), reference(x, y))
        assert bool(module.calls) == fits, (first, second)


def test_a_call_of_two_batches_fails_as_the_model_does(tmp_path: Path) -> None:
    path = model_of(*EQUAL["views_of_a_batch"][:2], tmp_path)
    module = simulated(compile_file(path), "generated_batches")
    x, y = torch.rand(8, 16), torch.rand(6, 16)
    with (
        pytest.raises(RuntimeError, match="match"),
        pytest.warns(UserWarning, match="input y has sizes that do not fit"),
    ):
        module.ModelNew()(x, y)
    assert not module.calls


SOLVED = {
    "a + b == 2*a": "b = a",
    "a == b + 3": "a = b + 3",
    "a + b == c + d": "d = a + b - c",
    "2*a + 4 == 2*b": "b = a + 2",
    "a*b == a*c": "c = b",
    "a*a == b*b": "b = a",
    "b == (a + 1) // 2": "b = ((a + 1) // 2)",
    "2*min(a + 4, a) == a + b": "b = a",
    "2*a == 3*b": None,
    "a*b == c*d": None,
    "a*a + b*c == a*c + a*b": None,  # a == b or a == c
    "b == (b + a) // 2": None,
}


@pytest.mark.parametrize("equation", SOLVED)
def test_what_an_equation_says_of_a_size(equation: str) -> None:
    one, other = map(dims.parse, equation.split(" == "))
    found = _solution(sympy.Eq(one, other), "abcd")
    assert (found and f"{found[0]} = {dims.canonical(found[1])}") == SOLVED[equation]


def test_rounded_quotients_of_sizes_are_integers() -> None:
    """Layers that pad as TensorFlow's do: every one's size is known by its stride, not by all that layers ask for."""
    traced_as = ShapeEnv()
    symbol = traced_as.create_symbol(225, ConstantSource("x"), dynamic_dim=DimDynamic.DYNAMIC)
    size = traced_as.create_symintnode(symbol, hint=225)
    with as_integers():
        for kernel, stride in ((1, 1), (3, 2), (5, 1)):
            out = math.ceil(size / stride)
            size += (out - 1) * stride + kernel - size
            size = (size - kernel) // stride + 1
        assert size.node.expr == FloorDiv(symbol + 1, 2)
        assert math.floor(size / 3).node.expr == FloorDiv(size.node.expr, 3)
    values = [size.node.expr.subs(symbol, value) for value in (224, 225)]
    assert values == [112, 113]
    assert math.ceil(size / 7).node.expr.has(CeilToInt)


def test_padding_fixes_the_sizes_that_it_has_quotients_of(tmp_path: Path) -> None:
    """A pad's amounts are numbers in the graph; the batch and the other axis stay free."""
    body = "n = -x.shape[2] % 4\ny = F.pad(x, [n // 2, n - n // 2])\nreturn F.pad(y, (0, 0, 0, 1)).sin()"
    found = traced(model_of(body, ["4, 5, 6"], tmp_path))
    graph = found.graph
    assert graph.node(graph.outputs[0]).type.shape == ("x0_0", "x0_1 + 1", 8)
    x = torch.rand(3, 7, 6)
    torch.testing.assert_close(interpret.run(graph, [x], {})[0], found.model(x))
