"""A model as torch.export sees it, and the graph that this becomes.

Tracing is torch.export's non-strict ATen graph, functionalised, with every input size dynamic where
the model allows it. Nothing of the inputs' size is allocated.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.fx.experimental import _config as fx_config

from fusegen import dims, guards
from fusegen.costs import tensor_gemm
from fusegen.dims import Dim
from fusegen.errors import TraceError
from fusegen.interpret import evaluated, input_shapes
from fusegen.ir import (
    EagerOp,
    Graph,
    InputOp,
    MatmulOp,
    Node,
    ParamOp,
    PermuteOp,
    PointwiseOp,
    RecurrentOp,
    ReduceOp,
    ReshapeOp,
    SoftmaxOp,
)
from fusegen.trace import unseen
from fusegen.trace.aliases import under_one_name
from fusegen.trace.asked import SizeArithmeticError
from fusegen.trace.assigned import (
    Assigned,
    added_removed,
    hold,
    shared_tensors,
    watched,
)
from fusegen.trace.decompositions import decompositions, taken_apart
from fusegen.trace.failures import trace_error
from fusegen.trace.from_export import convert, known
from fusegen.trace.in_place import without_writes
from fusegen.trace.inputs import all_sizes, is_literal, renewed, resized, tensors, told_apart
from fusegen.trace.model_file import first_line, forward_line
from fusegen.trace.quotients import as_integers
from fusegen.trace.results import form, results
from fusegen.trace.whole import kept_whole


@dataclass(frozen=True)
class TracedModel:
    """The graph, and the module whose structure it has baked in.

    ``mode_dependent``: the graph holds for the module's training flags only. ``held``: attributes of the
    model that were plain tensors and are its buffers now. ``literals``: example inputs that are no tensors, by their
    place among forward's arguments; they are part of the graph. ``results``: how forward returns its results
    (``trace/results.py``).
    """

    graph: Graph
    model: nn.Module
    mode_dependent: bool
    held: tuple[str, ...] = ()
    results: Any = None
    literals: Mapping[int, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@contextlib.contextmanager
def _quiet_log() -> Iterator[None]:
    """No log records from torch while tracing: a failure becomes one error of ours."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


_MOST_QUESTIONS = 200
"""About one size (does it divide by this, is it larger than that), after which torch takes it as it is. Networks of 60
layers of convolutions ask 22, windows of attention that are shifted some 700, which took two minutes."""


def _export(
    model: nn.Module, inputs: tuple[Any, ...], dynamic: bool, fixed: frozenset[str] = frozenset()
) -> torch.export.ExportedProgram:
    """``dynamic``: every input size but those named in ``fixed`` may vary where the model allows it."""
    auto, static = torch.export.Dim.AUTO, torch.export.Dim.STATIC
    axes = iter(
        [static if dims.symbol(position, axis) in fixed else auto for axis in range(value.dim())]
        for position, value in enumerate(tensors(inputs))
    )
    shapes = tuple(next(axes) if isinstance(value, torch.Tensor) else None for value in inputs)
    # A size of which very many questions are asked is structure; each further one takes torch longer to answer.
    questions = fx_config.patch(  # type: ignore[attr-defined]
        symbol_guard_limit_before_specialize=_MOST_QUESTIONS
    )
    # torch.export prints the graph so far when it fails; our error says what matters.
    with contextlib.ExitStack() as stack:
        quiet = (warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()), _quiet_log())
        for context in (*quiet, kept_whole(), as_integers(), questions, unseen.no_autocast(), added_removed(model)):
            stack.enter_context(context)
        warnings.simplefilter("ignore")
        program = torch.export.export(model, inputs, strict=False, dynamic_shapes=shapes if dynamic else None)
        program = under_one_name(program)
        table = decompositions(program)
        if not table and without_writes(program):
            return program
        return taken_apart(program, table)


_COORDINATES = 4
"""Elements of an input's last axis, where they are added up, that are coordinates: points and boxes have so many."""


_RESULTS, _MORE = 1 << 22, 8
"""Results of a product, and those for each number of a factor, from which on ``FEW_TERMS`` are structure."""


def _row_lengths(graph: Graph) -> frozenset[str]:
    """Input sizes that are structure: the lengths of rows that a kernel keeps on chip.

    Those are the axis of a softmax, and the channels or features (axis 1) where something reduces
    them, what the parameters of a norm or a recurrent network fix, the widths of attention, the coordinates of
    points that are added up, and the few terms of sums of many results. Batch and spatial sizes stay free.
    """
    found: set[Dim] = set(_attention_widths(graph))
    last: set[Dim] = {node.type.shape[-1] for node in graph.inputs if node.type.rank > 1}
    coordinates = {size for size in last if graph.sizes.get(str(size), _COORDINATES + 1) <= _COORDINATES}
    for node in graph.nodes:
        match node.op:
            case SoftmaxOp(axis=axis):
                found.add(graph.node(node.inputs[0]).type.shape[axis])
            case ReduceOp(axes=(1,)):
                found.add(graph.node(node.inputs[0]).type.shape[1])
            case ReduceOp(axes=(axis,)) if axis == graph.node(node.inputs[0]).type.rank - 1:
                found.update({graph.node(node.inputs[0]).type.shape[axis]} & coordinates)
            case EagerOp(target="aten.group_norm.default"):  # channels that are split into groups
                found.add(graph.node(node.inputs[0]).type.shape[1])
            case MatmulOp():
                factors = [graph.node(name).type.shape for name in node.inputs[:2]]
                results = dims.numel(node.type.shape, graph.sizes)
                few = max(dims.numel(shape, graph.sizes) for shape in factors) * _MORE <= results >= _RESULTS
                terms = factors[0][-1]
                found.update({terms} if few and graph.sizes.get(str(terms)) in tensor_gemm.FEW_TERMS else ())
            case RecurrentOp():  # features, as many as its weights have
                found.update(dims.symbols(graph.node(node.inputs[0]).type.shape[-1:]))
    return _axes(graph, found)


def _axes(graph: Graph, sizes: Collection[Dim]) -> frozenset[str]:
    """The names of all axes of inputs that have one of these free ``sizes``."""
    shapes = [(node.op.position, node.type.shape) for node in graph.inputs if isinstance(node.op, InputOp)]
    axes = [(size, dims.symbol(i, axis)) for i, shape in shapes for axis, size in enumerate(shape)]
    return frozenset(name for size, name in axes if size in sizes and size in graph.sizes)


def _attention_widths(graph: Graph) -> Iterator[str]:
    """Input sizes in the terms of the scores of attention, and in the columns of its results."""
    for node in graph.nodes:
        widths: list[Dim] = []
        if isinstance(node.op, EagerOp) and node.op.target == "aten.scaled_dot_product_attention.default":
            widths = [graph.node(node.inputs[0]).type.shape[-1], node.type.shape[-1]]
        elif isinstance(node.op, SoftmaxOp):
            products = [graph.node(name) for name in _products_around(graph, node)]
            factors = [graph.node(name).type.shape for product in products for name in product.inputs[:2]]
            widths = [size for shape in factors for size in shape[-2:]] if len(products) > 1 else []
            widths = [size for size in widths if size not in graph.node(node.inputs[0]).type.shape[-2:]]
        for width in widths:
            yield from dims.symbols([width])


def _products_around(graph: Graph, softmax: Node) -> Iterator[str]:
    """The product whose elements, one by one, a softmax is of, and those that its results are factors of."""
    pending = list(softmax.inputs)
    while pending:
        node = graph.node(pending.pop())
        if isinstance(node.op, MatmulOp):
            yield node.name
        elif isinstance(node.op, (PointwiseOp, ReshapeOp)):
            pending += node.inputs
    users = graph.users
    pending = list(users[softmax.name])
    while pending:
        node = graph.node(pending.pop())
        if isinstance(node.op, MatmulOp):
            yield node.name
        elif isinstance(node.op, (ReshapeOp, PermuteOp)):
            pending += users[node.name]


_OF_VECTORS = "aten.diag.default"
"""A known op of vectors alone: of matrices, whatever their sizes, it is a view of torch's."""


def _obscuring(graph: Graph) -> frozenset[str]:
    """Input sizes in whose arithmetic the shapes of known ops got lost, so that these are left to torch.

    Windows, patches and chunks of a size give such shapes: ``(n // 7, 7)`` regrouped has ``n // (n // 7)`` rows. So
    does a product of sizes that has to be one number: the length of a parameter, or of a norm.
    """
    lengths = {length for length, _, number in (c.partition(" == ") for c in graph.constraints) if number.isdigit()}
    found: set[str] = set()
    for node in graph.nodes:
        if isinstance(node.op, EagerOp) and known(node.op.target) and node.op.target != _OF_VECTORS:
            shapes = [node.type.shape, *(graph.node(name).type.shape for name in node.inputs)]
            found.update(*(dims.divided(dim) for shape in shapes for dim in shape))
            found.update(*(dims.symbols(lengths.intersection(shape)) for shape in shapes))
    return _axes(graph, found)


def _outline(graph: Graph, sizes: Mapping[str, int]) -> tuple[object, ...]:
    """What every node computes, of which nodes, and its shape, all at ``sizes``; which are returned or written."""
    place = {node.name: i for i, node in enumerate(graph.nodes)}
    shapes = {node.name: tuple(dims.evaluate(d, sizes) for d in node.type.shape) for node in graph.nodes}

    def meaning(node: Node) -> tuple[object, ...]:
        op = node.op
        if isinstance(op, ReduceOp):  # along an axis of one element or not is the same
            op = op.replace(axes=tuple(axis for axis in op.axes if shapes[node.inputs[0]][axis] != 1))
        return (evaluated(op, sizes), tuple(place[name] for name in node.inputs), shapes[node.name])

    returned = [place[name] for name in graph.outputs]
    written = [(path, place[name]) for path, name in graph.updates]
    return [meaning(node) for node in graph.nodes], graph.tuple_output, returned, written


def _settled(model: nn.Module, inputs: tuple[Any, ...], graph: Graph, returned: Any, path: Path) -> Graph:
    """``graph`` with the size conditions that decide what is computed, and how it is ``returned``."""
    asked: dict[tuple[int, ...], bool] = {}

    def traced_again(sizes: Mapping[str, int]) -> bool:
        try:
            program = _export(model, resized(inputs, graph, sizes), dynamic=False)
            again = convert(program, model, path)
            found = form(results(program), {})
        except Exception:
            return False
        every = {
            dims.symbol(position, axis): size
            for position, shape in enumerate(input_shapes(graph, sizes))
            for axis, size in enumerate(shape)
        }
        return _outline(again, {}) == _outline(graph, sizes) and found == form(returned, every)

    def same(sizes: Mapping[str, int]) -> bool:
        key = tuple(sizes[name] for name in graph.sizes)
        if key not in asked:
            asked[key] = traced_again(sizes)
        return asked[key]

    return guards.settle(graph, same)


_FIXED = (("sizes but the batch's", True), ("sizes", False))
"""What is fixed to the example inputs where sizes cannot be free; whether any is left."""


def _with_fixed_sizes(
    model: nn.Module, inputs: tuple[Any, ...], path: Path, error: SizeArithmeticError
) -> tuple[Graph, frozenset[str], str]:
    """The graph with as few fixed sizes as leave none in ``error``'s arithmetic, those, and what a user should know."""
    fixed = all_sizes(inputs)
    for which, dynamic in _FIXED:
        try:
            graph = convert(_export(model, renewed(inputs), dynamic, fixed), model, path)
        except SizeArithmeticError as again:
            error = again
        else:
            return graph, fixed, f"{which} are fixed to the example inputs: {error.message}"
    raise error


_NOT_SET = "the generated forward does not set {}"
_HOOKED = "submodule {} has hooks: every call runs the reference forward"


def _first_export(
    model: nn.Module, inputs: tuple[Any, ...], path: Path
) -> tuple[torch.export.ExportedProgram, frozenset[str], tuple[str, ...], Assigned]:
    """``model`` as torch.export sees it, the sizes that are fixed for it, what a user should know, and what it assigns.

    Raises ``TraceError``.
    """
    notes: tuple[str, ...] = ()
    fixed: frozenset[str] = frozenset()
    failed: Exception | None = None
    with watched(model, path) as assigned:
        try:
            program = _export(model, inputs, dynamic=True)
        except TraceError:
            raise
        except Exception as dynamic_error:
            fixed = all_sizes(inputs)
            for which, dynamic in _FIXED:
                notes = (f"{which} are fixed to the example inputs: {first_line(dynamic_error)}",)
                try:
                    program, failed = _export(model, renewed(inputs), dynamic, fixed), None
                    break
                except Exception as error:
                    failed = error
    for name, line in assigned.changed.items():
        raise TraceError(
            f"forward changes {name}, which is neither a parameter nor a buffer",
            source=line,
            hint="register it as a buffer, or pass it in and out of forward",
        ) from failed
    if failed is not None:
        raise trace_error(failed, path, model) from failed
    return program, fixed, (*notes, *map(_NOT_SET.format, assigned.added)), assigned


def trace(model: nn.Module, inputs: tuple[Any, ...], path: Path) -> TracedModel:
    """Trace ``model`` on example ``inputs`` (fake or real). Raises ``TraceError`` naming the source line.

    Tensors that modules hold as plain attributes become buffers of ``model``.
    """
    inputs = told_apart(inputs)
    literals = {i: value for i, value in enumerate(inputs) if not isinstance(value, torch.Tensor)}
    for position, value in literals.items():
        if not is_literal(value):
            raise TraceError(
                f"input {position} is a {type(value).__name__}, not a tensor",
                hint="make it a constructor argument or a tensor",
            )
    noted = unseen.check(model)
    shared = shared_tensors(model)
    held = hold(model)
    program, fixed, notes, assigned = _first_export(model, inputs, path)
    returned = results(program, forward_line(model, path))
    try:
        graph = convert(program, model, path)
    except SizeArithmeticError as error:
        graph, fixed, note = _with_fixed_sizes(model, inputs, path, error)
        notes = (note, *notes)
    if more := _row_lengths(graph) | _obscuring(graph):
        graph = convert(_export(model, renewed(inputs), dynamic=True, fixed=fixed | more), model, path)
    if graph.sizes:
        graph = _settled(model, inputs, graph, returned, path)
    for path_ in shared.intersection(path_ for path_, _ in graph.updates):
        raise TraceError(
            f"forward writes to {path_}, which other modules hold, too", hint="register it as a buffer of one module"
        )
    read = {node.op.path for node in graph.params if isinstance(node.op, ParamOp)}
    made = [name for name in held if name in assigned.buffers and name not in read]
    graph = graph.replace(updates=tuple(update for update in graph.updates if update[0] not in made)).prune()
    return TracedModel(
        graph=graph,
        model=model,
        mode_dependent=any(map(_behaves_by_mode, model.modules())),
        literals=literals,
        results=returned,
        held=tuple(name for name in held if name in read),
        notes=(
            *notes,
            *map(_NOT_SET.format, made),
            *map(_HOOKED.format, unseen.hooked(model)),
            *noted,
        ),
    )


def _behaves_by_mode(module: nn.Module) -> bool:
    """True for norms with statistics, and where forward, or what torch computes weights with, names ``training``."""
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return True
    if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):  # they pass it on to their dropout
        return module.dropout > 0
    functions = [type(module).forward, *(type(hook).__call__ for hook in unseen.torchs_hooks(module))]
    return any("training" in function.__code__.co_names for function in functions if hasattr(function, "__code__"))
