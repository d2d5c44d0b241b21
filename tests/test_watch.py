"""Large models that have passed the checks: C++ tells whether one has changed since."""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
import sysconfig
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fusegen.compiler import compile_file
from fusegen.emit.render import environment
from tests.emitted import simulated
from tests.models import write

INIT = """
self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(6)])
self.norms = nn.ModuleList([nn.LayerNorm(4) for _ in range(6)])
self.register_buffer("scale", torch.ones(4))
self.sizes, self._own = [1, 2], [3]
self.config = {"steps": 6, "of": {"deep": [3]}}
"""
BODY = """
for linear, norm in zip(self.layers, self.norms):
    x = norm(linear(x)).relu()
return x * self.scale * self.sizes[1] * self.config["of"]["deep"][0]
"""
CHANGES: dict[str, Callable[[Any], object]] = {
    "an attribute": lambda m: setattr(m.norms[2], "eps", 1e-3),
    "the mode": lambda m: m.layers[1].eval(),
    "a new attribute": lambda m: setattr(m, "other", 1),
    "a parameter": lambda m: setattr(m.layers[3], "weight", nn.Parameter(torch.rand(4, 4))),
    "its shape": lambda m: setattr(m.layers[3].bias, "data", torch.rand(2, 2)),
    "its type": lambda m: setattr(m.layers[3].bias, "data", torch.rand(4).double()),
    "no parameter": lambda m: setattr(m.layers[3], "bias", None),
    "a buffer": lambda m: setattr(m, "scale", torch.rand(4)),
    "a child": lambda m: m.layers.__setitem__(0, nn.Linear(4, 4)),
    "one child more": lambda m: m.layers.append(nn.Linear(4, 4)),
    "a hook": lambda m: m.layers[5].register_forward_hook(lambda *_: None),
    "a hook before": lambda m: m.norms[5].register_forward_pre_hook(lambda *_: None),
    "a list": lambda m: m.sizes.append(3),
    "an element": lambda m: m.sizes.__setitem__(0, 7),
    "a private list": lambda m: m._own.append(4),
    "a dictionary": lambda m: m.config.update(steps=7),
    "a list in dictionaries": lambda m: m.config["of"]["deep"].append(3),
    "a class": lambda m: setattr(m.layers[0], "__class__", nn.Identity),
    "forward": lambda m: setattr(m.layers[0], "forward", lambda x: x),
}


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    source = tmp_path_factory.mktemp("unchanged") / "unchanged.cpp"
    text = environment().get_template("_unchanged.cpp.j2").render()
    source.write_text("#include <Python.h>\n#include <initializer_list>\n" + text)
    library = source.with_suffix(".so")
    flags = ["-std=c++17", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", f"-isystem{sysconfig.get_path('include')}"]
    done = subprocess.run(["g++", *flags, str(source), "-o", str(library)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    function = ctypes.PyDLL(str(library)).fusegen_unchanged
    function.argtypes = [ctypes.py_object] * 4
    return function


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory, unchanged: Any) -> Any:
    folder = tmp_path_factory.mktemp("watched")
    found = simulated(compile_file(write(folder, BODY, INIT, "torch.rand(3, 4)")))
    found.__dict__["_fusegen_unchanged"] = unchanged
    return found


def _known(module: Any, model: Any) -> Any:
    return module._fusegen_known(model, -1)


def _passed(module: Any) -> tuple[Any, torch.Tensor]:
    """A model that has passed the checks, and its input."""
    model, x = module.ModelNew(), torch.rand(2, 4)
    for _ in range(2):
        module._fusegen_operands(model, x)
    assert _known(module, model) is not None
    return model, x


def test_what_has_passed_is_known(module: Any) -> None:
    model, x = module.ModelNew(), torch.rand(2, 4)
    first = module._fusegen_operands(model, x)
    assert _known(module, model) is None  # a copy may be called once
    module._fusegen_operands(model, x)
    known = _known(module, model)
    assert known is not None
    assert all(a is b for a, b in zip(first[1:], known, strict=True))
    other = torch.rand(5, 4)
    again = module._fusegen_operands(model, other)
    assert again[0] is other
    assert all(a is b for a, b in zip(first[1:], again[1:], strict=True))
    assert "compiled for" in module._fusegen_operands(model, torch.rand(2, 5))
    torch.testing.assert_close(model(x), model._fusegen_reference(x))
    assert module._fusegen_known(model, 1) is None  # another device


@pytest.mark.parametrize("what", CHANGES)
def test_changes_are_seen(module: Any, what: str) -> None:
    model, _ = _passed(module)
    CHANGES[what](model)
    assert _known(module, model) is None


def test_values_may_change(module: Any) -> None:
    model, x = _passed(module)
    with torch.no_grad():
        model.layers[0].weight.mul_(2)
        model.layers[1].weight.data = torch.rand(4, 4)
    model.load_state_dict(model.state_dict())
    assert _known(module, model) is not None
    torch.testing.assert_close(model(x), model._fusegen_reference(x))


def test_what_keeps_changing_is_seldom_kept(module: Any) -> None:
    model, x = module.ModelNew(), torch.rand(2, 4)
    kept = []
    for count in range(9):
        model.count = count
        assert module._fusegen_operands(model, x).__class__ is tuple
        kept.append(_known(module, model) is not None)
    assert kept == [False, True, False, True, False, False, False, True, False]


def test_nothing_holds_the_module(module: Any) -> None:
    model, _ = _passed(module)
    known = weakref.ref(model)
    assert module._fusegen_passed[model].parameters
    del model
    gc.collect()
    assert known() is None


@pytest.mark.parametrize("owner", [lambda model: [model], lambda model: {"of": (model,)}, lambda model: model])
def test_what_holds_its_module_is_checked(module: Any, owner: Callable[[Any], object]) -> None:
    model, x = module.ModelNew(), torch.rand(2, 4)
    model.layers[0].__dict__["owner"] = owner(model)
    for _ in range(4):
        assert module._fusegen_operands(model, x).__class__ is tuple
    assert _known(module, model) is None
    known = weakref.ref(model)
    del model
    gc.collect()
    assert known() is None


def test_small_models_are_checked(tmp_path: Path) -> None:
    compiled = compile_file(
        write(tmp_path, "return self.fc(x).relu()", "self.fc = nn.Linear(4, 4)", "torch.rand(3, 4)")
    )
    assert "_fusegen_known" not in compiled.source
    assert "Python.h" not in compiled.source


def test_models_without_kernels_are_checked(tmp_path: Path) -> None:
    layers = "self.l = nn.Sequential(*(nn.Identity() for _ in range(16)))\nself.w = nn.Parameter(torch.eye(4) * 2)"
    compiled = compile_file(write(tmp_path, "return torch.linalg.inv(self.l(self.w)), x", layers, "torch.rand(3, 4)"))
    assert not compiled.program.kernels
    model = simulated(compiled).ModelNew()
    for _ in range(3):
        torch.testing.assert_close(model(torch.ones(2, 4))[0], torch.eye(4) / 2)
