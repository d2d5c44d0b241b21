"""What a block of ``conv_sm90.cu.j2`` has, and how much of it is taken."""

from __future__ import annotations

BARRIER_BYTES = 1024
REGISTERS = {4: (112, 32), 3: (160, 32), 2: (232, 40)}
"""Warpgroups of consumers: registers of a thread of theirs and of the producers."""

Triple = tuple[int, int, int]


def triple(values: list[int]) -> Triple:
    z, y, x = values
    return z, y, x


def cluster_of(split: int, stream: bool) -> int:
    """Blocks side by side: the ``split`` that share a row, else the two that share weights on their way."""
    return split if split > 1 else 2 if stream else 1


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
