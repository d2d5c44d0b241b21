"""Generated modules at run time: when they fall back, what they compute, copies."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fusegen.carry import RESERVED
from fusegen.carry.scopes import bound_names
from fusegen.compiler import Compiled, compile_file
from tests.emitted import BIAS_RELU, WIDTH, compiled_from, module_from, pair, reference_from, simulated

# --- off the fast path --------------------------------------------------------------------------------


def test_cpu_takes_the_reference_with_one_warning(compiled: Compiled) -> None:
    module = module_from(compiled.source)
    reference = reference_from(BIAS_RELU).Model(WIDTH)
    model = module.ModelNew(WIDTH)
    model.load_state_dict(reference.state_dict(), strict=True)
    reference.load_state_dict(model.state_dict(), strict=True)
    x = torch.randn(3, WIDTH)
    with pytest.warns(UserWarning, match="runs its reference forward: input x is on cpu") as caught:
        results = [model(x), model(x), model(x=x, unused=None)]
    assert len(caught) == 1
    assert all(torch.equal(r, reference(x)) for r in results)


def test_strict_makes_the_fallback_an_error(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEGEN_STRICT", "1")
    with pytest.raises(RuntimeError, match="input x is on cpu"):
        module_from(compiled.source).ModelNew(WIDTH)(torch.randn(3, WIDTH))


class _Doubled(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


def _replace(model: nn.Module) -> None:
    model.linear = _Doubled(WIDTH, WIDTH)


def _double(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
    return out * 2


def _append(model: nn.Module) -> None:
    model.linear.add_module("extra", nn.ReLU())


def _patch(model: nn.Module) -> None:
    model.linear.forward = lambda x: x


def _rescale(model: nn.Module) -> None:
    model.scale = 3.0


def _unbias(model: nn.Module) -> None:
    model.linear.bias = None


def _widen(model: nn.Module) -> None:
    model.bias = nn.Parameter(torch.ones(1))


def _halve(model: nn.Module) -> None:
    model.double()


CHANGES = {
    "scale is 3.0, compiled for 2.0": _rescale,
    "submodule linear is a _Doubled": _replace,
    "submodule linear has hooks": lambda m: m.linear.register_forward_hook(_double),
    "submodule linear has hooks, or parts": _append,
    "submodule linear has hooks, or": _patch,
    "linear.bias is not a plain parameter": _unbias,
    "bias is torch.float32 [1]": _widen,
    "linear is a Parametrized": lambda m: nn.utils.parametrizations.weight_norm(m.linear),
    "torch.float64": _halve,
}


@pytest.mark.parametrize("reason", CHANGES)
def test_a_changed_module_takes_the_reference(compiled: Compiled, reason: str) -> None:
    reference, model, module = pair(compiled, BIAS_RELU, WIDTH)
    for target in (reference, model):
        torch.manual_seed(1)
        CHANGES[reason](target)
    x = torch.randn(3, WIDTH, dtype=model.bias.dtype)
    if x.dtype == torch.float64:
        reason = "input x is torch.float64"
    with pytest.warns(UserWarning, match=re.escape(reason)):
        result = model(x)
    torch.testing.assert_close(result, reference(x))
    assert not module.calls


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (torch.randn(3, WIDTH).double(), "compiled for torch.float32"),
        (torch.randn(3, 1, WIDTH), r"compiled for \[\*, 6\]"),
        (nn.Parameter(torch.randn(3, WIDTH)).to_sparse(), "not a strided tensor"),
        (torch.randn(3, WIDTH).as_subclass(type("Own", (torch.Tensor,), {})), "is a Own, not a plain tensor"),
        (torch.randn(3, WIDTH, device="meta"), "is on meta"),
    ],
)
def test_other_inputs_are_not_covered(compiled: Compiled, x: torch.Tensor, reason: str) -> None:
    _, model, module = pair(compiled, BIAS_RELU, WIDTH)
    assert re.search(reason, module._fusegen_operands(model, x, None))


def test_modes_that_the_kernels_do_not_cover(compiled: Compiled, quiet: None) -> None:
    reference, model, module = pair(compiled, BIAS_RELU, WIDTH)
    x = torch.randn(3, WIDTH)
    found: list[str] = []

    def probe(x: torch.Tensor) -> torch.Tensor:
        found.append(module._fusegen_operands(model, x, None))
        return reference(x)

    torch.func.vmap(probe)(x[None])
    torch.func.jvp(probe, (x,), (x,))
    assert len(found) == 2
    assert all("transform" in reason for reason in found if isinstance(reason, str))
    handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: None)
    assert "global module hooks" in module._fusegen_operands(model, x, None)
    handle.remove()
    assert "argument unused" in module._fusegen_operands(model, x, 1)
    assert module._fusegen_operands(model, x, None)[0] is x
    assert module._fusegen_operands(model, torch.empty(0, WIDTH), None) == ""
    assert torch.equal(torch.func.vmap(model)(x[None]), torch.func.vmap(reference)(x[None]))


def test_empty_input_is_silent(compiled: Compiled) -> None:
    _, model, _ = pair(compiled, BIAS_RELU, WIDTH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model(torch.empty(0, WIDTH)).shape == (0, WIDTH)


def test_missing_toolchain_is_a_warning(compiled: Compiled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = simulated(compiled)
    module.__dict__.update(_fusegen_devices=frozenset(), _fusegen_problem=None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    x = torch.randn(3, WIDTH)
    model = module.ModelNew(WIDTH)
    with pytest.warns(UserWarning, match="ninja is missing: pip install ninja") as caught:
        results = [model(x), model(x)]
    assert len(caught) == 1
    assert torch.equal(results[0], model._fusegen_reference(x))
    assert not module.calls


def test_old_devices_are_refused(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    module = simulated(compiled)
    module.__dict__["_fusegen_devices"] = frozenset()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    with pytest.warns(UserWarning, match=r"compute capability 8\.0"):
        module.ModelNew(WIDTH)(torch.randn(3, WIDTH))


# --- on the fast path -----------------------------------------------------------------------------------


def test_fast_path_results(compiled: Compiled) -> None:
    reference, model, module = pair(compiled, BIAS_RELU, WIDTH)
    base = torch.randn(WIDTH, 5)
    for x in (torch.randn(3, WIDTH), base.t(), torch.randn(1, WIDTH).expand(4, WIDTH)):
        torch.testing.assert_close(model(x), reference(x))
    with torch.no_grad():
        assert model(x).grad_fn is None
    with torch.inference_mode():
        model(x)
    model.requires_grad_(False)
    assert model(x).grad_fn is None
    assert len(module.calls) == 6 * len(compiled.program.kernels)


def test_edited_parameters_are_read_again(compiled: Compiled) -> None:
    reference, model, module = pair(compiled, BIAS_RELU, WIDTH)
    x = torch.randn(3, WIDTH)
    model(x)
    for m in (reference, model):
        with torch.no_grad():
            m.linear.weight.mul_(2)
            m.bias.data = m.bias.data + 1
    torch.testing.assert_close(model(x), reference(x))
    assert len(module.calls) == 2 * len(compiled.program.kernels)


def test_copies_and_pickles(compiled: Compiled) -> None:
    _, model, module = pair(compiled, BIAS_RELU, WIDTH)
    x = torch.randn(3, WIDTH)
    before = set(vars(model))
    y = model(x)
    assert set(vars(model)) == before
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), y)
    assert len(module.calls) == 3 * len(compiled.program.kernels)


@pytest.mark.slow
def test_torch_compile_traces_the_operators(compiled: Compiled) -> None:
    reference, model, module = pair(compiled, BIAS_RELU, WIDTH)
    library = torch.library.Library("fusegen_test_compile", "FRAGMENT")
    ops = []
    for (name, fake), op in zip(module._fusegen_fakes.items(), module._fusegen_ops, strict=True):
        (schema,) = re.findall(rf'm\.def\("({name}\(.*)"\)', compiled.source)
        library.define(schema)
        library.impl(name, op, "CPU")
        torch.library.register_fake(f"fusegen_test_compile::{name}", fake, lib=library)
        ops.append(getattr(torch.ops.fusegen_test_compile, name).default)
    module.__dict__["_fusegen_ops"] = tuple(ops)
    x = torch.randn(3, WIDTH)
    traced = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(traced(x), reference(x))
        torch.testing.assert_close(traced(torch.randn(3, WIDTH) * 0 + x), reference(x))
    assert module.calls
    traced(x).sum().backward()
    reference(x).sum().backward()
    torch.testing.assert_close(model.bias.grad, reference.bias.grad)


# --- other programs --------------------------------------------------------------------------------------

TWO = """
import torch
from torch import nn

GAIN = [2.0]

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(6))

    def forward(self, x, /, y, scale=1.5, *, gain=GAIN, mode="a"):
        z = torch.tanh(x * self.w + y)
        return z * scale * gain[0], torch.argmax(z, dim=1)

def get_inputs():
    return [torch.rand(4, 6), torch.rand(4, 6)]
"""


def test_several_inputs_and_results(tmp_path: Path) -> None:
    module = simulated(compiled_from(TWO, tmp_path))
    original = reference_from(TWO)
    torch.manual_seed(0)
    reference = original.Model()
    torch.manual_seed(0)
    model = module.ModelNew()
    x, y = torch.randn(3, 6), torch.randn(3, 6)
    results = []
    for m in (reference, model):
        a, index = m(x, y=y)
        a.sum().backward()
        results.append((a, index, m.w.grad))
    assert module.calls
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)
    calls = len(module.calls)
    others: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((x, y, 2.0), {}, "argument scale differs"),
        ((x, y), {"gain": [2.0]}, "argument gain differs"),
        ((x, y), {"mode": "b"}, "argument mode differs"),
        ((x, y[:1]), {}, "input y has sizes that do not fit together"),
    ]
    for arguments, options, reason in others:
        with pytest.warns(UserWarning, match=reason):
            actual = model(*arguments, **options)
        torch.testing.assert_close(actual, reference(*arguments, **options))
    assert len(module.calls) == calls
    old, new = (inspect.signature(c.forward).parameters for c in (original.Model, module.ModelNew))
    assert [(p.name, p.kind, p.default) for p in old.values()] == [(p.name, p.kind, p.default) for p in new.values()]


LIBRARY_ONLY = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(6) * 2)

    @torch.no_grad()
    def forward(self, x):
        return torch.linalg.solve(self.weight, x)

def get_inputs():
    return [torch.rand(6, 4)]
"""


FROZEN = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
        self.head = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh())

    def forward(self, x):
        return self.head(self.frozen(x).mean((2, 3)))

def get_inputs():
    return [torch.rand(4, 3, 8, 8)]
"""


@pytest.mark.parametrize("evaluation", [False, True])
def test_a_model_keeps_the_modes_of_its_constructor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluation: bool
) -> None:
    monkeypatch.setenv("FUSEGEN_STRICT", "1")
    path = tmp_path / "model.py"
    path.write_text(FROZEN)
    reference, generated, _ = pair(compile_file(path, evaluation=evaluation), FROZEN)
    if evaluation:
        reference, generated = reference.eval(), generated.eval()
    with torch.no_grad():
        for name in ("running_mean", "running_var"):
            for model in (reference, generated):
                getattr(model.frozen[1], name).copy_(torch.arange(1.0, 5.0))
        x = torch.randn(6, 3, 9, 7)
        torch.testing.assert_close(generated(x), reference(x))
    for (name, expected), found in zip(reference.state_dict().items(), generated.state_dict().values(), strict=True):
        torch.testing.assert_close(found, expected, msg=name)


def test_a_class_that_torch_makes_is_known_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEGEN_STRICT", "1")
    source = BIAS_RELU.replace(
        "nn.Linear(width, channels)", "nn.utils.parametrizations.weight_norm(nn.Linear(width, channels))"
    )
    reference, generated, _ = pair(compiled_from(source, tmp_path), source, WIDTH)
    x = torch.randn(3, WIDTH)
    torch.testing.assert_close(generated(x), reference(x))
    torch.nn.utils.parametrize.remove_parametrizations(generated.linear, "weight")
    with pytest.raises(RuntimeError, match="submodule linear is a Linear"):
        generated(x)


def test_program_without_kernels(tmp_path: Path) -> None:
    compiled = compiled_from(LIBRARY_ONLY, tmp_path)
    assert "CUDA_SOURCE" not in compiled.source
    module = simulated(compiled)
    model = module.ModelNew()
    x = torch.randn(6, 3)
    y = model(x)
    assert not y.requires_grad
    assert torch.equal(y, model._fusegen_reference(x).detach())


def test_every_name_of_the_module_is_reserved(compiled: Compiled) -> None:
    """Carried names step aside for the module's own, so those must all be known."""
    names, _ = bound_names(ast.parse(compiled.source).body)
    own = {name.removeprefix("_fusegen_") for name in names if name != "ModelNew"}
    assert {name for name in own if not name.startswith("fake_")} - RESERVED == {"nn", "width"}


def test_description_module(tmp_path: Path, compiled: Compiled) -> None:
    from fusegen import ir
    from fusegen.compiler import compile_file

    path = tmp_path / "graph.json"
    path.write_text(ir.to_json(compiled.program.before))
    described = compile_file(path)
    module = simulated(described)
    torch.manual_seed(0)
    model = module.ModelNew()
    assert set(model.state_dict()) == {"linear.weight", "linear.bias", "bias"}
    x = torch.randn(3, WIDTH)
    torch.testing.assert_close(model(x), model._fusegen_reference(x))
    assert module.calls
