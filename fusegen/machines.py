"""The machines that plans are made for: rates that well-written kernels reach on them."""

from __future__ import annotations

from dataclasses import dataclass

from fusegen.errors import TargetError

SECTOR, LINE = 8, 32
"""Floats of what memory and L2 exchange, and of a line of it."""


@dataclass(frozen=True)
class Machine:
    """Rates that a well-written kernel reaches (not datasheet peaks), per second; seconds per launch.

    sm_90: measured on an H200 (streaming read, cuBLAS TF32 and bf16, fp32 multiply-add); others scaled by
    the vendor's datasheets.
    """

    bandwidth: float
    flops: float
    tensor_flops: float
    half_flops: float
    """Of products of 16-bit floats."""
    mma_flops: float
    """Of TF32 products by mma.sync, which Hopper runs slower than its own asynchronous instructions."""
    multiprocessors: int
    launch: float
    wgmma: bool = False
    """Has the tensor cores of sm_90a."""


MACHINES: dict[str, Machine] = {
    "sm_90": Machine(
        bandwidth=4.35e12,
        flops=51e12,
        tensor_flops=417e12,
        half_flops=661e12,
        mma_flops=200e12,
        multiprocessors=132,
        launch=2.5e-6,
        wgmma=True,
    ),
    "sm_80": Machine(
        bandwidth=1.75e12,
        flops=17e12,
        tensor_flops=130e12,
        half_flops=260e12,
        mma_flops=110e12,
        multiprocessors=108,
        launch=2.5e-6,
    ),
}
DEFAULT_TARGET = "sm_90"


def machine(target: str) -> Machine:
    """The rates of a target. Raises ``TargetError`` for one without a table entry."""
    found = MACHINES.get(target)
    if found is None:
        raise TargetError(f"unknown target {target!r}", hint=f"known targets: {', '.join(MACHINES)}")
    return found
