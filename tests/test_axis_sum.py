"""Sums over one axis of a convolution: the kernel on the CPU, thread by thread, and how its two parts come together."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch

from fusegen import interpret
from fusegen.compiler import Compiled, compile_file
from fusegen.costs import library
from fusegen.ir import Frozen
from fusegen.passes.algebra import axes
from fusegen.plan import contraction
from fusegen.plan.details import AxisSumPlan, PlainConvPlan
from fusegen.trace import load_model_file
from tests.emulated import Kernel, operands_of, steps
from tests.models import write

MODELS = {
    "rows": ("nn.ConvTranspose2d(3, 8, 4, 2, 1)", "self.m(x).mean(3)", (3, 5, 16)),
    "one_window": ("nn.ConvTranspose2d(3, 8, 3, 2)", "self.m(x).sum(3)", (3, 5, 16)),
    "steps": ("nn.Conv2d(3, 8, 5, 2, 2)", "self.m(x).mean(3)", (3, 7, 16)),
    "steps_of_three": ("nn.Conv2d(3, 8, 4, 3, 1)", "self.m(x).sum(3)", (3, 7, 16)),
    "dilated": ("nn.Conv2d(3, 8, 3, 1, 2, 2)", "self.m(x).mean(3)", (3, 7, 16)),
    "columns": ("nn.Conv2d(4, 16, 3, padding=1, groups=2)", "self.m(x).mean(2)", (4, 9, 8)),
    "column_steps": ("nn.Conv2d(3, 8, (5, 3), (2, 1), 2)", "self.m(x).mean(2, keepdim=True)", (3, 9, 8)),
    "depth": ("nn.ConvTranspose3d(4, 16, 3, 2, 1, 1, groups=2)", "self.m(x).mean(2)", (4, 5, 3, 4)),
    "height": ("nn.Conv3d(2, 6, 3)", "self.m(x).sum(3)", (2, 4, 6, 5)),
}
"""By name: the module ``self.m``, what the forward returns, the shape of one sample."""


def compiled(body: str, module: str, shape: tuple[int, ...], folder: Path) -> tuple[Compiled, Path]:
    init = f"self.m = {module}\nself.p = nn.Parameter(torch.randn(1))"
    path = write(folder, f"return {body}", init, f"torch.rand(2, {', '.join(map(str, shape))})")
    return compile_file(path), path


class OnTheCPU(Kernel):
    """The first kernel of a kind in a compiled model, with the model's parameters."""

    def __init__(self, found: Compiled, kind: type[Frozen], path: Path):
        super().__init__(found, steps(found, kind)[0], path.parent)
        parameters = dict(load_model_file(path).model_class().named_parameters())
        self.parameters = operands_of(found, self.plan, parameters)

    def both(self, *data: torch.Tensor, dtype: torch.dtype = torch.float64) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The results for the operands that are no parameters, and what they are in ``dtype``."""
        left = iter(data)
        operands = [self.parameters[arg.name] if arg.name in self.parameters else next(left) for arg in self.plan.args]
        exact = interpret.run(self.body, [operand.to(dtype) for operand in operands], {})
        return list(zip(self(operands), exact, strict=True))


def agrees(kernel: OnTheCPU, x: torch.Tensor) -> None:
    """Assert that the results are close to float64's, with a NaN in the middle and an infinity at the end as well."""
    size = x.shape[2:]
    for y, r in kernel.both(x):
        assert (y - r).abs().max() <= 1e-6 * r.abs().max(), size
    x[(0, 1, *(s // 2 for s in size))], x[(-1, 0, *(s - 1 for s in size))] = torch.nan, torch.inf
    for y, r in kernel.both(x):
        assert torch.equal(y.isnan(), r.isnan())
        assert torch.equal(y.isinf(), r.isinf())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_float64(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axes, "_pays", lambda *_: None)
    module, body, shape = MODELS[name]
    found, path = compiled(body, module, shape, tmp_path)
    torch.manual_seed(0)
    kernel = OnTheCPU(found, AxisSumPlan, path)
    axis = body[body.index("(", 8) + 1 : body.index("(", 8) + 2]
    least = tuple(max(size // 2 + 1, 3) for size in shape[1:])
    long = tuple(700 if axis == str(2 + i) else size for i, size in enumerate(least))
    for size in (shape[1:], least, tuple(size + 3 for size in shape[1:]), long):
        x = torch.randn(1 if size is long else 2, shape[0], *size) + 0.5
        agrees(kernel, x)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("name", ["rows", "steps", "steps_of_three", "dilated"])
def test_short_rows_have_a_thread_each(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of lengths in which a block has as many rows as threads, or half of them, and the last block fewer."""
    monkeypatch.setattr(axes, "_pays", lambda *_: None)
    module, body, shape = MODELS[name]
    found, path = compiled(body, module, shape, tmp_path)
    torch.manual_seed(0)
    kernel = OnTheCPU(found, AxisSumPlan, path)
    for lines, length in ((301, 7), (300, 16), (150, 65), (151, 127)):
        x = torch.randn(3, shape[0], lines, length) + 0.5
        agrees(kernel, x)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("name", [*(name for name, model in MODELS.items() if "mean" in model[1]), "wide"])
def test_what_is_left_agrees_with_float64(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axes, "_pays", lambda *_: None)
    monkeypatch.setattr(library, "seconds", lambda *_: math.inf)
    monkeypatch.setattr(contraction, "_is_plain", lambda *_: True)
    wide = ("nn.ConvTranspose3d(48, 70, 3, 2, 1)", "self.m(x).mean(2)", (48, 4, 3, 4))
    module, body, shape = MODELS.get(name, wide)
    found, path = compiled(f"F.hardswish({body}) * self.p", module, shape, tmp_path)
    torch.manual_seed(0)
    kernel = OnTheCPU(found, PlainConvPlan, path)
    x, w = (arg.type.shape for arg in kernel.plan.args if arg.name not in kernel.parameters)
    for more in (0, 5):
        sizes = [
            size if isinstance(size, int) else (2, *[7] * 4)[axis] + (more if axis else 0)
            for axis, size in enumerate(x)
        ]
        data = torch.randn(sizes), torch.randn([int(size) for size in w])
        for y, r in kernel.both(*data):
            assert (y - r).abs().max() <= 2.5e-7 * r.abs().max(), sizes
        largest = torch.finfo(torch.float32).max  # products overflow
        for special in (torch.inf, -torch.inf, torch.nan, largest):
            data[0][(0, 1, *(size // 2 for size in sizes[2:]))] = special
            for y, e in kernel.both(*data, dtype=torch.float32):
                assert not e.isfinite().all()
                assert torch.equal(y.isnan(), e.isnan())
                assert torch.equal(y.isinf(), e.isinf())


def kernels(found: Compiled) -> list[AxisSumPlan]:
    details = [plan.detail for plan in steps(found, AxisSumPlan)]
    return [detail for detail in details if isinstance(detail, AxisSumPlan)]


def test_weights_are_added_up_beside_the_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axes, "_pays", lambda *_: None)
    (both,) = kernels(compiled("self.m(x).mean(3)", "nn.Conv2d(3, 8, 3, padding=1)", (3, 5, 6), tmp_path)[0])
    assert both.sums
    assert both.taps
    (alone,) = kernels(compiled("self.m(x).mean(2)", "nn.Conv2d(3, 8, 3, padding=1)", (3, 5, 6), tmp_path)[0])
    assert alone.sums  # every tap of the first axis has a window of its own: its weights lie as they have to
    assert alone.taps is None


def test_weights_that_come_of_the_sums_are_added_up_after_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axes, "_pays", lambda *_: None)
    body = "F.conv2d(x, self.m(x).mean(3)[:1, :3, :3, None] * self.m.weight, padding=1).mean(3)"
    found = kernels(compiled(body, "nn.Conv2d(3, 8, 3, padding=1)", (3, 5, 6), tmp_path)[0])
    assert sum(detail.taps is not None for detail in found) >= 1
