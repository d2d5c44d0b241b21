"""Parts of a convolution's positions, and convolutions of repeated elements: what is compiled, as precise as eager."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusegen.compiler import compile_file
from fusegen.ir import ConvOp
from tests.emitted import reference_from, simulated
from tests.models import write

PARTS = [
    ("nn.Conv1d(24, 40, 3, padding=8, dilation=4)", "F.silu(self.m(x)[..., :-8])", (24, 133)),
    ("nn.Conv2d(24, 40, 3, 1, 1)", "self.m(x)[:, :, :-1, 1:].relu()", (24, 21, 36)),
    ("nn.ConvTranspose2d(24, 40, 4, 2)", "(lambda y: y + y.sin())(self.m(x)[:, :, 1:-1, 2:-1])", (24, 13, 20)),
]
REPEATED = [
    ("nn.Conv2d(24, 40, 3, 1, 1)", "F.silu(self.m(F.interpolate(x, scale_factor=2)))", (24, 13, 20)),
    ("nn.Conv1d(24, 40, 5)", "self.m(F.interpolate(x, scale_factor=3)).relu()", (24, 150)),
]


def _convolution(module: str, body: str, shape: tuple[int, ...], folder: Path) -> tuple[ConvOp, str]:
    """The compiled convolution, after a check of what the program computes, and the generated text."""
    sizes = ", ".join(map(str, shape))
    path = write(folder, f"return {body}", f"self.m = {module}", f"torch.randn(2, {sizes})")
    compiled = compile_file(path)
    torch.manual_seed(0)
    reference = reference_from(path.read_text()).Model()
    model = simulated(compiled).ModelNew()
    model.load_state_dict(reference.state_dict())
    x = torch.randn(3, *shape)
    torch.testing.assert_close(model(x), reference(x), rtol=1e-4, atol=1e-5)
    (conv,) = [node.op for node in compiled.program.after.every_node if isinstance(node.op, ConvOp)]
    return conv, compiled.source


@pytest.mark.parametrize(("module", "body", "shape"), PARTS)
def test_positions_that_nothing_reads_are_not_computed(
    module: str, body: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    """The precision is that of eager's convolution, which computes them."""
    conv, text = _convolution(module, body, shape, tmp_path)
    assert conv.cropped
    assert "_fusegen_torch.as_strided" not in text
    eager = eval(module, {"nn": torch.nn})
    structure = (eager.stride, eager.padding, eager.dilation, eager.transposed, eager.output_padding, eager.groups)
    assert f", {', '.join(map(str, structure))})" in text


@pytest.mark.parametrize(("module", "body", "shape"), REPEATED)
def test_repeated_elements_are_read_once(module: str, body: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """The precision is that of eager's convolution, of the larger input."""
    conv, text = _convolution(module, body, shape, tmp_path)
    assert conv.transposed
    eager = eval(module, {"nn": torch.nn})
    structure = (eager.stride, eager.padding, eager.dilation, False, eager.output_padding, eager.groups)
    assert f", {', '.join(map(str, structure))}, enlarged={conv.stride})" in text


@pytest.mark.parametrize(
    ("module", "body", "shape"),
    [
        ("nn.Conv1d(24, 40, 3, padding=1)", "F.silu(self.m(x)[..., :-2])", (24, 133)),  # ends within the input
        ("nn.ConvTranspose1d(24, 40, 4, 2)", "F.silu(self.m(x)[..., :-2])", (24, 133)),  # as no output padding does
        ("nn.Conv1d(24, 40, 3, padding=2)", "self.m(x)[..., :-2].amax(2) + self.m(x).amax(2)", (24, 133)),
    ],
)
def test_other_parts_are_left(module: str, body: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    conv, _ = _convolution(module, body, shape, tmp_path)
    assert not conv.cropped
