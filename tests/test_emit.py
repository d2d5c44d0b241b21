"""The text of generated modules: its rules, and that the CUDA and C++ in it compile."""

from __future__ import annotations

import copy
import ctypes
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fusegen.compiler import Compiled, compile_file
from fusegen.emit import check_rules, render, snapshot_modules, violations, write_atomic
from fusegen.emit.kernels import render_sources
from fusegen.emit.operators import of_kernel
from fusegen.emit.render import environment
from fusegen.errors import EmitError, OutputPathError
from fusegen.literals import hex_float
from fusegen.plan.types import KernelStep
from fusegen.verdict.subject import load_generated
from tests.emitted import (
    BIAS_RELU,
    bias_relu,
    compiled_from,
    cuda_include,
    on_the_host,
    operators,
    reference_from,
    simulated,
)
from tests.models import write

WIDTH = 6


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return bias_relu()


# --- the text ---------------------------------------------------------------------------------------


def test_text_is_deterministic_and_obeys_the_rules(compiled: Compiled, tmp_path: Path) -> None:
    assert compiled_from(BIAS_RELU, tmp_path).source == compiled.source
    assert list(violations(compiled.source)) == []
    assert all(line == line.rstrip() for line in compiled.source.splitlines())
    assert not re.search(r"\n{4,}", compiled.source)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ModelNew = 1\nx = 2\n", "defines 'x'"),
        ("ModelNew = 1  # let it pass\n", "'pass'"),
        ("import threading\n", "'import threading'"),
        ("ModelNew = __file__\n", "__file__"),
        ("_fusegen_x = 1\n", "no ModelNew"),
        ("ModelNew = (\n", "line 1"),
    ],
)
def test_rule_violations_are_found(text: str, found: str) -> None:
    assert any(found in v for v in violations(text))
    with pytest.raises(EmitError):
        check_rules(text)


def test_header_derives_the_program(compiled: Compiled) -> None:
    head = compiled.source.split("import contextlib")[0]
    assert all(line.startswith("#") for line in head.strip().splitlines())
    assert "%relu" in head
    assert "Memory traffic:" in head
    assert "k1_pointwise" in head


def test_import_compiles_nothing_and_defines_only_prefixed_names(compiled: Compiled) -> None:
    scope: dict[str, Any] = {"width": "mine", "torch": "mine"}
    exec(compile(compiled.source, "<text>", "exec", dont_inherit=True), scope)
    assert scope["width"] == scope["torch"] == "mine"
    assert scope["_fusegen_problem"] is None
    assert {n for n in scope if not n.startswith("_")} == {"width", "torch", "ModelNew"}


def test_templates_leave_names_of_values_to_the_rows() -> None:
    """A statement's t0 or r8 is written into a template's text: a name of the template's own would be another value."""
    loader = environment().loader
    assert loader is not None
    for name in loader.list_templates():
        text = re.sub(r'"[^"\n]*"|//.*', "", loader.get_source(environment(), name)[0])
        assert not re.findall(r"\b[tr]\d+\b", text), name


# --- compiled sources ----------------------------------------------------------------------------------

NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("target", ["80", "90a"])
def test_cuda_source_compiles(compiled: Compiled, target: str, tmp_path: Path) -> None:
    sources = render_sources(compiled.program, environment())
    assert sources is not None
    path = tmp_path / "kernels.cu"
    path.write_text(sources.cuda)
    command = [str(NVCC), "-std=c++17", f"-gencode=arch=compute_{target},code=sm_{target}", "-Werror", "all-warnings"]
    done = subprocess.run([*command, "-cubin", "-o", os.devnull, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _with_scratch(step: KernelStep) -> KernelStep:
    """The step with every optional argument that a kernel can have."""
    plan, output = step.plan, step.plan.outputs[0]
    outputs = (output, output.replace(name="y1"))
    return step.replace(plan=plan.replace(workspace=True, counters=plan.bindings[0].name, outputs=outputs))


@pytest.mark.slow
@pytest.mark.skipif(cuda_include() is None or shutil.which("g++") is None, reason="needs CUDA's headers and g++")
@pytest.mark.parametrize("scratch", [False, True])
def test_glue_compiles(compiled: Compiled, scratch: bool, tmp_path: Path) -> None:
    program = compiled.program
    if scratch:
        steps = tuple(_with_scratch(s) if isinstance(s, KernelStep) else s for s in program.steps)
        program = program.replace(steps=steps)
    plans = program.kernels
    operators = tuple(map(of_kernel, plans))
    text = (
        environment()
        .get_template("glue.cpp.j2")
        .render(plans=plans, operators=operators, watched=True, namespace="fusegen_test")
    )
    path = tmp_path / "glue.cpp"
    path.write_text(text)
    includes = (Path(torch.__file__).parent / "include", cuda_include(), sysconfig.get_path("include"))
    flags = ["-std=c++17", "-Wall", "-Werror", "-DUSE_CUDA", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
    done = subprocess.run(
        ["g++", "-fsyntax-only", *flags, *(f"-isystem{folder}" for folder in includes), str(path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_pointwise_kernel_on_the_host(compiled: Compiled, tmp_path: Path) -> None:
    """Vector and scalar paths, tails, misaligned operands and special values, thread by thread."""
    sources = render_sources(compiled.program.replace(steps=compiled.program.steps[-1:]), environment())
    assert sources is not None
    path = tmp_path / "kernels.cpp"
    path.write_text(on_the_host(sources.cuda))
    library = tmp_path / "kernels.so"
    subprocess.run(["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-o", str(library), str(path)], check=True)
    kernel = ctypes.CDLL(str(library)).k1_pointwise
    op = operators(compiled.program)[-1]
    for rows, offset in [(0, 0), (1, 0), (1, 1), (3, 0), (3, 1), (2001, 0)]:
        x, y = (torch.randn(rows * WIDTH + offset)[offset:].view(rows, WIDTH) for _ in range(2))
        bias, result = torch.randn(WIDTH), torch.full((rows, WIDTH), 7.0)
        if rows > 1:
            x[1, :3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
        plan = compiled.program.kernels[-1]
        given = {"x0": x, "x1": y, "p0": bias}
        operands = [given[a.name] for a in plan.args]
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*operands, result)]
        assert kernel(*pointers, ctypes.c_int64(rows), None) == 0
        torch.testing.assert_close(result, op(*operands), equal_nan=True)


# --- pieces ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "0x1.8p+0f"),
        (0.0, "0.0f"),
        (-0.0, "-0.0f"),
        (10.0, "10.0f"),
        (0.1, "0x1.99999ap-4f"),
        (1e-45, "0x1p-149f"),
        (float("inf"), "INFINITY"),
        (float("-inf"), "-INFINITY"),
        (float("nan"), "NAN"),
        (1e300, "INFINITY"),
    ],
)
def test_hex_float(value: float, text: str) -> None:
    assert hex_float(value) == text


def test_hex_float_is_exact() -> None:
    for value in torch.randn(100).tolist():
        assert float.fromhex(hex_float(value).rstrip("f")) == value


def test_unverifiable_attributes_are_watched() -> None:
    model = nn.Module()
    model.act, model.kind, model.thing, model.table = torch.relu, torch.float16, object(), {"a": (1, None)}
    model.bounds = {"b": (float("nan"), 1)}
    conditions = {a.name: a.condition for a in snapshot_modules(model)[0].attributes}
    assert "__qualname__" in conditions["act"]
    assert conditions["kind"] == "{0} != _fusegen_torch.float16"
    assert conditions["thing"].format("t", "'object'") == "type(t).__qualname__ != 'object'"
    assert conditions["table"].format("t") == "t != {'a': (1, None)}"
    bounds = conditions["bounds"].format("t")
    assert not eval(bounds, {"t": {"b": (float("nan"), 1)}})
    assert eval(bounds, {"t": {"b": (float("nan"), 2)}})


def test_functions_defined_beside_the_model_are_known_again(tmp_path: Path) -> None:
    """They have other names in the generated module; another function in their place is still noticed."""
    path = write(
        tmp_path,
        "return self.scaled(self.act(x)) + self.config.shift",
        "self.act, self.config = twice, Config()\nself.scaled = lambda y: y.relu() * 3",
    )
    helpers = "def twice(x):\n    return x * 2\nclass Config:\n    shift = 0.5\n"
    path.write_text(path.read_text().replace("class Model", helpers + "class Model"))
    generated = simulated(compile_file(path))
    model = generated.ModelNew()
    x = torch.rand(4, 3, 6, 5)
    torch.testing.assert_close(model(x), (x * 2).relu() * 3 + 0.5)
    calls = len(generated.calls)
    assert calls
    model.act = torch.exp
    with pytest.warns(UserWarning, match="act is"):
        torch.testing.assert_close(model(x), x.exp() * 3 + 0.5)
    assert len(generated.calls) == calls


@pytest.mark.parametrize(
    ("init", "body", "other", "changed"),
    [
        ("self.a = nn.Linear(5, 5)\nself.b = self.a", "return self.b(self.a(x).relu())", "b is not a", "a"),
        (
            "self.a = nn.Sequential(nn.Linear(5, 5), nn.ReLU())\nself.b = self.a",
            "return self.b(self.a(x))",
            "b is not a",
            "a",
        ),
        ("self.a = nn.BatchNorm2d(3)\nself.b = self.a", "return self.b(self.a(x).relu())", "b is not a", "a"),
        (
            "self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)\nself.b.weight = self.a.weight",
            "return self.b(self.a(x).relu())",
            r"b\.weight is not a\.weight",
            "b",
        ),
        ("self.a = self.b = nn.Parameter(torch.rand(5))", "return x * self.a + self.b", "b is not a", "a"),
    ],
)
def test_what_has_two_names_is_one(init: str, body: str, other: str, changed: str, tmp_path: Path) -> None:
    """The state has both names, and something else under one of them is noticed."""
    path = write(tmp_path, body, init)
    generated = simulated(compile_file(path))
    torch.manual_seed(0)
    model = generated.ModelNew()
    torch.manual_seed(0)
    reference = reference_from(path.read_text()).Model()
    x = torch.rand(4, 3, 6, 5)
    torch.testing.assert_close(model(x), reference(x))
    torch.testing.assert_close(dict(model.state_dict()), dict(reference.state_dict()))
    calls = len(generated.calls)
    assert calls
    part = copy.deepcopy(getattr(model, changed))
    for parameter in [part] if isinstance(part, nn.Parameter) else part.parameters():
        nn.init.constant_(parameter, 3)
    setattr(model, changed, part)
    setattr(reference, changed, part)
    with pytest.warns(UserWarning, match=f"{other}, which it was when compiled"):
        torch.testing.assert_close(model(x), reference(x))
    assert len(generated.calls) == calls


@pytest.mark.parametrize(
    ("made", "changed"),
    [
        ("nn.utils.weight_norm(nn.Linear(5, 5))", "model.a.register_forward_hook(lambda module, args, y: y + 1)"),
        ("nn.utils.weight_norm(nn.Linear(5, 5))", "next(iter(model.a._forward_pre_hooks.values())).dim = -1"),
        ("nn.utils.spectral_norm(nn.Linear(5, 5))", "next(iter(model.a._forward_pre_hooks.values())).eps = 0.5"),
    ],
)
@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated")
def test_changed_hooks_are_noticed(made: str, changed: str, tmp_path: Path) -> None:
    """torch's own are part of the trace, with their attributes."""
    path = write(tmp_path, "return self.a(x).relu()", f"self.a = {made}")
    generated = simulated(compile_file(path))
    torch.manual_seed(0)
    model = generated.ModelNew()
    torch.manual_seed(0)
    reference = reference_from(path.read_text()).Model()
    x = torch.rand(4, 3, 6, 5)
    torch.testing.assert_close(model(x), reference(x))
    calls = len(generated.calls)
    assert calls
    exec(changed, {"model": model})
    exec(changed, {"model": reference})
    with pytest.warns(UserWarning, match="submodule a has hooks"):
        torch.testing.assert_close(model(x), reference(x))
    assert len(generated.calls) == calls


def test_a_forward_of_constants_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmitError, match="neither an input nor a parameter"):
        compile_file(write(tmp_path, "return torch.tensor(1.0) * 2", "pass", "", ""))


def test_write_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "out.py"
    write_atomic(path, "one\n")
    path.chmod(0o640)
    write_atomic(path, "two\n")
    assert path.read_text() == "two\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in path.parent.iterdir()] == ["out.py"]
    with pytest.raises(OutputPathError, match="is a folder"):
        write_atomic(path.parent, "x")
    with pytest.raises(OutputPathError, match="cannot write"):
        write_atomic(path / "below", "x")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputPathError, match="No space left"):
        write_atomic(path, "three\n")
    assert path.read_text() == "two\n"
    assert [p.name for p in path.parent.iterdir()] == ["out.py"]


def test_too_few_parameters_for_the_inputs(compiled: Compiled) -> None:
    from fusegen.carry import carry_model

    source = BIAS_RELU.replace("def forward(self, x, unused=None):", "def forward(self, *, x):")
    carried = carry_model(source)
    model = reference_from(BIAS_RELU).Model(WIDTH)
    with pytest.raises(EmitError, match="takes 0 positional parameters"):
        render(compiled.program, carried, snapshot_modules(model))


# --- kernels by compute capability ------------------------------------------------------------------


def test_a_hopper_kernel_stands_beside_the_portable_one(compiled: Compiled) -> None:
    """One operator, two kernels: the launcher asks the device."""
    steps = tuple(
        step.replace(plan=step.plan.replace(hopper=step.plan.detail)) if isinstance(step, KernelStep) else step
        for step in compiled.program.steps
    )
    sources = render_sources(compiled.program.replace(steps=steps), environment())
    assert sources is not None
    name = compiled.program.kernels[0].name
    launchers = re.findall(rf'extern "C" int ({name}\w*)\(', sources.cuda)
    assert launchers == [f"{name}_sm90", f"{name}_sm80", name]
    assert sources.cuda.count("static bool on_hopper()") == 1
    assert re.findall(rf'extern "C" int ({name}\w*)\(', sources.glue) == [name]


def test_precision_is_asked_of_the_input_that_eager_pads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init = "self.m = nn.Conv2d(32, 64, 3, stride=2)"
    path = write(tmp_path, "return self.m(F.pad(x, (0, 1, 2, 0))).relu()", init, "torch.rand(2, 32, 40, 50)")
    write_atomic(tmp_path / "generated.py", compile_file(path).source)
    module = load_generated(tmp_path / "generated.py").__module__
    names = vars(sys.modules[module])
    (call,) = re.findall(r"_fusegen_rounds\(\"k0.*\)(?=\))", (tmp_path / "generated.py").read_text())
    asked: list[tuple[tuple[int, ...], object]] = []

    def convolution(x: torch.Tensor, w: torch.Tensor, bias: None, *structure: object) -> torch.Tensor:
        asked.append((tuple(x.shape), structure[1]))
        return x

    monkeypatch.setitem(names, "_fusegen_tf32_conv", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch, "convolution", convolution)
    x = torch.rand(2, 32, 40, 50)
    eval(call, {**names, "v_x": x, **{f"x0_{axis}": size for axis, size in enumerate(x.shape)}})
    assert asked == [((2, 32, 42, 51), (0, 0))]
