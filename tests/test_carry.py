"""Carried classes behave as their originals, under other names, and refuse what cannot be carried."""

from __future__ import annotations

import ast
import re
import textwrap
from typing import Any

import pytest
import torch

from fusegen.carry import CarriedModel, attribute_path, carry_graph, carry_model
from fusegen.carry.clean import escape_words, reword
from fusegen.carry.scopes import bound_names, global_uses
from fusegen.errors import EmitError
from fusegen.ir import DType, Graph, InputOp, Node, ParamOp, PointwiseOp, TensorType


def carry(source: str, class_name: str = "Model") -> CarriedModel:
    return carry_model(textwrap.dedent(source), class_name, "model.py")


def execute(carried: CarriedModel, scope: dict[str, Any] | None = None) -> dict[str, Any]:
    scope = {"__name__": "nowhere"} if scope is None else scope
    text = f"import torch as _fusegen_torch\n{carried.prelude}\n{carried.class_text}"
    exec(compile(text, "<generated>", "exec", dont_inherit=True), scope)
    return scope


def assert_equivalent(source: str, *inputs: torch.Tensor, arguments: tuple[Any, ...] = ()) -> dict[str, Any]:
    """The carried class computes what the original does, from the same random draws."""
    original: dict[str, Any] = {"__name__": __name__}
    exec(compile(textwrap.dedent(source), "<original>", "exec", dont_inherit=True), original)
    carried = carry(source)
    scope = execute(carried)
    torch.manual_seed(5)
    model = original["Model"](*arguments)
    torch.manual_seed(5)
    new = scope["ModelNew"](*arguments)
    assert list(model.state_dict()) == list(new.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), new.state_dict().values(), strict=True))
    assert torch.equal(model(*inputs), new._fusegen_reference(*inputs))
    text = f"{carried.prelude}\n{carried.class_text}"
    assert not re.search(r"\b(pass|try|except|import threading)\b", text)
    bound, _ = bound_names(ast.parse(text).body)
    assert all(name == "ModelNew" or name.startswith("_fusegen_") for name in bound)
    return scope


X = torch.linspace(-2, 2, 12).reshape(3, 4)

EQUIVALENT = {
    "locals and parameters that shadow module names": """
        import torch, math
        import torch.nn as nn
        import torch.nn.functional as F
        scale = 2.0
        class Model(nn.Module):
            def __init__(self):
                super(Model, self).__init__()
                nn = torch.nn
                self.w = nn.Parameter(torch.randn(4))
            def forward(self, x, scale=scale):
                F = x * scale
                def math(torch):
                    return torch + 1
                return math(F) * self.w
        """,
    "comprehensions, lambdas, walrus, unpacking": """
        import torch
        from torch import nn
        sizes, (a, *rest) = [1, 2], (3, 4, 5)
        table = {k: v for k, v in zip(sizes, rest)}
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.k = [sizes for sizes in sizes]
                self.f = lambda a: a + rest[0]
            def forward(self, x):
                total = sum(v for sizes in [table] for v in sizes.values() if (n := v) > 0)
                return self.f(x) * (total + n + a) + len(self.k)
        """,
    "nested helper classes, helper chain, inheritance": """
        import torch
        import torch.nn as nn
        EPS = 1e-3
        def low(x):
            return x + EPS
        def high(x):
            '''pass the value on'''
            return low(x) * 2
        class Base(nn.Module):
            def __init__(self, n):
                super(Base, self).__init__()
                self.__hidden = nn.Parameter(torch.randn(n))
            def value(self):
                return self.__hidden
        class Block(Base):
            def forward(self, x):
                return high(x) * self.value()
        class Model(nn.Module):
            class Inner(nn.Module):
                def forward(self, x):
                    return x - EPS
            def __init__(self):
                super().__init__()
                self.blocks = nn.Sequential(Block(4), Block(4))
                self.inner = Model.Inner()
                self.__private = nn.Parameter(torch.randn(4))
            def forward(self, x):
                return self.inner(self.blocks(x)) + self.__private
        """,
    "forbidden words in strings, pass statements, docstrings, comments": '''
        """try this model"""
        import torch
        from torch import nn
        class Helper:
            """Nothing: pass."""
        class Model(nn.Module):
            """try, except and pass."""
            def __init__(self):
                """import threading"""
                super().__init__()
                self.mode = "pass"  # try
                self.text = f"except {self.mode} import threading" + 'a\\npass'
                if self.mode == "try":
                    pass
            def nothing(self):
                pass
            def forward(self, x):
                assert self.nothing() is None and self.mode == "pa" + "ss"
                return x * (1 if self.text.endswith("pass") else 2) + Helper.__doc__.count if False else x * 3
        ''',
    "postponed annotations and types": """
        from __future__ import annotations
        from typing import Optional, TYPE_CHECKING
        from dataclasses import dataclass
        import torch
        from torch import nn, Tensor
        if TYPE_CHECKING:
            import numpy as np
        @dataclass
        class Config:
            width: int = 4
            other: Optional[int] = None
        class Model(nn.Module):
            weight: Tensor
            def __init__(self, config: np.ndarray | None = None) -> None:
                super().__init__()
                config = config or Config()
                self.weight = nn.Parameter(torch.randn(config.width))
            def forward(self, x: Tensor, y: Optional[Tensor] = None) -> Undefined:
                z: Tensor = x * self.weight
                return z
        """,
    "constants built in steps, global statement, dotted imports": """
        import torch.nn.functional
        import os.path
        import torch
        TABLE = {}
        TABLE["a"] = 1.5
        ITEMS = []
        ITEMS.append(2.0)
        count = 0
        def bump():
            global count
            count += 1
            return count
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.start = bump()
            def forward(self, x):
                return torch.nn.functional.relu(x) * TABLE["a"] * ITEMS[0] + len(os.path.sep) * self.start
        """,
    "star import of torch, decorators, static methods, properties": """
        from torch.nn import *
        import torch
        import functools
        def twice(f):
            @functools.wraps(f)
            def g(*a, **k):
                return f(*a, **k) * 2
            return g
        class Model(Module):
            def __init__(self):
                super().__init__()
                self.l = Linear(4, 4)
            @staticmethod
            @twice
            def helper(x):
                return x + 1
            @property
            def gain(self):
                return 3.0
            def forward(self, x):
                return self.helper(self.l(x)) * self.gain
        """,
    "names that the generated module uses itself": """
        import torch
        from torch import nn
        def load(x): return x * 2
        def forward(x): return load(x) + 1
        ops = 5
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
            def forward(self, x):
                return forward(x) + ops
        """,
    "match, with, keyword arguments named like globals": """
        import contextlib
        import torch
        from torch import nn
        dim = 1
        kind = "sum"
        def add(x, dim=0):
            return x.sum(dim=dim)
        class Model(nn.Module):
            def forward(self, x):
                with contextlib.nullcontext(x) as dim_value:
                    pass
                match kind:
                    case "sum":
                        return add(dim_value, dim=dim)
                    case other:
                        return other
        """,
    "forward inherited from a helper class": """
        import torch
        from torch import nn
        class Base(nn.Module):
            def forward(self, x):
                return x * self.k
        class Model(Base):
            def __init__(self):
                super().__init__()
                self.k = 3
        """,
}


@pytest.mark.parametrize("name", EQUIVALENT)
def test_carried_class_is_equivalent(name: str) -> None:
    assert_equivalent(EQUIVALENT[name], X)


def test_names_of_the_source_do_not_leak() -> None:
    scope = execute(
        carry(EQUIVALENT["locals and parameters that shadow module names"]), {"scale": "mine", "nn": "mine"}
    )
    assert scope["scale"] == scope["nn"] == "mine"
    assert not {"F", "math", "torch"} & set(scope)


def test_only_what_is_needed_is_carried() -> None:
    carried = carry(
        """
        import torch
        import numpy as np
        from torch import nn
        batch_size = 4
        def get_inputs():
            return [torch.rand(batch_size, np.int64(3))]
        class Other(nn.Module):
            pass
        class Model(nn.Module):
            def forward(self, x):
                return torch.relu(x)
        """
    )
    assert carried.prelude.splitlines() == ["import torch as _fusegen_torch", "from torch import nn as _fusegen_nn"]
    assert carried.names == {"Model": "ModelNew", "torch": "_fusegen_torch", "nn": "_fusegen_nn"}


def test_forward_signature() -> None:
    carried = carry(
        """
        import torch
        K = 2
        class Model(torch.nn.Module):
            @torch.no_grad()
            def forward(this, x, /, y=None, *, scale=K, **options):
                return x
        """
    )
    assert carried.self_name == "this"
    assert [str(p) for p in carried.forward] == ["x", "y=None", "scale=_fusegen_K", "**options"]
    assert [p.kind for p in carried.forward] == ["positional_only", "positional", "keyword_only", "kwargs"]
    assert carried.forward_decorators == ("_fusegen_torch.no_grad()",)
    assert "@" not in carried.class_text


REFUSED = {
    "try blocks cannot be carried": ("try:\n            y = 1\n        except ValueError:\n            y = 2", 6),
    "imports threading": ("import threading", 6),
    "__file__ cannot be carried": ("y = __file__", 6),
    "imports numpy": ("import numpy", 6),
    "relative import": ("from . import other", 6),
    "'undefined' is not defined in the file": ("y = undefined", 6),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals_name_the_line(message: str) -> None:
    body, line = REFUSED[message]
    source = (
        "import torch\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        y = 0\n"
        f"        {body}\n        return x\n"
    )
    with pytest.raises(EmitError) as caught:
        carry_model(source, "Model", "model.py")
    assert message in str(caught.value)
    assert caught.value.source == f"model.py:{line}"


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("import numpy as np\n", "imports numpy"),
        ("from math import *\n", "name what you import"),
        ("np = Model\n", "uses Model cannot be carried"),
        ("half = torch\ntry:\n    np = half\nexcept ImportError:\n    np = 2\n", "try blocks"),
        ("try:\n    import nothing\nexcept ImportError as np:\n    np = torch\n", "try blocks"),
        ("try:\n    import nothing\nexcept ValueError:\n    np = torch\n", "try blocks"),
    ],
)
def test_module_level_refusals(head: str, message: str) -> None:
    source = f"import torch\n{head}class Model(torch.nn.Module):\n    def forward(self, x):\n        return np.abs(x)\n"
    if "math" in head:
        source = source.replace("np.abs", "sqrt")
    with pytest.raises(EmitError, match=message):
        carry_model(source, "Model", "model.py")


@pytest.mark.parametrize(
    ("head", "carried"),
    [
        ("try:\n    import nothing as np\nexcept ImportError:\n    import torch as np\n", "import torch as np"),
        ("try:\n    import torch as np\nexcept ImportError:\n    import nothing as np\n", "import torch as np"),
        ("try:\n    from torch import nothing\nexcept Exception:\n    np = torch\n", "np = torch"),
        (
            "try:\n    import nothing\nexcept:\n    old = True\nelse:\n    old = False\nfinally:\n    np = torch\n",
            "np = torch",
        ),
        ("try:\n    f = torch.abs\nexcept ValueError:\n    f = 1\nelse:\n    class np:\n        abs = f\n", "abs = "),
    ],
)
def test_tries_at_module_level_are_what_they_did(head: str, carried: str) -> None:
    source = f"import torch\n{head}class Model(torch.nn.Module):\n    def forward(self, x):\n        return np.abs(x)\n"
    found = carry_model(source, "Model", "model.py").prelude
    assert carried in re.sub(r"\b_fusegen_", "", found)
    assert "nothing" not in found


def test_missing_class_and_forward() -> None:
    with pytest.raises(EmitError, match="no class Model"):
        carry("import torch\n")
    with pytest.raises(EmitError, match="no forward"):
        carry("import torch\nclass Model(torch.nn.Module):\n    x = 1\n")
    with pytest.raises(EmitError, match=r"syntax error.*model.py:1"):
        carry("class Model(:\n")


def test_escape_words_keeps_values() -> None:
    source = "x = ['pass', b'try', f'{1} except {2}', 'bypass', \"import threading\"]\n"
    escaped = escape_words(source)
    assert not re.search(r"\b(pass|try|except|import threading)\b", escaped)
    left: dict[str, Any] = {}
    right: dict[str, Any] = {}
    exec(source, left)
    exec(escaped, right)
    assert left["x"] == right["x"]
    assert reword("one pass; try it") == "one sweep; attempt it"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(a, b=c): return a + b + d", ["c", "d", "f"]),
        ("class A:\n  x = 1\n  def g(self): return x", ["A", "x"]),
        ("class A:\n  x = y\n  y = 1", ["A"]),
        ("def f():\n  global g\n  g = 1\n  def h(): return g", ["f", "g"]),
        ("def f():\n  n = 1\n  def g():\n    nonlocal n\n    n = 2\n  return [n for q in n if q]", ["f"]),
        ("def f(): return [(y := x) for x in xs] and y", ["f", "xs"]),
        ("def f(*args, **kw): return lambda z, k=kw: z + w", ["f", "w"]),
    ],
)
def test_scopes(source: str, expected: list[str]) -> None:
    assert sorted(global_uses(ast.parse(source).body[0])) == expected


def _description() -> Graph:
    f32 = DType.FLOAT32
    x = TensorType(dtype=f32, shape=("x0_0", 4))
    return Graph(
        nodes=(
            Node(name="x", op=InputOp(position=0), type=x),
            Node(name="w", op=ParamOp(path="0.layer.weight"), type=TensorType(dtype=f32, shape=(3, 4))),
            Node(name="b", op=ParamOp(path="bias"), type=TensorType(dtype=f32, shape=(4,))),
            Node(name="n", op=ParamOp(path="norm.mean", buffer=True), type=TensorType(dtype=f32, shape=(4,))),
            Node(name="c", op=ParamOp(path="norm.count", buffer=True), type=TensorType(dtype=DType.INT64, shape=())),
            Node(name="y", op=PointwiseOp(fn="add"), inputs=("x", "b"), type=x),
        ),
        outputs=("y",),
        sizes={"x0_0": 2},
    )


def test_description_declares_its_parameters() -> None:
    graph = _description()
    assert attribute_path("0.layer.weight") == "getattr(self, '0').layer.weight"
    carried = carry_graph(graph, "return x0 + self.bias * torch.ones(1)")
    scope = execute(carried)
    torch.manual_seed(3)
    model = scope["ModelNew"]()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes == {"0.layer.weight": (3, 4), "bias": (4,), "norm.mean": (4,), "norm.count": ()}
    torch.manual_seed(3)
    assert torch.equal(model.state_dict()["0.layer.weight"], torch.randn(3, 4) / 2.0)
    assert torch.equal(model._fusegen_reference(X), X + model.bias)
