"""Idioms of Python in model files: registries, enumerations, tuples with names."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch

from fusegen.compiler import compile_file
from fusegen.errors import EmitError
from tests.emitted import reference_from, simulated
from tests.models import write

MODELS = {
    "a registry that a decorator fills": """
        LOSSES = {}
        def register(name=None):
            def decorate(fn):
                LOSSES[name or fn.__name__] = fn
                return fn
            return decorate
        @register()
        def square(x):
            return (x * x).mean(1)
        @register("other")
        def absolute(x):
            return x.abs().sum(1)
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.weights = {name: 1.0 + i for i, name in enumerate(sorted(LOSSES))}
                self.l = nn.Linear(8, 8)
            def forward(self, x):
                return torch.stack([self.weights[n] * f(self.l(x)) for n, f in sorted(LOSSES.items())])
    """,
    "a registry of classes, and one that a call fills": """
        NORMS, SCALES = {}, []
        class Base(nn.Module):
            def __init_subclass__(cls, key, **options):
                super().__init_subclass__(**options)
                NORMS[key] = cls
        class Centre(Base, key="centre"):
            def forward(self, x):
                return x - x.mean(1, keepdim=True)
        class Scale(Base, key="scale"):
            def forward(self, x):
                return x / (x.abs().amax(1, keepdim=True) + 1)
        def add(scale):
            SCALES.append(scale)
        add(2.0)
        for factor in (3.0, 5.0):
            SCALES.append(factor)
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.norms = nn.ModuleDict({k: NORMS[k]() for k in sorted(NORMS)})
            def forward(self, x):
                for scale, norm in zip(SCALES, self.norms.values()):
                    x = norm(x * scale).exp()
                return x * sum(SCALES)
    """,
    "enumerations": """
        from enum import Enum, IntEnum
        class Kind(IntEnum):
            ADD = 0
            MUL = 1
        class Name(str, Enum):
            A = "a"
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.kinds, self.name = [Kind.MUL, Kind.ADD], Name.A
            def forward(self, x):
                for kind in self.kinds:
                    x = x + 1 if kind is Kind.ADD else x * 3
                return x.exp() if self.name == "a" else x
    """,
    "a tuple with names": """
        from typing import NamedTuple
        class Found(NamedTuple):
            value: torch.Tensor
            parts: list
        class Model(nn.Module):
            def forward(self, x):
                return Found(x.exp(), [x.sum(1), x * 2])
    """,
    "an ordered dict": """
        from collections import OrderedDict
        class Model(nn.Module):
            def forward(self, x):
                found = OrderedDict(value=x.exp())
                found["parts"] = {"sum": x.sum(1), "size": x.shape[0]}
                found.move_to_end("value")
                return [found]
    """,
    "arguments of blocks in tuples with names": """
        import collections
        BlockArgs = collections.namedtuple("BlockArgs", ["scale", "skip"])
        BlockArgs.__new__.__defaults__ = (None,) * len(BlockArgs._fields)
        class Block(nn.Module):
            def __init__(self, args):
                super().__init__()
                self._args, self.l = args, nn.Linear(8, 8)
            def forward(self, x):
                y = self.l(x) * self._args.scale
                return x + y if self._args.skip else y
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = nn.ModuleList(Block(args) for args in (BlockArgs(2.0), BlockArgs(0.5, skip=True)))
            def forward(self, x):
                for block in self.blocks:
                    x = block(x)
                return x
    """,
    "a norm of what is the same for every sample": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.queries, self.n = nn.Parameter(torch.rand(4, 8)), nn.LayerNorm(8)
            def forward(self, x):
                return self.n(self.queries.expand(x.shape[0], 4, 8)) @ x[:, :, None]
    """,
    "what forward leaves for its next step": """
        class Model(nn.Module):
            shape, positions = None, None
            def keep(self, x):
                self.kept = x.exp()
            def forward(self, x):
                if self.shape != x.shape:
                    self.positions, self.shape = torch.arange(x.shape[0] * 2, device=x.device)[::2], x.shape
                self.keep(x)
                return self.kept * 2 + self.positions[:, None]
    """,
    "a mask that several layers hold": """
        class Layer(nn.Module):
            def __init__(self, mask):
                super().__init__()
                self.l, self.mask = nn.Linear(8, 8), mask
            def forward(self, x):
                return self.l(x) + self.mask.to(x.device)
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                mask = torch.arange(8.0)
                self.layers = nn.Sequential(*(Layer(mask) for _ in range(3)))
            def forward(self, x):
                return self.layers(x)
    """,
    "autocast that an option says": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.l, self.mixed = nn.Linear(8, 8), False
            def forward(self, x):
                with torch.autocast(x.device.type, enabled=self.mixed):
                    return self.l(x)
    """,
    "imports that fall back": """
        try:
            from torch.nn.functional import newest as act
        except ImportError:
            from torch.nn.functional import silu as act
        class Model(nn.Module):
            def forward(self, x):
                return act(x)
    """,
    "an imaginary number": """
        class Model(nn.Module):
            def forward(self, x):
                return torch.view_as_real(torch.exp(1j * x) * (2 - 3j)).sum(-1)
    """,
    "a number above a tensor": """
        class Model(nn.Module):
            def forward(self, x):
                start = torch.full((x.shape[0], 8), -1.0, device=x.device)
                return torch.maximum(start, x).exp() + torch.minimum(start, x)
    """,
}


NAMED = """
import torch
TABLE = {}
class Base(torch.nn.Module):
    def __init_subclass__(cls):
        TABLE[cls.__name__] = cls
class Part(Base):
    def forward(self, x):
        return x.exp()
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = TABLE["Part"]()
    def forward(self, x):
        return self.part(x)
def get_inputs():
    return [torch.rand(4, 8)]
def get_init_inputs():
    return []
"""


def test_names_of_classes_that_are_asked_as_they_are_made(tmp_path: Path) -> None:
    """They are others in the generated module, so this is refused."""
    path = tmp_path / "model.py"
    path.write_text(NAMED)
    with pytest.raises(EmitError, match="__init_subclass__ asks for __name__"):
        compile_file(path)


@pytest.mark.parametrize("name", MODELS)
def test_the_generated_module_is_the_model(name: str, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    source = "import torch\nimport torch.nn as nn\n" + textwrap.dedent(MODELS[name])
    source += "def get_inputs():\n    return [torch.rand(4, 8)]\ndef get_init_inputs():\n    return []\n"
    path = tmp_path / "model.py"
    path.write_text(source)
    compiled = compile_file(path)
    torch.manual_seed(0)
    reference = reference_from(source).Model()
    torch.manual_seed(0)
    generated = simulated(compiled).ModelNew()
    x = torch.rand(3, 8)
    with torch.no_grad():
        found, expected, own = generated(x), reference(x), generated._fusegen_reference(x)
    assert not [warning for warning in recwarn if "runs its reference forward" in str(warning.message)]
    assert type(found).__name__.removeprefix("_fusegen_") == type(expected).__name__
    assert getattr(found, "_fields", None) == getattr(expected, "_fields", None)
    for results in (found, own):
        flat, wanted = (torch.utils._pytree.tree_leaves(values) for values in (results, expected))
        if isinstance(expected, list):
            assert [(type(part), list(part)) for part in results] == [(type(part), list(part)) for part in expected]
        torch.testing.assert_close(flat, wanted, rtol=1e-4, atol=1e-5)


def test_numbers_that_tensors_are_full_of_are_doubles_to_the_proof(tmp_path: Path) -> None:
    """Equal shares of a softmax over nothing but zeros (routing by agreement), and products of such numbers."""
    body = "b = x.new_zeros(x.shape)\nshares = b.softmax(1)\nreturn x * shares + x * (torch.full_like(x, 0.3) * 0.7)"
    compiled = compile_file(write(tmp_path, body, "", "torch.rand(4, 5)"))
    assert compiled.proof.worst < 1e-12


def test_as_many_inputs_as_a_call_has(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """``*args`` are compiled for as many as the example has; others, and gradients, run the reference."""
    body = "assert len(xs) > 0\nreturn x + sum(w * t for w, t in zip(self.w, xs)).relu()"
    init, inputs = "self.w = nn.Parameter(torch.rand(4))", ", ".join(["torch.rand(4, 5)"] * 3)
    path = write(tmp_path, body, init, inputs, "x, *xs")
    module = simulated(compile_file(path))
    reference, generated = reference_from(path.read_text()).Model(), module.ModelNew()
    generated.load_state_dict(reference.state_dict())
    xs = [torch.rand(4, 5) for _ in range(4)]
    for given, calls in ((xs[:3], 1), (xs[:2], 0), (xs, 0)):
        module.calls.clear()
        with torch.no_grad():
            torch.testing.assert_close(generated(*given), reference(*given))
        assert len(module.calls) == calls
    assert any("argument xs has another number of values" in str(warning.message) for warning in recwarn)
    y = torch.rand(4, 5, requires_grad=True)
    (found,), (wanted,) = (torch.autograd.grad(m(y, *xs[:2]).sum(), y) for m in (generated, reference))
    torch.testing.assert_close(found, wanted)


def test_gradients_of_as_many_inputs_behind_a_number(tmp_path: Path) -> None:
    body = "return sum(w * t for w, t in zip(self.w, xs)).relu() * scale"
    init, inputs = "self.w = nn.Parameter(torch.rand(4))", "2.0, torch.rand(4, 5), torch.rand(4, 5)"
    path = write(tmp_path, body, init, inputs, "scale, *xs")
    module = simulated(compile_file(path))
    reference, generated = reference_from(path.read_text()).Model(), module.ModelNew()
    generated.load_state_dict(reference.state_dict())
    xs = [torch.rand(4, 5, requires_grad=True) for _ in range(2)]
    found, wanted = (torch.autograd.grad(m(2.0, *xs).sum(), xs) for m in (generated, reference))
    torch.testing.assert_close(found, wanted)
    assert len(module.calls) == 1
