"""Steps that follow each other as one operator: which they are, what they call of torch, and that it compiles."""

from __future__ import annotations

import re
import shutil
import subprocess
from math import prod
from pathlib import Path

import pytest
import torch

from fusegen import ops
from fusegen.compiler import Compiled, compile_file
from fusegen.costs import hopper
from fusegen.ir import AttentionOp, CatOp, ConvOp, MatmulOp, Op, PermuteOp, ReshapeOp, SliceOp
from fusegen.plan import native, runs
from fusegen.plan.runs import Run
from fusegen.plan.types import EagerStep
from tests.emitted import cuda_include, reference_from, simulated
from tests.models import write

NORMS = "self.a = nn.BatchNorm2d(8)\nself.b = nn.BatchNorm2d(8)"
IMAGES = "torch.rand(4, 8, 6, 5)"
NETWORK = """
y = self.c(self.a(x).relu())
y = torch.cat([self.b(y), y], 1)
y = y.mean((2, 3)) @ self.w.mT
return y[:, 1:].softmax(1)
"""
LAYERS = """
self.a = nn.BatchNorm2d(256)
self.b = nn.BatchNorm2d(256)
self.c = nn.Conv2d(256, 256, 3, padding=1, bias=False)
self.w = nn.Parameter(torch.rand(2048, 512) / 64)
"""


def _calls(compiled: Compiled) -> list[str]:
    """The calls of operators in the compiled forward."""
    return re.findall(r"\bops\[\d+\]\(.*\)", compiled.source)


def _agrees(compiled: Compiled, path: Path, x: torch.Tensor) -> None:
    torch.manual_seed(0)
    reference = reference_from(path.read_text()).Model()
    torch.manual_seed(0)
    model = simulated(compiled).ModelNew()
    with torch.no_grad():
        torch.testing.assert_close(model(x), reference(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.state_dict(), reference.state_dict(), rtol=1e-4, atol=1e-5)


def test_kernels_that_follow_each_other_are_one_operator(tmp_path: Path) -> None:
    path = write(tmp_path, "return F.max_pool2d(self.b(self.a(x).relu()), 2).softmax(1)", NORMS, IMAGES)
    compiled = compile_file(path)
    assert len(compiled.program.steps) > 2
    (call,) = _calls(compiled)
    assert call.count("[") == 3  # ops[0], what is read, what is written
    assert '"steps0(Tensor[] read, Tensor(a!)[] written) -> Tensor"' in compiled.source
    _agrees(compiled, path, torch.rand(3, 8, 7, 6))


def test_a_view_that_others_need_is_not_returned_by_an_operator(tmp_path: Path) -> None:
    body = "y = F.max_pool2d(self.b(self.a(x).relu()), 2)\nreturn y.softmax(1), y[:, 1:3], y"
    path = write(tmp_path, body, NORMS, IMAGES)
    compiled = compile_file(path)
    views = {step.output for step in compiled.program.steps if isinstance(step, EagerStep) and step.view}
    assert views & set(compiled.program.after.outputs)
    found = [run for run in runs.grouped(compiled.program) if isinstance(run, Run)]
    assert found
    assert not any(views.intersection(run.results) for run in found)
    _agrees(compiled, path, torch.rand(3, 8, 7, 6))


def test_memory_of_what_is_read_no_longer_is_free_for_what_follows(tmp_path: Path) -> None:
    """A value is released once, behind the last statement that names it, and none that is returned is."""
    source = compile_file(write(tmp_path, NETWORK, LAYERS, "torch.rand(64, 256, 28, 28)")).source
    body = source[source.index(" call_steps0(") :]
    lines = body[: body.index("\n}\n")].splitlines()
    released = [name for line in lines for name in re.findall(r"\bt\d+\b", line) if "release(" in line]
    assert released
    assert len(set(released)) == len(released)
    for name in released:
        named = [i for i, line in enumerate(lines) if re.search(rf"\b{name}\b", line)]
        assert lines[named[-1]].strip().startswith("release(")


def _in_python(text: str) -> str:
    """C++ of ``native.expression`` as Python: it is the same but for the types."""
    text = re.sub(r"std::optional<Tensor>\(\)", "None", text)
    text = re.sub(r"std::optional<\w+>", "", text)
    text = re.sub(r"(?:Ints|Tensors)\{([^}]*)\}", r"[\1]", text)
    text = re.sub(r"(?:int64_t|double)\{([^}]*)\}", r"\1", text)
    return re.sub(r"\b(true|false)\b", lambda found: found[0].title(), text)


def _aten(name: str, overload: str, *arguments: object) -> torch.Tensor:
    operator = getattr(getattr(torch.ops.aten, name.removeprefix("aten::")), overload or "default")
    named = [a.name for a in operator._schema.arguments if a.kwarg_only]
    first = len(arguments) - len(named)
    result: torch.Tensor = operator(*arguments[:first], **dict(zip(named, arguments[first:], strict=True)))
    return result


CONV = ConvOp(transposed=False, stride=(2, 1), padding=(1, 0), dilation=(1, 2), output_padding=(0, 0), groups=2)
TURNED = ConvOp(transposed=True, stride=(2,), padding=(1,), dilation=(1,), output_padding=(1,))


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (CONV, [(2, 4, 9, 8), (6, 2, 3, 3), (6,)]),
        (CONV.replace(precise=True), [(2, 4, 9, 8), (6, 2, 3, 3)]),
        (TURNED, [(2, 4, 9), (4, 3, 3), (3,)]),
        (MatmulOp(transposed=True), [(2, 5, 4), (3, 4)]),
        (MatmulOp(left_transposed=True), [(2, 4, 5), (2, 4, 3)]),
        (MatmulOp(transposed=True, biased=True), [(2, 5, 4), (3, 4), (3,)]),
        (MatmulOp(biased=True), [(5, 4), (4, 3), (3,)]),
        (AttentionOp(scale=0.3), [(2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7)]),
        (AttentionOp(scale=0.25, causal=True), [(2, 3, 5, 4)] * 3),
        (AttentionOp(scale=0.3), [(2, 5, 4), (2, 6, 4), (2, 6, 7), (5, 6)]),
        (CatOp(axis=1), [(2, 3), (2, 1), (2, 4)]),
        (ReshapeOp(shape=(3, 2, 2)), [(4, 3)]),
        (PermuteOp(order=(2, 0, 1)), [(4, 3, 2)]),
        (SliceOp(axis=1, start=1, length=2, step=2), [(2, 6)]),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_what_the_glue_calls_is_what_python_calls(op: Op, shapes: list[tuple[int, ...]]) -> None:
    values = {f"v_{i}": torch.rand(shape) for i, shape in enumerate(shapes)}
    text = native.expression(op, list(values))
    scope = {"torch": torch, "aten": _aten, **values}
    expected = eval(ops.torch_expr(op, list(values)), scope)
    torch.testing.assert_close(eval(_in_python(text), scope), expected, rtol=0, atol=0)
    shares = expected.untyped_storage().data_ptr() == values["v_0"].untyped_storage().data_ptr()
    assert native.is_view(op) or not shares


def test_several_calls_of_torch_are_none_of_the_glue() -> None:
    assert native.expression(CONV.replace(behind=(1, 0)), ["x", "w"]) == ""
    assert native.expression(CONV.replace(cropped=((0, 1), (0, 0))), ["x", "w"]) == ""


@pytest.mark.slow
@pytest.mark.skipif(cuda_include() is None or shutil.which("g++") is None, reason="needs CUDA's headers and g++")
def test_the_glue_of_a_network_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose convolutions are in part the library's."""
    monkeypatch.setattr(hopper, "pays_in_halves", lambda *_: False)
    source = compile_file(write(tmp_path, NETWORK, LAYERS, "torch.rand(64, 256, 28, 28)")).source
    glue = source[source.index('_fusegen_GLUE_SOURCE = r"""') + 27 :]
    glue = glue[: glue.index('"""')]
    assert 'aten("aten::convolution"' in glue
    path = tmp_path / "glue.cpp"
    path.write_text(glue)
    flags = ["-std=c++17", "-Wall", "-Werror", "-DUSE_CUDA", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
    include = Path(torch.__file__).parent / "include"
    done = subprocess.run(
        ["g++", "-fsyntax-only", *flags, "-isystem", str(include), "-isystem", str(cuda_include()), str(path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


CHAIN = """
for conv, norm in zip(self.convs, self.norms):
    x = x + norm(conv(x)).relu()
return x.amax((2, 3))
"""


@pytest.mark.parametrize(
    ("count", "shape", "replayed"),
    [(6, (2, 16, 12, 10), True), (2, (2, 16, 12, 10), False), (6, (64, 16, 256, 256), False)],
)
def test_many_short_launches_are_replayed(count: int, shape: tuple[int, ...], replayed: bool, tmp_path: Path) -> None:
    layers = (
        f"self.convs = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range({count})])\n"
        f"self.norms = nn.ModuleList([nn.BatchNorm2d(16) for _ in range({count})])"
    )
    path = write(tmp_path, CHAIN, layers, f"torch.rand{shape}")
    compiled = compile_file(path)
    (run,) = (step for step in runs.grouped(compiled.program) if isinstance(step, Run))
    assert run.replayed == replayed
    found = re.findall(r"_fusegen_Replayed\(\s+found\[0\], 2, \(0,\), (\d+)\s+\)", compiled.source)
    assert found == [str(prod(shape))] * replayed
    if replayed:
        _agrees(compiled, path, torch.rand(3, 16, 7, 6))
