"""Matrix products in kernels of their own; the portable one is a contraction."""

from __future__ import annotations

from math import ceil
from typing import Literal

from fusegen.costs.attention import AttentionTile
from fusegen.costs.tensor_gemm import LONGEST_CHAIN, ProductForm
from fusegen.costs.viewproduct import ViewTile
from fusegen.dims import Dim
from fusegen.ir import DType, Frozen
from fusegen.plan.rowprogram import Operand, RowProgram

_MOST_COLUMNS = 64


class _BatchedProduct(Frozen):
    """Product of a matrix [height, inputs] and a weight, or of a batch of those.

    In the epilogue ``outer`` is the row, ``l`` the feature.
    """

    source: str
    weight: str
    weight_transposed: bool
    """The weight is stored as [outputs, inputs], else as [inputs, outputs]."""
    weight_batched: bool = False
    """Every matrix of the batch has a weight of its own."""
    height: Dim
    """Rows, of all matrices."""
    lines: Dim
    """Rows of a matrix: fewer than ``height`` where tiles keep to one."""
    inputs: Dim
    outputs: Dim
    rows: RowProgram


class Triangle(Frozen):
    """Where a matrix has results that count: up to its diagonal, moved by ``diagonal`` columns, or from it on."""

    upper: bool
    diagonal: int
    mirrored: bool = False
    """The other side has the same results, turned: they are stored twice."""


class GemmPlan(_BatchedProduct):
    """Such a product on sm_90a, but for the shortest sums on its tensor cores."""

    template: Literal["gemm_sm90"] = "gemm_sm90"
    before: RowProgram | None = None
    """What happens to every value of the source, ``v``, before its products; ``l`` counts the inputs."""
    source_transposed: bool = False
    """Every matrix of the source is stored as [inputs, rows]."""
    form: ProductForm = "prepared"
    beside: bool = False
    """In place, a warp finishes several rows side by side, not one by one."""
    cluster: int = 1
    """Blocks side by side that share the prepared rows of a tile."""
    summed: bool = False
    """Its results are added up: partial sums leave the tensor cores, which truncate, after every step."""
    averaged: bool = False
    """Its results are added up: what truncation takes from each on average is given back."""
    widths: tuple[int, ...]
    """Rows of a tile, ascending: the last for all heights above the others."""
    instructions: tuple[int, ...]
    """Columns of the products' instructions."""
    group: int = 0
    """Neighbouring features that reductions run along, each group for itself: then a row is one of those
    of a row, ``outer`` counts groups, and ``l`` is the feature within one. 0: all features."""
    triangle: Triangle | None = None
    """Of every matrix, where products are needed: its other tiles are finished without."""

    @property
    def batched(self) -> bool:
        return self.lines != self.height


class SimtGemmPlan(_BatchedProduct):
    """Such a product in plain fp32, whose results are finished one by one, or whole rows by a block or a cluster."""

    template: Literal["gemm_simt"] = "gemm_simt"
    widths: tuple[int, ...]
    """Rows of a block, ascending: the last for any number of them."""
    features: int
    """Of a block."""
    own: int
    """Features of a warp, where it reads along the inputs."""
    parts: int
    """Warps, or threads, that share the terms of a sum."""
    steps: int
    """Of four terms of each of these threads, whose loads may be on their way at a time."""
    blocks: int = 0
    """Of a cluster that finishes whole rows, as many as ``widths`` has; 0: results are finished one by one."""
    few: bool
    """There are so few products that it costs nothing to add them up in double."""
    double: bool
    """What follows is arithmetic, in double too."""


class HalfGemmPlan(Frozen):
    """The same product of 16-bit floats, with a pointwise epilogue in fp32."""

    template: Literal["gemm_half_sm90"] = "gemm_half_sm90"
    source: str
    weight: str
    weight_transposed: bool
    """The weight is stored as [outputs, inputs], else as [inputs, outputs]."""
    height: Dim
    inputs: int
    outputs: int
    dtype: DType
    rows: RowProgram

    @property
    def instruction(self) -> str:
        """The element type as the instructions name it."""
        return {DType.BFLOAT16: "bf16", DType.FLOAT16: "f16"}[self.dtype]


class NarrowPlan(Frozen):
    """Product of a matrix [height, inputs] and a weight of few outputs, in plain fp32.

    In the epilogue ``outer`` is the row, ``l`` the feature.
    """

    template: Literal["linear_narrow"] = "linear_narrow"
    source: str
    weight: str
    weight_transposed: bool
    """As in ``GemmPlan``."""
    height: Dim
    inputs: int
    outputs: int
    rows_at_once: int
    """Rows of a warp."""
    warps: int
    resident: int
    """Blocks of a multiprocessor."""
    rows: RowProgram


class FactorElement(Frozen):
    """An element of a factor, or what becomes of a result: statements over its numbers, and the value."""

    rows: RowProgram
    value: str
    lanes: Literal["k", "side"]
    """Along which neighbouring threads read: neighbours in memory, as far as operands have them."""
    near: tuple[str, ...] = ()
    """Operands that neighbouring columns have side by side."""


class ViewProductPlan(Frozen):
    """Products of a batch of matrices, in plain fp32, whose factors are computed as they are read.

    Elements of ``left`` are over ``matrix``, ``row`` and ``k``, of ``right`` over ``matrix``, ``k`` and ``column``; the
    epilogue is over ``matrix``, ``row`` and ``column``, of a result ``v``.
    """

    template: Literal["gemm_views"] = "gemm_views"
    matrices: Dim
    lines: Dim
    """Rows of a matrix."""
    inputs: Dim
    outputs: Dim
    tile: ViewTile
    left: FactorElement
    right: FactorElement
    rows: RowProgram
    reach: tuple[Dim, ...]
    """Elements of operands and result, over binding names: indices of 32 bits serve where these do."""

    @property
    def chained(self) -> bool:
        """True when a sum is one chain of additions: of no more terms than are allowed."""
        return isinstance(self.inputs, int) and self.inputs <= LONGEST_CHAIN

    @property
    def resident(self) -> int:
        """Blocks of a multiprocessor: threads have registers for their results, and for sums of a chunk beside them."""
        if self.tile.rows * self.tile.columns > 16:
            return 2
        return 4 if self.chained else 3

    @property
    def sizes(self) -> tuple[str, ...]:
        """Bindings that any of the statements mentions."""
        return tuple(sorted({*self.left.rows.sizes, *self.right.rows.sizes, *self.rows.sizes}))

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Of both factors and of the epilogue."""
        return (*self.left.rows.operands, *self.right.rows.operands, *self.rows.operands)


class AttentionPlan(Frozen):
    """Two products of a batch of matrices, on tensor cores with factors split into halves, and what is between them.

    Elements of ``query`` are over ``matrix``, ``row`` and ``k``, of ``key`` over ``matrix``, ``k`` and ``column``, of
    ``value`` likewise, where ``k`` counts the keys. ``weighed`` makes of a score ``v`` of ``matrix``, ``row`` and
    ``column`` what the softmax reads, or without one the factor of a value; so does the epilogue of a result ``v``.
    """

    template: Literal["attention"] = "attention"
    matrices: Dim
    lines: Dim
    """Rows of a matrix."""
    keys: Dim
    inputs: int
    outputs: int
    softmax: bool
    safe: bool
    """A row of which no score counts is zero."""
    masked: bool
    """Some scores may not count, whatever they are: parts of nothing but those are left out."""
    tile: AttentionTile
    wgmma: bool = False
    """On the asynchronous tensor cores of sm_90a."""
    query: FactorElement
    key: FactorElement
    value: FactorElement
    weighed: FactorElement
    rows: RowProgram
    reach: tuple[Dim, ...]
    """As in ``ViewProductPlan``."""

    @property
    def resident(self) -> int:
        """Blocks of a multiprocessor."""
        return self.tile.resident(self.inputs, self.outputs)

    @property
    def instructions(self) -> tuple[int, ...]:
        """Columns of the instructions of both products: of the second, parts that registers have room for."""
        return tuple(sorted({self.tile.keys, self.part}))

    @property
    def part(self) -> int:
        """Columns of the result that are computed at once: of equal parts, at most ``_MOST_COLUMNS``."""
        return ceil(self.outputs / ceil(self.outputs / _MOST_COLUMNS) / 8) * 8

    @property
    def _programs(self) -> tuple[RowProgram, ...]:
        return (self.query.rows, self.key.rows, self.value.rows, self.weighed.rows, self.rows)

    @property
    def sizes(self) -> tuple[str, ...]:
        """Bindings that any of the statements mentions."""
        return tuple(sorted({size for program in self._programs for size in program.sizes}))

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Of all statements."""
        return tuple(operand for program in self._programs for operand in program.operands)
