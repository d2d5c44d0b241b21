"""Kernels along rows, windows and elements of a tensor."""

from __future__ import annotations

from typing import Literal

from fusegen.dims import Dim
from fusegen.ir import Frozen
from fusegen.plan.rowprogram import Divider, Operand, Position, Reduction, RowProgram


class TurnedTile(Frozen):
    """Elements ``from + f * step + n``, of which ``operands`` have those of neighbouring ``f`` side by side, and the
    result those of neighbouring ``n``. Sizes are over binding names."""

    near: Dim
    far: Dim
    step: Dim
    positions: tuple[Position, ...]
    """Those of the rows over ``from``, ``f`` and ``n``, in place of divisions for every element."""
    operands: tuple[str, ...]


class CountedDigit(Frozen):
    """The position ``name`` = index / stride % size, over binding names: it counts from an element to the next one.

    ``by`` and ``end`` divide by a stride, and by a size, that are sizes of the call.
    """

    name: str
    stride: Dim
    size: Dim | None
    """None where there are no more elements than these."""
    by: str = ""
    end: str = ""


class JoinedPart(Frozen):
    """Of a result that is joined: where ``test`` holds, it is ``value``, which follows from these operands and
    statements. Guards of the operands are those beside ``test``.
    """

    test: str
    value: str
    operands: tuple[Operand, ...]
    statements: tuple[str, ...]


class PointwisePlan(Frozen):
    """An elementwise kernel over the output's elements, one access of each thread.

    ``rows`` has one phase of element statements; its operands' and stores' ``index`` are C++ over
    ``index``, the element. ``vector_args`` are the operands indexed by ``index`` itself: loaded as
    16-byte vectors where alignment allows.
    """

    template: Literal["pointwise"] = "pointwise"
    elements: Dim
    """Element count over binding names."""
    vector_args: tuple[str, ...] = ()
    reach: tuple[Dim, ...] = ()
    """Element counts of operands that may have more than the result."""
    run: Dim | None = None
    """Elements of the result, from every multiple of it on, between which positions and conditions are the same and
    operands lie ``step`` apart."""
    long_run: int = 0
    """Elements of a run from which on few warps cross its end; 0: no access begins in one run and ends in the next."""
    run_by: str = ""
    """What tells in which run an access begins, where its length is known at a launch only."""
    line: Dim | None = None
    """Elements of the result, from every multiple of it on, of whose positions the last one alone differs, by one."""
    counted: tuple[CountedDigit, ...] = ()
    """Positions that are digits of ``index``, divided once for all elements of a thread."""
    dividers: tuple[Divider, ...] = ()
    """What those are divided by."""
    joined: tuple[JoinedPart, ...] = ()
    """Parts of the result, of which a run computes its own alone."""
    tile: TurnedTile | None = None
    """Operands that lie in another order than the result are read in tiles, in theirs, and turned on chip."""
    rows: RowProgram


class WindowBounds(Frozen):
    """The positions of an axis from ``start`` on that lie below ``stop``, a size over binding names."""

    start: int
    stop: Dim


class WindowAxis(Frozen):
    """One axis of a window-sum kernel (three, innermost last; absent axes have kernel 1, one full window)."""

    kernel: int
    step: int
    """Of the positions in a window."""
    windows: tuple[WindowBounds, ...]
    tap_window: tuple[int, ...]
    """Tap -> index of its window."""
    full: bool
    """One window, the whole axis at any length."""
    size: Dim
    """Length over binding names."""
    least: int
    """Shortest length at which the convolution has an output."""


class WindowSumPlan(Frozen):
    """One-launch collapse of a convolution under a mean or sum over all its spatial axes."""

    template: Literal["window_sum"] = "window_sum"
    transposed: bool
    mean: bool
    """Divide by ``positions``, the number of the convolution's output positions."""
    positions: Dim
    rank: int
    in_channels: int
    out_channels: int
    groups: int
    axes: tuple[WindowAxis, WindowAxis, WindowAxis]
    source: str
    weight: str
    batch: Dim
    threads: int
    min_blocks: int
    """Resident blocks of a multiprocessor to leave registers for."""
    unroll: int
    """Independent loads in flight per thread."""
    rows: RowProgram


class AxisWindowSums(Frozen):
    """``source`` [outer, before, axis, inner] summed over windows of the axis.

    ``result`` is [outer, windows, before, inner].
    """

    source: str
    result: str
    outer: Dim
    before: Dim
    inner: Dim
    axis: WindowAxis
    divisor: Dim
    """What every sum is divided by: the convolution's output positions along the axis, or 1."""


class AxisTapSums(Frozen):
    """``weight`` [first, second, before, taps, inner], taps of one window added up, windows beside input channels.

    ``result`` is [first, second, windows, before, inner], ``transposed`` [first, windows, second, before, inner].
    """

    weight: str
    result: str
    transposed: bool
    first: int
    second: int
    before: int
    inner: int
    tap_window: tuple[int, ...]


class AxisSumPlan(Frozen):
    """What a mean or sum of a convolution over one axis needs of its input and its weights, in one launch."""

    template: Literal["axis_sum"] = "axis_sum"
    windows: int
    sums: AxisWindowSums | None
    taps: AxisTapSums | None


class ViewReducePlan(Frozen):
    """Reductions of what is computed as it is read: an element over ``row`` and ``k``, its number in the row.

    What follows from a row is over ``row`` and the reductions' names.
    """

    template: Literal["reduce_views"] = "reduce_views"
    lines: Dim
    """Rows, over binding names."""
    length: Dim
    """Elements of a row."""
    run: Dim | None
    """Elements of a row, from every multiple of it on, that differ in ``k`` alone: operands lie ``step`` apart."""
    strided: bool
    """Neighbouring rows lie side by side in memory, not neighbouring elements of one."""
    elements: RowProgram
    reductions: tuple[Reduction, ...]
    rows: RowProgram
    dividers: tuple[Divider, ...]
    """What positions are divided by."""
    counts: tuple[tuple[str, Dim], ...]
    """Elements of operands that not every element is read from, over binding names."""
    reach: tuple[Dim, ...]
    """Elements of operands, rows and result, over binding names: indices of 32 bits serve where these do."""

    @property
    def counters(self) -> int:
        """Groups of rows that several blocks share, at most."""
        return 2048

    @property
    def sizes(self) -> tuple[str, ...]:
        """Bindings that any of the statements mentions."""
        return tuple(sorted({*self.elements.sizes, *self.rows.sizes}))

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Of the elements and of what follows from a row."""
        return (*self.elements.operands, *self.rows.operands)

    @property
    def indices(self) -> tuple[str, ...]:
        """Arguments that say where elements of others are."""
        return tuple(sorted({*self.elements.indices, *self.rows.indices}))


class RowReducePlan(Frozen):
    """Pointwise and reductions along one axis of [outer, length, inner], read once, written once."""

    template: Literal["row_reduce"] = "row_reduce"
    source: str
    """The operand that is read first, in whole vectors; none where an element is read in parts of several accesses, or
    is one of a part that is cut out of an operand."""
    wide: bool
    """Accesses of 16 bytes are used where lengths and addresses allow."""
    vectors: tuple[str, ...]
    """Operands, by name, that are read by them as well: their elements lie as those of the source do."""
    ahead: tuple[str, ...]
    """Operands in ``vectors``, names too, that are read before the first statement."""
    apart: tuple[Dim, ...]
    """Over binding names: what has to be whole accesses then, too."""
    outer: Dim
    inner: Dim
    strided: bool
    """True when ``inner`` can exceed 1: lanes run along ``inner``."""
    parts: tuple[int, int]
    """Threads that share one row, for scalar and for 16-byte accesses."""
    lanes: tuple[int, int]
    """Rows side by side in a block, likewise."""
    abreast: int
    """Rows that lie side by side where these are less than a line of memory, else 0: a power of two, of which threads
    side by side have one each; the next ones take what follows in the same rows."""
    resident: int
    """Resident threads of a multiprocessor to leave registers for."""
    turned: bool
    """Rows that are read side by side are stored as rows: 16 bytes along them at a time."""
    double: bool
    """Values are kept and computed in double."""
    paired: bool
    """Elements are computed of pairs of operands' elements, which other rows read again."""
    together: bool
    """A thread has several neighbouring rows of few elements, which are whole accesses together."""
    ragged: bool
    """Accesses of 16 bytes touch neighbouring rows: these are no whole number of them long."""
    rows: RowProgram


class HeldRows(Frozen):
    """Contiguous rows in registers: ``parts`` threads share ``rows`` of them, each with ``slots`` accesses to a row.

    An access is of ``vec`` elements.
    """

    vec: int
    parts: int
    slots: int
    rows: int


class RowStreamPlan(Frozen):
    """Rows of any length in [outer, before, middle, run, inner], a row being [before, run].

    A pass over the row for each phase; element statements are computed again in every phase that needs
    them. ``kept`` names the operands that several passes read. ``middle`` is 1 where rows are one run.
    """

    template: Literal["row_stream"] = "row_stream"
    outer: Dim
    before: Dim
    middle: Dim
    run: Dim
    inner: Dim
    strided: bool
    """True when ``inner`` can exceed 1: threads side by side take neighbouring rows."""
    abreast: int
    """As of ``RowReducePlan``."""
    kept: tuple[str, ...]
    unroll: tuple[int, int]
    """Accesses in flight per thread, scalar and of 16 bytes."""
    alone: bool
    """Runs of rows that are no whole accesses are taken element by element, for they are short."""
    apart: tuple[Dim, ...]
    """Over binding names: what is whole accesses if these are to be of 16 bytes, but for numbers that are."""
    held: HeldRows | None
    """How rows of about the length as traced are computed, where they are many."""
    double: bool
    """Values are computed in double."""
    rows: RowProgram


class ScanPlan(Frozen):
    """Scans along the rows of [outer, length, inner], with the chains before and after them.

    ``rows`` has two phases: what is scanned, and what follows from the scans.
    """

    template: Literal["scan"] = "scan"
    outer: Dim
    length: Dim
    inner: Dim
    strided: bool
    """True when ``inner`` can exceed 1: threads side by side take neighbouring rows."""
    items: int
    """Elements of a row in a thread's registers, for every operand and scan."""
    rows: RowProgram


class PoolAxis(Frozen):
    """One pooled axis; ``size`` and ``output`` are its lengths over binding names."""

    kernel: int
    stride: int
    padding: int
    dilation: int
    size: Dim
    output: Dim
    clipped: bool
    """Some window may reach past the input."""


class PoolData(Frozen):
    """A tensor with planes of elements like those that are pooled, which runs of neighbours are read of."""

    name: str
    """In the chain before the pooling."""
    arg: str
    start: str = ""
    """C++ of where what plane number ``plane`` has begins, if it does not follow what the one before has."""
    spread: bool = False
    """Several planes have the same."""


class Pooling(Frozen):
    """What one of the poolings of a kernel makes of its windows."""

    fn: Literal["max", "mean"]
    value: str
    """C++ of what it gets of an element."""
    name: str


class PoolPlan(Frozen):
    """Maxima or means over the same windows, with the chains before and after them.

    ``before`` runs on every element read, ``after`` on every result; their texts are over ``plane``, the
    position along the axes before the pooled ones, and ``z``, ``y`` and ``x``, those along the pooled axes.
    """

    template: Literal["pool"] = "pool"
    pools: tuple[Pooling, ...]
    adaptive: bool
    """Windows that cover the axis, of lengths known at run time."""
    axes: tuple[PoolAxis, PoolAxis, PoolAxis]
    planes: Dim
    rows_are_planes: bool
    """One pooled axis: the middle axis is the planes."""
    count_include_pad: bool
    fixed_count: int | None
    """What every sum for a mean is divided by, where that is one number."""
    vectors: tuple[int, ...]
    """Neighbouring elements that one aligned access reads, the widest first."""
    outputs: tuple[int, ...]
    """For each of them: results of a thread, one below the other."""
    ragged: int
    """The one of them with which a row's last results do not fill a thread's, where traced rows are so; else 0."""
    unrolled: bool
    """A thread reads the windows of several results without a loop,"""
    by_rows: bool
    """of which it holds one row at a time."""
    data: tuple[PoolData, ...]
    before: RowProgram
    after: RowProgram
    of_plane: tuple[str, ...]
    """Values of ``before``, operands and what follows from them, that are the same all over a plane,"""
    of_row: tuple[str, ...]
    """along a row of it,"""
    of_column: tuple[str, ...]
    """and, operands only, at a place of any row: where a thread reads rows in whole."""
    apart: bool
    """No two windows share an element, or an access of 16 bytes (at the traced sizes, if adaptive)."""
