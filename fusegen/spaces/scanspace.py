"""Rows that are scanned: which nodes go into a kernel with scans along one axis."""

from __future__ import annotations

from fusegen import dims
from fusegen.ir import ConstOp, Graph, InputOp, PointwiseOp, ScanOp
from fusegen.spaces.rowspace import NotFusable, analyze
from fusegen.spaces.viewspace import VIEWS

MAX_SCANS = 4
"""Of a kernel: what a thread's registers and a block's 48 KiB of shared memory have room for."""


def takes(body: Graph) -> bool:
    return any(isinstance(node.op, ScanOp) for node in body.nodes)


def check(body: Graph) -> None:
    """Raises ``NotFusable`` where no kernel has all of ``body``: scans of one axis, none of which needs another."""
    after: set[str] = set()
    for node in body.nodes:
        if not isinstance(node.op, (InputOp, ConstOp, PointwiseOp, ScanOp, *VIEWS)):
            raise NotFusable(f"{node.name} ({node.op.kind}) has a kernel without scans")
        if after & set(node.inputs):
            if isinstance(node.op, ScanOp):
                raise NotFusable(f"{node.name} needs a whole scan of its row before")
            after.add(node.name)
        elif isinstance(node.op, ScanOp):
            after.add(node.name)
    scans = [node for node in body.nodes if isinstance(node.op, ScanOp)]
    if len(scans) > MAX_SCANS:
        raise NotFusable(f"{scans[-1].name} is one scan more than a kernel has room for")
    space = analyze(body)
    for node in scans:
        assert isinstance(node.op, ScanOp)
        along = space.axes[node.name][node.op.axis]
        if not along or list(along) != sorted(along):
            raise NotFusable(f"{node.name} runs along no axis of the data, or in another order")
    if dims.product(space.shape[axis] for axis in space.middle_axes) != 1:
        raise NotFusable("a scan runs along axes that are apart")
    if any(not space.is_element(name) for name in body.outputs):
        raise NotFusable("a result has one value for a whole row")
