"""The elementwise functions: one row each, with its meaning in torch and in CUDA.

Sources: the torch documentation of each function. CUDA expressions follow ATen's formulas so that
results agree to rounding and NaN and Inf behave as in eager. ``{0}`` is the first operand.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusegen.ir import DType
from fusegen.literals import hex_float


@dataclass(frozen=True)
class PointwiseRow:
    """``flops`` and ``special`` (special-function unit operations) are per element.

    ``aten``: overloads whose positional arguments are exactly the operands. ``helpers``: device
    functions that ``cuda`` calls (templates/_math.cu.j2). ``boolean``: the result is a truth value.
    ``flattens``: large differences between operands can become small ones, or none. ``integer``: the CUDA text
    for operands that are integers; empty where it has none. Without ``cuda`` it is a function of integers alone.
    ``converts``: to this element type. ``rare``: instructions of a path that few arguments take, in the text of every
    use, or what registers that are kept from a call of it cost like as many.
    """

    arity: int
    torch: str
    cuda: str
    aten: tuple[str, ...] = ()
    flops: int = 1
    special: int = 0
    helpers: tuple[str, ...] = ()
    boolean: bool = False
    flattens: bool = False
    integer: str = ""
    converts: DType | None = None
    rare: int = 0

    @property
    def instructions(self) -> int:
        """Of the text of a use, about."""
        return self.flops + 8 * self.special + self.rare

    @property
    def work(self) -> int:
        """Operations of an element beside which those of memory are to be counted, about; of arithmetic, none."""
        return 0 if self.flops <= 2 else 2 * self.flops + 8 * self.special


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _overloads(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}.{kind}" for name in names for kind in ("Tensor", "Scalar"))


_CONVERTED = {DType.FLOAT32: "float", DType.INT64: "int64_t", DType.INT32: "int32_t"}


def _conversion(dtype: DType, name: str) -> PointwiseRow:
    """To ``dtype``, in CUDA ``name``: of a float what is before the point. Others are undefined in torch, too."""
    text = f"static_cast<{name}>({{0}})"
    flattens = dtype is not DType.FLOAT32
    return PointwiseRow(1, f"{{0}}.to(torch.{dtype.value})", text, flattens=flattens, integer=text, converts=dtype)


POINTWISE: dict[str, PointwiseRow] = {
    # arithmetic
    "add": PointwiseRow(2, "({0} + {1})", "{0} + {1}", _overloads("add"), integer="{0} + {1}"),
    "sub": PointwiseRow(2, "({0} - {1})", "{0} - {1}", _overloads("sub", "subtract"), integer="{0} - {1}"),
    "mul": PointwiseRow(2, "({0} * {1})", "{0} * {1}", _overloads("mul", "multiply"), integer="{0} * {1}"),
    "div": PointwiseRow(
        2,
        "({0} / {1})",
        "divided({0}, {1})",
        _overloads("div", "divide", "true_divide"),
        special=1,
        helpers=("divided",),
    ),
    "neg": PointwiseRow(1, "torch.neg({0})", "-{0}", ("neg.default", "negative.default"), integer="-{0}"),
    "abs": PointwiseRow(
        1, "torch.abs({0})", "fabsf({0})", ("abs.default", "absolute.default"), integer="({0} < 0 ? -{0} : {0})"
    ),
    "reciprocal": PointwiseRow(
        1,
        "torch.reciprocal({0})",
        "divided(1.0f, {0})",
        ("reciprocal.default",),
        special=1,
        helpers=("divided",),
    ),
    "pow": PointwiseRow(
        2, "torch.pow({0}, {1})", "powf({0}, {1})", ("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar"), 70, 4
    ),
    "sqrt": PointwiseRow(
        1, "torch.sqrt({0})", "square_root({0})", ("sqrt.default",), special=1, helpers=("square_root",)
    ),
    "rsqrt": PointwiseRow(1, "torch.rsqrt({0})", "rsqrtf({0})", ("rsqrt.default",), special=1),
    "square": PointwiseRow(1, "torch.square({0})", "{0} * {0}", ("square.default",), integer="{0} * {0}"),
    "maximum": PointwiseRow(
        2,
        "torch.clamp({0}, min={1})",
        "nan_max({0}, {1})",
        ("maximum.default", "max.other"),
        helpers=("nan_max",),
        flattens=True,
        integer="({0} > {1} ? {0} : {1})",
    ),
    "minimum": PointwiseRow(
        2,
        "torch.clamp({0}, max={1})",
        "nan_min({0}, {1})",
        ("minimum.default", "min.other"),
        helpers=("nan_min",),
        flattens=True,
        integer="({0} < {1} ? {0} : {1})",
    ),
    "fmod": PointwiseRow(
        2,
        "torch.fmod({0}, {1})",
        "fmodf({0}, {1})",
        ("fmod.Tensor", "fmod.Scalar"),
        30,
        1,
        flattens=True,
        integer="{0} % {1}",
    ),
    "hypot": PointwiseRow(2, "torch.hypot({0}, {1})", "hypotf({0}, {1})", ("hypot.default",), 12, 1),
    "copysign": PointwiseRow(
        2, "torch.copysign({0}, {1})", "copysignf({0}, {1})", ("copysign.Tensor", "copysign.Scalar"), flattens=True
    ),
    "sign": PointwiseRow(
        1,
        "torch.sign({0})",
        "static_cast<float>(({0} > 0.0f) - ({0} < 0.0f))",
        ("sign.default", "sgn.default"),
        2,
        flattens=True,
        integer="({0} > 0) - ({0} < 0)",
    ),
    "floor": PointwiseRow(1, "torch.floor({0})", "floorf({0})", ("floor.default",), flattens=True),
    "ceil": PointwiseRow(1, "torch.ceil({0})", "ceilf({0})", ("ceil.default",), flattens=True),
    "round": PointwiseRow(1, "torch.round({0})", "rintf({0})", ("round.default",), flattens=True),
    "trunc": PointwiseRow(1, "torch.trunc({0})", "truncf({0})", ("trunc.default", "fix.default"), flattens=True),
    # exponentials and logarithms
    "exp": PointwiseRow(1, "torch.exp({0})", "expf({0})", ("exp.default",), 4, 1),
    "expm1": PointwiseRow(1, "torch.expm1({0})", "expm1f({0})", ("expm1.default",), 12, 1),
    "exp2": PointwiseRow(1, "torch.exp2({0})", "exp2f({0})", ("exp2.default", "special_exp2.default"), 4, 1),
    "log": PointwiseRow(1, "torch.log({0})", "logf({0})", ("log.default",), 8, 1),
    "log2": PointwiseRow(1, "torch.log2({0})", "log2f({0})", ("log2.default",), 8, 1),
    "log10": PointwiseRow(1, "torch.log10({0})", "log10f({0})", ("log10.default",), 8, 1),
    "log1p": PointwiseRow(1, "torch.log1p({0})", "log1pf({0})", ("log1p.default",), 12, 1),
    "sin": PointwiseRow(
        1, "torch.sin({0})", "sine({0})", ("sin.default",), 16, helpers=("sine",), flattens=True, rare=48
    ),
    "cos": PointwiseRow(
        1, "torch.cos({0})", "cosine({0})", ("cos.default",), 16, helpers=("cosine",), flattens=True, rare=48
    ),
    "tan": PointwiseRow(1, "torch.tan({0})", "tanf({0})", ("tan.default",), 24, rare=64),
    "atan": PointwiseRow(1, "torch.atan({0})", "atanf({0})", ("atan.default", "arctan.default"), 16, 1, flattens=True),
    "atan2": PointwiseRow(
        2,
        "torch.atan2({0}, {1})",
        "atan2f({0}, {1})",
        ("atan2.default", "arctan2.default"),
        24,
        1,
        flattens=True,
    ),
    "asin": PointwiseRow(1, "torch.asin({0})", "asinf({0})", ("asin.default", "arcsin.default"), 16, 1),
    "acos": PointwiseRow(1, "torch.acos({0})", "acosf({0})", ("acos.default", "arccos.default"), 16, 1),
    "acosh": PointwiseRow(1, "torch.acosh({0})", "acoshf({0})", ("acosh.default", "arccosh.default"), 24, 2),
    "atanh": PointwiseRow(1, "torch.atanh({0})", "atanhf({0})", ("atanh.default", "arctanh.default"), 24, 2),
    "sinh": PointwiseRow(1, "torch.sinh({0})", "sinhf({0})", ("sinh.default",), 16, 2),
    "cosh": PointwiseRow(1, "torch.cosh({0})", "coshf({0})", ("cosh.default",), 12, 2),
    "asinh": PointwiseRow(1, "torch.asinh({0})", "asinhf({0})", ("asinh.default", "arcsinh.default"), 24, 2),
    "erfc": PointwiseRow(1, "torch.erfc({0})", "erfcf({0})", ("erfc.default",), 24, 2),
    "erf": PointwiseRow(1, "torch.erf({0})", "erff({0})", ("erf.default",), 16, 1, flattens=True),
    "tanh": PointwiseRow(1, "torch.tanh({0})", "tanhf({0})", ("tanh.default",), 10, 2, flattens=True),
    "sigmoid": PointwiseRow(
        1,
        "torch.sigmoid({0})",
        "sigmoid({0})",
        ("sigmoid.default", "special_expit.default"),
        6,
        2,
        ("sigmoid",),
        flattens=True,
    ),
    # activations
    "relu": PointwiseRow(
        1,
        "torch.relu({0})",
        "nan_max({0}, 0.0f)",
        ("relu.default",),
        helpers=("nan_max",),
        integer="({0} > 0 ? {0} : 0)",
    ),
    "leaky_relu": PointwiseRow(
        2, "torch.where({0} > 0, {0}, {0} * {1})", "({0} > 0.0f ? {0} : {0} * {1})", ("leaky_relu.default",), 2
    ),
    "elu": PointwiseRow(
        2, "torch.where({0} > 0, {0}, {1} * torch.expm1({0}))", "elu({0}, {1})", (), 14, 1, helpers=("elu",)
    ),
    "selu": PointwiseRow(
        1,
        "torch.selu({0})",
        f"{hex_float(_SELU_SCALE)} * elu({{0}}, {hex_float(_SELU_ALPHA)})",
        ("selu.default",),
        15,
        1,
        ("elu",),
    ),
    "gelu": PointwiseRow(
        1,
        "torch.nn.functional.gelu({0})",
        f"(0.5f * {{0}} * (1.0f + erff({{0}} * {hex_float(0.7071067811865476)})))",
        (),
        20,
        1,
    ),
    "gelu_tanh": PointwiseRow(
        1,
        "torch.nn.functional.gelu({0}, approximate='tanh')",
        f"(0.5f * {{0}} * (1.0f + tanhf({hex_float(0.7978845608028654)} * "
        f"({{0}} + {hex_float(0.044715)} * {{0}} * {{0}} * {{0}}))))",
        (),
        18,
        2,
    ),
    "silu": PointwiseRow(
        1, "torch.nn.functional.silu({0})", "({0} * sigmoid({0}))", ("silu.default",), 7, 2, ("sigmoid",)
    ),
    "mish": PointwiseRow(1, "torch.nn.functional.mish({0})", "mish({0})", ("mish.default",), 14, 2, ("mish",)),
    "softplus": PointwiseRow(
        3,
        "torch.where({0} * {1} > {2}, {0}, torch.log1p(torch.exp({0} * {1})) / {1})",
        "softplus({0}, {1}, {2})",
        (),
        20,
        1,
        ("softplus",),
    ),
    "hardswish": PointwiseRow(
        1,
        "torch.nn.functional.hardswish({0})",
        f"({{0}} * nan_min(nan_max({{0}} + 3.0f, 0.0f), 6.0f) * {hex_float(1 / 6)})",
        ("hardswish.default",),
        6,
        helpers=("nan_max", "nan_min"),
    ),
    "hardsigmoid": PointwiseRow(
        1,
        "torch.nn.functional.hardsigmoid({0})",
        f"(nan_min(nan_max({{0}} + 3.0f, 0.0f), 6.0f) * {hex_float(1 / 6)})",
        ("hardsigmoid.default",),
        5,
        helpers=("nan_max", "nan_min"),
        flattens=True,
    ),
    # truth values
    "gt": PointwiseRow(2, "({0} > {1})", "{0} > {1}", _overloads("gt", "greater"), boolean=True, integer="{0} > {1}"),
    "ge": PointwiseRow(
        2, "({0} >= {1})", "{0} >= {1}", _overloads("ge", "greater_equal"), boolean=True, integer="{0} >= {1}"
    ),
    "lt": PointwiseRow(2, "({0} < {1})", "{0} < {1}", _overloads("lt", "less"), boolean=True, integer="{0} < {1}"),
    "le": PointwiseRow(
        2, "({0} <= {1})", "{0} <= {1}", _overloads("le", "less_equal"), boolean=True, integer="{0} <= {1}"
    ),
    "eq": PointwiseRow(2, "({0} == {1})", "{0} == {1}", _overloads("eq"), boolean=True, integer="{0} == {1}"),
    "ne": PointwiseRow(
        2, "({0} != {1})", "{0} != {1}", _overloads("ne", "not_equal"), boolean=True, integer="{0} != {1}"
    ),
    "isinf": PointwiseRow(1, "torch.isinf({0})", "isinf({0})", ("isinf.default",), boolean=True),
    "and": PointwiseRow(2, "({0} & {1})", "{0} && {1}", boolean=True),
    "or": PointwiseRow(2, "({0} | {1})", "{0} || {1}", boolean=True),
    "xor": PointwiseRow(2, "({0} ^ {1})", "{0} != {1}", boolean=True),
    "not": PointwiseRow(1, "(~{0})", "!{0}", boolean=True),
    "where": PointwiseRow(3, "torch.where({0}, {1}, {2})", "({0} ? {1} : {2})", integer="({0} ? {1} : {2})"),
    # between integers and floats
    **{f"to_{dtype.value}": _conversion(dtype, name) for dtype, name in _CONVERTED.items()},
    # of integers alone
    "floor_divide": PointwiseRow(
        2, "torch.floor_divide({0}, {1})", "", helpers=("floor_divide",), integer="floor_divide({0}, {1})"
    ),
    "bitwise_and": PointwiseRow(2, "({0} & {1})", "", integer="{0} & {1}"),
    "bitwise_or": PointwiseRow(2, "({0} | {1})", "", integer="{0} | {1}"),
    "bitwise_xor": PointwiseRow(2, "({0} ^ {1})", "", integer="{0} ^ {1}"),
    "bitwise_not": PointwiseRow(1, "(~{0})", "", integer="~{0}"),
    # the first operand, which is a class among as many as the second says, or an error
    "class_number": PointwiseRow(
        2,
        "torch.arange({1}, device={0}.device).index_select(0, {0}.reshape(-1)).reshape({0}.shape)",
        "",
        helpers=("checked_number",),
        integer="checked_number({0}, {1})",
    ),
}

BY_ATEN: dict[str, str] = {overload: fn for fn, row in POINTWISE.items() for overload in row.aten}

QUICK: dict[str, str] = {
    "exp": "quick_exp({0})",
    "tanh": "quick_tanh({0})",
    "sigmoid": "quick_reciprocal(1.0f + quick_exp(-{0}))",
    "silu": "({0} * quick_reciprocal(1.0f + quick_exp(-{0})))",
    "mish": "quick_mish({0})",
    "gelu": "quick_gelu({0})",
    "gelu_tanh": f"(0.5f * {{0}} * (1.0f + quick_tanh({hex_float(0.7978845608028654)} * "
    f"({{0}} + {hex_float(0.044715)} * {{0}} * {{0}} * {{0}}))))",
    "hardswish": f"({{0}} * nan_min(nan_max({{0}} + 3.0f, 0.0f), 6.0f) * {hex_float(1 / 6)})",
    "hardsigmoid": f"(nan_min(nan_max({{0}} + 3.0f, 0.0f), 6.0f) * {hex_float(1 / 6)})",
}
"""CUDA texts for sums of tensor cores, in TF32 or of halves: good to a few units in the last place."""

DOUBLE: dict[str, str] = {
    **{fn: POINTWISE[fn].cuda for fn in ("add", "sub", "mul", "neg", "square")},
    "div": "{0} / {1}",
    "sqrt": "sqrt({0})",
    "rsqrt": "rsqrt({0})",
}
"""CUDA texts for operands that are doubles."""

ROUNDED: dict[str, str] = {
    "add": "__fadd_rn({0}, {1})",
    "sub": "__fsub_rn({0}, {1})",
    "mul": "__fmul_rn({0}, {1})",
    "square": "__fmul_rn({0}, {0})",
}
"""CUDA texts of float functions that no compiler joins into one rounding."""
