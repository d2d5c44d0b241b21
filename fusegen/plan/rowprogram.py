"""What happens to the elements of a row, as data: operands, statements in phases, stores."""

from __future__ import annotations

from typing import Literal, TypeAlias

from fusegen.dims import Dim, Dims
from fusegen.ir import DType, Frozen, TensorType

CType: TypeAlias = Literal["float", "bool", "int64_t", "int32_t"]
"""What statements compute."""


class TensorArg(Frozen):
    """A tensor operand of a kernel: its C name (``x0``, ``p1``) and the graph node it holds."""

    name: str
    node: str
    type: TensorType


class Binding(Frozen):
    """A run-time size: ``name`` is the size of axis ``axis`` of tensor operand ``arg``."""

    name: str
    arg: int
    axis: int


class Given(Frozen):
    """A run-time size that no operand has: an integer argument of the kernel. ``size`` is over the graph's symbols."""

    name: str
    size: str


class OutputArg(Frozen):
    """A tensor that a kernel allocates and fills. ``shape`` is over binding names."""

    name: str
    node: str
    dtype: DType
    shape: Dims
    into: str = ""
    """The operand that it is written over instead."""
    part: bool = False
    """It is written into a tensor of more channels (axis 1) that the caller hands over, from one of these on."""


class Count(Frozen):
    """An integer operand that grows by ``addend`` with every launch."""

    arg: str
    addend: int


class Position(Frozen):
    """``ctype name = expr``, an integer that the indices of operands are made of, or a float on the way to it."""

    name: str
    expr: str
    ctype: Literal["Index", "float"] = "Index"


def _is_along_row(index: str) -> bool:
    """Whether the element at ``index`` and its neighbour along the row are neighbours in memory."""
    return index == "l" or index.endswith(" + l")


class Operand(Frozen):
    """A value read from a tensor argument: ``index`` is C++ over ``outer``, ``inner`` and, per element, ``l``."""

    name: str
    arg: str
    index: str
    per_element: bool
    comment: str
    vector: Literal["", "source", "row", "part"] = ""
    """Read at the offsets of the source, at those of the row, or of a part with rows of its own; ``""``: at offsets of
    its own."""
    fixed: str = ""
    """The terms of ``index`` that a row shares. They may divide by sizes of the call, which costs more than a load."""
    along: str = ""
    """Its other terms, over ``l``."""
    by_outer: bool = False
    """What has the same ``outer`` lies together."""
    by_column: bool = False
    """Neighbours along the last axis of the source have elements of their own."""
    guard: str = ""
    """C++ condition under which there is such an element; its value is not used elsewhere."""
    step: str = ""
    """C++ of the distance of two neighbours, where elements are read by runs of the result's."""
    apart: Dims | None = None
    """Of a part that is cut out of the operand: distances in elements that are whole accesses if accesses are to be."""
    flag: bool = False
    """A truth value, a byte in memory: kernels of rows read each by itself."""
    integer: bool = False

    @property
    def divides(self) -> bool:
        """Whether finding a row in it takes divisions."""
        return any(sign in self.fixed for sign in ("/", "%", "divide("))

    @property
    def along_row(self) -> bool:
        """True where neighbours along the row are neighbours in memory, from a whole number of rows on."""
        return not self.flag and _is_along_row(self.index)


class Statement(Frozen):
    """``ctype name = expr``, for each element of the row or once per row.

    ``array``: an element value that later phases read, so it is kept in registers.
    """

    name: str
    ctype: CType
    expr: str
    comment: str
    array: bool = False


class Weighted(Frozen):
    """``name``: the sum of exponentials, each times ``value``, C++ text in element scope."""

    name: str
    value: str


class Reduction(Frozen):
    """``name = fn over the row of value``; ``value`` is C++ text in element scope.

    Two results have ``exponentials``: the maximum, and in ``second`` the sum of exp(value - maximum), and as many more
    as there are ``weighted`` sums of those; ``var``: the variance, and in ``second`` the mean; and ``argmax``: the
    maximum, and in ``second`` its place along the row (an int), ``argmin`` likewise. Of a mean, ``rest`` is what
    rounding it to a float took away.

    Where several blocks share a row: a ``partial`` result covers the block's own elements only, and a
    sum of exponentials with a ``shift`` (a partial maximum, subtracted in each block) is brought to
    the shift of its own block when the blocks' sums are added.
    """

    name: str
    fn: Literal["sum", "max", "min", "prod", "var", "exponentials", "argmax", "argmin"]
    value: str
    comment: str
    second: str = ""
    rest: str = ""
    weighted: tuple[Weighted, ...] = ()
    partial: bool = False
    shift: str | None = None


class Scan(Frozen):
    """``name``, for each element of the row: fn of ``value`` from one end of the row up to it (see ``ir.ScanOp``)."""

    name: str
    fn: Literal["sum", "prod"]
    reverse: bool
    exclusive: bool
    value: str
    comment: str


class Phase(Frozen):
    """Element statements, then the reductions and scans of what they computed, then statements on the results.

    ``loads`` names the element operands that the element statements read.
    """

    loads: tuple[str, ...] = ()
    elements: tuple[Statement, ...] = ()
    reductions: tuple[Reduction, ...] = ()
    scans: tuple[Scan, ...] = ()
    scalars: tuple[Statement, ...] = ()


class Store(Frozen):
    """Writes one result: C++ ``value`` at offset ``index`` of output ``output``.

    ``like_source``: the output is laid out as the kernel's source is, so the offsets are the same.
    """

    output: str
    value: str
    index: str
    per_element: bool
    like_source: bool = False

    @property
    def along_row(self) -> bool:
        """True where neighbours along the row are neighbours in memory."""
        return _is_along_row(self.index)


class Divider(Frozen):
    """``name`` is a position, that along the row for the most part, divided by ``divisor`` (over binding names)."""

    name: str
    divisor: Dim


def divider(known: dict[str, Divider], divisor: Dim) -> Divider:
    """The one of ``known`` for ``divisor``, which has a name of its own from then on."""
    return known.setdefault(str(divisor), Divider(name=f"q{len(known)}", divisor=divisor))


class RowProgram(Frozen):
    """Statements over one row of ``length`` elements (0: known at run time), as a kernel template runs them.

    The template defines, in row scope, ``outer`` and ``inner`` (int64 coordinates of the row); in
    element scope ``l``, the position along the row. ``source`` is the array of the row's elements
    that the template fills first. ``sizes`` are the bindings that some text mentions. Text refers to
    values as the template declares them (see ``plan.rows.Style``).
    """

    length: int
    source: str
    positions: tuple[Position, ...] = ()
    operands: tuple[Operand, ...]
    phases: tuple[Phase, ...]
    stores: tuple[Store, ...]
    sizes: tuple[str, ...] = ()
    indices: tuple[str, ...] = ()
    """Arguments that say where elements of others are."""
    helpers: tuple[str, ...] = ()
    dividers: tuple[Divider, ...] = ()
    """Quotients that some index mentions, where the template divides (see ``plan.stream``)."""
    special: int = 0
    """Special-function operations per element."""
