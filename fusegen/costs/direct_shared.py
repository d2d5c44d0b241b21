"""Tiles of the plain fp32 convolution whose weights are in shared memory, and how long they take.

A thread has all output channels of its results. Where there are few of these, several threads take turns at the
channels of the input and add up their sums. Every turn waits for what it reads, so the tile is the one for which turns,
and rounds of blocks, are expected to take least.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil, gcd, lcm, prod

from fusegen.costs.direct_tiles import CHAIN, MAX_PRODUCTS, Along, Tile, Way, along_axes, chain
from fusegen.ir import ConvOp
from fusegen.machines import DEFAULT_TARGET, Machine, machine

MOST_OUTPUTS = 16
"""Of a group that has such tiles."""
_MOST_POSITIONS, _MOST_RESULTS = 32, 56
"""Of a thread: the more results it has, the fewer loads a product."""
_REGISTERS, _UNHELD, _FILE = (64, 80, 96, 128), 32, 65536
"""Of a thread, those of it that are for addresses and what is on its way, and of a multiprocessor."""
_MOST_AHEAD = 24
"""Accesses of a thread that are on their way at once."""
_SHARES = (1, 4, 8, 16)
"""Threads that may share a tile."""
_THREADS = 256
"""Of a block whose threads share no tiles."""
_KEPT = 8192
"""Words of weights in shared memory at a time."""
_TURN_SECONDS, _TURN_FLOPS, _ACCESS = 8e-7, 0.9, 4
"""What it takes for the elements of the channels that are read at once to arrive, the share of the fp32 rate that their
products reach after that, and a word that every lane reads as products."""
_KEPT_SECONDS, _SUMS_SECONDS = 4e-6, 1e-6
"""What it takes to copy a chunk of weights, and to add up the sums of the threads that share a tile."""


def words(kernel: tuple[int, ...], outputs: int, channels: int) -> int:
    """Words of the weights of an input channel in shared memory.

    For each tap along z and y, and for each part of so many ``channels``, a row of whole vectors.
    """
    return prod(kernel[:-1]) * ceil(outputs / channels) * (-(-channels * kernel[-1] // 4) * 4)


def weights_kept(tiles: tuple[Tile, ...], kernel: tuple[int, ...], inputs: int, outputs: int) -> int:
    """Channels of the input whose weights are in shared memory at a time; 0 where none are."""
    if not tiles[0].shares:
        return 0
    turn = lcm(*(tile.shares * tile.ahead for tile in tiles))
    turns = ceil(inputs / turn)
    most = max(words(kernel, outputs, tile.outputs) for tile in tiles)
    parts = ceil(turns / max(1, _KEPT // (turn * most)))
    return ceil(turns / parts) * turn


def _mean_taps(along: Along) -> float:
    """Of a result along an axis: those of a thread are of all phases, or wait for the one with most."""
    return along.kernel / along.stride if along.transposed and not along.phased else along.taps


@dataclass(frozen=True)
class Work:
    """A convolution: its channels (of a group), the lengths of its result, and the samples."""

    op: ConvOp
    kernel: tuple[int, ...]
    inputs: int
    outputs: int
    lengths: tuple[int, ...]
    samples: int

    def _tile(self, way: Way, vector: int, shares: int, ahead: int) -> Tile | None:
        """The tile with as many blocks to a multiprocessor as what a thread holds permits; None: it holds too much."""
        held = way.held + (ahead - 1) * way.accesses(vector) * vector + _UNHELD
        registers = next((count for count in _REGISTERS if held <= count), None)
        if registers is None:
            return None
        z, y, x = (1,) * (3 - self.op.rank) + way.results
        threads = 32 * shares if shares > 1 else _THREADS
        return Tile(
            vector=vector,
            results=(z, y, x),
            phased=(False, False),
            outputs=self.outputs,
            ahead=ahead,
            threads=threads,
            blocks=max(1, _FILE // registers // threads),
            shares=shares,
        )

    def _candidates(self, vector: int, shares: tuple[int, ...], ahead: int | None = None) -> Iterator[Tile]:
        """Tiles that read ``vector`` elements at once."""
        alongs = along_axes(self.op, self.kernel, (False,) * (self.op.rank - 1))
        steps = self.op.stride if self.op.transposed else (1,) * self.op.rank
        taps = chain(alongs, 1)
        most = min(_MOST_POSITIONS, _MOST_RESULTS // self.outputs, MAX_PRODUCTS // (self.outputs * taps))
        least = vector * self.op.stride[-1] if self.op.transposed else vector // gcd(vector, self.op.stride[-1])
        rows = ([step * n for n in (1, 2, 4, 8)] for step in steps[:-1])
        for results in product(*rows, [least * n for n in (1, 2, 4)]):
            if prod(results) > most:
                continue
            way = Way(alongs, results, self.outputs)
            for share in shares:
                if ceil(self.inputs / share) * taps > CHAIN and share < _SHARES[-1]:
                    continue
                most_ahead = max(1, min(_MOST_AHEAD // way.accesses(vector), ceil(self.inputs / share)))
                aheads = [n for n in range(1, most_ahead + 1) if self.inputs % n == 0]
                for own in aheads if ahead is None else [ahead]:
                    if tile := self._tile(way, vector, share, own):
                        yield tile

    def seconds(self, tile: Tile, rates: Machine) -> float:
        """Expected time of the arithmetic with ``tile``: every turn waits.

        Also of a tile whose weights are loaded one by one.
        """
        absent = 3 - self.op.rank
        alongs = along_axes(self.op, self.kernel, tile.phased[absent:])
        results = tile.results[absent:]
        way = Way(alongs, results, tile.outputs)
        count = self.samples * self.op.groups * ceil(self.outputs / tile.outputs)
        count *= prod(ceil(n / own) for n, own in zip(self.lengths, results, strict=True))
        blocks = ceil(count * max(1, tile.shares) / tile.threads)
        waves = ceil(blocks / (tile.blocks * rates.multiprocessors))
        threads = min(tile.blocks, ceil(blocks / rates.multiprocessors)) * tile.threads
        work = tile.outputs * prod(results) * prod(map(_mean_taps, alongs))
        weights = (
            words(self.kernel, tile.outputs, tile.outputs) // 4 if tile.shares else tile.outputs * prod(self.kernel)
        )
        # Lanes read this many elements apart, and an access takes as many lines of L1.
        step = self.op.stride[-1]
        apart = results[-1] // step if self.op.transposed else results[-1] * step
        work += _ACCESS * (way.accesses(tile.vector) * max(tile.vector, min(32, apart)) + weights)
        turn = _TURN_SECONDS + 2 * tile.ahead * work * threads * rates.multiprocessors / (_TURN_FLOPS * rates.flops)
        chunks = ceil(self.inputs / weights_kept((tile,), self.kernel, self.inputs, self.outputs)) if tile.shares else 0
        once = chunks * _KEPT_SECONDS + (_SUMS_SECONDS if tile.shares > 1 else 0.0)
        return waves * (ceil(self.inputs / (max(1, tile.shares) * tile.ahead)) * turn + once)

    @lru_cache(maxsize=1024)  # noqa: B019 - of all convolutions that are equal; fusion asks again of every group
    def tiles(self) -> tuple[Tile, ...]:
        """A tile for each width of an access, the widest first; none where weights or sums do not fit.

        All of them take the same turns: what is added up in which order must not depend on where tensors lie.
        """
        most = words(self.kernel, self.outputs, self.outputs) * _SHARES[-1]
        if self.inputs == 1 or self.outputs > MOST_OUTPUTS or most > _KEPT:
            return ()
        rates = machine(DEFAULT_TARGET)

        def cost(tile: Tile) -> tuple[float, int]:
            return self.seconds(tile, rates), prod(tile.results)

        best = {vector: min(self._candidates(vector, _SHARES), key=cost, default=None) for vector in (4, 2, 1)}
        likely = next((tile for tile in best.values() if tile and self.lengths[-1] % tile.results[2] == 0), best[1])
        if likely is None:
            return ()
        alike = [min(self._candidates(v, (likely.shares,), likely.ahead), key=cost, default=None) for v in best]
        found = tuple(tile for tile in alike if tile)
        return found if found and found[-1].vector == 1 else ()
