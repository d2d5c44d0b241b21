"""Random models over the vocabulary: a head, two to six ops after it, odd sizes, in a model file of its own.

``chain(rng)`` is a function of the numbers that ``rng`` gives: ``chain(random.Random(seed))`` replays a seed,
and hypothesis searches and shrinks when it plays the generator (``st.randoms()``).
"""

from __future__ import annotations

import math
import random
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sizes:
    """What the sizes of a model are drawn from."""

    batches: Sequence[int]
    channels: Sequence[int]
    spatial: Mapping[int, Sequence[int]]
    """By the number of spatial axes."""
    rows: Sequence[int]
    features: Sequence[int]
    largest: int
    """Elements of any value."""


SMALL = Sizes(
    batches=range(1, 5),
    channels=(1, 3, 4, 5, 6, 8, 12, 16),
    spatial={1: range(9, 18), 2: range(5, 12), 3: range(4, 7)},
    rows=range(2, 10),
    features=range(3, 18),
    largest=60_000,
)
LARGE = Sizes(
    batches=(8, 16, 32, 64),
    channels=(3, 8, 16, 24, 32, 64, 96, 128),
    spatial={1: range(1000, 8000), 2: range(24, 150), 3: range(10, 34)},
    rows=(16, 64, 128, 200, 512),
    features=(64, 128, 256, 512, 768, 1000, 1024, 2048),
    largest=50_000_000,
)
"""For times: what a model costs is its bytes and products, not its launches."""
ROUND = Sizes(
    batches=(16, 32, 64, 128),
    channels=(3, 8, 16, 32, 64, 128, 256),
    spatial={1: (512, 1024, 4096, 16384, 65536), 2: (32, 64, 128, 256), 3: (16, 24, 32, 48)},
    rows=(64, 128, 512, 1024, 2048),
    features=(512, 1024, 2048, 4096, 8192),
    largest=150_000_000,
)
"""As large, and of the sizes that people choose."""


ENDS_WITH_PLACES = 0.1


@dataclass
class Chain:
    """A model while it is built: the lines of its file, and the value that the next op takes."""

    rng: random.Random
    sizes: Sizes = SMALL
    init: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    inputs: list[tuple[str, Shape]] = field(default_factory=list)
    values: list[tuple[str, Shape]] = field(default_factory=list)
    """Every value so far, the last one current."""

    @property
    def shape(self) -> Shape:
        return self.values[-1][1]

    @property
    def rank(self) -> int:
        return len(self.shape)

    def name(self) -> str:
        return self.values[-1][0]

    def then(self, expression: str, shape: Shape) -> None:
        """``expression`` over ``{x}``, the current value, becomes the next one."""
        name = f"v{len(self.values)}"
        self.body.append(f"{name} = {expression.replace('{x}', self.name())}")
        self.values.append((name, shape))

    def member(self, text: str) -> str:
        """An attribute of the model, built by ``text``; returns ``self.<name>``."""
        name = f"m{len(self.init)}"
        self.init.append(f"self.{name} = {text}")
        return f"self.{name}"

    def parameter(self, shape: Shape) -> str:
        return self.member(f"nn.Parameter(torch.randn({list(shape)}))")

    def input(self, shape: Shape) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append((name, shape))
        return name

    def number(self) -> float:
        return self.rng.choice((0.5, 2.0, -1.5, 0.1, 3.0, 0.25))

    def axes(self) -> list[int]:
        """Some axes of the current value, sorted; often the channels, or all that follow them."""
        likely = [[1], list(range(2, self.rank)), [self.rank - 1]]
        some = sorted(self.rng.sample(range(self.rank), self.rng.randint(1, self.rank)))
        chosen = self.rng.choice([*likely, some, some])
        return [axis for axis in chosen if axis < self.rank] or [self.rank - 1]

    def text(self) -> str:
        """The model file."""
        names = ", ".join(name for name, _ in self.inputs)
        init = "\n".join(["super().__init__()", *self.init])
        body = "\n".join([*self.body, f"return {self.name()}"])
        drawn = ", ".join(f"torch.rand({list(shape)})" for _, shape in self.inputs)
        return (
            "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
            "class Model(nn.Module):\n    def __init__(self):\n"
            + textwrap.indent(init, "        ")
            + f"\n\n    def forward(self, {names}):\n"
            + textwrap.indent(body, "        ")
            + f"\n\n\ndef get_inputs():\n    return [{drawn}]\n\n\ndef get_init_inputs():\n    return []\n"
        )

    def write(self, folder: Path) -> Path:
        path = folder / "model.py"
        path.write_text(self.text(), encoding="utf-8")
        return path


# --- heads --------------------------------------------------------------------------------------------


def convolution(c: Chain) -> None:
    r, rank = c.rng, c.rng.choice((1, 2, 2, 2, 3))
    transposed = r.random() < 0.5
    groups = r.choice((1, 1, 1, 2, 0))
    if groups:
        inputs, outputs = (groups * -(-r.choice(c.sizes.channels) // groups) for _ in range(2))
    else:  # few channels in each
        groups = r.choice(c.sizes.channels)
        inputs, outputs = (groups * r.choice((1, 1, 1, 2, 3)) for _ in range(2))
    sizes = [r.choice(c.sizes.spatial[rank]) for _ in range(rank)]
    kernel, stride, dilation = r.choice((1, 2, 3, 3, 3, 5)), r.choice((1, 1, 2, 3)), r.choice((1, 1, 1, 2))
    reach = dilation * (kernel - 1)
    while reach >= min(sizes):
        kernel, dilation = kernel - 1, 1
        reach = kernel - 1
    padding = r.randint(0, min(2, reach))
    extra = r.randrange(max(stride, dilation)) if transposed else 0
    if transposed:
        spatial = [(s - 1) * stride - 2 * padding + reach + extra + 1 for s in sizes]
    else:
        spatial = [(s + 2 * padding - reach - 1) // stride + 1 for s in sizes]
    options = f"stride={stride}, padding={padding}, dilation={dilation}, groups={groups}, bias={r.random() < 0.8}"
    options += f", output_padding={extra}" if transposed else ""
    batch = r.choice(c.sizes.batches)
    start(c, (batch, inputs, *sizes))
    layer = c.member(f"nn.Conv{'Transpose' if transposed else ''}{rank}d({inputs}, {outputs}, {kernel}, {options})")
    c.then(f"{layer}({{x}})", (batch, outputs, *spatial))


def linear(c: Chain) -> None:
    r = c.rng
    leading = [r.choice(c.sizes.rows) for _ in range(r.choice((1, 1, 2)))]
    inputs, outputs = r.choice(c.sizes.features), r.choice(c.sizes.features)
    start(c, (*leading, inputs))
    layer = c.member(f"nn.Linear({inputs}, {outputs}, bias={r.random() < 0.8})")
    c.then(f"{layer}({{x}})", (*leading, outputs))


def product(c: Chain) -> None:
    """matmul, bmm or einsum of two inputs, or of an input and a parameter."""
    r = c.rng
    batch = [r.randint(2, 4)] if r.random() < 0.5 else []
    m, k, n = (r.choice(c.sizes.features) for _ in range(3))
    start(c, (*batch, m, k))
    other = c.parameter((k, n)) if r.random() < 0.3 else c.input((*batch, k, n))
    spelled = ["torch.matmul({x}, {y})", "{x} @ {y}"]
    if batch and not other.startswith("self"):
        spelled += ["torch.bmm({x}, {y})", "torch.einsum('bij,bjk->bik', {x}, {y})"]
    c.then(r.choice(spelled).replace("{y}", other), (*batch, m, n))


HEADS: tuple[Callable[[Chain], None], ...] = (convolution, convolution, convolution, linear, product)


def start(c: Chain, shape: Shape) -> None:
    """The first input, now and then through an op of its own."""
    c.values.append((c.input(shape), shape))
    if c.rng.random() < 0.15:
        c.rng.choice((unary, scalar))(c)


# --- elementwise --------------------------------------------------------------------------------------

UNARY = (
    "torch.relu({x})",
    "F.relu({x})",
    "{x}.relu()",
    "F.leaky_relu({x}, 0.2)",
    "F.elu({x}, 1.3)",
    "torch.selu({x})",
    "F.gelu({x})",
    "F.gelu({x}, approximate='tanh')",
    "F.silu({x})",
    "torch.sigmoid({x})",
    "{x}.sigmoid()",
    "F.hardsigmoid({x})",
    "torch.tanh({x})",
    "F.softplus({x})",
    "F.softplus({x}, beta=2.0, threshold=5.0)",
    "F.softsign({x})",
    "F.mish({x})",
    "F.hardswish({x})",
    "F.hardtanh({x}, -0.7, 0.8)",
    "F.relu6({x})",
    "torch.clamp({x}, -0.5, 0.6)",
    "torch.clamp({x}, min=-0.2)",
    "{x}.clamp(max=0.3)",
    "torch.abs({x})",
    "-{x}",
    "torch.exp({x} * 0.1)",
    "torch.sqrt({x}.abs() + 0.5)",
    "torch.rsqrt({x}.square() + 0.5)",
    "torch.log({x}.abs() + 1.0)",
    "{x} ** 2",
    "torch.pow({x}, 3)",
    "1.0 / ({x} * {x} + 1.0)",
    "F.logsigmoid({x})",
    "torch.where({x} > 0, {x}, {x} * 0.3)",
    "torch.maximum({x}, {x} * 0.5)",
    "torch.min({x}, torch.tanh({x}))",
)
MODULES = (
    "nn.ReLU()",
    "nn.LeakyReLU(0.1)",
    "nn.GELU()",
    "nn.SiLU()",
    "nn.Tanh()",
    "nn.Hardtanh()",
    "nn.Mish()",
    "nn.ReLU(inplace=True)",
    "nn.Softplus()",
    "nn.ELU()",
)


def unary(c: Chain) -> None:
    if c.rng.random() < 0.2 and len(c.values) > 1:
        c.then(f"{c.member(c.rng.choice(MODULES[:7] if used(c) else MODULES))}({{x}})", c.shape)
    else:
        c.then(c.rng.choice(UNARY), c.shape)


def used(c: Chain) -> bool:
    """True when the current value is an input, which an in-place op may not write."""
    return c.name().startswith("x")


def scalar(c: Chain) -> None:
    number = c.number()
    c.then(c.rng.choice(("{x} + N", "N - {x}", "{x} * N", "{x} / N", "{x} - N")).replace("N", repr(number)), c.shape)


def operand(c: Chain) -> None:
    """With a parameter, or a second input, of a shape that broadcasts."""
    keep = c.rng.choice((0, 1, 2, 3))
    shape = [list(c.shape), [1] * c.rank, list(c.shape), list(c.shape)][keep]
    if keep == 1 and c.rank > 1:
        shape[1] = c.shape[1]
    if keep == 2:
        shape = [s if c.rng.random() < 0.5 else 1 for s in shape]
    if keep == 3:
        shape = shape[-1:]
    if keep != 0 and c.rng.random() < 0.5:
        while len(shape) > 1 and shape[0] == 1:
            shape = shape[1:]
    where = c.input(tuple(shape)) if c.rng.random() < 0.25 else c.parameter(tuple(shape))
    text = c.rng.choice(("{x} + Y", "{x} * Y", "Y - {x}", "torch.maximum({x}, Y)", "{x} / (Y.abs() + 1.0)"))
    c.then(text.replace("Y", where), c.shape)


def residual(c: Chain) -> None:
    """With an earlier value that broadcasts to the current one."""
    known = [name for name, shape in c.values if broadcasts(shape, c.shape)]
    c.then(c.rng.choice(("{x} + Y", "{x} * Y", "Y - {x}")).replace("Y", c.rng.choice(known)), c.shape)


def broadcasts(shape: Shape, to: Shape) -> bool:
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(shape[::-1], to[::-1], strict=False))


# --- reductions ---------------------------------------------------------------------------------------


def reduction(c: Chain) -> None:
    axes, keep = c.axes(), c.rng.random() < 0.5
    if len(axes) == c.rank and not keep:
        axes = axes[1:] or axes
        keep = len(axes) == c.rank
    single = (
        "torch.max({x}, dim=A, keepdim=K)[0]",
        "{x}.min(dim=A, keepdim=K).values",
        "torch.logsumexp({x}, dim=A, keepdim=K)",
        "torch.prod({x} * 0.5, dim=A, keepdim=K)",
        "torch.var({x} + 0.1, dim=A, keepdim=K, unbiased=False)",
    )
    several = (
        "torch.sum({x}, dim=A, keepdim=K)",
        "{x}.mean(dim=A, keepdim=K)",
        "torch.mean({x}, dim=A, keepdim=K)",
        "torch.amax({x}, dim=A, keepdim=K)",
        "torch.logsumexp({x}, dim=A, keepdim=K)",
        "torch.linalg.vector_norm({x} + 0.1, dim=A, keepdim=K)",
    )
    if c.rng.random() < 0.4:
        axes = [c.rng.choice(axes)]
        if c.rank == 1:
            keep = True
        text = c.rng.choice(single).replace("A", str(axes[0] - c.rng.choice((0, c.rank))))
    else:
        text = c.rng.choice(several).replace("A", str(axes))
    shape = tuple(1 if a in axes else s for a, s in enumerate(c.shape) if keep or a not in axes)
    c.then(text.replace("K", str(keep)), shape)


def softmax(c: Chain) -> None:
    axis = c.rng.choice((1, -1, c.rng.randrange(c.rank))) if c.rank > 1 else 0
    c.then(f"{c.rng.choice(('torch.softmax', 'F.softmax', 'F.log_softmax'))}({{x}}, dim={axis})", c.shape)


# --- windows and norms --------------------------------------------------------------------------------


def pooling(c: Chain) -> None:
    rank, r = c.rank - 2, c.rng
    if rank not in (1, 2, 3) or min(c.shape[2:]) < 2:
        unary(c)
        return
    if r.random() < 0.3:
        size = r.choice((1, 1, 2))
        c.then(f"F.adaptive_avg_pool{rank}d({{x}}, {size})", (*c.shape[:2], *[size] * rank))
        return
    kernel = r.randint(2, min(3, *c.shape[2:]))
    stride, padding = r.choice((kernel, 1, 2)), r.choice((0, 0, kernel // 2))
    spatial = [(s + 2 * padding - kernel) // stride + 1 for s in c.shape[2:]]
    text = f"F.{r.choice(('max', 'avg'))}_pool{rank}d({{x}}, {kernel}, stride={stride}, padding={padding})"
    c.then(text, (*c.shape[:2], *spatial))


def norm(c: Chain) -> None:
    r, rank = c.rng, c.rank - 2
    trailing = list(c.shape[-r.randint(1, max(1, c.rank - 1)) :])
    if math.prod(trailing) < 2:
        unary(c)
        return
    choices = [f"nn.LayerNorm({trailing}, elementwise_affine={r.random() < 0.7})"]
    if rank in (1, 2, 3) and math.prod(c.shape[2:]) > 1:
        channels = c.shape[1]
        groups = r.choice([g for g in range(1, channels + 1) if channels % g == 0])
        choices += [
            f"nn.BatchNorm{rank}d({channels})",
            f"nn.InstanceNorm{rank}d({channels}, affine={r.random() < 0.5})",
        ]
        choices.append(f"nn.GroupNorm({groups}, {channels})")
    if c.rank == 2 and c.shape[0] > 1:
        choices.append(f"nn.BatchNorm1d({c.shape[1]})")
    c.then(f"{c.member(r.choice(choices))}({{x}})", c.shape)


# --- shapes -------------------------------------------------------------------------------------------


def reshaping(c: Chain) -> None:
    r, shape = c.rng, c.shape
    axis = r.randrange(c.rank)
    options: list[tuple[str, Sequence[int]]] = [("{x}.unsqueeze(1)", (*shape[:1], 1, *shape[1:]))]
    if c.rank >= 2:
        order = r.sample(range(c.rank), c.rank)
        options += [
            (f"{{x}}.permute({', '.join(map(str, order))})", [shape[a] for a in order]),
            ("{x}.transpose(0, 1).contiguous()", (shape[1], shape[0], *shape[2:])),
            ("{x}.flatten(1)", (shape[0], math.prod(shape[1:]))),
            ("{x}.view({x}.shape[0], -1)", (shape[0], math.prod(shape[1:]))),
            ("{x}.reshape(-1, {x}.shape[-1])", (math.prod(shape[:-1]), shape[-1])),
        ]
    if c.rank > 2:
        options.append(("torch.flatten({x}, 2)", (*shape[:2], math.prod(shape[2:]))))
    if shape[axis] == 1 and c.rank > 1:
        squeezed = [s for a, s in enumerate(shape) if a != axis]
        options += [(f"{{x}}.squeeze({axis})", squeezed), (f"torch.squeeze({{x}}, {axis})", squeezed)]
        wide = [3 if a == axis else s for a, s in enumerate(shape)]
        options.append((f"{{x}}.expand({', '.join(map(str, wide))})", wide))
    if shape[axis] > 2:
        less = [s - 1 if a == axis else s for a, s in enumerate(shape)]
        index = ", ".join("1:" if a == axis else ":" for a in range(axis + 1))
        options.append((f"{{x}}[{index}]", less))
    doubled = [2 * s if a == axis else s for a, s in enumerate(shape)]
    options.append((f"torch.cat([{{x}}, {{x}} * 0.5], dim={axis})", doubled))
    options.append(("F.pad({x}, (1, 2))", (*shape[:-1], shape[-1] + 3)))
    most = max(c.sizes.largest, math.prod(shape))
    text, result = r.choice([o for o in options if math.prod(o[1]) <= most and len(o[1]) <= 5])
    if ".view(" in text and not plain(c):
        text = text.replace(".view(", ".reshape(")
    c.then(text, tuple(result))


def plain(c: Chain) -> bool:
    """True when no op so far leaves a value that is not row-major."""
    return not any(word in line for line in c.body for word in ("permute", "transpose", "expand", "[", "chunk"))


OPS: tuple[Callable[[Chain], None], ...] = (
    *(unary,) * 6,
    *(scalar,) * 3,
    *(operand,) * 3,
    residual,
    *(reduction,) * 4,
    softmax,
    pooling,
    norm,
    *(reshaping,) * 2,
)


def places(c: Chain) -> None:
    """Extremes by way of where they are: places themselves jump where values are close."""
    if axes := [axis for axis in c.axes() if c.shape[axis] > 1]:
        axis, fn = c.rng.choice(axes), c.rng.choice(["argmax", "argmin"])
        c.then(
            f"torch.gather({{x}}, {axis}, {{x}}.{fn}({axis}, keepdim=True))", (*c.shape[:axis], 1, *c.shape[axis + 1 :])
        )


def chain(rng: random.Random, sizes: Sizes = SMALL) -> Chain:
    """A random model, of the first numbers that give one without a value of too many elements."""
    while True:
        c = Chain(rng, sizes)
        rng.choice(HEADS)(c)
        for _ in range(rng.randint(2, 6)):
            rng.choice(OPS)(c)
        if all(math.prod(shape) <= sizes.largest for _, shape in c.values):
            if rng.random() < ENDS_WITH_PLACES:  # the last draw: models that do not end so are as without it
                places(c)
            return c
