"""Models that compute with complex numbers: torch does, and kernels do what is around it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from fusegen.compiler import compile_file
from fusegen.errors import MismatchError
from fusegen.ir import DType, MatmulOp, ParamOp, PermuteOp, RegionOp
from fusegen.verdict.check import compare
from fusegen.verdict.doubles import doubled
from tests.emitted import reference_from, simulated
from tests.models import write

FNET = (
    "y = torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real\nreturn F.gelu(self.l(self.n(x + y)))",
    "self.n = nn.LayerNorm(32)\nself.l = nn.Linear(32, 64)",
    (4, 16, 32),
)
MODES = """
xf = torch.fft.rfft2(x)
out = torch.zeros(x.shape[0], 8, x.shape[2], x.shape[3] // 2 + 1, dtype=torch.cfloat, device=x.device)
out[:, :, :5, :5] = torch.einsum("bixy,ioxy->boxy", xf[:, :, :5, :5], self.w)
out[:, :, -5:, :5] = torch.einsum("bixy,ioxy->boxy", xf[:, :, -5:, :5], self.w)
return F.gelu(torch.fft.irfft2(out, s=(x.shape[2], x.shape[3])) + self.c(x))
"""
OPERATOR = (
    MODES,
    "self.w = nn.Parameter(torch.rand(8, 8, 5, 5, dtype=torch.cfloat))\nself.c = nn.Conv2d(8, 8, 1)",
    (4, 8, 32, 32),
)
POWER = (
    "z = torch.fft.rfft(x * self.h)\nreturn (z.real**2 + z.imag**2).log1p().mean(-1) + z.abs().sum(-1)",
    "self.h = nn.Parameter(torch.hann_window(64))",
    (4, 16, 64),
)
ROTARY = (
    "q = torch.view_as_complex((x * self.g).reshape(*x.shape[:-1], -1, 2))\n"
    "f = torch.polar(torch.ones_like(self.f), self.f)\n"
    "return torch.view_as_real(q * f[:, None]).flatten(3).softmax(-1)",
    "self.register_buffer('f', torch.outer(torch.arange(16.), torch.rand(8)))\nself.g = nn.Parameter(torch.ones(16))",
    (2, 16, 4, 16),
)
SPECTROGRAM = (
    "z = torch.stft(x, 64, 16, window=self.h, return_complex=True)\nreturn torch.log(z.abs() + 1e-5).mean(1)",
    "self.h = nn.Parameter(torch.hann_window(64))",
    (4, 1600),
)
TURNED = ("return torch.fft.fft(x * self.w).conj()", "self.w = nn.Parameter(torch.rand(8))", (4, 8))
RESULT = (
    "return torch.complex(x.relu(), x * 2) * self.w",
    "self.w = nn.Parameter(torch.rand(8, dtype=torch.cfloat))",
    (4, 8),
)


@pytest.mark.parametrize("model", [FNET, OPERATOR, POWER, ROTARY, SPECTROGRAM, TURNED, RESULT])
def test_agrees_with_eager(model: tuple[str, str, tuple[int, ...]], tmp_path: Path) -> None:
    body, init, shape = model
    path = write(tmp_path, body, init, f"torch.rand{shape}")
    compiled = compile_file(path)
    assert compiled.program.kernels
    torch.manual_seed(0)
    reference = reference_from(path.read_text()).Model()
    torch.manual_seed(0)
    generated = simulated(compiled).ModelNew()
    x = torch.randn(3 if len(shape) > 2 else 4, *shape[1:], requires_grad=True)
    grads = []
    for module in (generated, reference):
        x.grad = None
        y = module(x)
        y.abs().square().sum().backward()
        grads.append([x.grad, *(parameter.grad for parameter in module.parameters())])
    torch.testing.assert_close(generated(x), reference(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-3, atol=1e-4)


PARTS = {
    "rotary": (
        "z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))\n"
        "return torch.view_as_real(z * self.f[None, : x.shape[1]]).flatten(2).exp()",
        "self.register_buffer('f', torch.polar(torch.ones(16, 4), torch.rand(16, 4)))",
    ),
    "numbers": (
        "z = torch.complex(x, x * 3)\nz = (2 * z - 1j * z).conj() + (3 - 2j)\nreturn (-z).real, (z - x).imag",
        "",
    ),
    "broadcasting": (
        "z = torch.complex(x[:1, :1], x) + x[:, :1, :1]\nreturn torch.view_as_real((z - x[0]).transpose(1, 2))",
        "",
    ),
    "shapes": (
        "z = torch.polar(x.abs(), x).transpose(1, 2)[:, 1:, None].expand(-1, -1, 2, -1)\n"
        "z = z.reshape(x.shape[0], -1, x.shape[1]) * self.w[:, None]\nreturn torch.view_as_real(z.contiguous())",
        "self.w = nn.Parameter(torch.rand(14, dtype=torch.cfloat))",
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_what_begins_and_ends_in_real_tensors_is_real_arithmetic(name: str, tmp_path: Path) -> None:
    """Infinities too: where a product with a zero imaginary part is NaN in torch, it is here. (A sum is, too, on a CPU,
    whose kernel multiplies by an alpha of 1.)"""
    path = write(tmp_path, *PARTS[name], "torch.rand(2, 16, 8)")
    compiled = compile_file(path)
    complexes = {node.type.dtype for node in compiled.program.after.nodes if not isinstance(node.op, ParamOp)}
    assert DType.COMPLEX64 not in complexes
    torch.manual_seed(0)
    reference = reference_from(path.read_text()).Model()
    torch.manual_seed(0)
    generated = simulated(compiled).ModelNew()
    x = torch.randn(3, 11 if name == "rotary" else 16, 8)
    torch.testing.assert_close(generated(x), reference(x), rtol=1e-5, atol=1e-5)
    if name == "broadcasting":
        return
    x[0, 2, 3], x[1, 4, 6], x[2, 1, 1] = torch.inf, torch.nan, -torch.inf
    found, expected = (torch.utils._pytree.tree_leaves(module(x)) for module in (generated, reference))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_what_torch_lays_out_in_another_order_is_read_as_it_lies(tmp_path: Path) -> None:
    """A spectrogram has its frames one after the other: neither kernels nor products copy it."""
    body = (
        "z = torch.stft(x, 64, 16, window=self.h, return_complex=True)\nreturn self.l(z.abs().pow(2).transpose(1, 2))"
    )
    init = "self.register_buffer('h', torch.hann_window(64))\nself.l = nn.Linear(33, 8)"
    path = write(tmp_path, body, init, "torch.rand(4, 1600)")
    compiled = compile_file(path)
    bodies = [node.op.body for node in compiled.program.after.nodes if isinstance(node.op, RegionOp)]
    ops = [node.op for graph in (compiled.program.after, *bodies) for node in graph.nodes]
    assert [op.left_transposed for op in ops if isinstance(op, MatmulOp)] == [False]
    assert not any(isinstance(op, PermuteOp) for op in ops)
    torch.manual_seed(0)
    reference = reference_from(path.read_text()).Model()
    torch.manual_seed(0)
    generated = simulated(compiled).ModelNew()
    x = torch.randn(3, 1700)
    torch.testing.assert_close(generated(x), reference(x), rtol=1e-4, atol=1e-4)


def test_strides_of_such_a_result_are_torchs(tmp_path: Path) -> None:
    path = write(tmp_path, "return torch.stft(x, 64, 16, return_complex=True).abs()", "", "torch.rand(4, 1600)")
    x = torch.randn(4, 1600)
    found, expected = simulated(compile_file(path)).ModelNew()(x), reference_from(path.read_text()).Model()(x)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()


def test_what_torch_transforms_is_made_by_torch(tmp_path: Path) -> None:
    """Of a value that is a Fourier transform's operand and read in parts, too, both are there."""
    body = "z = torch.complex(x, x * 2) * 1j\nreturn torch.fft.fft(z).abs(), z.real.exp()"
    path = write(tmp_path, body, "", "torch.rand(4, 8)")
    compiled = compile_file(path)
    x = torch.rand(3, 8)
    torch.testing.assert_close(simulated(compiled).ModelNew()(x), reference_from(path.read_text()).Model()(x))
    assert "fft_fft" in compiled.source


def test_slices_of_all_and_writes_over_all_are_left_out(tmp_path: Path) -> None:
    body, init, shape = OPERATOR
    forward = compile_file(write(tmp_path, body, init, f"torch.rand{shape}")).source
    forward = forward[forward.index("def _fusegen_fused(") : forward.index("def _fusegen_operands(")]
    calls = re.findall(r"= _fusegen_torch\.ops\.aten\.(\w+)", forward)
    assert (calls.count("einsum"), calls.count("slice_scatter"), calls.count("copy")) == (2, 4, 0)


def test_numerics_of_complex_results() -> None:
    exact = torch.randn(64, dtype=torch.complex128)
    eager = (exact * (1 + 1e-7)).to(torch.complex64)
    assert compare("y", eager.clone(), eager, exact).passed
    turned = torch.complex(eager.real, -eager.imag)
    assert not compare("y", turned, eager, exact).passed
    with pytest.raises(MismatchError):
        compare("y", eager.real, eager, exact)


def test_complex_parameters_in_double_precision() -> None:
    module = torch.nn.Module()
    module.w = torch.nn.Parameter(torch.rand(3, dtype=torch.cfloat))
    module.register_buffer("b", torch.rand(3))
    doubled(module)
    assert module.w.dtype is torch.complex128
    assert module.b.dtype is torch.float64
