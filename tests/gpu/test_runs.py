"""Operators of many steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.gpu.cases import built, opcheck
from tests.models import write

pytestmark = pytest.mark.gpu

BODY = """
y = self.a(x).relu()
y = self.c(y)
y = torch.cat([self.b(y).relu(), y], 1)
y = F.max_pool2d(y, 2).mean((2, 3)) @ self.w.mT
return y.softmax(1), y[:, 1:3]
"""
INIT = """
self.a = nn.BatchNorm2d(64)
self.b = nn.BatchNorm2d(256)
self.c = nn.Conv2d(64, 256, 3, padding=1, bias=False)
self.w = nn.Parameter(torch.rand(96, 512) / 64)
"""
SHAPE = (32, 64, 28, 28)


def _pair(folder: Path) -> tuple[nn.Module, nn.Module]:
    compiled, reference, generated = built(write(folder, BODY, INIT, f"torch.rand{SHAPE}"))
    assert "steps0" in compiled.source
    generated.load_state_dict(reference.state_dict())
    return reference, generated


def _same(generated: nn.Module, reference: nn.Module, found: object, expected: object) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(generated.state_dict(), reference.state_dict(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("shape", [SHAPE, (3, 64, 13, 9)])
def test_agrees_with_eager(shape: tuple[int, ...], grad: bool, tmp_path: Path) -> None:
    reference, generated = _pair(tmp_path)
    for _ in range(2):
        x = torch.randn(shape, device="cuda")
        versions = [buffer._version for buffer in generated.buffers()]
        with torch.set_grad_enabled(grad):
            _same(generated, reference, generated(x), reference(x))
        assert all(b._version > before for b, before in zip(generated.buffers(), versions, strict=True))


def test_operands_that_are_not_contiguous(tmp_path: Path) -> None:
    reference, generated = _pair(tmp_path)
    buffers, kept = generated.b._buffers, torch.zeros(512, device="cuda")
    for name in ("running_mean", "running_var"):
        buffers[name] = torch.stack([buffers[name], kept[:256]], 1)[:, 0]
    generated.c.weight.data = generated.c.weight.data.to(memory_format=torch.channels_last)
    x = torch.randn(32, 28, 28, 64, device="cuda").permute(0, 3, 1, 2)
    with torch.no_grad():
        _same(generated, reference, generated(x), reference(x))


def test_in_a_graph_and_on_another_stream(tmp_path: Path) -> None:
    reference, generated = _pair(tmp_path)
    x = torch.randn(SHAPE, device="cuda")
    with torch.no_grad():
        expected, _ = reference(x), generated(x)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y = generated(x)
        torch.cuda.synchronize()
        torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-4)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = generated(x)
        x.copy_(torch.randn(SHAPE))
        graph.replay()
        torch.testing.assert_close(y, reference(x), rtol=1e-3, atol=1e-4)


def test_needs_no_more_memory_than_eager(tmp_path: Path) -> None:
    peaks = []
    x = torch.randn(SHAPE, device="cuda")
    for model in _pair(tmp_path):
        with torch.no_grad():
            model(x)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            model(x)
            peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] <= peaks[0]


def test_opcheck(tmp_path: Path) -> None:
    _, generated = _pair(tmp_path)
    assert any("steps0" in name for name in opcheck(generated, torch.randn(SHAPE, device="cuda")))


def test_under_torch_compile(tmp_path: Path) -> None:
    reference, generated = _pair(tmp_path)
    compiled = torch.compile(generated, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(SHAPE, device="cuda")
            _same(generated, reference, compiled(x), reference(x))
