"""Statistics of a convolution's channels: whose kernel finds them, and what else that kernel then writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fusegen import dims
from fusegen.compiler import optimise
from fusegen.interpret import input_shapes, run
from fusegen.ir import Graph, ReduceOp, RegionOp
from fusegen.plan.details import ContractionPlan, ConvApartPlan, HopperConvPlan
from fusegen.plan.types import KernelStep, Program
from fusegen.spaces import channels
from fusegen.trace import trace
from fusegen.tuning import choices

IMAGES = (64, 64, 128, 128)


class _Chain(nn.Module):
    """Convolution, what comes before the norm, the norm, and what follows it."""

    def __init__(self, tail: str, head: nn.Module, norm: nn.Module, act: bool = False) -> None:
        super().__init__()
        self.head, self.norm, self.tail, self.act = head, norm, tail, act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.head(x)
        y = self.norm(F.gelu(y) if self.act else y)
        if self.tail == "pool":
            return F.max_pool2d(F.silu(y), 2)
        if self.tail == "mean":
            return F.hardswish(y).mean((2, 3))
        if self.tail == "mean of channels":
            return F.hardswish(y).mean(1)
        return torch.tanh(y)


def _program(
    model: nn.Module, shape: tuple[int, ...] = IMAGES, pins: Mapping[str, str] = MappingProxyType({})
) -> Program:
    graph = trace(model, (torch.empty(shape, device="meta"),), Path(__file__)).graph
    with choices(pins):
        return optimise(graph, "sm_90", False, lambda stage: None)[0]


def _chain(tail: str, inputs: int = 64, norm: type[nn.Module] = nn.BatchNorm2d, act: bool = False) -> nn.Module:
    with torch.device("meta"):
        return _Chain(tail, nn.Conv2d(inputs, 64, 3), norm(64), act)


def _kernels(program: Program) -> list[KernelStep]:
    return [step for step in program.steps if isinstance(step, KernelStep)]


def _found(program: Program) -> list[KernelStep]:
    """The kernels of convolutions that find statistics."""
    details = [(step, step.plan.detail) for step in _kernels(program)]
    return [step for step, detail in details if isinstance(detail, ContractionPlan) and detail.statistics]


@pytest.mark.parametrize(("tail", "act"), [("act", False), ("act", True), ("pool", False), ("mean", False)])
def test_the_convolution_finds_them_and_one_kernel_reads_its_result(tail: str, act: bool) -> None:
    program = _program(_chain(tail, act=act))
    first, second = _kernels(program)
    assert _found(program) == [first]
    assert isinstance(first.plan.hopper, HopperConvPlan)
    assert first.plan.hopper.statistics is not None
    # the result, its mean and one over its deviation; what is kept from call to call is updated where it is
    assert len(first.outputs) == 3
    assert sorted(first.updates) == ["norm.num_batches_tracked", "norm.running_mean", "norm.running_var"]
    assert sum(name in first.outputs for name in second.inputs) == 3


class _OfSamples(nn.Module):
    """Group norms and a gate: statistics that every sample has of its own."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.head, self.way = nn.Conv2d(64, 64, 3), way
        self.norm, self.linear = nn.GroupNorm(4, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.head(x)
        match self.way:
            case "pool":
                return F.max_pool2d(self.norm(y), 2)
            case "over channels":
                return torch.logsumexp(self.norm(F.silu(y)), 1)
            case "halves":
                return F.glu(self.norm(y), 1)
            case "other rows":
                return F.gelu(self.norm(y)).mean((2, 3))
            case "gate":
                return y * torch.sigmoid(self.linear(y.mean((2, 3))))[:, :, None, None]
            case "two gates":
                return y * torch.sigmoid(self.linear(y.mean((2, 3))) + self.linear(y.amax((2, 3))))[:, :, None, None]
            case "by hand":
                return y / y.flatten(1).std(1, correction=0).view(-1, 1, 1, 1).clamp(min=1e-3) * self.linear.bias[0]
            case _:
                return torch.tanh(self.norm(y))


def _of_samples(way: str) -> nn.Module:
    with torch.device("meta"):
        return _OfSamples(way)


@pytest.mark.parametrize("way", ["pool", "over channels", "halves", "other rows", "gate", "by hand"])
def test_those_of_samples_too(way: str) -> None:
    """Where what follows is another kernel than one that also finds them, or rows are too long to stay on chip."""
    program = _program(_of_samples(way))
    (step,) = _found(program)
    assert isinstance(step.plan.detail, ContractionPlan)
    assert step.plan.detail.statistics is not None
    assert step.plan.detail.statistics.groups == {"gate": 64, "by hand": 1}.get(way, 4)
    assert sum(name in step.outputs for later in _kernels(program)[1:] for name in later.inputs) >= 2


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (_chain("act"), (8, 64, 40, 40)),  # channels short enough to stay on chip
        (_chain("act", norm=nn.InstanceNorm2d), IMAGES),
        (_of_samples("act"), (64, 64, 64, 64)),
        (_of_samples("two gates"), IMAGES),  # whoever finds the maximum reads whole rows
        (_of_samples("pool"), (2, 64, 40, 40)),  # short work
    ],
)
def test_elsewhere_a_kernel_of_the_norm_finds_them(model: nn.Module, shape: tuple[int, ...]) -> None:
    assert not _found(_program(model, shape))


def test_a_kernel_that_is_slower_than_they_save_leaves_them() -> None:
    """Three channels to sixteen are the portable kernel's, which finds none."""
    with torch.device("meta"):
        model = _Chain("mean of channels", nn.Conv3d(3, 16, 3), nn.InstanceNorm3d(16))
        wide = _Chain("mean of channels", nn.Conv3d(16, 64, 3), nn.InstanceNorm3d(64))
    assert not _found(_program(model, (128, 3, 16, 32, 32)))
    assert _found(_program(wide, (32, 16, 16, 32, 32)))


def test_statistics_of_a_convolution_in_full_fp32() -> None:
    (step,) = _found(_program(_chain("act", inputs=8), (64, 8, 128, 128)))
    assert isinstance(step.plan.hopper, HopperConvPlan)
    assert step.plan.hopper.precise


def test_short_channels_before_a_pooling_are_found_too() -> None:
    """Else two kernels read them, however short they are."""
    with torch.device("meta"):
        model = _Chain("pool", nn.Conv2d(64, 256, 3), nn.BatchNorm2d(256))
    assert _found(_program(model, (32, 64, 64, 64)))


class _Gated(nn.Module):
    """The activation reads the convolution's result more than once."""

    def __init__(self, outside: bool) -> None:
        super().__init__()
        self.head, self.norm, self.outside = nn.Conv2d(64, 64, 3), nn.BatchNorm2d(64), outside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.head(x)
        gated = self.norm(y * torch.sigmoid(y + 1))
        return gated + y if self.outside else gated


@pytest.mark.parametrize("outside", [False, True])
def test_what_leads_to_the_norm_may_branch_within_the_kernel(outside: bool) -> None:
    with torch.device("meta"):
        program = _program(_Gated(outside))
    assert bool(_found(program)) != outside


class _Pooled(nn.Module):
    """What the activation gives is pooled, before the norm or beside it."""

    def __init__(self, beside: bool) -> None:
        super().__init__()
        self.head, self.norm, self.beside = nn.Conv2d(64, 64, 3), nn.BatchNorm2d(64), beside

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | torch.Tensor:
        y = F.hardswish(self.head(x))
        pooled = F.max_pool2d(y, 2)
        return (self.norm(y), pooled) if self.beside else self.norm(pooled)


@pytest.mark.parametrize("beside", [False, True])
def test_a_kernel_pools_its_results_or_finds_their_statistics(beside: bool) -> None:
    with torch.device("meta"):
        program = _program(_Pooled(beside), pins={"max_pool2d in": "the convolution's kernel"})
    assert bool(_found(program)) == beside
    pooled = [step for step in _kernels(program) if isinstance(step.plan.detail, ConvApartPlan)]
    assert bool(pooled) != beside
    for step in _kernels(program):
        hopper = step.plan.hopper
        assert not (isinstance(hopper, HopperConvPlan) and hopper.window and hopper.statistics)


def test_a_pooling_of_normalised_results_stays_apart() -> None:
    """Whoever finds the statistics: the norm needs results that a pooling in the epilogue would not store."""
    program = _program(_chain("pool"), pins={"statistics of conv2d by": "a pass of their own"})
    assert not any(isinstance(step.plan.detail, ConvApartPlan) for step in _kernels(program))


def test_a_pinned_choice_wins() -> None:
    assert not _found(_program(_chain("act"), pins={"statistics of conv2d by": "a pass of their own"}))


def _body(program: Program) -> Graph:
    (region,) = [node for node in program.after.nodes if node.name == _found(program)[0].plan.node]
    assert isinstance(region.op, RegionOp)
    return region.op.body


@pytest.mark.parametrize("model", [_chain("act", act=True), _of_samples("pool"), _of_samples("gate")])
def test_head_and_tail_together_are_the_body(model: nn.Module) -> None:
    body = _body(_program(model))
    head, tail = channels.split(body)
    assert tail is not None
    torch.manual_seed(0)
    sizes = {name: 5 if name == "x0_0" else 9 for name in body.sizes}
    shapes = zip(body.inputs, input_shapes(body, sizes), strict=True)
    values = {node.name: torch.rand(shape, dtype=torch.float64) for node, shape in shapes}

    def outputs(part: Graph) -> dict[str, torch.Tensor]:
        return dict(zip(part.outputs, run(part, [values[n.name] for n in part.inputs], {}, sizes), strict=True))

    whole, found = outputs(body), outputs(head)
    (y,) = found.values()
    for node in body.nodes:
        if isinstance(node.op, ReduceOp):
            data = y.reshape([int(dims.evaluate(size, sizes)) for size in body.node(node.inputs[0]).type.shape])
            mean = data.mean(node.op.axes, keepdim=node.op.keepdim)
            values[node.name] = (
                mean if node.op.fn == "mean" else data.var(node.op.axes, correction=0, keepdim=node.op.keepdim)
            )
    found |= outputs(tail)
    assert found.keys() == whole.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, whole[name])
