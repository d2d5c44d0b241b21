"""Which calls of a run are replayed, with graphs that a stand-in for CUDA records."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fusegen.compiler import compile_file
from tests.emitted import simulated
from tests.models import write

LAYERS = (
    "self.convs = nn.ModuleList([nn.Conv2d({0}, {0}, 1, bias=False) for _ in range(6)])\n"
    "self.norms = nn.ModuleList([nn.BatchNorm2d({0}) for _ in range(6)])"
)
CHAIN = "for conv, norm in zip(self.convs, self.norms):\n    x = x + norm(conv(x)).relu()\nreturn x.amax((2, 3))"


class Seen(TorchDispatchMode):
    """A mode that sees operators."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Device:
    """Records what is called within a capture; ``stream`` is the current one's number."""

    def __init__(self) -> None:
        self.recording: list[Callable[[], object]] | None = None
        self.stream, self.calls, self.replays, self.broken = 0, 0, 0, False
        self.torch = SimpleNamespace(
            Tensor=torch.Tensor,
            are_deterministic_algorithms_enabled=torch.are_deterministic_algorithms_enabled,
            backends=torch.backends,
            _C=SimpleNamespace(
                _cuda_getCurrentRawStream=lambda _: self.stream,
                _cuda_clearCublasWorkspaces=lambda: None,
                _len_torch_dispatch_stack=torch._C._len_torch_dispatch_stack,
                _get_cudnn_enabled=lambda: True,
                _get_cudnn_benchmark=lambda: False,
                _get_cudnn_deterministic=lambda: False,
            ),
            cuda=SimpleNamespace(
                CUDAGraph=lambda: Graph(self),
                Stream=lambda _: SimpleNamespace(wait_stream=lambda _: None),
                current_stream=lambda _: None,
                stream=lambda _: contextlib.nullcontext(),
                graph_pool_handle=object,
            ),
        )

    def operator(self, read: list[torch.Tensor], integers: list[int]) -> torch.Tensor:
        """x times a number."""
        self.calls += 1
        (x,), (number,) = read, integers
        y = x * number
        if self.recording is not None:
            self.recording.append(lambda: y.copy_(x * number))
            y.fill_(torch.nan)  # a capture computes nothing
        return y


class Graph:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.work: list[Callable[[], object]] = []

    def capture_begin(self, pool: object, mode: str) -> None:
        assert mode == "thread_local"
        if self.device.broken:
            raise RuntimeError("no capture here")
        self.device.recording = self.work

    def capture_end(self) -> None:
        self.device.recording = None

    def replay(self) -> None:
        self.device.replays += 1
        for step in self.work:
            step()


def _generated(folder: Path, channels: int, library: bool) -> Any:
    path = write(folder, CHAIN, LAYERS.format(channels), f"torch.rand(4, {channels}, 14, 14)")
    compiled = compile_file(path)
    assert ("aten::convolution" in compiled.source) == library
    return simulated(compiled)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """With torch's convolutions."""
    return _generated(tmp_path_factory.mktemp("graphs"), 256, True)


@pytest.fixture
def device(generated: Any, monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device()
    monkeypatch.setitem(generated.__dict__, "_fusegen_torch", found.torch)
    return found


def _run(generated: Any, device: Device) -> Any:
    return generated._fusegen_Replayed(device.operator, 1, (0,), 4)


def test_the_third_call_with_the_same_memory_is_replayed(generated: Any, device: Device) -> None:
    run, x, kept = _run(generated, device), torch.rand(4), []
    for count in range(1, 6):
        x.copy_(torch.rand(4))
        kept.append((run([x], [3]), x * 3))
        assert device.replays == max(0, count - 2)
    assert device.calls == 3
    for found, expected in kept:  # each is memory of its own
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_other_sizes_numbers_and_settings_are_other_graphs(
    generated: Any, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, x = _run(generated, device), torch.rand(4)
    for _ in range(3):
        run([x], [3])
    for given, number in ((x, 5), (x[:2], 3), (x.view(2, 2), 3), (x.clone(), 3)):
        before = device.calls
        torch.testing.assert_close(run([given], [number]), given * number, rtol=0, atol=0)
        assert device.calls == before + 1
    monkeypatch.setattr(device.torch._C, "_get_cudnn_deterministic", lambda: True)
    run([x], [3])
    assert device.replays == 1


def test_settings_of_libraries_count_where_these_are_called(tmp_path: Path) -> None:
    assert "_fusegen_library_settings" not in _generated(tmp_path, 16, False).__dict__


def test_much_larger_calls_launch_kernel_by_kernel(generated: Any, device: Device) -> None:
    """They would keep as much memory, for a GPU that waits for nobody."""
    run = _run(generated, device)
    for length, replays in ((16, 2), (17, 2)):
        x = torch.rand(length)
        for _ in range(4):
            run([x], [3])
        assert device.replays == replays


@pytest.mark.parametrize("why", ["stream", "layout", "mode"])
def test_what_a_replay_would_not_do_is_called(why: str, generated: Any, device: Device) -> None:
    run, x = _run(generated, device), torch.rand(4, 3)
    if why == "stream":
        device.stream = 7
    if why == "layout":
        x = x.T
    within = Seen() if why == "mode" else contextlib.nullcontext()
    with within:
        for _ in range(4):
            run([x], [3])
    assert device.replays == 0


def test_few_graphs_are_kept_and_more_have_to_be_paid_for(generated: Any, device: Device) -> None:
    run, inputs = _run(generated, device), [torch.rand(4) for _ in range(6)]
    for _ in range(4):
        for x in inputs:
            torch.testing.assert_close(run([x], [3]), x * 3, rtol=0, atol=0)
    assert len(run.graphs) == run.MOST
    captured = set(run.graphs)
    for _ in range(run.WORTH):
        run([inputs[0]], [3])
    for x in inputs:
        torch.testing.assert_close(run([x], [3]), x * 3, rtol=0, atol=0)
    assert len(run.graphs) == run.MOST
    assert len(captured - set(run.graphs)) == 1


def test_keys_of_calls_are_forgotten(generated: Any, device: Device) -> None:
    run, x = _run(generated, device), torch.rand(4)
    for number in range(1000):
        run([x], [number])
    assert len(run.seen) == run.REMEMBERED


def test_a_capture_that_fails_is_said_once(generated: Any, device: Device) -> None:
    run, x = _run(generated, device), torch.rand(4)
    device.broken = True
    run([x], [3])
    run([x], [3])
    with pytest.warns(UserWarning, match="launches kernel by kernel: no capture here"):
        torch.testing.assert_close(run([x], [3]), x * 3, rtol=0, atol=0)
    device.broken = False
    for _ in range(4):
        run([x], [3])
    assert device.replays == 0


def test_a_replay_that_fails_is_an_error(generated: Any, device: Device) -> None:
    run, x = _run(generated, device), torch.rand(4)
    for _ in range(3):
        run([x], [3])
    ((graph, _),) = run.graphs.values()

    def failing() -> None:
        raise RuntimeError("out of memory")

    graph.work.append(failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        run([x], [3])


def test_every_module_has_its_own(generated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = generated.ModelNew(), generated.ModelNew()
    assert generated._fusegen_calls_of(one) is generated._fusegen_calls  # switched off
    monkeypatch.setitem(generated.__dict__, "_fusegen_replays", True)
    found = generated._fusegen_calls_of(one)
    assert [type(call).__name__ for call in found].count("_fusegen_Replayed") == 1
    assert generated._fusegen_calls_of(one) is found
    assert generated._fusegen_calls_of(other) is not found
    assert len(generated._fusegen_graphs) == 2
    del other
    assert len(generated._fusegen_graphs) == 1
