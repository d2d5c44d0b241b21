"""Tiles of the plain fp32 convolution: the results of a thread, and how it reads what they need.

Of those that fit into registers, the one for which the fewest lines are read, as long as there are threads enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil, gcd, prod

from fusegen.ir import ConvOp, Frozen
from fusegen.spaces.rowspace import NotFusable

MAX_POSITIONS, MAX_RESULTS = 16, 32
"""Of a thread: more threads at once read faster than larger tiles do, and sums are in registers."""
MAX_PRODUCTS = 1024
"""Of a thread and an input channel, written out one after the other."""
MAX_HELD = 76
"""Values that a thread holds at once: half of 128 registers are for addresses, and for what is on its way."""
CHAIN = 1024
"""Products that are added up one after the other, at most."""
_FEW_HELD = 68
"""Values of a thread with 96 registers, of which a multiprocessor has more."""
_WEIGHTS, _VOLUME = 8, 16
"""Weights held at once, and what the places in a volume take beyond those in an image."""
_CHANNELS = 4
"""Channels of a thread for each of its positions from which on their weights are in shared memory: loaded one by one,
they would be most of what it does."""
_AHEAD = 8
"""Accesses of a thread that are on their way at once."""
_FILLED = 132 * 512
"""Threads from which on larger tiles are worth having fewer of them."""


class Tile(Frozen):
    """Results of a thread along z, y, x; aligned accesses to the input read ``vector`` elements."""

    vector: int
    results: tuple[int, int, int]
    phased: tuple[bool, bool]
    """Along z and y: the results of a thread are of one phase."""
    outputs: int
    """Channels of a group that a thread computes."""
    ahead: int
    """Channels of the input that are read at once."""
    threads: int
    """Of a block."""
    blocks: int
    """Of a multiprocessor, to leave registers for."""
    shares: int = 0
    """Threads that take turns at the channels of the input, whose weights are in shared memory; 0: weights are not."""

    @property
    def staged(self) -> bool:
        """Whether one store has fewer results than lie side by side in a thread."""
        across = self.results[2]
        return across > (1 if self.vector == 1 else gcd(across, 4))


@dataclass(frozen=True)
class Along:
    """One axis as a thread meets it: ``phased``: its results are of one phase, and so are the taps."""

    kernel: int
    stride: int
    padding: int
    dilation: int
    transposed: bool
    phased: bool = False

    @classmethod
    def of(cls, op: ConvOp, kernel: tuple[int, ...], axis: int, phased: bool = False) -> Along:
        structure = kernel[axis], op.stride[axis], op.padding[axis], op.dilation[axis]
        return cls(*structure, op.transposed, phased)

    @property
    def gap(self) -> int:
        """Between the taps of a phase."""
        return self.stride // gcd(self.stride, self.dilation) if self.phased else 1

    @property
    def taps(self) -> int:
        """Of a result, at most."""
        return ceil(self.kernel / self.gap)

    def place(self, r: int, k: int) -> int | None:
        """The place that result ``r`` multiplies by tap ``k``, counted from any one; None where the tap is not its."""
        if self.phased:
            return r - k * (self.gap * self.dilation // self.stride)
        if not self.transposed:
            return r * self.stride + k * self.dilation
        place, rest = divmod(r + self.padding - k * self.dilation, self.stride)
        return None if rest else place

    def lines(self, results: int) -> int:
        """Positions of the input that so many results of a thread span."""
        if self.phased:
            return results - self.place(0, self.taps - 1)  # type: ignore[operator]
        reach = self.dilation * (self.kernel - 1)
        if not self.transposed:
            return (results - 1) * self.stride + reach + 1
        first = (self.padding - reach) // self.stride
        return (results - 1 + self.padding) // self.stride - first + 1

    def lines_at_once(self, results: int) -> int:
        """Lines of a layer that a thread holds at once, while it goes through the taps along y."""
        uses: dict[int, list[int]] = {}
        for r, k in product(range(results), range(self.taps)):
            if (place := self.place(r, k)) is not None:
                uses.setdefault(place, []).append(k)
        return max((sum(min(u) <= k <= max(u) for u in uses.values()) for k in range(self.taps)), default=0)

    def read(self, results: int) -> int:
        """Those of them that some result multiplies."""
        places = {self.place(r, k) for r, k in product(range(results), range(self.taps))}
        return len(places - {None})

    def tiles(self, length: int, results: int) -> float:
        """Tiles of so many results along an axis of ``length``; those of phases without taps read nothing."""
        if not self.phased:
            return ceil(length / results)
        return min(self.kernel, self.stride // gcd(self.stride, self.dilation)) * ceil(length / self.stride / results)


@dataclass(frozen=True)
class Way:
    """How a thread may compute: its results along every axis, of so many ``channels`` of a group."""

    alongs: tuple[Along, ...]
    results: tuple[int, ...]
    channels: int

    @property
    def held(self) -> int:
        """Values that a thread holds at once: lines of a layer, sums, weights."""
        rows = self.alongs[-2].lines_at_once(self.results[-2]) if len(self.alongs) > 1 else 1
        rest = _WEIGHTS + (_VOLUME if len(self.alongs) > 2 else 0)
        return rows * self.alongs[-1].lines(self.results[-1]) + self.channels * prod(self.results) + rest

    def accesses(self, vector: int) -> int:
        """Accesses of ``vector`` elements to a channel."""
        lines = prod(along.lines(own) for along, own in zip(self.alongs[:-1], self.results[:-1], strict=True))
        return lines * ceil(self.alongs[-1].lines(self.results[-1]) / vector)

    def ahead(self, inputs: int, vector: int) -> int:
        """Channels of the input, of so many in a group, that a thread should read at once."""
        accesses = self.accesses(vector)
        spare = 1 + (MAX_HELD - self.held) // (accesses * vector)
        return max(n for n in range(1, max(1, min(inputs, _AHEAD // accesses, spare)) + 1) if inputs % n == 0)

    @property
    def weights(self) -> float:
        """Loads of weights for each element of a channel that the results multiply, from half as many on.

        Where rows share no lines, those of a thread share its weights, and what finds its place.
        """
        elements = prod(along.read(own) for along, own in zip(self.alongs, self.results, strict=True))
        return max(0.5, prod(along.taps for along in self.alongs) / elements)

    def cost(self, outputs: int, lengths: tuple[int, ...], groups: int) -> tuple[float, int, float, int]:
        """Lines that all threads read, and more where there are few threads; then preferences."""
        parts = ceil(outputs / self.channels)
        threads = groups * parts * prod(ceil(n / own) for n, own in zip(lengths, self.results, strict=True))
        read = parts * lines_read(self.alongs[:-1], lengths[:-1], self.results[:-1])
        size = self.channels * prod(self.results)
        phased = sum(along.phased for along in self.alongs)
        return read * max(1.0, _FILLED / threads), phased, self.weights, size


def chain(alongs: tuple[Along, ...], inputs: int) -> int:
    """Products of a result."""
    return inputs * prod(replace(along, phased=along.transposed).taps for along in alongs)


def lines_read(alongs: tuple[Along, ...], lengths: tuple[int, ...], results: tuple[int, ...]) -> float:
    """Lines (positions, along the last axis) of a channel that all tiles of these ``results`` read."""
    axes = zip(alongs, lengths, results, strict=True)
    return prod(along.tiles(length, own) * along.lines(own) for along, length, own in axes)


def along_axes(op: ConvOp, kernel: tuple[int, ...], phased: tuple[bool, ...]) -> tuple[Along, ...]:
    """Every axis; ``phased`` for those but the last."""
    return tuple(Along.of(op, kernel, axis, own) for axis, own in enumerate((*phased, False)))


def _vectors(op: ConvOp) -> tuple[tuple[int, int], ...]:
    """(width of an access, results that lie side by side in a thread), the widest first."""
    stride = op.stride[-1]
    if op.transposed:  # stores are wider than loads
        return tuple((v, v * stride) for v in (4, 2, 1) if v * stride <= max(4, stride))
    return tuple((v, v // gcd(v, stride)) for v in (4, 2, 1))


def _ways(op: ConvOp, kernel: tuple[int, ...], outputs: int, across: int) -> Iterator[Way]:
    """Ways with ``across`` results side by side whose sums and written-out products are not too many."""
    kinds = [(False, True) if op.transposed and step > 1 else (False,) for step in op.stride[:-1]]
    for phased, channels in product(product(*kinds), sorted({ceil(outputs / n) for n in range(1, outputs + 1)})):
        alongs = along_axes(op, kernel, phased)
        steps = [1 if not op.transposed or own else step for own, step in zip(phased, op.stride[:-1], strict=True)]
        taps = prod(along.taps for along in alongs) / (prod((*steps, op.stride[-1])) if op.transposed else 1)
        most = min(MAX_POSITIONS, MAX_RESULTS // channels, int(MAX_PRODUCTS / taps) // channels)
        for rows in product(*([step * n for n in (1, 2, 4, 8)] for step in steps)):
            if prod(rows) * across <= most:
                yield Way(alongs, (*rows, across), channels)


@lru_cache(maxsize=1024)  # fusion asks again of every group that it tries
def tiles(
    op: ConvOp, kernel: tuple[int, ...], channels: tuple[int, int], lengths: tuple[int, ...], groups: int
) -> tuple[Tile, ...]:
    """The tile for each width of an access, for results of these ``lengths``. Raises ``NotFusable``.

    ``channels``: (inputs, outputs) of a group; ``groups``: of all samples. Of those that fit, the one for which the
    fewest lines are read, as long as there are threads enough.
    """
    inputs, outputs = channels
    found = []
    for vector, across in _vectors(op):
        fitting = [way for way in _ways(op, kernel, outputs, across) if way.held <= MAX_HELD]
        if not fitting:
            continue
        best = min(fitting, key=lambda way: way.cost(outputs, lengths, groups))
        absent = 3 - op.rank
        z, y, x = (1,) * absent + best.results
        first, second = (False,) * absent + tuple(along.phased for along in best.alongs[:-1])
        few = best.held <= _FEW_HELD and op.rank < 3 and (best.channels == 1 or prod(kernel) == op.groups == 1)
        threads, blocks = (128, 5) if few else (256, 2)
        tile = Tile(
            vector=vector,
            results=(z, y, x),
            phased=(first, second),
            outputs=best.channels,
            ahead=best.ahead(inputs, vector),
            threads=threads,
            blocks=blocks,
        )
        found.append(tile)
    if not found or found[-1].vector != 1:
        raise NotFusable(f"{prod(kernel)} taps of stride {op.stride} are too many for a thread")
    if prod(kernel[:-1]) > 1:  # else taps of several channels would be added up in an order that accesses decide
        least = min(tile.ahead for tile in found)
        found = [tile.replace(ahead=least) for tile in found]
    if op.groups == 1 and inputs > 1 and not any(any(tile.phased) for tile in found):
        likely = next(tile for tile in found if lengths[-1] % tile.results[2] == 0 or tile.vector == 1)
        if likely.outputs >= _CHANNELS * prod(likely.results):
            found = [tile.replace(shares=1) for tile in found]
    return tuple(found)
