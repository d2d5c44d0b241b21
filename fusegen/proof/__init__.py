"""The proof that every compile runs: the graph before and after the passes computes the same.

Every rewritten value is evaluated both ways (``miter.py``) in float64 on small random sizes of the same structure, with
operands meant to bring out a wrong weight, window or divisor; values that are rewritten alike once. In float64 the
two may differ by reassociation only. What cannot be proven value by value is evaluated as a whole.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from fusegen import dims, interpret, ops
from fusegen.errors import FusegenError, GraphError, MismatchError
from fusegen.guards import all_hold, positive, smallest_sizes
from fusegen.ir import Graph, InputOp, RecurrenceOp
from fusegen.proof import miter
from fusegen.proof.generalise import generalise

ROUNDS = 4
SPREADS = (9, 4, 2)
_MOST_FLOPS, _ELEMENT = 2e8, 8
"""What a round may take, and how many of them an element that is written counts for."""
_ATTEMPTS = 200
_RETRIES = 20
_RELATIVE = 1e-9
_MANY = 1 << 20
"""Elements of a tensor at the least sizes, from which on sizes that are small change, too: others stand in a range."""

_Fill = Callable[[tuple[int, ...], torch.Generator], torch.Tensor]


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _offset(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Spread values around a large mean of their own in each leading slice: shows a wrong count."""
    lead = (*shape[:2], *(1,) * max(0, len(shape) - 2))
    return 3 * _normal(shape, generator) + 10 * _normal(lead, generator)


def _corners(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """A few large values in a sea of small ones: shows a window that is off by one."""
    large = torch.rand(shape, generator=generator, dtype=torch.float64) < 0.1
    return torch.where(large, 1e3, 1.0) * _normal(shape, generator)


_FILLS: tuple[_Fill, ...] = (_normal, _offset, _corners)


def _steady(fill: _Fill) -> _Fill:
    """As ``fill``, but what lies along the last axis has length 1: through many steps of a recurrent network, whose
    states would else be chaotic, roundings do not grow."""

    def scaled(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        values = fill(shape, generator)
        return torch.nn.functional.normalize(values, dim=-1) if len(shape) > 1 else values

    return scaled


@dataclass(frozen=True)
class Proof:
    """What was compared: one set of sizes per round, and the largest difference relative to the scale."""

    sizes: tuple[dict[str, int], ...]
    worst: float


def _work(graph: Graph, sizes: Mapping[str, int]) -> int:
    """FLOPs of the graph at ``sizes``, and what it takes to write its results in their place."""
    sized = graph.replace(sizes=dict(sizes))
    written = sum(dims.numel(node.type.shape, sizes) for node in sized.nodes)
    return sum(ops.flops(sized, node) for node in sized.nodes) + _ELEMENT * written


@contextmanager
def _one_thread(alone: bool) -> Iterator[None]:
    """Small work takes longer on several threads: they wait for each other for every group of a convolution."""
    threads = torch.get_num_threads()
    if alone:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _choose_sizes(graph: Graph, rng: random.Random) -> dict[str, int]:
    """Random sizes above the least ones that the graph's constraints and every shape allow: a little, and less where
    that is much work."""
    smallest = smallest_sizes(graph)
    conditions = [*graph.constraints, *positive(graph)]
    for spread in SPREADS:
        for _ in range(_ATTEMPTS):
            sizes = {name: size + rng.randrange(spread) for name, size in smallest.items()}
            if all_hold(conditions, sizes):
                break
        else:
            return smallest
        if _work(graph, sizes) <= _MOST_FLOPS:
            break
    return sizes


def _most_elements(graph: Graph) -> int:
    """Of any tensor of ``graph``, at the smallest sizes."""
    sizes = dict.fromkeys(graph.sizes, 1)
    return max((dims.numel(node.type.shape, sizes) for node in graph.nodes), default=0)


def _values(
    graph: Graph, sizes: Mapping[str, int], fill: _Fill, generator: torch.Generator
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    def make(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        if dtype.startswith(("float", "bfloat")):
            return fill(shape, generator)
        if dtype.startswith("complex"):
            return torch.complex(fill(shape, generator), fill(shape, generator))
        return torch.randint(0, 2, shape, generator=generator).to(getattr(torch, dtype))

    inputs = [
        make(shape, node.type.dtype.value)
        for shape, node in zip(interpret.input_shapes(graph, sizes), graph.inputs, strict=True)
    ]
    params = {}
    for node in graph.params:
        shape = tuple(dims.evaluate(d, sizes) for d in node.type.shape)
        params[node.op.path] = make(shape, node.type.dtype.value)  # type: ignore[union-attr]
    return inputs, params


def _difference(first: torch.Tensor, second: torch.Tensor) -> float:
    """Largest difference over the scale of the values; infinite when NaN or Inf are at other places."""
    if first.shape != second.shape:
        return float("inf")
    if first.is_complex() and second.is_complex():
        first, second = interpret.real_parts(first), interpret.real_parts(second)
    a, b = first.double(), second.double()
    finite = torch.isfinite(a)
    if not torch.equal(finite, torch.isfinite(b)):
        return float("inf")
    if not finite.all():
        if not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
            return float("inf")
        a, b = a[finite], b[finite]
    if not a.numel():
        return 0.0
    scale = max(1.0, float(a.abs().max()))
    return float((a - b).abs().max()) / scale


def _run(
    graph: Graph, inputs: list[torch.Tensor], params: dict[str, torch.Tensor], sizes: Mapping[str, int], seed: int
) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(seed)
    copies = {path: value.clone() for path, value in params.items()}
    try:
        with torch.no_grad():
            return interpret.run(graph, [value.clone() for value in inputs], copies, sizes, wide=True)
    except FusegenError:
        raise
    except Exception as error:
        raise MismatchError(f"the rewrite proof could not run: {type(error).__name__}: {error}") from error


def _compare(before: Graph, after: Graph, rounds: int = ROUNDS, seed: int = 0) -> Proof:
    """Check that ``after`` computes what ``before`` does. Raises ``MismatchError`` naming the output."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    worst, tried = 0.0, []
    recurs = any(isinstance(node.op, RecurrenceOp) for node in after.every_node)
    for round_number in range(rounds):
        fill = _FILLS[round_number % len(_FILLS)]
        fill = _steady(fill) if recurs else fill
        for left in reversed(range(_RETRIES)):
            sizes = _choose_sizes(before, rng) if left else dict(before.sizes)
            inputs, params = _values(before, sizes, fill, generator)
            small = _work(before, sizes) <= _MOST_FLOPS
            try:
                with _one_thread(small):
                    expected_results = _run(before, inputs, params, sizes, seed)
                break
            except MismatchError:  # torch may want more of a size than that no result is empty
                if not left:
                    raise
        tried.append(sizes)
        with _one_thread(small):
            found_results = _run(after, inputs, params, sizes, seed)
        for name, expected, found in zip(before.results, expected_results, found_results, strict=True):
            difference = _difference(expected, found)
            worst = max(worst, difference)
            if not difference <= _RELATIVE:
                raise MismatchError(
                    f"the rewritten graph differs from the model by {difference:.2e} at sizes {sizes}",
                    node=name,
                    hint="this is a defect of fusegen; nothing was written",
                )
    return Proof(tuple(tried), worst)


def _own_sizes(graph: Graph, given: Mapping[str, int]) -> Graph:
    """``graph`` without the ``given`` sizes and the conditions on them where it mentions none."""
    text = " ".join(f"{node.op!r} {node.type}" for node in graph.nodes)
    if any(re.search(rf"\b{name}\b", text) for name in given):
        return graph
    return graph.replace(sizes={name: size for name, size in graph.sizes.items() if name not in given}, constraints=())


class _Parts:
    """Tells whether the two results of a miter are equal, and keeps what was evaluated for that."""

    def __init__(self) -> None:
        self.proofs: list[Proof] = []
        self._known: dict[tuple[object, ...], bool] = {}

    def agree(self, miters: Iterable[Graph]) -> bool:
        """True when those of any of the ``miters`` are at general sizes, or of the first at the model's own."""
        own: Graph | None = None
        for place, both in enumerate(miters):
            try:
                general = generalise(both)
                if _most_elements(general) > _MANY:
                    general = generalise(both, every=True)
                general = _own_sizes(general, both.sizes)
            except GraphError:  # an op that takes numbers only
                general = both
            if self._proven(general):
                return True
            if place == 0 and general != both:
                own = both
        return own is not None and self._proven(own)

    def _proven(self, both: Graph) -> bool:
        key = (both.outputs, *((node.op, node.inputs, node.type) for node in both.nodes))
        if key not in self._known:
            one, other = (both.replace(outputs=(name,)) for name in both.outputs)
            try:
                moves = all(isinstance(node.op, (*miter.VIEWS, InputOp)) for node in both.nodes)
                self.proofs.append(_compare(one, other, 1 if moves else ROUNDS))  # no values matter to what moves
                self._known[key] = True
            except MismatchError:
                self._known[key] = False
        return self._known[key]


def prove(before: Graph, after: Graph) -> Proof:
    """Check that ``after`` computes what ``before`` does. Raises ``MismatchError`` naming the output."""
    parts = _Parts()
    if miter.equal(before, after, parts.agree):
        sizes = tuple(sizes for proof in parts.proofs for sizes in proof.sizes)
        return Proof(sizes, max((proof.worst for proof in parts.proofs), default=0.0))
    return _compare(before, after)
