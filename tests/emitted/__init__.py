"""Generated modules under test: compiled from source text, with the GPU stood in for by the CPU.

``simulated`` makes the checks accept CPU tensors and the operators run the interpreter, so that all
of a generated module but its kernels can be exercised where there is no GPU.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
import tempfile
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fusegen import interpret
from fusegen.carry import carry_model
from fusegen.compiler import Compiled, compile_file
from fusegen.emit import render, snapshot_modules
from fusegen.ir import GetItemOp, Graph, Node, RegionOp
from fusegen.plan.sharing import at_any_size
from fusegen.plan.types import KernelPlan, Program
from fusegen.trace import instantiate, load_model_file

WIDTH = 6
"""Features of the small model."""

BIAS_RELU = """
import torch
import torch.nn as nn

width = 6

class Model(nn.Module):
    def __init__(self, channels, scale=2.0):
        super().__init__()
        self.linear = nn.Linear(width, channels)
        self.bias = nn.Parameter(torch.randn(channels))
        self.scale = scale

    def forward(self, x, unused=None):
        return torch.relu(self.linear(x).flip(1) * self.scale + self.bias) * torch.sigmoid(x)

def get_inputs():
    return [torch.rand(4, width)]

def get_init_inputs():
    return [6]
"""


def compiled_from(source: str, folder: Path, mode_dependent: bool = False) -> Compiled:
    """Compile a model given as text."""
    path = folder / "model.py"
    path.write_text(textwrap.dedent(source))
    compiled = compile_file(path)
    instance, _ = instantiate(load_model_file(path))
    carried = carry_model(path.read_text(), where=path.name)
    text = render(compiled.program, carried, snapshot_modules(instance), mode_dependent=mode_dependent)
    return replace(compiled, source=text)


@functools.cache
def bias_relu() -> Compiled:
    """``BIAS_RELU``, compiled once."""
    with tempfile.TemporaryDirectory() as folder:
        return compiled_from(BIAS_RELU, Path(folder))


def pair(compiled: Compiled, source: str = BIAS_RELU, *arguments: Any) -> tuple[nn.Module, nn.Module, Any]:
    """(reference, generated, generated module) with equal parameters, the GPU simulated."""
    module = simulated(compiled)
    torch.manual_seed(0)
    reference = reference_from(source).Model(*arguments)
    torch.manual_seed(0)
    return reference, module.ModelNew(*arguments), module


def cuda_include() -> Path | None:
    """The folder of CUDA's headers, or None."""
    homes = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda", str(Path(shutil.which("nvcc") or "").parent.parent)]
    found = [Path(home) / "include" for home in homes if home]
    return next((path for path in found if (path / "cuda_runtime_api.h").is_file()), None)


def module_from(text: str, name: str = "generated") -> types.ModuleType:
    """The text executed as a module that ``pickle`` can find."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(text, f"<{name}>", "exec", dont_inherit=True), module.__dict__)
    return module


def reference_from(source: str) -> types.ModuleType:
    """The model file executed as a module."""
    return module_from(textwrap.dedent(source), "reference_model")


def region_of(program: Program, plan: KernelPlan) -> Node:
    """The region that a kernel was planned for."""
    node = program.after.node(plan.node)
    return program.after.node(node.inputs[0]) if isinstance(node.op, GetItemOp) else node


def bodies(program: Program) -> list[Graph]:
    """What every kernel computes, in the order of the operators."""
    found = []
    for plan in program.kernels:
        region = region_of(program, plan)
        op = (at_any_size(region) if plan.again else region).op
        assert isinstance(op, RegionOp)
        found.append(op.body)
    return found


def operators(program: Program) -> list[Callable[..., Any]]:
    """What every kernel computes, by the interpreter: a tensor, or a tuple of several.

    Sizes that its operands do not show are those that it is given, or the traced ones.
    """

    def computed(body: Graph, plan: KernelPlan) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            given = zip((size.size for size in plan.given), args[len(plan.args) :], strict=False)
            sizes = hidden_sizes(body, {**program.before.sizes, **dict(given)})
            return returned(plan, args, interpret.run(body, args[: len(body.inputs)], {}, sizes))

        return run

    return [computed(body, plan) for body, plan in zip(bodies(program), program.kernels, strict=True)]


def returned(plan: KernelPlan, args: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> Any:
    """What the operator of ``plan`` returns of its kernel's ``results``, once it has updated its operands."""
    own = dict(zip((arg.name for arg in plan.args), args, strict=False))
    for output, result in zip(plan.outputs, results, strict=True):
        if output.into:
            own[output.into].copy_(result)
    for count in plan.counts:
        own[count.arg].add_(count.addend)
    rows = (result.contiguous() for result in results)  # as kernels write
    kept = [result for output, result in zip(plan.outputs, rows, strict=True) if not output.into]
    return tuple(kept) if len(kept) > 1 else kept[0]


def hidden_sizes(body: Graph, sizes: Mapping[str, int]) -> dict[str, int]:
    """Those of ``sizes`` that no operand of ``body`` shows."""
    shown = interpret.bound_sizes(body)
    return {size: value for size, value in sizes.items() if size not in shown}


def simulated(
    compiled: Compiled, name: str = "generated", kernels: Sequence[Callable[..., Any]] | None = None
) -> types.ModuleType:
    """The generated module on the CPU: ``calls`` counts how often an operator ran.

    ``kernels`` are in the place of its own; without them, the interpreter is.
    """
    text = re.sub(r"not ([xp]\d+)\.is_cuda", r"not \1.is_cpu", compiled.source)
    module = module_from(text, name)
    calls: list[int] = []

    def counted(op: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: torch.Tensor) -> Any:
            calls.append(1)
            return op(*args)

        return call

    run = operators(compiled.program) if kernels is None else kernels
    for plan, kernel in zip(compiled.program.kernels, run, strict=True):  # an operator of many steps calls them by name
        module.__dict__[f"_fusegen_fake_{plan.name}"] = counted(kernel)
    ops = tuple(module.__dict__[f"_fusegen_fake_{name}"] for name in module.__dict__.get("_fusegen_fakes", ()))
    module.__dict__.update(_fusegen_ops=ops, _fusegen_calls=ops, _fusegen_replays=False)
    module.__dict__["_fusegen_devices"] = frozenset({-1})
    module.__dict__["_fusegen_problem"] = ""  # loaded: nothing to build
    module.__dict__["_fusegen_rounds"] = lambda *_, **__: 0  # there is no cuDNN to ask how it rounds
    module.__dict__["calls"] = calls
    return module


_HOST_CUDA = """
#include <cmath>
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __restrict__
typedef void* cudaStream_t;
enum { cudaSuccess, cudaErrorInvalidValue, cudaDevAttrMultiProcessorCount, cudaDevAttrComputeCapabilityMajor };
typedef int cudaError_t;
struct dim3 {
    unsigned int x, y, z;
    dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
};
static dim3 blockIdx, gridDim, threadIdx;
enum { cudaLaunchAttributeClusterDimension, cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaLaunchAttribute {
    int id;
    struct {
        int programmaticStreamSerializationAllowed;
        struct { unsigned x, y, z; } clusterDim;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute* attrs;
    int numAttrs;
};
template <typename Kernel, typename... Args>
int cudaLaunchKernelEx(const cudaLaunchConfig_t* config, Kernel kernel, Args... args) {   // one thread after the other
    gridDim = config->gridDim;
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < config->blockDim.x; ++threadIdx.x) kernel(args...);
    return cudaSuccess;
}
inline int cudaGetDevice(int*) { return 0; }
inline int cudaDeviceGetAttribute(int* count, int, int) { *count = 1; return 0; }
inline int cudaGetLastError() { return 0; }
"""


def on_the_host(cuda: str) -> str:
    """A program of pointwise kernels as C++ that runs one thread after the other on one multiprocessor."""
    for instruction, text in (("max\\.NaN", "a != a || a > b ? a : b"), ("rcp\\.approx", "1.0f / a")):
        cuda = re.sub(rf'float r;\s*asm\("{instruction}.*?return r;', f"return {text};", cuda, flags=re.DOTALL)
    return cuda.replace("#include <cuda_runtime.h>", _HOST_CUDA)
