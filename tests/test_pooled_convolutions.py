"""Mean poolings of transposed convolutions and of norms: when they go into the convolution, and when not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusegen.compiler import Compiled, compile_file
from fusegen.ir import ConvOp, Node, PoolOp, RegionOp
from tests.models import all_nodes, write

INIT = """self.m, self.n = nn.ConvTranspose3d(3, 16, 3, 2, 1), nn.BatchNorm3d(16)
self.k = nn.ConvTranspose3d(3, 16, 3, 2, 1, bias=False)"""
READ_ELSEWHERE = "the convolution's output is read elsewhere too"
LARGE, SMALL = "torch.rand(64, 3, 32, 32, 32)", "torch.rand(2, 3, 6, 7, 8)"


def _compiled(tmp_path: Path, body: str, drawn: str = LARGE) -> tuple[Compiled, list[Node]]:
    """The compilation of a model that returns ``body``, and all nodes of its program."""
    compiled = compile_file(write(tmp_path, body, INIT, drawn))
    return compiled, all_nodes(compiled)


def _convolutions(nodes: list[Node]) -> list[ConvOp]:
    return [node.op for node in nodes if isinstance(node.op, ConvOp)]


def _pools_data(nodes: list[Node]) -> bool:
    return any(isinstance(node.op, PoolOp) and not isinstance(node.type.shape[0], int) for node in nodes)


@pytest.mark.parametrize(
    "pooled", ["F.avg_pool3d(F.avg_pool3d(y, 2), 2)", "F.avg_pool3d(y, 4)", "F.avg_pool3d(y, 4) * 2"]
)
def test_one_convolution_is_left(pooled: str, tmp_path: Path) -> None:
    _, nodes = _compiled(tmp_path, f"y = self.m(x)\nreturn {pooled}")
    (conv,) = _convolutions(nodes)
    assert not conv.transposed
    assert conv.precise
    assert conv.stride == (2, 2, 2)
    assert not _pools_data(nodes)


def test_of_a_norm_statistics_are_left(tmp_path: Path) -> None:
    compiled, nodes = _compiled(tmp_path, "return F.avg_pool3d(self.n(self.m(x)), 4)")
    assert not _pools_data(nodes)
    assert sorted(conv.transposed for conv in _convolutions(nodes)) == [False, False, True]
    kernels = [node.op.template for node in compiled.program.after.nodes if isinstance(node.op, RegionOp)]
    assert kernels.count("conv_reduce") == 1, "the transposed convolution's results are not written"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = self.k(x)\nreturn F.avg_pool3d(y, 4), y", READ_ELSEWHERE),
        ("y = self.m(x)\nreturn F.avg_pool3d(self.n(y), 4), y.relu()", READ_ELSEWHERE),
        ("return F.avg_pool3d(self.m(x), 3)", "the pooling's stride does not divide the convolution's"),
    ],
)
def test_else_they_stay(body: str, reason: str, tmp_path: Path) -> None:
    compiled, nodes = _compiled(tmp_path, body)
    assert _pools_data(nodes)
    assert any(reason in refusal.reason for refusal in compiled.program.refusals)


@pytest.mark.parametrize("body", ["return F.avg_pool3d(self.m(x), 4)", "return F.avg_pool3d(self.n(self.m(x)), 4)"])
def test_small_ones_stay(body: str, tmp_path: Path) -> None:
    _, nodes = _compiled(tmp_path, body, SMALL)
    assert _pools_data(nodes)
