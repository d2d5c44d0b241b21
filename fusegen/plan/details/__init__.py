"""What each kernel template needs to know: its constants, geometry and row program."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from fusegen.plan.details.boxes import ConvBoxesPlan
from fusegen.plan.details.contractions import (
    ABSENT_AXIS,
    ContractionAxis,
    ContractionPlan,
    ConvApartPlan,
    DirectConvPlan,
    DirectReduction,
    EagerAxis,
    PlainConvPlan,
    PositionResult,
    StatisticsPlan,
    SweepPlan,
)
from fusegen.plan.details.conv_sm90 import (
    HopperConvPlan,
    InPlacePlan,
    PartTaps,
    Product,
    ProductGroup,
    TapResidue,
    TapStep,
    WindowPlan,
)
from fusegen.plan.details.products import (
    AttentionPlan,
    FactorElement,
    GemmPlan,
    HalfGemmPlan,
    NarrowPlan,
    SimtGemmPlan,
    Triangle,
    ViewProductPlan,
)
from fusegen.plan.details.recurrent import RecurrencePlan
from fusegen.plan.details.rows import (
    AxisSumPlan,
    AxisTapSums,
    AxisWindowSums,
    CountedDigit,
    HeldRows,
    JoinedPart,
    PointwisePlan,
    PoolAxis,
    PoolData,
    Pooling,
    PoolPlan,
    RowReducePlan,
    RowStreamPlan,
    ScanPlan,
    TurnedTile,
    ViewReducePlan,
    WindowAxis,
    WindowBounds,
    WindowSumPlan,
)

Detail: TypeAlias = Annotated[
    PointwisePlan
    | PoolPlan
    | WindowSumPlan
    | AxisSumPlan
    | ContractionPlan
    | ConvApartPlan
    | ConvBoxesPlan
    | DirectConvPlan
    | PlainConvPlan
    | HopperConvPlan
    | GemmPlan
    | HalfGemmPlan
    | NarrowPlan
    | SimtGemmPlan
    | AttentionPlan
    | ViewProductPlan
    | ViewReducePlan
    | RecurrencePlan
    | RowReducePlan
    | RowStreamPlan
    | ScanPlan,
    Field(discriminator="template"),
]

__all__ = [
    "ABSENT_AXIS",
    "AttentionPlan",
    "AxisSumPlan",
    "AxisTapSums",
    "AxisWindowSums",
    "ContractionAxis",
    "ContractionPlan",
    "ConvApartPlan",
    "ConvBoxesPlan",
    "CountedDigit",
    "Detail",
    "DirectConvPlan",
    "DirectReduction",
    "EagerAxis",
    "FactorElement",
    "GemmPlan",
    "HalfGemmPlan",
    "HeldRows",
    "HopperConvPlan",
    "InPlacePlan",
    "JoinedPart",
    "NarrowPlan",
    "PartTaps",
    "PlainConvPlan",
    "PointwisePlan",
    "PoolAxis",
    "PoolData",
    "PoolPlan",
    "Pooling",
    "PositionResult",
    "Product",
    "ProductGroup",
    "RecurrencePlan",
    "RowReducePlan",
    "RowStreamPlan",
    "ScanPlan",
    "SimtGemmPlan",
    "StatisticsPlan",
    "SweepPlan",
    "TapResidue",
    "TapStep",
    "Triangle",
    "TurnedTile",
    "ViewProductPlan",
    "ViewReducePlan",
    "WindowAxis",
    "WindowBounds",
    "WindowPlan",
    "WindowSumPlan",
]
