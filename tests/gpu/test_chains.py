"""Random models on the GPU: ``pytest -m gpu tests/gpu/test_chains.py -n 16 --chains 300``."""

from __future__ import annotations

import copy
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fusegen import interpret
from fusegen.compiler import compile_file
from fusegen.emit import write_atomic
from fusegen.guards import all_hold
from fusegen.interpret import input_shapes
from fusegen.ir import Graph
from fusegen.trace import load_model_file
from fusegen.verdict.check import EPS, OutputError, compare, has_convolution
from fusegen.verdict.subject import call, call_generated, load_generated
from fusegen.verdict.tf32 import tf32_convolutions, tf32_results
from tests.chains import chain

pytestmark = pytest.mark.gpu

Inputs = tuple[torch.Tensor, ...]
ROUNDINGS = 4
"""Random roundings from which the noise of float arithmetic is told, and how far beyond it errors may be."""

FEW, DRAWS = 64, 16
"""Of a result with so few values, errors are compared over as many orders of the elements of inputs: one error is what
chance makes it, and eager's is, so that a kernel of less error than eager's would fail in one of forty draws."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("seed", range(metafunc.config.getoption("--chains")))


def results(module: nn.Module, inputs: Inputs, run: Any = call) -> list[torch.Tensor]:
    """Outputs, and floating-point buffers after the call."""
    fresh = copy.deepcopy(module)
    outputs: list[torch.Tensor] = run(fresh, inputs)
    return outputs + [buffer for buffer in fresh.buffers() if buffer.is_floating_point()]


def noise(graph: Graph, module: nn.Module, inputs: Inputs, r: list[torch.Tensor]) -> list[float]:
    """The largest change of each result of ``graph`` in float64 when every value in it is rounded to float at random.

    Where differences cancel (the mean of normalised values), no float arithmetic does better than this.
    """
    lines = interpret.python_lines(graph)
    text = [
        *interpret.size_lines(graph, "\n".join(lines)),
        *(f"{n}; {n.split(' = ')[0]} = jitter({n.split(' = ')[0]})" for n in lines),
    ]
    scope: dict[str, Any] = {"torch": torch, "params": dict(module.double().state_dict())}
    found = [0.0] * len(graph.outputs)

    def jitter(value: Any) -> Any:
        if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
            return value
        return value * (1 + EPS * (2 * torch.rand_like(value) - 1))

    for _ in range(ROUNDINGS):
        values = dict(scope, jitter=jitter, **{f"x{i}": x.double() for i, x in enumerate(inputs)})
        exec("\n".join(text), values)
        for i, name in enumerate(graph.outputs):
            change = (values[f"v_{name}"] - r[i]).abs()
            found[i] = max(found[i], float(change.nan_to_num(0.0, 0.0, 0.0).max()))
    return found


def _outputs(pair: tuple[nn.Module, nn.Module], inputs: Inputs) -> list[tuple[torch.Tensor | None, ...]]:
    """Of every result: the generated module's, eager's, float64's, and eager's in TF32 where it differs."""
    reference, generated = pair
    r = results(copy.deepcopy(reference).double(), tuple(x.double() for x in inputs))
    e = results(reference, inputs)
    y = results(generated, inputs, call_generated)
    assert len(y) == len(e)
    tf32 = tf32_results(lambda: results(reference, inputs)) or [None] * len(e)
    return list(zip(y, e, r, tf32, strict=True))


def _reordered(x: torch.Tensor) -> torch.Tensor:
    return x.flatten()[torch.randperm(x.numel(), device=x.device)].view_as(x)


def problems(graph: Graph, pair: tuple[nn.Module, nn.Module], inputs: Inputs) -> list[object]:
    """Results of the generated module beyond twice eager's error, and beyond what rounding explains."""

    def judged(values: list[tuple[torch.Tensor | None, ...]]) -> list[OutputError]:
        return [compare(f"result {i}", *own) for i, own in enumerate(values)]

    def beyond(o: OutputError) -> bool:
        return bool(o.wrong_specials) or o.max_generated > o.max_allowed

    values = _outputs(pair, inputs)
    found = judged(values)
    if not any(map(beyond, found)) or any(o.wrong_specials for o in found):
        return [o for o in found if beyond(o)]
    if all(math.prod(o.shape) < FEW for o in found if beyond(o)):
        draws = [values, *(_outputs(pair, tuple(map(_reordered, inputs))) for _ in range(DRAWS - 1))]
        pooled = [
            tuple(None if any(x is None for x in one) else torch.stack(one) for one in zip(*of_result, strict=True))
            for of_result in zip(*draws, strict=True)
        ]
        found = judged(pooled)
    r = [own[2] for own in values if own[2] is not None]
    least = [ROUNDINGS * n for n in noise(graph, copy.deepcopy(pair[0]), inputs, r)]
    wrong = [o for o in found if beyond(o)]
    return [o for i, o in enumerate(found) if o in wrong and not (i < len(least) and o.max_generated <= least[i])]


def other_sizes(graph: Graph, pair: tuple[nn.Module, nn.Module]) -> Inputs | None:
    """Inputs of one more along every size that may vary, where the model and its constraints allow that."""
    sizes = {name: value + 1 for name, value in graph.sizes.items()}
    if not sizes or not all_hold(graph.constraints, sizes):
        return None
    inputs = tuple(torch.rand(shape, device="cuda") for shape in input_shapes(graph, sizes))
    try:
        call(copy.deepcopy(pair[0]), inputs)
    except RuntimeError:
        return None
    return inputs


def test_agrees_with_float64(seed: int, tmp_path: Path) -> None:
    model = chain(random.Random(seed))
    path = model.write(tmp_path)
    compiled = compile_file(path)
    graph = compiled.program.before
    write_atomic(tmp_path / "generated.py", compiled.source)
    loaded = load_model_file(path)
    torch.manual_seed(seed)
    reference = loaded.model_class().cuda()
    generated = load_generated(tmp_path / "generated.py")().cuda()
    generated.load_state_dict(reference.state_dict())
    pair = (reference, generated)
    drawn = tuple(x.cuda() for x in loaded.get_inputs())
    sets: dict[str, Inputs | None] = {
        "rand": drawn,
        "randn*3 + offset": tuple(3 * torch.randn_like(x) + torch.randn(()).cuda() for x in drawn),
        "other sizes": other_sizes(graph, pair),
    }
    found = {name: problems(graph, pair, inputs) for name, inputs in sets.items() if inputs is not None}
    if has_convolution(graph):
        with tf32_convolutions(False):
            found["TF32 off"] = problems(graph, pair, drawn)
    with torch.backends.cudnn.flags(deterministic=True):
        first, second = (call_generated(copy.deepcopy(generated), drawn) for _ in range(2))
    if not all(torch.equal(a, b) for a, b in zip(first, second, strict=True) if a.isfinite().all()):
        found["repeats"] = ["differ"]
    bad = {name: wrong for name, wrong in found.items() if wrong}
    assert not bad, f"seed {seed}: {bad}\n{model.text()}\n{[s.kind for s in compiled.program.steps]}"
