"""Runs of short launches, which are replayed as CUDA graphs."""

from __future__ import annotations

import copy
import gc
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.gpu.cases import built
from tests.models import write

pytestmark = pytest.mark.gpu

INIT = """
self.convs = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(6)])
self.norms = nn.ModuleList([nn.BatchNorm2d(16) for _ in range(6)])
self.fc = nn.Linear(16, 10)
"""
BODY = """
for conv, norm in zip(self.convs, self.norms):
    x = x + norm(conv(x)).relu()
return self.fc(x.mean((2, 3))), x.amax((2, 3))
"""
SHAPE = (4, 16, 20, 24)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[nn.Module, nn.Module]:
    compiled, reference, generated = built(write(tmp_path, BODY, INIT, f"torch.rand{SHAPE}"))
    assert "_fusegen_Replayed(" in compiled.source
    generated.load_state_dict(reference.state_dict())
    return reference, generated


def _runs(generated: nn.Module) -> list[Any]:
    module = sys.modules[type(generated).__module__]
    calls = module._fusegen_graphs.get(generated, ())
    return [call for call in calls if hasattr(call, "graphs")]


def _captured(generated: nn.Module) -> int:
    return sum(len(run.graphs) for run in _runs(generated))


def _same(pair: tuple[nn.Module, nn.Module], *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Results and buffers of a call of each are the same. Returns those of the generated module."""
    reference, generated = pair
    found, expected = generated(*inputs), reference(*inputs)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(generated.state_dict(), reference.state_dict(), rtol=1e-3, atol=1e-3)
    kept: tuple[torch.Tensor, ...] = found
    return kept


def _called(pair: tuple[nn.Module, nn.Module], x: torch.Tensor, times: int = 4) -> None:
    for _ in range(times):
        _same(pair, x)


@pytest.mark.parametrize("grad", [False, True])
def test_follows_what_is_in_memory(pair: tuple[nn.Module, nn.Module], grad: bool) -> None:
    _, generated = pair
    x = torch.randn(SHAPE, device="cuda")
    with torch.set_grad_enabled(grad):
        _called(pair, x, 2)
        assert _captured(generated) == 0
        _called(pair, x)
        assert _captured(generated) == 1
        x.copy_(torch.randn(SHAPE))
        first = _same(pair, x)
        kept = [y.detach().clone() for y in first]
        for model in pair:
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(1.25)
        _same(pair, x)
        torch.testing.assert_close(list(first), kept, rtol=0, atol=0)  # of its own memory
    assert _captured(generated) == 1


def test_gradients(pair: tuple[nn.Module, nn.Module]) -> None:
    x = torch.randn(SHAPE, device="cuda")
    for _ in range(5):
        for model in pair:
            model.zero_grad()
            sum(y.square().mean() for y in model(x)).backward()
        grads = [[p.grad for p in model.parameters()] for model in pair]
        torch.testing.assert_close(*grads, rtol=1e-2, atol=1e-2)
    assert _captured(pair[1]) == 1


def test_other_memory(pair: tuple[nn.Module, nn.Module]) -> None:
    _, generated = pair
    inputs = [torch.randn(SHAPE, device="cuda") for _ in range(6)]
    with torch.no_grad():
        for _ in range(4):
            for x in inputs:
                _same(pair, x)
        assert _captured(generated) == 4
        for model in pair:
            model.convs[2].weight.data = model.convs[2].weight.data * 0.5
        _same(pair, inputs[0])
        _called(pair, torch.randn(2, 16, 13, 11, device="cuda"))
        flat = inputs[0].flatten()
        for height in (20, 10, 40, 20):  # other sizes at one address
            _same(pair, flat[: 2 * 16 * height * 12].view(2, 16, height, 12))
        run = _runs(generated)[0]
        run.captures = 8  # what a thousand replays would earn
        for _ in range(4):
            for x in inputs:
                _same(pair, x)
        assert _captured(generated) == 4


def test_other_layout(pair: tuple[nn.Module, nn.Module]) -> None:
    x = torch.randn(4, 20, 24, 16, device="cuda").permute(0, 3, 1, 2)
    with torch.no_grad():
        _called(pair, x)
    assert _captured(pair[1]) == 0


def test_other_precision(pair: tuple[nn.Module, nn.Module]) -> None:
    x = torch.randn(SHAPE, device="cuda")
    with torch.no_grad():
        _called(pair, x)
        saved = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
        try:
            torch.testing.assert_close(pair[1](x), pair[0](x), rtol=1e-4, atol=1e-4)
        finally:
            torch.backends.cudnn.allow_tf32 = saved
        _same(pair, x)


def test_streams_and_captures(pair: tuple[nn.Module, nn.Module]) -> None:
    reference, generated = pair
    x = torch.randn(SHAPE, device="cuda")
    with torch.no_grad():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            _called(pair, x)
        torch.cuda.current_stream().wait_stream(stream)
        assert _captured(generated) == 0
        _called(pair, x)
        assert _captured(generated) == 1
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = generated(x)
        x.copy_(torch.randn(SHAPE))
        graph.replay()
        torch.testing.assert_close(found, reference(x), rtol=2e-3, atol=2e-3)


def test_threads(pair: tuple[nn.Module, nn.Module]) -> None:
    _, generated = pair
    wrong: list[str] = []
    inputs = [torch.randn(SHAPE, device="cuda") for _ in range(3)]
    expected = [[y.detach() for y in generated._fusegen_reference(x)] for x in inputs]

    def work(index: int) -> None:
        try:
            for _ in range(40):
                with torch.no_grad():
                    found = generated(inputs[index])
                torch.testing.assert_close(list(found), expected[index], rtol=2e-3, atol=2e-3)
        except Exception as error:
            wrong.append(str(error))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_graphs_go_with_their_module(pair: tuple[nn.Module, nn.Module]) -> None:
    reference, generated = pair
    x = torch.randn(SHAPE, device="cuda")
    with torch.no_grad():
        _called(pair, x)
        other = copy.deepcopy(generated)
        assert _captured(other) == 0
        _called((copy.deepcopy(reference), other), x)
        assert _captured(other) == 1
        graphs = sys.modules[type(generated).__module__]._fusegen_graphs
        assert len(graphs) == 2
        del other
        gc.collect()
        assert len(graphs) == 1
        _same(pair, x)


def test_may_be_switched_off(pair: tuple[nn.Module, nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[type(pair[1]).__module__], "_fusegen_replays", False)
    with torch.no_grad():
        _called(pair, torch.randn(SHAPE, device="cuda"))
    assert _runs(pair[1]) == []
