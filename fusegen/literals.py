"""Numbers as C++ and as Python text."""

from __future__ import annotations

import math
import struct

_LARGEST = 3.4028235677973366e38  # halfway past the largest float32: rounds to infinity


def hex_float(value: float) -> str:
    """A ``float`` literal with the exact value of ``value`` rounded to float32."""
    if math.isnan(value):
        return "NAN"
    if abs(value) >= _LARGEST:
        return "INFINITY" if value > 0 else "-INFINITY"
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    if rounded.is_integer() and abs(rounded) < 2**24:
        return f"{rounded:.1f}f"
    mantissa, _, exponent = rounded.hex().partition("p")
    return f"{mantissa.rstrip('0').rstrip('.')}p{exponent}f"


def integer(value: int) -> str:
    """An integer literal, ready to stand in any expression."""
    if value == -(2**63):
        return "INT64_MIN"
    return f"({value})" if value < 0 else str(value)


def python_float(value: float) -> str:
    """A Python expression with the value of ``value``; infinities and NaN need no name in scope."""
    return repr(value) if math.isfinite(value) else f'float("{value}")'
