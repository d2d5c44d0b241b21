"""The C side of a kernel plan: types, signatures, sizes. Used by the glue and by every kernel template."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Container
from dataclasses import dataclass

import jinja2

from fusegen import dims
from fusegen.dims import Dim
from fusegen.emit.operators import Operator
from fusegen.errors import EmitError
from fusegen.ir import INTEGERS, DType, TensorType
from fusegen.plan.details import Detail, HopperConvPlan
from fusegen.plan.rowprogram import OutputArg, RowProgram
from fusegen.plan.types import KernelPlan, Program

_C_TYPES = {
    DType.FLOAT64: "double",
    DType.FLOAT32: "float",
    DType.FLOAT16: "__half",
    DType.BFLOAT16: "__nv_bfloat16",
    DType.INT64: "int64_t",
    DType.INT32: "int32_t",
    DType.INT16: "int16_t",
    DType.INT8: "int8_t",
    DType.UINT8: "uint8_t",
    DType.BOOL: "bool",
}
_HEADERS = {DType.FLOAT16: "cuda_fp16.h", DType.BFLOAT16: "cuda_bf16.h"}


_WIDEN = {DType.FLOAT16: "__half2float", DType.BFLOAT16: "__bfloat162float"}
_NARROW = {DType.FLOAT16: "__float2half_rn", DType.BFLOAT16: "__float2bfloat16_rn"}


def c_type(dtype: DType) -> str:
    """The CUDA C++ element type."""
    return _C_TYPES[dtype]


def widened(text: str, plan: KernelPlan, name: str) -> str:
    """An element of operand ``name``, as kernels compute with it."""
    dtype = next(arg.type.dtype for arg in plan.args if arg.name == name)
    return f"{_WIDEN[dtype]}({text})" if dtype in _WIDEN else text


def element_type(plan: KernelPlan, name: str) -> str:
    """The CUDA C++ type of the elements of operand ``name``."""
    return c_type(next(arg.type.dtype for arg in plan.args if arg.name == name))


def absent(plan: KernelPlan, name: str) -> str:
    """What stands for an element that operand ``name`` does not have."""
    dtype = next(arg.type.dtype for arg in plan.args if arg.name == name)
    return "0" if dtype in INTEGERS else "false" if dtype is DType.BOOL else "0.0f"


def narrowed(text: str, dtype: DType) -> str:
    """A computed value as an element of a result."""
    return f"{_NARROW[dtype]}({text})" if dtype in _NARROW else text


def glue_type(dtype: DType) -> str:
    """The element type in the glue, which knows 16-bit floats by their size only."""
    return "uint16_t" if dtype in _HEADERS else c_type(dtype)


def _const(plan: KernelPlan, name: str) -> str:
    """What stands before the element type of operand ``name``: counts alone are written through their own pointer."""
    return "" if any(count.arg == name for count in plan.counts) else "const "


def parameters(plan: KernelPlan, glue: bool = False) -> list[str]:
    """The launcher's parameters, in the order of the kernel contract."""
    name = glue_type if glue else c_type
    found = [f"{_const(plan, a.name)}{name(a.type.dtype)}* {a.name}" for a in plan.args]
    found += [f"{name(o.dtype)}* {o.name}" for o in plan.outputs]
    found += ["void* workspace"] if plan.workspace else []
    found += ["unsigned int* counters"] if plan.counters else []
    found += [f"int64_t {b.name}" for b in plan.bindings]
    found += [f"int64_t {name}" for name in plan.scalars]
    found += [f"int64_t {o.name}_channels" for o in plan.outputs if o.part]
    return [*found, "cudaStream_t stream"]


def size_parameters(plan: KernelPlan) -> str:
    """``int64_t batch, int64_t width``: every run-time size that the launcher has."""
    return ", ".join(f"int64_t {name}" for name in plan.sizes)


def size_arguments(plan: KernelPlan) -> str:
    """``batch, width``."""
    return ", ".join(plan.sizes)


def forwarded(plan: KernelPlan) -> str:
    """The launcher's own parameters, handed on."""
    return ", ".join(p.rpartition(" ")[2] for p in parameters(plan))


def part_arguments(part: KernelPlan, plan: KernelPlan, sizes: tuple[Dim, ...], result: str) -> str:
    """What the launcher of ``plan`` hands to a part's: what the whole lacks is an earlier part's ``result``."""
    known = {arg.node: arg.name for arg in plan.args}
    found = [known.get(arg.node, "result") for arg in part.args]
    found += [result]
    found += ["workspace"] if part.workspace else []
    found += [dims.cpp(size) for size in sizes]
    found += ["tf32"] if part.tf32 else []
    return ", ".join([*found, "stream"])


def widest_bytes(plan: KernelPlan, streamed: Container[str]) -> int:
    """Bytes of the widest element type among the operands and results; of integers those that are ``streamed``."""
    args = [arg for arg in plan.args if arg.name in streamed or arg.type.dtype not in INTEGERS]
    return max([a.type.dtype.bytes for a in args] + [o.dtype.bytes for o in plan.outputs])


def sizes_text(plans: tuple[KernelPlan, ...]) -> str:
    """Every size expression of the glue, to see which functions it needs."""
    shapes = [output_sizes(o) for p in plans for o in p.outputs]
    checks = [dims.cpp(size) for p in plans for _, _, size in p.checks]
    return " ".join([*shapes, *checks, *(dims.cpp(p.counters or 0) for p in plans)])


def arguments(plan: KernelPlan) -> list[str]:
    """What the glue hands to the launcher, given tensors of the operands' names."""
    found = [f"data<{_const(plan, a.name)}{glue_type(a.type.dtype)}>({a.name})" for a in plan.args]
    for o in plan.outputs:
        place = f" + {o.name}_first * {o.name}.stride(1)" if o.part else ""
        found.append(f"data<{glue_type(o.dtype)}>({o.name}){place}")
    found += ["kept.workspace()" if plan.counters else "workspace"] if plan.workspace else []
    found += ["kept.counters()"] if plan.counters else []
    found += [b.name for b in plan.bindings]
    return [*found, *plan.scalars, *(f"{o.name}.size(1)" for o in plan.outputs if o.part), "at.stream"]


def output_sizes(output: OutputArg) -> str:
    """The output's shape as C++ expressions over binding names."""
    return ", ".join(dims.cpp(d) for d in output.shape)


def type_text(type_: TensorType) -> str:
    """A tensor type without size names, for error texts."""
    return f"{type_.dtype.value} of rank {type_.rank}"


@dataclass(frozen=True)
class Sources:
    """The compiled text of a program: CUDA, glue, and the operator namespace that names both."""

    cuda: str
    glue: str
    namespace: str


def mentioned(name: str, text: str) -> bool:
    """True when the identifier ``name`` occurs in ``text``."""
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def row_text(rows: RowProgram) -> str:
    """Every C++ text of a row program, one after the other."""
    texts = [position.expr for position in rows.positions]
    texts += [text for operand in rows.operands for text in (operand.index, operand.guard)]
    for phase in rows.phases:
        texts += [s.expr for s in (*phase.elements, *phase.scalars)]
        texts += [r.value for r in phase.reductions] + [s.value for s in phase.scans]
    for store in rows.stores:
        texts += [store.index, store.value]
    return "\n".join(texts)


def helper_functions(text: str, helpers: dict[str, str]) -> list[str]:
    """The helpers that ``text`` mentions, with those that they mention, in table order."""
    chosen: set[str] = set()
    pending = [text]
    while pending:
        words = set(re.findall(r"\w+", re.sub("//.*", "", pending.pop())))  # once: the text of a network is megabytes
        fresh = words.intersection(helpers) - chosen
        chosen |= fresh
        pending += [helpers[name] for name in fresh]
    return [code for name, code in helpers.items() if name in chosen]


def _helpers(environment: jinja2.Environment) -> dict[str, str]:
    """Macros of ``_math.cu.j2``: every one is a device function of the same name."""
    name = "_math.cu.j2"
    if environment.loader is None:
        raise EmitError("the template environment has no loader")
    source, _, _ = environment.loader.get_source(environment, name)
    macros = environment.get_template(name).module
    return {n: str(getattr(macros, n)()).strip("\n") for n in re.findall(r"\bmacro (\w+)\(", source)}


def _on_hopper(plan: KernelPlan) -> list[KernelPlan]:
    """What a plan has for compute capability 9.0, under names of their own, in the order in which they are asked."""
    if plan.hopper is None:
        return []
    details: dict[str, Detail | None] = {"sm90": plan.hopper}
    if isinstance(plan.hopper, HopperConvPlan):
        details = {"in_place": plan.hopper.alternative, **details, "fp32": plan.hopper.in_fp32}
    return [
        plan.replace(name=f"{plan.name}_{name}", detail=detail, hopper=None, parts=())
        for name, detail in details.items()
        if detail
    ]


def _variants(plan: KernelPlan) -> list[KernelPlan]:
    """The kernels that a plan consists of, each under a name of its own."""
    if plan.hopper is None:
        return [*plan.parts, plan]
    return [*_on_hopper(plan), *plan.parts, plan.replace(name=f"{plan.name}_sm80", hopper=None)]


def render_sources(
    program: Program, environment: jinja2.Environment, operators: tuple[Operator, ...] = (), watched: bool = False
) -> Sources | None:
    """The CUDA and C++ of every kernel of the program and of the ``operators`` that call them; None without kernels.

    ``watched``: with what tells whether a module has changed.
    """
    plans = program.kernels
    if not plans:
        return None
    names = [plan.name for plan in plans]
    if len(set(names)) != len(names):
        raise EmitError(f"two kernels share a name: {sorted(names)}")
    variants = [variant for plan in plans for variant in _variants(plan)]
    kernels = [
        environment.get_template(f"{plan.detail.template}.cu.j2").render(plan=plan, detail=plan.detail).strip("\n")
        for plan in variants
    ]
    dtypes = {a.type.dtype for p in plans for a in p.args} | {o.dtype for p in plans for o in p.outputs}
    cuda = environment.get_template("program.cu.j2").render(
        kernels=list(zip(variants, kernels, strict=True)),
        dispatched=[(plan, [own.name for own in _on_hopper(plan)]) for plan in plans if plan.hopper],
        helpers=helper_functions(
            "\n".join([*kernels, *("on_hopper" for p in plans if p.hopper)]), _helpers(environment)
        ),
        headers=[
            *(["cuda.h"] if any("CUtensorMap" in kernel for kernel in kernels) else []),
            *(_HEADERS[d] for d in sorted(dtypes) if d in _HEADERS),
        ],
    )
    glue = functools.partial(
        environment.get_template("glue.cpp.j2").render, plans=plans, operators=operators, watched=watched
    )
    draft = glue(namespace="")
    namespace = "fusegen_" + hashlib.sha256((cuda + draft).encode()).hexdigest()[:16]
    return Sources(cuda=cuda, glue=glue(namespace=namespace), namespace=namespace)


def in_double(expr: str) -> str:
    """A float expression with its library functions in their double form (``logf`` to ``log``)."""
    expr = expr.replace("square_root(", "sqrt(").replace("divided(", "doubles_divided(")
    return re.sub(
        r"\b(asinh|atan|ceil|cosh?|erfc?|exp|exp2|expm1|fabs|floor|log|log10|log1p|log2|pow|rint|rsqrt|sinh?|sqrt|tanh?|trunc)f\(",
        r"\1(",
        expr,
    )
