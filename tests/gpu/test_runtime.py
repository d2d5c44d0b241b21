"""Streams, CUDA graphs, torch.compile, torch.export and the registered operators."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_map_only

from tests.gpu.cases import COLLAPSED, FEW, ROWS, STRIDED, TAIL, WINDOWED, Calls, agrees, case, opcheck
from tests.test_machine_code import machine_code

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", FEW)
def test_capture_and_replay_in_a_cuda_graph(name: str) -> None:
    reference, generated = case(name).pair()
    x = case(name).x()
    with torch.no_grad():
        generated(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = generated(x)
        for seed in (2, 3, 4):
            x.copy_(case(name).x(seed=seed))
            graph.replay()
            torch.cuda.synchronize()
            agrees(reference, generated, x, y)
        agrees(reference, generated, x)  # outside the graph, after it


@pytest.mark.parametrize("name", FEW)
def test_work_follows_the_current_stream(name: str) -> None:
    reference, generated = case(name).pair()
    x = torch.zeros_like(case(name).x())
    late = case(name).x()
    generated(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        torch.cuda._sleep(100_000_000)  # the input is not there for a while
        x.copy_(late)
        y = generated(x)
        kept = y.clone()
    stream.synchronize()
    agrees(reference, generated, late, kept)


def test_two_streams_at_once() -> None:
    reference, generated = case(COLLAPSED).pair()
    xs = [case(COLLAPSED).x(16, (128, 127), seed=seed) for seed in range(4)]
    streams = [torch.cuda.Stream() for _ in xs]
    generated(xs[0])
    torch.cuda.synchronize()
    with torch.no_grad():
        for _ in range(20):
            ys = []
            for stream, x in zip(streams, xs, strict=True):
                with torch.cuda.stream(stream):
                    ys.append(generated(x))
            torch.cuda.synchronize()
    for x, y in zip(xs, ys, strict=True):
        agrees(reference, generated, x, y)


def test_no_hidden_synchronisation() -> None:
    _, generated = case(COLLAPSED).pair()
    x = case(COLLAPSED).x()
    generated(x)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        generated(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("grad", [False, True])
def test_inside_torch_compile(name: str, grad: bool) -> None:
    reference, generated = case(name).pair()
    torch._dynamo.reset()
    compiled = torch.compile(generated, backend="aot_eager", fullgraph=True)
    x = case(name).x()
    with torch.set_grad_enabled(grad):
        y = compiled(x)
    agrees(reference, generated, x, y)
    with torch.set_grad_enabled(grad):
        again = compiled(case(name).x(5))
    agrees(reference, generated, case(name).x(5), again)
    torch._dynamo.reset()


@pytest.mark.slow
def test_inside_torch_compile_with_inductor() -> None:
    reference, generated = case(COLLAPSED).pair()
    torch._dynamo.reset()
    x = case(COLLAPSED).x()
    with torch.no_grad():
        y = torch.compile(generated)(x)
    agrees(reference, generated, x, y)
    torch._dynamo.reset()


@pytest.mark.parametrize("name", [COLLAPSED, TAIL])
def test_torch_export(name: str) -> None:
    reference, generated = case(name).pair()
    x = case(name).x()
    with torch.no_grad():
        generated(x)
        program = torch.export.export(generated, (x,), strict=False)
        y = program.module()(x)
    agrees(reference, generated, x, y)


@pytest.mark.parametrize("name", FEW)
def test_opcheck(name: str) -> None:
    _, generated = case(name).pair()
    assert opcheck(generated, case(name).x())


def test_operators_refuse_what_they_were_not_compiled_for() -> None:
    _, generated = case(WINDOWED).pair()
    recorder = Calls()
    with torch.no_grad():
        generated(case(WINDOWED).x())
        with recorder:
            generated(case(WINDOWED).x())
    operator, arguments = recorder.calls[0]
    with pytest.raises(RuntimeError):
        operator(*tree_map_only(torch.Tensor, torch.Tensor.double, arguments))
    with pytest.raises(RuntimeError):
        operator(*tree_map_only(torch.Tensor, lambda a: a[..., None], arguments))


@pytest.mark.skipif(shutil.which("cuobjdump") is None, reason="cuobjdump is not installed")
@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability()[0] != 9, reason="needs Hopper")
@pytest.mark.parametrize("name", [WINDOWED, STRIDED, ROWS, "linear_pool_gelu_max", "conv_group_norm_hardswish"])
def test_nothing_is_read_before_the_kernels_before_are_awaited(name: str) -> None:
    """The compiler may move loads of what it takes for constant."""
    case(name).pair()[1](case(name).x())
    with open("/proc/self/maps") as maps:
        loaded = {Path(line.split()[-1]) for line in maps if "fusegen_" in line and line.rstrip().endswith(".so")}
    kernels = [kernel for library in loaded for kernel in machine_code(library).items()]
    assert kernels
    for kernel, addressed in kernels:
        code = [text for _, text in addressed]
        wait, trigger = (next(i for i, text in enumerate(code) if name in text) for name in ("ACQBULK", "PREEXIT"))
        if wait < trigger:  # else it awaits a preparation, before which nothing is left to wait for, where it reads it
            early = [text for text in code[:wait] if re.search(r"\b(LDG|LD|STG|ST|ATOMG|RED|UBLKCP|LDGSTS)\b", text)]
            assert not early, kernel


def test_kernels_that_come_early_read_what_is_written_late() -> None:
    """Two kernels of a model behind torch's on other streams, at once and in a graph that forks and joins."""
    reference, generated = case(ROWS).pair()
    x, source = torch.zeros_like(case(ROWS).x()), case(ROWS).x()
    side = torch.cuda.Stream()

    def run() -> torch.Tensor:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_000_000)
            x[1:].copy_(source[1:])
        x[:1].copy_(source[:1])
        torch.cuda.current_stream().wait_stream(side)
        y: torch.Tensor = generated(generated(x).new_zeros(()) + x)
        return y

    with torch.no_grad():
        generated(x)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            y = run()
        for seed in range(2, 22):
            source.copy_(case(ROWS).x(seed=seed))
            graph.replay()
            agrees(reference, generated, source, y)
            x.zero_()
            agrees(reference, generated, source, run())
