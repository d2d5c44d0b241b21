"""Running statistics and counts that kernels update where they are."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.gpu.cases import built, opcheck
from tests.models import write

pytestmark = pytest.mark.gpu

BODY, INIT, SHAPE = "return self.n(x).relu()", "self.n = nn.BatchNorm2d(8)", (4, 8, 6, 5)


def _pair(folder: Path, body: str = BODY, init: str = INIT) -> tuple[nn.Module, nn.Module]:
    _, reference, generated = built(write(folder, body, init, f"torch.rand{SHAPE}"))
    generated.load_state_dict(reference.state_dict())
    return reference, generated


def _same_state(one: nn.Module, other: nn.Module) -> None:
    torch.testing.assert_close(one.state_dict(), other.state_dict())


@pytest.mark.parametrize("shape", [SHAPE, (2, 8, 1, 3), (24, 8, 128, 130), (70_001, 8, 2, 3)])
@pytest.mark.parametrize("grad", [False, True])
def test_every_call_counts_once(shape: tuple[int, ...], grad: bool, tmp_path: Path) -> None:
    reference, generated = _pair(tmp_path)
    for _ in range(3):
        x = torch.randn(shape, device="cuda") * 3 + 5
        versions = [buffer._version for buffer in generated.buffers()]
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(generated(x), reference(x), rtol=1e-4, atol=1e-5)
        _same_state(generated, reference)
        assert all(buffer._version > before for buffer, before in zip(generated.buffers(), versions, strict=True))


def test_a_norm_that_is_applied_twice(tmp_path: Path) -> None:
    reference, generated = _pair(tmp_path, "return self.n(self.n(x).relu() * 2)")
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(SHAPE, device="cuda")
            torch.testing.assert_close(generated(x), reference(x), rtol=1e-4, atol=1e-5)
    _same_state(generated, reference)


def test_buffers_that_are_not_contiguous(tmp_path: Path) -> None:
    reference, generated = _pair(tmp_path)
    kept = torch.zeros(16, device="cuda")
    for name in ("running_mean", "running_var"):
        buffers = generated.n._buffers
        buffers[name] = torch.stack([buffers[name], kept[:8]], 1)[:, 0]
        assert not buffers[name].is_contiguous()
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(SHAPE, device="cuda")
            torch.testing.assert_close(generated(x), reference(x), rtol=1e-4, atol=1e-5)
    _same_state(generated, reference)


def test_a_graph_counts_every_replay(tmp_path: Path) -> None:
    reference, generated = _pair(tmp_path)
    x = torch.randn(SHAPE, device="cuda")
    with torch.no_grad():
        copy.deepcopy(generated)(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = generated(x)
        for _ in range(3):
            graph.replay()
            expected = reference(x)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    _same_state(generated, reference)


def test_under_torch_compile(tmp_path: Path) -> None:
    reference, generated = _pair(tmp_path)
    compiled = torch.compile(generated, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(SHAPE, device="cuda")
            torch.testing.assert_close(compiled(x), reference(x), rtol=1e-4, atol=1e-5)
    _same_state(generated, reference)


def test_a_statistic_that_is_not_a_number(tmp_path: Path) -> None:
    reference, generated = _pair(tmp_path)
    x = torch.randn(SHAPE, device="cuda")
    x[0, 3, 0, 0] = float("nan")
    with torch.no_grad():
        generated(x), reference(x)
    for name, buffer in reference.named_buffers():
        torch.testing.assert_close(generated.get_buffer(name), buffer, equal_nan=True)


def test_opcheck(tmp_path: Path) -> None:
    _, generated = _pair(tmp_path)
    assert opcheck(generated, torch.randn(SHAPE, device="cuda"))
