"""The intermediate representation: frozen types and their JSON form (``verify`` checks and reads it back).

A ``Graph`` is a list of nodes in execution order. Inputs, parameters and scalars are nodes too, so
every operand is a node name. Ops form a union discriminated by ``kind``; the JSON form of a graph
is the operator-graph description that ``fusegen compile graph.json`` accepts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from fusegen import dims
from fusegen.dims import Dim, Dims

FORMAT = 1
T = TypeVar("T")


class Frozen(BaseModel):
    """Immutable, strict about unknown fields; ``replace`` re-validates (``model_copy`` does not)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def replace(self, **changes: Any) -> Self:
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, **changes})


class DType(StrEnum):
    """Element types, by their torch names."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT8 = "uint8"
    BOOL = "bool"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"

    @property
    def bytes(self) -> int:
        widths = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}
        return {**widths, "complex64": 8, "complex128": 16}.get(self.value, 1)


HALVES = frozenset({DType.FLOAT16, DType.BFLOAT16})
INTEGERS = frozenset({DType.INT64, DType.INT32, DType.INT16, DType.INT8, DType.UINT8})
WIDE_INTEGERS = frozenset({DType.INT64, DType.INT32})
"""Integers that kernels compute with."""


class TensorType(Frozen):
    """Element type and shape; each size is an ``int`` or an expression over input sizes."""

    dtype: DType
    shape: Dims

    def __str__(self) -> str:
        return f"{self.dtype.value}[{', '.join(map(str, self.shape))}]"

    @property
    def rank(self) -> int:
        return len(self.shape)


class InputOp(Frozen):
    """Positional input of the model."""

    kind: Literal["input"] = "input"
    position: int


class ParamOp(Frozen):
    """A parameter or buffer of the module, by its path in ``state_dict``."""

    kind: Literal["param"] = "param"
    path: str
    buffer: bool = False


class ConstOp(Frozen):
    """A rank-0 scalar: a number, or (as text) a size expression known at call time, ``times`` a number.

    Beside integers the number is an ``int``, so that nothing made of both becomes a float.
    """

    kind: Literal["const"] = "const"
    value: int | float | str
    times: float = 1.0


class PointwiseOp(Frozen):
    """An elementwise function of the table ``ops.POINTWISE``, with broadcasting."""

    kind: Literal["pointwise"] = "pointwise"
    fn: str


class ReduceOp(Frozen):
    """A reduction over ``axes`` (sorted, non-negative). ``var``: mean squared distance from the mean."""

    kind: Literal["reduce"] = "reduce"
    fn: Literal["sum", "mean", "max", "min", "prod", "logsumexp", "var"]
    axes: tuple[int, ...]
    keepdim: bool


class ArgReduceOp(Frozen):
    """Where along ``axis`` the largest or smallest element is, the first of equal ones; NaN is either (int64)."""

    kind: Literal["arg_reduce"] = "arg_reduce"
    fn: Literal["argmax", "argmin"]
    axis: int
    keepdim: bool


class ScanOp(Frozen):
    """What a reduction over ``axis`` has come to at every element of it: from the last one on if ``reverse``, without
    the element itself if ``exclusive`` (the first one is 0 or 1).
    """

    kind: Literal["scan"] = "scan"
    fn: Literal["sum", "prod"]
    axis: int
    reverse: bool = False
    exclusive: bool = False


class SoftmaxOp(Frozen):
    """softmax, or log_softmax when ``log``, over one axis."""

    kind: Literal["softmax"] = "softmax"
    axis: int
    log: bool = False


class NormalizeOp(Frozen):
    """x scaled to unit size over ``axes``: ``(x - mean) rsqrt(var + eps)``, or ``x rsqrt(mean(x^2) + eps)``
    when not ``center``.

    Inputs: x and optionally a scale and a shift, applied in this order, that broadcast to x.
    """

    kind: Literal["normalize"] = "normalize"
    axes: tuple[int, ...]
    eps: float
    center: bool = True


class ConvOp(Frozen):
    """Convolution or transposed convolution over ``len(stride)`` trailing axes.

    Inputs: x [N, C, *spatial], w ([O, C/groups, *kernel], transposed: [C, O/groups, *kernel]) and
    optionally b [O]. ``output_padding`` is zero unless ``transposed``. ``precise``: in full float32 whatever
    torch's TF32 setting permits; ``summed``: its weights are sums over output channels, so an error of a product stands
    for those of as many, and plain float32 is precise enough. ``averaged``: many of its results are added up, and
    errors of one sign with them (``passes/truncation.py``). ``behind``: of one that is not ``transposed``, zeros behind
    the input beyond its ``padding``, or so many fewer where negative, by axis; none at all: (). ``cropped``: positions
    before and behind the result that eager computes too, by axis; they say which precision is eager's. ``enlarged``: of
    a ``transposed`` one that stands for eager's plain one, how often eager's input repeats each element, by axis.
    """

    kind: Literal["conv"] = "conv"
    transposed: bool
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]
    groups: int = 1
    precise: bool = False
    summed: bool = False
    averaged: bool = False
    behind: tuple[int, ...] = ()
    cropped: tuple[tuple[int, int], ...] = ()
    enlarged: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.stride)

    def around(self, axis: int) -> int:
        """Zeros around the input along an axis, on both sides together."""
        return 2 * self.padding[axis] + (self.behind[axis] if self.behind else 0)


class MatmulOp(Frozen):
    """Matrix product over the last two axes: [*, M, K] times [*, K, N] is [*, M, N].

    Inputs: a, b and optionally a bias [N]. ``transposed`` says that b is stored as [*, N, K], as the
    weight of a linear layer is, ``left_transposed`` that a is as [*, K, M]. b has rank 2 (one matrix for every batch)
    or the leading axes of a. ``precise``: a kernel of more than the library's accuracy computes it where there is one.
    ``summed``: its results, of factors that are both data, are added up, and errors of one sign with them
    (``passes/truncation.py``); ``averaged``: those of rows by weights are; ``amplified``: powers of them are, which
    only a product in plain float32 is precise enough for. ``biased``: torch adds a bias in the product's own call, for
    which its library may add up in another order than without one.
    """

    kind: Literal["matmul"] = "matmul"
    transposed: bool = False
    left_transposed: bool = False
    precise: bool = False
    summed: bool = False
    averaged: bool = False
    amplified: bool = False
    biased: bool = False


class AttentionOp(Frozen):
    """softmax(scale q k^T + mask) v over the last two axes: of [*, L, E], [*, S, E] and [*, S, F] it is [*, L, F].

    Inputs: q, k, v and optionally a mask that broadcasts to [*, L, S]: truth values (False: the key does not count), or
    numbers that are added. ``causal``: a row has the keys up to its own place. A row that has no key is zero.
    """

    kind: Literal["attention"] = "attention"
    scale: float
    causal: bool = False


Cell: TypeAlias = Literal["lstm", "gru", "rnn_tanh", "rnn_relu"]
GATES: Mapping[Cell, int] = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Sums that a unit of a recurrent cell has of its inputs, and of the states before."""


class _Recurrent(Frozen):
    """What a recurrent network and a layer of it have in common."""

    cell: Cell
    bidirectional: bool = False
    bias: bool = True
    batch_first: bool = False

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def states(self) -> int:
        """First states among the inputs: of an LSTM h and c."""
        return 2 if self.cell == "lstm" else 1


class RecurrentOp(_Recurrent):
    """A recurrent network as torch has it (torch.nn.LSTM, GRU, RNN), of D directions and F units to a layer.

    Inputs: x [T, N, I], or [N, T, I] if ``batch_first``; the first states h, of an LSTM h and c, [layers D, N, F]; and
    of every layer and direction w_ih, w_hh and, if ``bias``, b_ih, b_hh. Results, read through ``getitem``: the last
    layer's outputs [T, N, D F] (as x), and the last states, as the first.
    """

    kind: Literal["recurrent"] = "recurrent"
    layers: int


class RecurrenceOp(_Recurrent):
    """One layer of a recurrent network through time, of D directions; the second runs from the last step on.

    Inputs: the first states if ``given``, h, of an LSTM h and c, [D, N, F] (else zeros); and of every direction what
    comes of the inputs, [T, N, G F] ([N, T, G F] if ``batch_first``) with G gates, w_hh [G F, F] and, if ``bias``,
    b_hh [G F]. ``result``: h at every step, [T, N, D F] (as the inputs), or an LSTM's last c, [D, N, F].
    """

    kind: Literal["recurrence"] = "recurrence"
    result: Literal["outputs", "cells"] = "outputs"
    given: bool = True

    @property
    def states(self) -> int:
        return super().states if self.given else 0

    def direction(self, operands: Sequence[T], direction: int) -> tuple[T, T, T | None]:
        """Of ``operands``, one for each input: a direction's sums of inputs, weights, and bias or None."""
        count = 3 if self.bias else 2
        found = operands[self.states + direction * count :][:count]
        return found[0], found[1], found[2] if self.bias else None


class ReshapeOp(Frozen):
    """Same elements in row-major order under another shape."""

    kind: Literal["reshape"] = "reshape"
    shape: Dims


class PermuteOp(Frozen):
    """Axis i of the result is axis ``order[i]`` of the input."""

    kind: Literal["permute"] = "permute"
    order: tuple[int, ...]


class FlipOp(Frozen):
    """Elements in the opposite order along ``axes`` (sorted, non-negative)."""

    kind: Literal["flip"] = "flip"
    axes: tuple[int, ...]


Edge: TypeAlias = Literal["hold", "mirror", "wrap"]


class ResampleOp(Frozen):
    """``length`` elements along one axis: the i-th is the operand's ``(start + step * i) // divisor``, rounded down.

    Where that is outside, ``edge`` says which one stands for it: ``hold`` the first or last, ``mirror`` the one as far
    inside as it is outside, counted from those, ``wrap`` the one that far from the other end; the last two once.
    """

    kind: Literal["resample"] = "resample"
    axis: int
    start: Dim
    length: Dim
    step: int = 1
    divisor: int = 1
    edge: Edge = "hold"


class InterpolateOp(Frozen):
    """``length`` elements along one axis at places between the operand's, as ``torch.nn.functional.interpolate`` has
    them, in float32: ``linear`` has shares of both neighbours, ``nearest`` the one that the place is rounded down to.

    Element i lies at r i (``nearest``, or ``align_corners``) or at r (i + 1/2) - 1/2, not before the first element.
    With ``align_corners`` the last element stays the last one; else r is 1 / ``scale`` or, without it, the quotient of
    the axis' size and ``length``. Where these are equal, every element stays.
    """

    kind: Literal["interpolate"] = "interpolate"
    axis: int
    length: Dim
    mode: Literal["linear", "nearest"]
    align_corners: bool = False
    scale: float | None = None


class GatherOp(Frozen):
    """The elements of one axis whose numbers the second operand, of whole numbers, has: an axis for each of its axes,
    in place of that one (ONNX calls it Gather).

    Numbers are below the axis' size, and not negative unless they are to be counted from the end (``wraps``): torch
    refuses others, and so do kernels.
    """

    kind: Literal["gather"] = "gather"
    axis: int
    wraps: bool = False


class GatherElementsOp(Frozen):
    """Along one axis of x, in every place, the element whose number the second operand, of whole numbers, has there.

    Numbers have x's axes, of x's sizes or 1 but for that one, which is as long as they say. Which numbers there are is
    as in ``GatherOp``; one more is ``ignored``, for which the first element stands in. ONNX's name; ``torch.gather``
    where no axis of the numbers is spread.
    """

    kind: Literal["gather_elements"] = "gather_elements"
    axis: int
    wraps: bool = False
    ignored: int | None = None


class UnfoldOp(Frozen):
    """Windows of ``size`` elements along one axis, which becomes two: element (i, k) is number i step + k dilation.

    ``count`` is how many windows lie inside, all of them: (L - 1 - dilation (size - 1)) // step + 1 of L elements.
    """

    kind: Literal["unfold"] = "unfold"
    axis: int
    count: Dim
    size: int
    step: int = 1
    dilation: int = 1


class ExpandOp(Frozen):
    """Broadcast to ``shape``."""

    kind: Literal["expand"] = "expand"
    shape: Dims


class SliceOp(Frozen):
    """``length`` elements of one axis: ``start``, ``start + step``, ..."""

    kind: Literal["slice"] = "slice"
    axis: int
    start: Dim
    length: Dim
    step: int = 1


class CatOp(Frozen):
    """The inputs one after the other along an axis."""

    kind: Literal["cat"] = "cat"
    axis: int


class PadOp(Frozen):
    """``value`` around the input: ``before`` and ``after`` elements on every axis."""

    kind: Literal["pad"] = "pad"
    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float = 0.0


class TriangleOp(Frozen):
    """Of matrices (the last two axes) the elements up to the diagonal, moved by ``diagonal`` columns, or from it on if
    ``upper``; zero elsewhere."""

    kind: Literal["triangle"] = "triangle"
    upper: bool
    diagonal: int = 0


class FillOp(Frozen):
    """One value throughout a tensor of this shape, on the input's device and of its element type, or of ``dtype``."""

    kind: Literal["fill"] = "fill"
    value: float
    shape: Dims
    dtype: DType | None = None


class RangeOp(Frozen):
    """``length`` numbers along one axis, ``start``, ``start + step``, ..., on the input's device; as floats they are
    whole and below 2^24, so that each is exact."""

    kind: Literal["range"] = "range"
    length: Dim
    start: Dim = 0
    step: int = 1
    dtype: DType = DType.INT64


DEVICE_ONLY = (FillOp, RangeOp)
"""What reads of its operand the device alone."""


class PoolOp(Frozen):
    """Maximum or mean over windows of the trailing ``len(kernel)`` axes; ``size`` is their result's.

    Windows begin every ``stride``, ``padding`` before the input. Padding never wins a maximum; it counts
    as zeros in a mean if ``count_include_pad``, which divides by ``divisor`` if that is given. ``ceil``
    allows a last window that only begins inside.
    """

    kind: Literal["pool"] = "pool"
    fn: Literal["max", "mean"]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    size: Dims
    ceil: bool = False
    count_include_pad: bool = True
    divisor: int | None = None

    @property
    def rank(self) -> int:
        return len(self.kernel)


class AdaptivePoolOp(Frozen):
    """Maximum or mean over ``size`` windows that cover each of the trailing axes.

    Window q of n over a length runs from floor(q length / n) to ceil((q + 1) length / n).
    """

    kind: Literal["adaptive_pool"] = "adaptive_pool"
    fn: Literal["max", "mean"]
    size: Dims

    @property
    def rank(self) -> int:
        return len(self.size)


class WindowSumOp(Frozen):
    """Sums of x [N, C, *spatial] over every distinct tap window of ``conv`` -> [N, C, R].

    R runs row-major over the distinct windows of each axis (``windows.axis_windows``). ``mean``
    divides by the number of the convolution's output positions.
    """

    kind: Literal["window_sum"] = "window_sum"
    conv: ConvOp
    kernel: tuple[int, ...]
    mean: bool


class TapSumOp(Frozen):
    """Weights of ``conv`` added up over the taps that share a window -> [O, C/groups, R]."""

    kind: Literal["tap_sum"] = "tap_sum"
    conv: ConvOp
    kernel: tuple[int, ...]


class AxisWindowSumOp(Frozen):
    """Sums of x [N, C, *spatial] over every distinct tap window of one spatial axis of ``conv`` (``axis``, from 0)
    -> [N, C R, *spatial without it]: the windows of a channel side by side.

    ``mean`` divides by the convolution's output positions along the axis.
    """

    kind: Literal["axis_window_sum"] = "axis_window_sum"
    conv: ConvOp
    kernel: tuple[int, ...]
    axis: int
    mean: bool


class AxisTapSumOp(Frozen):
    """Weights of ``conv`` added up over the taps of one axis that share a window: the windows of an input channel
    side by side.

    w [O, C/groups, *kernel] -> [O, C/groups R, *kernel without the axis],
    transposed: [C, O/groups, *kernel] -> [C R, O/groups, *kernel without it].
    """

    kind: Literal["axis_tap_sum"] = "axis_tap_sum"
    conv: ConvOp
    kernel: tuple[int, ...]
    axis: int


class EagerOp(Frozen):
    """An op left to torch: an ATen overload with its arguments.

    ``arguments`` is the Python text of the call's arguments, with ``{i}`` for input i and ``{{``/``}}``
    for braces; ``results`` holds the type of each tensor that the op returns.
    """

    kind: Literal["eager"] = "eager"
    target: str
    arguments: str
    results: tuple[TensorType, ...]
    tuple_result: bool = False
    reason: str = "no template serves this op"


class GetItemOp(Frozen):
    """One tensor of an eager op or region that returns several."""

    kind: Literal["getitem"] = "getitem"
    index: int


Template: TypeAlias = Literal[
    "window_sum",
    "axis_sum",
    "contraction",
    "conv_boxes",
    "conv_direct",
    "conv_sweep",
    "conv_pool",
    "conv_reduce",
    "attention",
    "recurrence",
    "gemm_views",
    "reduce_views",
    "pool",
    "row_reduce",
    "row_stream",
    "scan",
    "pointwise",
]


class RegionOp(Frozen):
    """A fused group: ``body``'s inputs are this node's inputs, in order; one kernel computes it.

    Several outputs are read through ``getitem`` nodes; the region's type is that of the first.
    """

    kind: Literal["region"] = "region"
    template: Template
    body: Graph


Op: TypeAlias = Annotated[
    InputOp
    | ParamOp
    | ConstOp
    | PointwiseOp
    | ReduceOp
    | ArgReduceOp
    | ScanOp
    | SoftmaxOp
    | NormalizeOp
    | ConvOp
    | MatmulOp
    | AttentionOp
    | RecurrentOp
    | RecurrenceOp
    | ReshapeOp
    | PermuteOp
    | FlipOp
    | ResampleOp
    | InterpolateOp
    | GatherOp
    | GatherElementsOp
    | UnfoldOp
    | ExpandOp
    | SliceOp
    | CatOp
    | PadOp
    | TriangleOp
    | FillOp
    | RangeOp
    | PoolOp
    | AdaptivePoolOp
    | WindowSumOp
    | TapSumOp
    | AxisWindowSumOp
    | AxisTapSumOp
    | EagerOp
    | GetItemOp
    | RegionOp,
    Field(discriminator="kind"),
]


class Node(Frozen):
    """One value: what computes it, from which nodes, its type, and the source line it came from."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    op: Op
    inputs: tuple[str, ...] = ()
    type: TensorType
    source: str | None = None


class Graph(Frozen):
    """Nodes in execution order.

    ``sizes`` holds the traced value of every size symbol; ``constraints`` are the conditions on
    sizes under which the graph stands for the model (Python text over size symbols);
    ``updates`` pairs buffer paths with the node that holds the buffer's next value; ``strided`` are the
    outputs, by position, that eager does not lay out row by row.
    """

    format: Literal[1] = 1
    name: str = "Model"
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    strided: tuple[int, ...] = ()
    tuple_output: bool = False
    updates: tuple[tuple[str, str], ...] = ()
    sizes: dict[str, int] = {}
    constraints: tuple[str, ...] = ()

    def node(self, name: str) -> Node:
        return self.by_name[name]

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def place(self) -> Mapping[str, int]:
        """Node -> how many come before it."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    @cached_property
    def analyses(self) -> dict[object, Any]:
        """What has been found out about the graph, by what found it (``spaces/once.py``)."""
        return {}

    @cached_property
    def every_node(self) -> tuple[Node, ...]:
        """The nodes, and after them those inside regions."""
        regions = (node.op.body for node in self.nodes if isinstance(node.op, RegionOp))
        return (*self.nodes, *(node for body in regions for node in body.nodes))

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Input nodes by position."""
        found = [n for n in self.nodes if isinstance(n.op, InputOp)]
        return tuple(sorted(found, key=lambda n: n.op.position if isinstance(n.op, InputOp) else 0))

    @property
    def params(self) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if isinstance(n.op, ParamOp))

    @cached_property
    def by_rows(self) -> frozenset[str]:
        """The outputs that are laid out row by row."""
        return frozenset(name for position, name in enumerate(self.outputs) if position not in self.strided)

    @property
    def results(self) -> tuple[str, ...]:
        """Every node that must be computed: outputs, then buffer updates."""
        return self.outputs + tuple(node for _, node in self.updates)

    @cached_property
    def users(self) -> dict[str, tuple[str, ...]]:
        """Node -> the nodes that read it (once per use)."""
        users: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            for operand in node.inputs:
                users[operand].append(node.name)
        return {name: tuple(names) for name, names in users.items()}

    def shape(self, name: str) -> tuple[int, ...]:
        """The traced shape of a node."""
        return tuple(dims.evaluate(d, self.sizes) for d in self.node(name).type.shape)

    def has_one_reader(self, name: str) -> bool:
        """True when one operand of one node is all that reads it: it is no result."""
        return len(self.users[name]) == 1 and name not in self.results

    def needed(self, *names: str) -> set[str]:
        """``names`` and all that they are computed from."""
        by_name, found, pending = self.by_name, set(names), list(names)
        while pending:
            for name in by_name[pending.pop()].inputs:
                if name not in found:
                    found.add(name)
                    pending.append(name)
        return found

    def made_of(self, *names: str) -> set[str]:
        """``names`` and all that is computed from them."""
        found = set(names)
        found.update(node.name for node in self.nodes if not found.isdisjoint(node.inputs))
        return found

    def prune(self) -> Graph:
        """Without nodes that no result needs; inputs stay, since they are the signature, and updated buffers."""
        updated = {path for path, _ in self.updates}
        counted = (n.name for n in self.params if isinstance(n.op, ParamOp) and n.op.path in updated)
        live = self.needed(*self.results, *counted)
        return self.replace(nodes=tuple(n for n in self.nodes if n.name in live or isinstance(n.op, InputOp)))


class RuleApplied(Frozen):
    """A rewrite that happened: the rule's identity and the node it replaced.

    ``exact``: bit for bit; otherwise equal in real arithmetic.
    """

    identity: str
    node: str
    exact: bool


class RuleRefused(Frozen):
    """A rule or fusion that matched but did not apply, and why."""

    identity: str
    node: str
    reason: str


def to_json(graph: Graph) -> str:
    """The operator-graph description of ``graph``."""
    return graph.model_dump_json(indent=1) + "\n"
