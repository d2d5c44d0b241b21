"""Products along an axis that others follow, with what takes its place put back there: pointwise convolutions.

``F.linear(x.permute(0, 2, 3, 1), w).permute(0, 3, 1, 2)`` and ``einsum("bchw,dc->bdhw", x, w)`` mix the channels of
every position. As convolutions they read and write positions as these lie, and the algebra knows them. What is left of
them, in full float32, is a product of the weights with every sample where kernels of products are faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fusegen import dims, inference
from fusegen.costs import gemm, viewproduct
from fusegen.dims import Dim, Dims
from fusegen.ir import (
    AdaptivePoolOp,
    ArgReduceOp,
    ConvOp,
    DType,
    ExpandOp,
    Graph,
    InputOp,
    MatmulOp,
    Node,
    NormalizeOp,
    PermuteOp,
    PointwiseOp,
    PoolOp,
    ReduceOp,
    ReshapeOp,
    SoftmaxOp,
    UnfoldOp,
)
from fusegen.machines import Machine, machine
from fusegen.passes.algebra.boxes import lone_seconds
from fusegen.passes.algebra.views import ELEMENTWISE, moved_with
from fusegen.passes.rewrite import Match, Numerics, Outcome, Rule, anything, op, rewrite
from fusegen.passes.simplify import VIEWS
from fusegen.spaces.rowspace import NotFusable
from fusegen.spaces.viewproduct import check
from fusegen.tuning import faster

_RANKS = (1, 2, 3)
"""Spatial axes that a convolution has."""


@dataclass(frozen=True)
class _Mixed:
    """Data [*before, channels, *behind], multiplied with the channels last, or ``first``, by a matrix.

    ``turned``: of [channels, features], as a transposed convolution has its weights.
    """

    data: Node
    axis: int
    first: bool
    weights: Node
    turned: bool

    @property
    def features(self) -> Dim:
        return self.weights.type.shape[-2:][self.turned]

    @property
    def before(self) -> Dims:
        return self.data.type.shape[: self.axis]

    @property
    def behind(self) -> Dims:
        return self.data.type.shape[self.axis + 1 :]

    @property
    def result(self) -> Dims:
        """The shape of the product, axis by axis."""
        others = (*self.before, *self.behind)
        return (self.features, *others) if self.first else (*others, self.features)

    @property
    def order(self) -> tuple[int, ...]:
        """The order that takes the channels out of their place."""
        others = [axis for axis in range(self.data.type.rank) if axis != self.axis]
        return (self.axis, *others) if self.first else (*others, self.axis)

    @property
    def back(self) -> tuple[int, ...]:
        """The order that puts them back."""
        return tuple(self.order.index(axis) for axis in range(self.data.type.rank))


def _matrix(m: Match, node: Node) -> tuple[Node, bool] | None:
    """What has the elements of a matrix for all rows, and whether as its transpose."""
    if isinstance(node.op, ReshapeOp) and node.type.shape[:-2] == (1,):
        whole = m.graph.node(node.inputs[0])
        node = whole if whole.type.shape == node.type.shape[1:] else node
    if node.type.rank == 2 and isinstance(node.op, PermuteOp) and node.op.order == (1, 0):
        return m.graph.node(node.inputs[0]), True
    return (node, False) if node.type.rank == 2 or node.type.shape[:-2] == (1,) else None


def _mixed(m: Match) -> _Mixed | None:
    product, operands = m.root.op, [m.graph.node(name) for name in m.root.inputs]
    assert isinstance(product, MatmulOp)
    if product.left_transposed or m.root.type.dtype is not DType.FLOAT32:
        return None
    for first in (False, True):
        if first and (product.transposed or len(operands) > 2):
            break
        view, weights = operands[first], operands[not first]
        channels = view.type.shape[-2 if first else -1]
        if isinstance(view.op, ReshapeOp):
            view = m.graph.node(view.inputs[0])
        found = _matrix(m, weights)
        if not isinstance(view.op, PermuteOp) or found is None:
            continue
        matrix, flipped = found
        axis = view.op.order[0 if first else -1]
        turned = flipped if first or product.transposed else not flipped
        mixed = _Mixed(m.graph.node(view.inputs[0]), axis, first, matrix, turned)
        kept = mixed.data.type.shape[axis] == channels and view.op.order == mixed.order
        known = isinstance(channels, int) and isinstance(mixed.features, int)  # as those of a convolution are
        if kept and known and 0 < axis < view.type.rank - 1:
            return mixed
    return None


def _has_windows(graph: Graph, data: Node) -> bool:
    """Whether data are windows, behind views: a matrix that they meet is a kernel (``algebra/window_products.py``)."""
    while isinstance(data.op, VIEWS):
        data = graph.node(data.inputs[0])
    return isinstance(data.op, UnfoldOp)


def _is_put_back(m: Match) -> str | None:
    """Whether all work on the product may be done with the channels in their place, where some of it puts them back."""
    found, graph = _mixed(m), m.graph
    if found is None or _has_windows(graph, found.data):
        return ""
    moved = moved_with(graph, m.root.name, found.order, found.result, (ReshapeOp, *ELEMENTWISE))
    if moved is None or not moved.isdisjoint(graph.results):
        return ""
    readers = (graph.node(user) for name in moved for user in graph.users[name])
    undone = any(isinstance(reader.op, PermuteOp) and reader.op.order == found.back for reader in readers)
    return None if undone else ""


def _shaped(m: Match, x: Node, shape: Dims) -> Node:
    return x if x.type.shape == shape else m.add(ReshapeOp(shape=shape), x)


def _convolved(m: Match) -> Node:
    found = _mixed(m)
    assert found is not None
    positions = found.behind if len(found.behind) in _RANKS else (dims.product(found.behind),)
    ones = (1,) * len(positions)
    conv = ConvOp(
        transposed=found.turned,
        stride=ones,
        padding=(0,) * len(ones),
        dilation=ones,
        output_padding=(0,) * len(ones),
        precise=True,
    )
    samples, channels = dims.product(found.before), found.data.type.shape[found.axis]
    stored = (channels, found.features) if found.turned else (found.features, channels)
    x = _shaped(m, found.data, (samples, channels, *positions))
    w = _shaped(m, found.weights, (*stored, *ones))
    y = m.add(conv, x, w, *(m.graph.node(name) for name in m.root.inputs[2:]))
    apart = _shaped(m, y, (*found.before, found.features, *found.behind))
    return _shaped(m, m.add(PermuteOp(order=found.order), apart), m.root.type.shape)


def _joins_positions(m: Match) -> str | None:
    """Whether data whose positions are joined to one axis meet a kernel of one, at every position."""
    conv, view, w = m.root.op, m["view"], m["w"]
    assert isinstance(conv, ConvOp)
    shape = m["x"].type.shape
    apart = len(shape) - 2 in _RANKS[1:] and shape[:2] == view.type.shape[:2]
    alone = w.type.shape[2:] == (1,) and conv.stride == (1,) and conv.padding == (0,) and conv.output_padding == (0,)
    return None if view.type.rank == 3 and apart and alone and not (conv.behind or conv.cropped) else ""


def _of_positions(m: Match) -> Node:
    conv, x, w = m.root.op, m["x"], m["w"]
    assert isinstance(conv, ConvOp)
    ones = (1,) * (x.type.rank - 2)
    none = (0,) * len(ones)
    whole = conv.replace(stride=ones, padding=none, dilation=ones, output_padding=none)
    kernel = m.add(ReshapeOp(shape=(*w.type.shape[:2], *ones)), w)
    return m.add(ReshapeOp(shape=m.root.type.shape), m.add(whole, x, kernel))


RULES = (
    Rule(
        "matmul(permute(x), w) = permute(conv(x, w)),  channels that are put back",
        op(MatmulOp),
        _convolved,
        Numerics.EXACT,
        _is_put_back,
    ),
    Rule(  # what follows may take the positions apart, and one kernel reads either
        "conv(reshape(x), w) = reshape(conv(x, w)),  a kernel of one, positions joined",
        op(ConvOp, op(ReshapeOp, anything("x"), name="view"), anything("w")),
        _of_positions,
        Numerics.EXACT,
        _joins_positions,
    ),
)


# --- after the algebra ----------------------------------------------------------------------------

_REDUCED = (ReduceOp, SoftmaxOp, NormalizeOp, PoolOp, AdaptivePoolOp, ArgReduceOp)


def _is_reduced(graph: Graph, name: str) -> bool:
    """Whether elementwise work alone lies between a value and the one reduction that reads it: a convolution may finish
    that, and need not write the value."""
    while len(graph.users[name]) == 1:
        (reader,) = map(graph.node, graph.users[name])
        if isinstance(reader.op, _REDUCED):
            return True
        if not isinstance(reader.op, (PointwiseOp, ReshapeOp)):
            break
        name = reader.name
    return False


def _mixes_channels(m: Match) -> bool:
    """Whether a convolution is a product of its weights with every sample."""
    conv, w = m.root.op, m["w"]
    assert isinstance(conv, ConvOp)
    kernel = inference.kernel_size(w.type)
    kept = m["x"].type.shape[2:] == m.root.type.shape[2:]
    plain = conv.precise and not conv.summed and not conv.behind and not conv.cropped
    return plain and conv.groups == 1 and set(kernel) == {1} and kept and not any(conv.padding)


def _product_of_samples(m: Match) -> Node:
    conv, x, w = m.root.op, m["x"], m["w"]
    assert isinstance(conv, ConvOp)
    samples, channels, *positions = x.type.shape
    stored = m.graph.node(w.inputs[0]) if isinstance(w.op, ReshapeOp) else w  # most often the matrix itself
    matrix = stored if stored.type.shape == w.type.shape[:2] else _shaped(m, w, w.type.shape[:2])
    of_each = m.add(ExpandOp(shape=(samples, *matrix.type.shape)), matrix)
    joined = _shaped(m, x, (samples, channels, dims.product(positions)))
    product = MatmulOp(left_transposed=conv.transposed, precise=True)
    return _shaped(m, m.add(product, of_each, joined), m.root.type.shape)


def _product_seconds(m: Match, rates: Machine) -> float:
    trial = Match(m.graph, m.root, m.captures)
    _product_of_samples(trial)
    product = next(node for node in trial.built if isinstance(node.op, MatmulOp))
    upto = trial.built[: trial.built.index(product) + 1]
    read = dict.fromkeys(name for node in upto for name in node.inputs)
    given = [name for name in read if name not in {node.name for node in upto}]
    operands = [m.graph.node(name).replace(op=InputOp(position=i), inputs=()) for i, name in enumerate(given)]
    alone = m.graph.replace(nodes=(*operands, *upto), outputs=(product.name,), updates=())
    views = viewproduct.seconds(alone, check(alone), rates)
    copied = 2 * viewproduct.bytes_of(alone, alone.node(product.inputs[0])) / rates.bandwidth + rates.launch
    return min(views, copied + gemm.product_seconds(alone, product, rates, 0.0))


def _is_faster(rates: Machine) -> Callable[[Match], str | None]:
    def guard(m: Match) -> str | None:
        if not rates.wgmma or not _mixes_channels(m):
            return ""
        try:
            product = _product_seconds(m, rates)
        except NotFusable as error:
            return str(error)
        result = m.root.type
        if _is_reduced(m.graph, m.root.name):
            product += 2 * result.dtype.bytes * dims.numel(result.shape, m.graph.sizes) / rates.bandwidth
        convolution = lone_seconds(m.graph, m.root, m["x"], m["w"], rates)
        reason = f"{convolution * 1e6:.0f} us as a convolution, {product * 1e6:.0f} us as a product"
        return faster(f"{m.root.name} as", {"product": (None, product), "convolution": (reason, convolution)})

    return guard


def product_rule(rates: Machine) -> Rule:
    return Rule(
        "conv(x, w) = matmul(w, x),  a kernel of one in full float32",
        op(ConvOp, anything("x"), anything("w")),
        _product_of_samples,
        Numerics.EXACT,
        _is_faster(rates),
    )


def run(graph: Graph, target: str) -> Outcome:
    """%y = conv2d(%x, %w, precise)  ->  %y = reshape(matmul(expand(%w), reshape(%x)))."""
    return rewrite(graph, (product_rule(machine(target)),))
