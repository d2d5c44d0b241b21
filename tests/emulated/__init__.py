"""Kernels on the CPU, thread by thread: their text under g++, with ``cuda.h`` for CUDA."""

from __future__ import annotations

import atexit
import ctypes
import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from fusegen import dims, interpret
from fusegen.compiler import Compiled, compile_file
from fusegen.ir import Frozen, ParamOp, RegionOp
from fusegen.plan.details import ContractionPlan, ConvBoxesPlan, DirectConvPlan
from fusegen.plan.types import KernelPlan, KernelStep
from fusegen.trace import load_model_file
from tests.emitted import region_of
from tests.models import write

_HEADER = Path(__file__).with_name("cuda.h")
# Without the first, shared memory of a kernel, a static of a template, would be that of the first library with the same
# name. With the second, a variable that nothing was stored in is -1.7e38, not what happens to lie there.
_OPTIONS = ["-fno-gnu-unique", "-ftrivial-auto-var-init=pattern", "-O1", "-std=c++17", "-w", "-shared", "-fPIC"]
_OPTIONS += ["-U_FORTIFY_SOURCE"]
_DYNAMIC = r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];"
"""The declaration of dynamic shared memory."""
_INSTRUCTIONS = {"load_stream", "copy_async", "copy_async_wait"}
"""Functions of kernels that are instructions, as those of the helpers are."""
_AROUND = (3, 2)
"""Channels before and after the part of a tensor that a kernel writes."""


def _library(
    compiled: Compiled, name: str, folder: Path, translate: Callable[[str], str] = str, more: str = ""
) -> ctypes.CDLL:
    """The kernel ``name``, after ``translate`` and with ``more`` beside ``cuda.h``."""
    found = re.search(r'^_fusegen_CUDA_SOURCE = r"""\n(.*?)"""', compiled.source, re.S | re.M)
    assert found
    begin, end = "namespace {\n", "}  // namespace\n"
    helpers = found[1][found[1].index(begin) + len(begin) : found[1].index(end)]
    header = _HEADER.read_text()
    own = [text for text in re.split(r"\n\n(?=//|\S)", helpers) if not _defined(text) & _defined(header)]
    kernel = found[1][found[1].index(f"namespace {name}_kernel {{") : found[1].index(f"}}  // namespace {name}_kernel")]
    kernel = re.sub(_DYNAMIC, r"\1* const \2 = reinterpret_cast<\1*>(emulated::memory);", kernel)
    kernel = "\n\n".join(part for part in re.split(r"\n\n(?=//|\S)", kernel) if not _defined(part) & _INSTRUCTIONS)
    kernel = translate(kernel)
    source, library = folder / f"{name}.cpp", folder / f"{name}.so"
    source.write_text("\n\n".join([more, *own, kernel + "}\n"]))
    _compile("-include", str(_precompiled_header()), str(source), "-o", str(library))
    return ctypes.CDLL(str(library))


def _compile(*arguments: str) -> None:
    run = subprocess.run(["g++", *_OPTIONS, *arguments], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[:4000]


@functools.cache
def _precompiled_header() -> Path:
    """``cuda.h`` beside what g++ has made of it, for all kernels of this process: half of a small one's compilation."""
    folder = tempfile.mkdtemp(prefix="fusegen_tests_")
    atexit.register(shutil.rmtree, folder)
    header = Path(shutil.copy(_HEADER, folder))
    _compile("-x", "c++-header", str(header), "-o", f"{header}.gch")
    return header


def _defined(text: str) -> set[str]:
    """Functions that a text defines at the start of a line."""
    return set(re.findall(r"^(?:[\w\[\]:&*<>,]+ )+(\w+)\(", text, re.M))


def _unwritten(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, torch.nan if dtype.is_floating_point else -1, dtype=dtype)


def rounded(value: torch.Tensor) -> torch.Tensor:
    """To TF32: to nearest, ties away from zero."""
    bits = (value.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF
    return torch.where(value.isfinite(), bits.view(torch.float32), value)


class Kernel:
    """One kernel of a compiled model: its plan, and the nodes that it computes."""

    variant = "sm80"
    """Of those in the file."""

    def __init__(self, compiled: Compiled, plan: KernelPlan, folder: Path):
        self.plan = plan
        region = region_of(compiled.program, plan)
        assert isinstance(region.op, RegionOp)
        self.body = region.op.body
        self.name = f"{plan.name}_{self.variant}" if plan.hopper else plan.name
        self.library = self.compiled(compiled, folder)

    def compiled(self, compiled: Compiled, folder: Path) -> ctypes.CDLL:
        return _library(compiled, self.name, folder)

    def __call__(self, operands: Sequence[torch.Tensor], *scalars: int) -> list[torch.Tensor]:
        """What the kernel makes of its operands and its integer arguments; what it updates is those operands."""
        bound = {binding.name: operands[binding.arg].shape[binding.axis] for binding in self.plan.bindings}
        sizes = bound | dict(zip(self.plan.scalars, scalars, strict=True))
        given = [ctypes.c_int64(size) for size in bound.values()]
        shapes = [tuple(dims.evaluate(size, sizes) for size in output.shape) for output in self.plan.outputs]
        own = dict(zip((arg.name for arg in self.plan.args), operands, strict=True))
        results, wholes = list[torch.Tensor](), list[torch.Tensor]()
        for output, shape in zip(self.plan.outputs, shapes, strict=True):
            if output.part:
                before, after = _AROUND
                whole = _unwritten(
                    (shape[0], before + shape[1] + after, *shape[2:]), getattr(torch, output.dtype.value)
                )
                wholes.append(whole)
                results.append(whole[:, before : before + shape[1]])
            else:
                fresh = _unwritten(shape, getattr(torch, output.dtype.value))
                results.append(own[output.into] if output.into else fresh)
        tensors = [*operands, *results]
        if self.plan.workspace:
            size = getattr(self.library, f"{self.name}_workspace")
            size.restype = ctypes.c_int64
            own_sizes = [ctypes.c_int64(sizes[name]) for name in self.plan.sizes]
            tensors.append(torch.full((size(*own_sizes) // 4 + 1,), torch.nan))
        if self.plan.counters:
            tensors.append(torch.zeros(dims.evaluate(self.plan.counters, sizes), dtype=torch.int32))
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
        more = [ctypes.c_int64(number) for number in (*scalars, *(whole.shape[1] for whole in wholes))]
        assert getattr(self.library, self.name)(*pointers, *given, *more, ctypes.c_void_p(0)) == 0
        before, after = _AROUND
        assert all(whole[:, :before].isnan().all() and whole[:, -after:].isnan().all() for whole in wholes)
        return results


def steps(compiled: Compiled, kind: type[Frozen] | tuple[type[Frozen], ...]) -> list[KernelPlan]:
    """The kernels of a compiled model whose details are of ``kind``."""
    plans = [step.plan for step in compiled.program.steps if isinstance(step, KernelStep)]
    return [plan for plan in plans if isinstance(plan.detail, kind)]


def kernel_of(body: str, inputs: str, kind: type[Frozen], folder: Path) -> Kernel:
    """The one kernel whose details are of ``kind``, of a model that returns ``body``."""
    compiled = compile_file(write(folder, f"return {body}", inputs=inputs))
    (plan,) = steps(compiled, kind)
    return Kernel(compiled, plan, folder)


def operands_of(compiled: Compiled, plan: KernelPlan, parameters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The operands of a kernel that are parameters of the model, by the kernel's names."""
    graph = compiled.program.after
    return {
        arg.name: parameters[op.path].detach().contiguous()
        for arg in plan.args
        if isinstance(op := graph.node(arg.node).op, ParamOp)
    }


def agrees_with_float64(
    body: str, init: str, calls: Sequence[Sequence[tuple[int, ...]]], kind: type[Frozen], folder: Path
) -> None:
    """The one kernel of ``kind`` in a model that returns ``body``, of inputs ``x`` and ``y`` with these shapes, the
    first of which are the file's: NaN and Inf where they are in float64, and else within 1e-6 of the largest result."""
    drawn = ", ".join(f"torch.randn{shape}" for shape in calls[0])
    path = write(folder, f"return {body}", init, drawn, ", ".join(("x", "y")[: len(calls[0])]))
    compiled = compile_file(path)
    (plan,) = steps(compiled, kind)
    kernel = Kernel(compiled, plan, folder)
    torch.manual_seed(0)
    parameters = operands_of(compiled, plan, dict(load_model_file(path).model_class().named_parameters()))
    for shapes in calls:
        data = [torch.randn(shape) for shape in shapes]
        for special in (None, torch.inf, torch.nan):
            if special is not None:
                data[0].view(-1)[min(5, data[0].numel() - 1)] = special
            inputs = dict(zip("xy", data, strict=False))
            operands = [parameters[arg.name] if arg.name in parameters else inputs[arg.node] for arg in plan.args]
            (y,), (r,) = kernel(operands), interpret.run(kernel.body, [value.double() for value in operands], {})
            assert y.shape == r.shape
            assert torch.equal(y.isnan(), r.isnan()), shapes
            assert torch.equal(y.isinf(), r.isinf()), shapes
            both = r.isfinite()
            assert not both.any() or (y.double() - r)[both].abs().max() <= 1e-6 * r[both].abs().max(), shapes


_CONVOLUTIONS = (ContractionPlan, ConvBoxesPlan, DirectConvPlan)


class Emulated(Kernel):
    """The first convolution of a compiled model, with its parameters."""

    def __init__(self, compiled: Compiled, parameters: dict[str, torch.Tensor], folder: Path):
        super().__init__(compiled, steps(compiled, _CONVOLUTIONS)[0], folder)
        assert isinstance(self.plan.detail, _CONVOLUTIONS)
        self.detail = self.plan.detail
        self.parameters = operands_of(compiled, self.plan, parameters)

    def _operands(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.parameters.get(arg.name, x) for arg in self.plan.args]

    def of(self, x: torch.Tensor, tf32: bool) -> list[torch.Tensor]:
        """What the kernel makes of ``x``."""
        return self(self._operands(x), *([int(tf32)] if self.plan.tf32 else []))

    def exact(self, x: torch.Tensor, tf32: bool) -> list[torch.Tensor]:
        """The same in float64, of operands rounded where the kernel rounds them."""
        round_of = (self.detail.source, self.detail.weight) if tf32 and not self.detail.precise else ()
        pairs = zip(self.plan.args, self._operands(x), strict=True)
        operands = [(rounded(tensor) if arg.name in round_of else tensor).double() for arg, tensor in pairs]
        return list(interpret.run(self.body, operands, {}))
