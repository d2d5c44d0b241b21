"""Every spelling of the vocabulary becomes IR, not an eager node, and means what torch means by it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusegen import interpret
from fusegen.ir import EagerOp, ExpandOp, InterpolateOp
from fusegen.trace import load_model_file
from tests.models import traced, write

SPELLINGS = {
    "arithmetic": """
        x + 1
        torch.add(x, x, alpha=2)
        torch.add(x, 3, alpha=2)
        1 - x
        torch.rsub(x, x * 2, alpha=3)
        x.sub(x * 2, alpha=3)
        torch.subtract(x, 1)
        torch.multiply(x, 2)
        2 / x
        torch.true_divide(x, 3)
        torch.divide(x, 3)
        -x
        torch.negative(x)
        torch.positive(x)
        x.absolute()
        x.add(1).mul_(2).sub_(3).div_(4)
        torch.lerp(x, x * 2, 0.3)
        torch.lerp(x, x * 2, 0.8)
        torch.lerp(x, x * 2, x)
        torch.addcmul(x, x, x, value=0.5)
        torch.addcdiv(x, x, x + 1, value=0.5)
        x * x.shape[2]
        x / (x.shape[2] * x.shape[3])
        torch.sign(x)
        torch.sgn(x)
        x.floor() + x.ceil() + x.round() + x.trunc() + x.frac()
        torch.fmod(x, 0.7)
        torch.fmod(x, x * 2 - 1)
        x % 0.3
        torch.remainder(x, -0.3)
        torch.remainder(x, x * 3 - 1)
        torch.hypot(x, x * 2)
        torch.copysign(x, x - 0.5)
        torch.heaviside(x, x * 2)
        torch.heaviside(x, x[0, 0, 0, :1])
        torch.fmax(x, x.sqrt())
        torch.fmax(x.sqrt(), x)
        torch.fmin(x, x.sqrt())
        torch.fmin(x.sqrt(), x * 2)
        torch.deg2rad(x)
        torch.rad2deg(x)
        torch.linspace(-1, 1, 5) * x
        torch.linspace(0.1, 7, 4)[:, None, None] + x
        torch.linspace(3, -2.5, 1001)
    """,
    "powers": """
        x ** 2
        x ** 3
        x ** 4
        x ** -2
        x ** -1
        x ** 0.5
        x ** -0.5
        x ** 1.5
        x ** 0
        x ** 1
        2 ** x
        torch.pow(x, x)
        x.square() + x.sqrt() + x.rsqrt() + x.reciprocal()
        x.exp() + x.exp2() + x.expm1()
        x.log() + x.log2() + x.log10() + x.log1p()
        x.sin() + x.cos() + x.tan() + x.sinh() + x.cosh() + x.atan() + x.asinh()
        x.asin() + x.acos() + x.atanh()
        (x + 1).acosh() + torch.atan2(x, x * 2 - 1)
        x.erf() + x.erfc()
        torch.special.erf(x) + torch.special.erfc(x) + torch.special.log1p(x)
        torch.logaddexp(x, x * 2) + torch.logaddexp2(x, x * 2)
        torch.xlogy(x, x * 2) + torch.special.xlog1py(x, x * 2)
        torch.special.xlogy(x, x.flip(0) - 0.2)
        torch.special.xlogy(x * 0, x - 0.2)
        torch.special.xlogy(x, 0.3)
        torch.special.xlogy(x, -0.5)
        torch.special.xlogy(x * 0, 0)
        torch.special.xlogy(0, x - 0.2)
        torch.special.xlogy(-2, x - 0.2)
        torch.special.xlog1py(x * 0, x - 2)
        torch.special.xlog1py(x.flip(0), x)
        torch.special.xlog1py(0, x - 2)
        torch.special.xlog1py(x, 0.5)
        torch.special.entr(x)
        torch.special.entr(x * 0)
        torch.special.entr(-x)
        torch.special.ndtr(x)
        torch.special.ndtr(x * 3)
        torch.logit(x)
        torch.logit(x, 0.1)
        torch.special.expit(x)
    """,
    "scans": """
        x.cumsum(1)
        torch.cumsum(x, dim=-1)
        torch.cumprod(x, 2)
        x.flip(1)
        torch.flip(x, (0, -1))
        torch.fliplr(x) + torch.flipud(x)
        x.flip(3).cumsum(3).flip(3)
    """,
    "truth values and counts": """
        x.any()
        x.all()
        (x > 0.5).any(1)
        (x > 0.5).all(-1, keepdim=True)
        torch.any(x, 2)
        torch.all(x.relu(), 2)
        torch.any(x > 0.8, dim=(0, 2))
        torch.all(x < 1.2, dim=(1, -1), keepdim=True)
        torch.where((x > 1).any(1, keepdim=True), x, 0.0)
        x.count_nonzero() / 2
        x.relu().count_nonzero(1).float()
        torch.count_nonzero(x > 0.5, dim=(0, 2)) * 0.5
        x / (x > 0.5).sum((0, -1), keepdim=True)
        torch.nanmean(x)
        x.sqrt().nanmean(1)
        (x / 0).nanmean((0, -1), keepdim=True)
        torch.trapz(x)
        torch.trapz(x, dx=0.5)
        torch.trapezoid(x, dx=3, dim=1)
    """,
    "vector norms": """
        x.norm()
        x.norm(p=1, dim=1)
        x.norm(p=3, dim=1)
        torch.norm(x, dim=(1, 2), keepdim=True)
        torch.norm(x, float('inf'), dim=2)
        torch.linalg.vector_norm(x, ord=2.5, dim=(1, 2))
        torch.linalg.vector_norm(x, ord=-1, dim=1, keepdim=True)
        torch.linalg.matrix_norm(x)
        torch.linalg.norm(x)
        torch.linalg.norm(x, dim=(1, 2))
        F.normalize(x, p=3, dim=1)
        F.normalize(x)
    """,
    "places of extremes": """
        x.argmax(1)
        torch.argmin(x, dim=-1, keepdim=True)
        x.argmax()
        torch.argmin(x, keepdim=True)
        x.max(2)[1]
        torch.min(x, 0, keepdim=True).indices
    """,
    "bounds": """
        torch.max(x, torch.tensor(0.5))
        torch.maximum(x, x * 2)
        torch.min(x, x * 2)
        x.clamp(0.1, 0.5)
        x.clamp(min=0.1)
        x.clamp_max(0.1)
        x.clamp_min(0.1)
        torch.clip(x, 0, 1)
        x.clamp(x * 0.5, x * 2)
        x.clamp(min=x.mean(1, keepdim=True))
        torch.clamp_min(x, x * 2)
        F.hardtanh(x)
        nn.Hardtanh(-2, 3)(x)
        F.relu6(x)
        F.threshold(x, 0.3, 20.0)
        nn.Threshold(0.3, 2)(x)
        torch.nan_to_num(x)
    """,
    "activations": """
        F.relu(x * 2, inplace=True)
        nn.ReLU(inplace=True)(x * 1.5)
        nn.ReLU6()(x)
        nn.LeakyReLU(0.2)(x)
        F.elu(x)
        nn.ELU(0.5)(x)
        F.celu(x)
        nn.CELU(0.7)(x)
        nn.SELU()(x)
        nn.GELU()(x)
        nn.GELU('tanh')(x)
        nn.SiLU()(x)
        nn.Sigmoid()(x)
        F.logsigmoid(x)
        nn.LogSigmoid()(x)
        nn.Hardsigmoid()(x)
        nn.Tanh()(x)
        F.softplus(x)
        nn.Softplus(2, 10)(x)
        nn.Softsign()(x)
        nn.Mish()(x)
        nn.Hardswish()(x)
        nn.Tanhshrink()(x)
        nn.Hardshrink(0.7)(x)
        nn.Softshrink(0.3)(x)
        F.glu(x, 1)
        nn.GLU(-3)(x)
        F.prelu(x, torch.ones(1) * 0.3)
        F.rrelu(x, training=False)
    """,
    "losses": """
        F.mse_loss(x, x * 2)
        F.mse_loss(x, x * 2, reduction='none')
        F.mse_loss(x, x[:, :1] * 2, reduction='sum')
        F.l1_loss(x, x * 2)
        F.smooth_l1_loss(x, x * 2, beta=0.5)
        F.huber_loss(x, x * 2, delta=0.5)
        F.kl_div(x, x * 2, reduction='batchmean')
        F.kl_div(x, x * 2, reduction='batchmean', log_target=True)
        F.binary_cross_entropy_with_logits(x, x * 2)
        F.soft_margin_loss(x, x * 2)
        F.hinge_embedding_loss(x, x * 2 - 1)
        F.margin_ranking_loss(x, x * 2, x.sign())
        F.cosine_embedding_loss(x[:, :, 0, 0], x[:, :, 1, 1], x[:, 0, 0, 0])
        F.triplet_margin_loss(x, x * 2, x + 1)
        F.poisson_nll_loss(x, x * 2)
        F.cross_entropy(x, x.softmax(1))
        F.cosine_similarity(x, x + 1, dim=1)
        F.pairwise_distance(x, x + 1)
        nn.CosineSimilarity(2)(x, x + 1)
        nn.L1Loss()(x, x * 2)
    """,
    "products": """
        torch.outer(x[0, 0, 0], x[1, 0, 0])
        torch.dot(x[0, 0, 0], x[1, 0, 0])
        torch.mv(x[0, 0], x[1, 0, 0])
        torch.matmul(x, x[1, 0, 0])
        x[1, 0, 0] @ x.mT
        x[0, 0, 0] @ x[1, 0].mT
        torch.matmul(x[0, 0, 0], x[1, 0, 0])
        torch.linalg.vecdot(x, x * 2)
        torch.linalg.multi_dot([x[0, 0], x[0, 0].mT, x[0, 0]])
        torch.kron(x[0, 0], x[1, 1])
        torch.tensordot(x, x[:, 0], dims=([0, 2, 3], [0, 1, 2]))
        torch.tensordot(x, x[:, 1], dims=([3, 0], [2, 0]))
        torch.tensordot(x, x[0, 0].mT, dims=1)
        torch.tensordot(x[0, 0], x[1, 1], dims=0)
        torch.tensordot(x, x, dims=4)
        torch.cov(x.flatten(1))
        x[0, 0].cov(correction=0)
        torch.cov(x[0, 0, 0])
        torch.corrcoef(x.flatten(2)[0])
        x[:, 0, 0].corrcoef()
        torch.addbmm(x[0, 0, 0], x[0], x[1].mT[:, :, :5])
        torch.addbmm(x[0, 0], x[0], x[1].mT @ x[2], beta=0.5, alpha=2)
        torch.addbmm(x[0, 0], x[0], x[1].mT @ x[2], beta=0)
        torch.cross(x.tanh(), x.flip(0).tanh(), dim=0)
        torch.cross(x[..., :3].sin(), x[..., 2:].tanh(), dim=-1)
        torch.linalg.cross(x[..., :3].tanh(), x[:1, ..., 2:].sin())
        torch.linalg.cross(torch.where(x.isinf(), x, x.tanh())[:, :3], x[:, 1:].tanh(), dim=1)
    """,
    "choices": """
        torch.where(x > 0, x, 0.0)
        torch.where(x > 0, 1.0, 0.0) * x
        torch.where(x > 0, 2.0, x)
        x.where(x > 0, x * 2)
        x.masked_fill(x > 0.5, 0)
        x.masked_fill(x > 0.5, float('-inf'))
        x.masked_fill(x > 0.5, torch.tensor(3.0))
        (x > 0).float()
        (x > 0).to(x.dtype) * x
        (x > 0) * x
        x * (x >= 0.5)
        ((x >= 0.5) & (x < 0.9)).float()
        ((x > 0.5) | (x < 0.1)).float()
        (~(x > 0.5)).float()
        ((x > 0.5) ^ (x < 0.7)).type_as(x)
        torch.logical_and(x > 0.1, x < 0.9)
        torch.logical_or(x, x < 0.9)
        torch.logical_not(x)
        torch.logical_xor(x > 0.5, x > 0.7)
        (x == x) != (x <= 0.5)
        torch.gt(x, 0.5)
        torch.less(x, 0.5)
        x.isnan().float() + torch.isinf(x).float() + torch.isfinite(x).float()
        torch.isposinf(x)
        torch.isneginf(x)
        x.isposinf().float() - x.isneginf().float()
        x.bool().float()
        F.hardshrink(x, 0.3) + F.softshrink(x, 0.2)
        torch.nansum(x, 1)
    """,
    "constants": """
        torch.ones_like(x) * x
        torch.zeros_like(x) + x
        torch.full_like(x, 3.0) + x
        torch.full((1,), 2.0) * x
        torch.ones(5) * x
        torch.zeros(1, 4, 1, 1) + x
        x.new_zeros(5) + x
        x.new_full((1,), 2.0) * x
        torch.tensor(2.0) * x
        torch.tensor([2.0, 2.0, 2.0, 2.0, 2.0]) * x
        torch.full_like(x, 2.0)
    """,
    "shapes": """
        x.view(x.size(0), -1)
        x.flatten(1, 2)
        x.ravel()
        x.permute(0, 2, 3, 1)
        x.transpose(1, 2)
        x.mT
        x.swapaxes(1, 2)
        x.movedim(1, -1)
        torch.movedim(x, (0, 1), (2, 0))
        x[:, None]
        x.mean(2, keepdim=True).squeeze(2)
        x.unsqueeze(0).expand(2, -1, -1, -1, -1)
        x.expand_as(x)
        x.repeat(1, 2, 1, 1)
        x.tile(2, 1)
        x.repeat_interleave(2)
        x.repeat_interleave(3, dim=1)
        torch.repeat_interleave(x, 2, -1)
        torch.rot90(x)
        torch.rot90(x, 1, (2, 3))
        torch.rot90(x, 2, (3, 1))
        torch.rot90(x, -1, (0, 2))
        torch.rot90(x, 4, (0, 2))
        F.interpolate(x, scale_factor=2, mode='nearest-exact')
        F.interpolate(x, scale_factor=(3, 2), mode='nearest-exact')
        F.interpolate(x.flatten(2), scale_factor=5, mode='nearest-exact')
        F.interpolate(x[None], (3 * x.shape[1], x.shape[2], 7 * x.shape[3]), mode='nearest-exact')
        F.pixel_shuffle(x, 2)
        F.pixel_unshuffle(x[..., :4], 2)
        F.interpolate(x, scale_factor=2)
        F.interpolate(x, scale_factor=(3, 2))
        F.interpolate(x.flatten(2), scale_factor=5)
        F.interpolate(x[:, :, None], (1, 2 * x.shape[2], 6 * x.shape[3]))
        nn.UpsamplingNearest2d(scale_factor=4)(x)
        F.channel_shuffle(x, 2)
        x.unflatten(1, (2, 2))
        nn.Flatten()(x)
    """,
    "parts": """
        torch.cat([x, x * 2], 1)
        torch.concat([x, x], dim=-1)
        torch.stack([x, x], 1)
        torch.hstack([x, x])
        x[:, :2]
        x[:, 0]
        x[:, -1]
        x[..., ::2, 1:]
        x[:, 1:2]
        x.narrow(1, 0, 2)
        x.select(1, 2)
        x.split(1, 1)[1]
        x.chunk(2, 1)[1]
        torch.split(x, [1, 3], 1)[1]
        x.unbind(1)[0]
        F.pad(x, (1, 1, 2, 0))
        F.pad(x, (1, 1), value=2.0)
        nn.ZeroPad2d(1)(x)
        nn.ConstantPad2d(1, 0.5)(x)
        torch.roll(x, 1, 1)
        torch.roll(x, (-3, 9), (1, 1))
        torch.roll(x, (2, -1), (2, 3))
        F.pad(x, (1, 2, 3, 0), mode="reflect")
        F.pad(x, (0, 2, 1, 3), mode="replicate")
        F.pad(x, (1, 5, 0, 2), mode="circular")
        nn.ReflectionPad2d(3)(x)
        nn.ReplicationPad1d(2)(x[0])
        nn.CircularPad2d(2)(x)
        F.interpolate(x, scale_factor=2, mode="bilinear")
        F.interpolate(x, scale_factor=(4, 2), mode="bilinear")
        F.interpolate(x, scale_factor=(3, 1), mode="bilinear")
        F.interpolate(x, (x.shape[3], 9), mode="bilinear")
        F.interpolate(x, x.shape[2:], mode="bilinear")
        F.interpolate(x, (1, 7), mode="bilinear", align_corners=True)
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)(x)
        nn.UpsamplingBilinear2d((5, 4))(x)
        F.interpolate(x, (7, x.shape[2]))
        F.interpolate(x.flatten(2), 7, mode="linear", align_corners=True)
        F.interpolate(x.flatten(2), scale_factor=4, mode="linear")
        F.interpolate(x[None], (5, 7, 3), mode="trilinear")
        F.interpolate(x[None], scale_factor=2, mode="trilinear")
        x.unfold(3, 2, 2)
        x.unfold(1, 3, 3) * 2
        x.unfold(3, 3, 1)
        x.unfold(-2, 4, 2) + 1
        x.unfold(2, 3, 1).unfold(3, 2, 2)
        F.unfold(x, 3, padding=1)
        F.unfold(x, (2, 3), dilation=(3, 1), padding=(1, 0), stride=(1, 2))
        F.unfold(x[0], (3, 2), stride=(3, 2))
        nn.Unfold(1, stride=2)(x)
        x[0, 0, :, :5] @ x.mT
        x @ x[:1].mT
        x[:, 1:2] @ x.mT
        x[0] @ x.mT
        x @ x[:, 0].mT[:1]
        x[:, None] @ x[:2, :, None].mT[0]
        F.fold(x.flatten(2), (5, 13), (1, 2), stride=(1, 2))
        F.fold(x.flatten(2), (6, 7), 2)
        F.fold(x.flatten(2), (12, 5), (4, 1), dilation=(2, 1))
        F.fold(x[0].flatten(1), (9, 5), 2, stride=(2, 1), padding=1)
    """,
    "einsum": """
        torch.einsum('bchw,bchv->bcwv', x, x[..., :3])
        torch.einsum('bchw,bkhw->bck', x, x)
        torch.einsum('bchw,bchw->wb', x, x)
        torch.einsum('bchw,bchw->', x, x)
        torch.einsum('bchw, bw -> bhc', x, x[:, 0, 0])
        torch.einsum('bc,hw->hbcw', x[:, :, 0, 0], x[0, 0])
        torch.einsum('bchw,bcuw,bchu->bwh', x, x, x @ x.mT)
        torch.einsum('bclh,bcsh,bls,bsh->bhl', x, x, x[:, 0] @ x[:, 1].mT, x[:, 0])
        torch.ops.aten.einsum('bchw,bcuw,bchu->bwh', [x, x, x @ x.mT], path=[0, 2, 0, 1])
        torch.ops.aten.einsum('bclh,bcsh,bls,bsh->bhl', [x, x, x[:, 0] @ x[:, 1].mT, x[:, 0]], path=[0, 1, 0, 2, 0, 1])
    """,
    "convolutions": """
        F.conv2d(x, x[:2, :, :3, :3], padding='same')
        F.conv2d(x, x[:2, :, :4, :3], padding='same', dilation=(1, 2))
        F.conv2d(x, x[:2, :, :4, :2], padding='valid')
        F.conv2d(x[0], x[:2, :, :3, :3], x[0, 0, 0, :2], padding=1)
        F.conv_transpose2d(x[0], x[1, :, None, :3, :3].expand(4, 2, 3, 3))
        F.conv1d(x[:, :, 0], x[:2, :, 1, :4], padding='same')
    """,
    "pools": """
        F.max_pool2d(x, 2)
        F.avg_pool2d(x, 2)
        nn.MaxPool2d(3, 2, 1)(x)
        nn.MaxPool2d((3, 2), (1, 2), (1, 0), dilation=(1, 2))(x)
        nn.AvgPool2d(3, 2, 1, count_include_pad=False)(x)
        F.avg_pool2d(x, 2, divisor_override=3)
        F.max_pool2d(x, 2, ceil_mode=True)
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)
        F.max_pool2d(x, 2, return_indices=True)[0]
        F.adaptive_avg_pool2d(x, 1)
        F.adaptive_avg_pool2d(x, (4, 3))
        F.adaptive_avg_pool2d(x, (2, 2))
        F.adaptive_max_pool2d(x, 1)
        F.adaptive_max_pool2d(x, (2, 3))
        nn.AdaptiveAvgPool2d((None, 1))(x)
        F.avg_pool1d(x.flatten(1, 2), 2)
        F.max_pool1d(x.flatten(1, 2), 2)
        F.adaptive_avg_pool1d(x.flatten(1, 2), 3)
        F.avg_pool3d(x.unsqueeze(0), 2)
        F.max_pool3d(x.unsqueeze(0), 2)
        F.lp_pool2d(x, 2, 2)
    """,
}
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, 30.0, -30.0, 1e30, -1e30, float("inf"), float("-inf"), float("nan"))


def spellings(family: str) -> list[str]:
    return [line.strip() for line in SPELLINGS[family].strip().splitlines()]


@pytest.mark.parametrize("family", SPELLINGS)
def test_every_spelling_is_imported(family: str, tmp_path: Path) -> None:
    """One model returns them all; values agree on ordinary numbers and on those at the edges."""
    lines = spellings(family)
    path = write(tmp_path, "return (\n" + ",\n".join(lines) + ",\n)", inputs="torch.rand(3, 4, 6, 5)")
    graph = traced(path).graph
    assert [node.op.target for node in graph.nodes if isinstance(node.op, EagerOp)] == []
    model = load_model_file(path).model_class()
    special = torch.tensor(SPECIAL).repeat(26)[: 3 * 4 * 6 * 5].reshape(3, 4, 6, 5)
    for x in (torch.randn(3, 4, 6, 5), special):
        for line, found, expected in zip(lines, interpret.run(graph, [x], {}), model(x.clone()), strict=True):
            assert found.dtype == expected.dtype, line
            torch.testing.assert_close(found, expected, equal_nan=True, msg=lambda m, line=line: f"{line}: {m}")


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("(x > 0).to(torch.uint8).any(1)", "aten.any.dim"),  # which is a number, too
        ("torch.any(x, dim=())", "aten.any.dims"),  # along no axis
        ("F.interpolate(x, (7, 9), mode='nearest-exact')", "aten._upsample_nearest_exact2d.vec"),
        ("torch.linspace(0, 9, 4, dtype=torch.long)", "aten.linspace.default"),
        ("torch.linspace(-3e38, 3e38, 4)", "aten.linspace.default"),  # steps of infinity
        ("torch.special.ndtr(x.half())", "aten.special_ndtr.default"),
        ("torch.xlogy(x.half(), x.half())", "aten.xlogy.Tensor"),
        ("x.count_nonzero(1)", "aten.count_nonzero.default"),
    ],
)
def test_what_an_op_means_otherwise_is_left_to_torch(body: str, left: str, tmp_path: Path) -> None:
    graph = traced(write(tmp_path, f"return {body}, x + 1", inputs="torch.rand(3, 4, 6, 5)")).graph
    assert left in [node.op.target for node in graph.nodes if isinstance(node.op, EagerOp)]


@pytest.mark.parametrize(("size", "spread"), [("4 * x.shape[3]", True), ("25 * x.shape[3]", False), ("9", False)])
def test_an_element_is_repeated_where_torch_repeats_each_as_often(size: str, spread: bool, tmp_path: Path) -> None:
    """Elsewhere, and where torch rounds the place of a source element down, every element has a place of its own."""
    path = write(tmp_path, f"return F.interpolate(x, (x.shape[2], {size}))", inputs="torch.rand(3, 4, 5, 6)")
    graph = traced(path).graph
    assert any(isinstance(node.op, ExpandOp) for node in graph.nodes) == spread
    assert any(isinstance(node.op, InterpolateOp) for node in graph.nodes) != spread
    x = torch.randn(3, 4, 5, 6)
    assert torch.equal(interpret.run(graph, [x], {})[0], load_model_file(path).model_class()(x))
