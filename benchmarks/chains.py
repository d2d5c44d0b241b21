"""Fused-operator models as people write them: ``python benchmarks/chains.py OUT.json [NAME ...]``.

A convolution, transposed convolution or linear layer and two to six operations behind it, side by side
(``side_by_side.py``). None of them is a spec: what the planner does here, it was not tuned on, but for the ``batch``
ones, which show sums over samples.
"""

from __future__ import annotations

import sys
from pathlib import Path

from side_by_side import model_text, run

Chain = tuple[str, str, tuple[int, ...]]
"""Statements of ``__init__``, statements of ``forward(self, x)``, shape of ``x``."""


def _bias(*shape: int) -> str:
    return f"self.b = nn.Parameter(torch.randn{shape})"


CHAINS: dict[str, Chain] = {
    # ---- conv2d
    "c2_relu_bias": (
        f"self.c = nn.Conv2d(64, 128, 3)\n{_bias(128, 1, 1)}",
        "return F.relu(self.c(x)) + self.b",
        (64, 64, 96, 96),
    ),
    "c2_sub_mish": ("self.c = nn.Conv2d(8, 64, 3)", "return F.mish(self.c(x) - 0.5 - 0.2)", (64, 8, 192, 192)),
    "c2_gn_tanh_hs_res_lse": (
        "self.c = nn.Conv2d(8, 64, 3)\nself.n = nn.GroupNorm(16, 64)",
        "y = self.c(x)\nz = F.hardswish(torch.tanh(self.n(y)))\nreturn torch.logsumexp(y + z, 1, keepdim=True)",
        (64, 8, 128, 128),
    ),
    "c2_in_div": (
        "self.c = nn.Conv2d(64, 128, 3)\nself.n = nn.InstanceNorm2d(128)",
        "return self.n(self.c(x)) / 2",
        (64, 64, 96, 96),
    ),
    "c2_bn_scale": (
        "self.c = nn.Conv2d(8, 64, 3)\nself.n = nn.BatchNorm2d(64)",
        "return self.n(self.c(x)) * 2",
        (96, 8, 128, 128),
    ),
    "c2_act_bn": (
        "self.c = nn.Conv2d(64, 128, 3)\nself.n = nn.BatchNorm2d(128)",
        "y = self.c(x)\nreturn self.n(y * torch.tanh(F.softplus(y)))",
        (48, 64, 96, 96),
    ),
    "c2_tanh_scale_bias_pool": (
        f"self.c = nn.Conv2d(8, 64, 3)\n{_bias(64, 1, 1)}",
        "return F.max_pool2d(torch.tanh(self.c(x)) * 2 + self.b, 4)",
        (96, 8, 192, 192),
    ),
    "c2_sub_hs_pool_mish": (
        "self.c = nn.Conv2d(64, 128, 3)",
        "return F.mish(F.max_pool2d(F.hardswish(self.c(x) - 0.5), 2))",
        (96, 64, 96, 96),
    ),
    "c2_avgpool_sigmoid_sum": (
        "self.c = nn.Conv2d(8, 64, 3)",
        "return torch.sigmoid(F.avg_pool2d(self.c(x), 4)).sum((1, 2, 3))",
        (96, 8, 256, 256),
    ),
    "c2_sub_tanh_sub_avg": (
        "self.c = nn.Conv2d(64, 128, 3)",
        "return F.avg_pool2d(torch.tanh(self.c(x) - 0.5) - 0.2, 2)",
        (96, 64, 96, 96),
    ),
    "c2_mul_leaky_gelu": (
        "self.c = nn.Conv2d(64, 64, 3)\nself.m = nn.Parameter(torch.randn(64, 1, 1))",
        "return F.gelu(F.leaky_relu(self.c(x) * self.m))",
        (64, 64, 192, 192),
    ),
    "c2_gelu_gap": (
        "self.c = nn.Conv2d(8, 64, 3)",
        "return F.adaptive_avg_pool2d(F.gelu(self.c(x)), 1).flatten(1)",
        (96, 8, 192, 192),
    ),
    "c2_scale_min": (
        "self.c = nn.Conv2d(64, 128, 3)",
        "return torch.min(self.c(x) * 2, dim=1, keepdim=True)[0]",
        (48, 64, 160, 160),
    ),
    "c2_min_tanh_tanh": (
        "self.c = nn.Conv2d(16, 64, 3)",
        "return torch.tanh(torch.tanh(self.c(x).amin(1, keepdim=True)))",
        (96, 16, 192, 192),
    ),
    "c2_gn_scale_pool_clamp": (
        "self.c = nn.Conv2d(8, 64, 3)\nself.n = nn.GroupNorm(16, 64)\nself.s = nn.Parameter(torch.ones(64, 1, 1))",
        "return torch.clamp(F.max_pool2d(self.n(self.c(x)) * self.s, 4), 0, 1)",
        (96, 8, 128, 128),
    ),
    "c2_div_leaky": ("self.c = nn.Conv2d(8, 64, 3)", "return F.leaky_relu(self.c(x) / 2, 0.01)", (96, 8, 192, 192)),
    "c2_cat_1x1": (
        "self.a = nn.Conv2d(32, 16, 1)\nself.c = nn.Conv2d(32, 48, 3, padding=1)",
        "return torch.cat([F.relu(self.a(x)), F.relu(self.c(x))], 1)",
        (32, 32, 112, 112),
    ),
    "c2_residual": (
        "self.c = nn.Conv2d(64, 64, 3, padding=1)\nself.d = nn.Conv2d(64, 64, 3, padding=1)\n"
        "self.n = nn.BatchNorm2d(64)\nself.m = nn.BatchNorm2d(64)",
        "return F.relu(self.m(self.d(F.relu(self.n(self.c(x))))) + x)",
        (32, 64, 56, 56),
    ),
    "c2_depthwise_hardswish": (
        "self.c = nn.Conv2d(96, 96, 3, padding=1, groups=96)\nself.p = nn.Conv2d(96, 128, 1)",
        "return F.hardswish(self.p(F.hardswish(self.c(x))))",
        (32, 96, 112, 112),
    ),
    "c2_stride_dilation_silu": (
        "self.c = nn.Conv2d(32, 96, 3, 2, 2, 2)",
        "return F.silu(self.c(x)) * 0.5",
        (32, 32, 224, 224),
    ),
    "c2_channel_softmax": ("self.c = nn.Conv2d(32, 64, 3)", "return self.c(x).softmax(1)", (32, 32, 128, 128)),
    "c2_rms": (
        "self.c = nn.Conv2d(32, 64, 3, padding=1)",
        "y = self.c(x)\nreturn F.silu(y * torch.rsqrt(y.pow(2).mean(1, keepdim=True) + 1e-6))",
        (32, 32, 128, 128),
    ),
    # ---- conv3d
    "c3_min_softmax": (
        "self.c = nn.Conv3d(3, 24, 3)",
        "return torch.softmax(torch.min(self.c(x), dim=2)[0], dim=1)",
        (96, 3, 24, 32, 32),
    ),
    "c3_gn_mean": (
        "self.c = nn.Conv3d(3, 24, 3)\nself.n = nn.GroupNorm(8, 24)",
        "return self.n(self.c(x)).mean((1, 2, 3, 4))",
        (96, 3, 24, 32, 32),
    ),
    "c3_softmax_pool_pool": (
        "self.c = nn.Conv3d(3, 16, 3)",
        "return F.max_pool3d(F.max_pool3d(self.c(x).softmax(1), 2), 2)",
        (96, 3, 16, 32, 32),
    ),
    "c3_scale_tanh_sigmoid": (
        f"self.c = nn.Conv3d(3, 16, 3)\n{_bias(16, 1, 1, 1)}",
        "return torch.sigmoid(torch.tanh(self.c(x) * 2) * self.b)",
        (96, 3, 16, 64, 64),
    ),
    "c3_relu_chain_bias": (
        f"self.c = nn.Conv3d(8, 32, 3)\n{_bias(32, 1, 1, 1)}",
        "return torch.sigmoid(F.gelu(F.leaky_relu(F.relu(self.c(x)), 0.01))) + self.b",
        (48, 8, 32, 64, 64),
    ),
    "c3_hs_gn_mean": (
        "self.c = nn.Conv3d(3, 16, 4)\nself.n = nn.GroupNorm(4, 16)",
        "return self.n(F.hardswish(self.c(x))).mean((2, 3, 4))",
        (256, 3, 16, 32, 32),
    ),
    "c3_div_pool_gap_bias_sum": (
        f"self.c = nn.Conv3d(8, 16, 3)\n{_bias(16, 1, 1, 1)}",
        "return (F.adaptive_avg_pool3d(F.max_pool3d(self.c(x) / 2, 2), 1) + self.b).sum(1)",
        (96, 8, 16, 64, 64),
    ),
    "c3_mul_in_clamp_max": (
        "self.c = nn.Conv3d(3, 16, 3)\nself.m = nn.Parameter(torch.randn(16, 1, 1, 1))\nself.n = nn.InstanceNorm3d(16)",
        "return torch.max(torch.clamp(self.n(self.c(x) * self.m), -1, 1) * self.m, dim=1)[0]",
        (96, 3, 16, 32, 32),
    ),
    "c3_lse_relu": (
        "self.c = nn.Conv3d(3, 64, 3, padding=1)",
        "return F.relu(torch.logsumexp(F.max_pool3d(self.c(x), 2), 1, keepdim=True))",
        (4, 3, 32, 128, 128),
    ),
    # ---- transposed 2d
    "ct2_sub_tanh": (
        f"self.c = nn.ConvTranspose2d(64, 64, 4, 2, 1, 1)\n{_bias(64, 1, 1)}",
        "return torch.tanh(self.c(x) - self.b)",
        (16, 64, 128, 128),
    ),
    "ct2_mish_add_hardtanh_scale": (
        "self.c = nn.ConvTranspose2d(64, 64, 3, 2, 1, 1)",
        "return F.hardtanh(F.mish(self.c(x)) + 0.5, -1, 1) * 2",
        (48, 64, 96, 96),
    ),
    "ct2_min_sum_gelu_add": (
        f"self.c = nn.ConvTranspose2d(64, 128, 3, 2, 1, 1)\n{_bias(1, 1, 1)}",
        "y = torch.min(self.c(x), dim=1, keepdim=True)[0]\nreturn F.gelu(y.sum(2, keepdim=True)) + self.b",
        (16, 64, 128, 128),
    ),
    "ct2_gelu_gn": (
        "self.c = nn.ConvTranspose2d(64, 64, 3)\nself.n = nn.GroupNorm(8, 64)",
        "return self.n(F.gelu(self.c(x)))",
        (48, 64, 128, 128),
    ),
    "ct2_bn_tanh_pool_gn": (
        "self.c = nn.ConvTranspose2d(64, 128, 5, 1, 1)\nself.n = nn.BatchNorm2d(128)\nself.g = nn.GroupNorm(8, 128)",
        "return self.g(F.max_pool2d(torch.tanh(self.n(self.c(x))), 2))",
        (96, 64, 32, 32),
    ),
    "ct2_gap_bias_lse": (
        f"self.c = nn.ConvTranspose2d(32, 64, 3)\n{_bias(64, 1, 1)}",
        "return torch.logsumexp(self.c(x).mean((2, 3), keepdim=True) + self.b, 1).sum() * 10",
        (64, 32, 200, 200),
    ),
    "ct2_pool_hardtanh_mean_tanh": (
        "self.c = nn.ConvTranspose2d(64, 64, 3, 1, 1)",
        "return torch.tanh(F.hardtanh(F.max_pool2d(self.c(x), 2), -1, 1).mean((2, 3), keepdim=True))",
        (64, 64, 160, 160),
    ),
    "ct2_add_min_gelu_scale": (
        "self.c = nn.ConvTranspose2d(64, 128, 4, 2)",
        "return F.gelu(torch.min(self.c(x) + 0.5, torch.tensor(0.0, device=x.device))) * 2",
        (32, 64, 64, 64),
    ),
    # ---- transposed 3d
    "ct3_pool_pool_sum": (
        "self.c = nn.ConvTranspose3d(32, 64, 5, 2, 2)",
        "return F.max_pool3d(F.max_pool3d(self.c(x), 2), 3).sum(1, keepdim=True)",
        (16, 32, 24, 24, 24),
    ),
    "ct3_sum_ln_avg_gelu": (
        "self.c = nn.ConvTranspose3d(32, 64, 3, 2, 1, 1)\n"
        "self.w = nn.Parameter(torch.ones(()))\nself.n = nn.LayerNorm(64)",
        "return F.gelu(F.avg_pool3d(self.n(self.c(x) + self.w), 2))",
        (16, 32, 16, 32, 32),
    ),
    "ct3_scale_bn_gap": (
        "self.c = nn.ConvTranspose3d(64, 128, 5)\nself.n = nn.BatchNorm3d(128)",
        "return F.adaptive_avg_pool3d(self.n(self.c(x) * 2), 1)",
        (16, 64, 16, 32, 32),
    ),
    "ct3_clamp_avg_softmax_scale": (
        "self.c = nn.ConvTranspose3d(32, 64, 3, 2, 1, 1)\nself.s = nn.Parameter(torch.ones(1, 64, 1, 1, 1))",
        "y = torch.clamp(self.c(F.avg_pool3d(x, 2)), 0, 1)\nb, c, d, h, w = y.shape\n"
        "return torch.softmax(y.view(b, c, -1), 2).view(b, c, d, h, w) * self.s",
        (16, 32, 32, 64, 64),
    ),
    "ct3_swish_gn_hs": (
        "self.c = nn.ConvTranspose3d(3, 16, 3, 2, 1)\nself.n = nn.GroupNorm(4, 16)",
        "y = self.c(x)\nreturn F.hardswish(self.n(torch.sigmoid(y) * y))",
        (96, 3, 16, 32, 32),
    ),
    "ct3_softmax_sigmoid": (
        "self.c = nn.ConvTranspose3d(32, 64, 3, 2, 1, 1)",
        "return torch.sigmoid(torch.softmax(self.c(x), 1))",
        (16, 32, 16, 32, 32),
    ),
    "ct3_avg_clamp_leaky_mul_pool": (
        "self.c = nn.ConvTranspose3d(16, 32, 3, 2, 1, 1)\nself.m = nn.Parameter(torch.randn(32, 1, 1, 1))",
        "return F.max_pool3d(F.leaky_relu(F.leaky_relu(self.c(x), 0.2) * self.m, 0.2), 2)",
        (16, 16, 16, 32, 32),
    ),
    "ct3_lse_hs_sub_clamp": (
        f"self.c = nn.ConvTranspose3d(3, 16, 3, 2, 1)\n{_bias(1, 1, 1, 1)}",
        "y = torch.logsumexp(self.c(x), 1, keepdim=True)\n"
        "return torch.clamp(y * torch.sigmoid(y + 3) / 6 - self.b, -1, 1)",
        (96, 3, 16, 32, 32),
    ),
    "ct3_max_softmax_sub_swish": (
        "self.c = nn.ConvTranspose3d(3, 16, 3, 2, 1, 1)\nself.s = nn.Parameter(torch.randn(16))",
        "y = torch.softmax(F.max_pool3d(self.c(x), 2), 1) - self.s.view(1, -1, 1, 1, 1)\n"
        "return torch.max(y * torch.sigmoid(y), dim=1)[0]",
        (96, 3, 16, 32, 32),
    ),
    "ct3_batchnorm_sub_mean": (
        "self.c = nn.ConvTranspose3d(16, 32, 3, 2, 1)\nself.n = nn.BatchNorm3d(32)",
        "y = self.n(self.c(x))\nreturn y - y.mean((2, 3, 4), keepdim=True)",
        (16, 16, 16, 32, 32),
    ),
    # ---- linear
    "l_mul_leaky": ("self.l = nn.Linear(8192, 8192)", "return F.leaky_relu(self.l(x) * 2, 0.1)", (1024, 8192)),
    "l_gn_hardtanh": (
        "self.l = nn.Linear(8192, 8192)\nself.n = nn.GroupNorm(16, 8192)",
        "return F.hardtanh(self.n(self.l(x)), -2, 2)",
        (1024, 8192),
    ),
    "l_bn_gelu_relu": (
        "self.l = nn.Linear(4096, 4096)\nself.n = nn.BatchNorm1d(4096)",
        "return F.relu(F.gelu(self.n(self.l(x))))",
        (4096, 4096),
    ),
    "l_swish_div_clamp_tanh": (
        "self.l = nn.Linear(8192, 8192)",
        "y = self.l(x)\nreturn torch.clamp(torch.tanh(torch.clamp(y * torch.sigmoid(y) / 2, -1, 1)), -1, 1)",
        (1024, 8192),
    ),
    "l_max_sub_gelu": (
        "self.l = nn.Linear(8192, 8192)",
        "y = torch.max(self.l(x), 1, keepdim=True).values\nreturn F.gelu(y - y.mean(1, keepdim=True))",
        (1024, 8192),
    ),
    "l_sigmoid_sum_lse": (
        "self.l = nn.Linear(2048, 4096)\nself.m = nn.Linear(4096, 1024)",
        "return torch.logsumexp(self.m(torch.sigmoid(self.l(x))), 1)",
        (8192, 2048),
    ),
    "l_avg_gelu_scale_max": (
        "self.l = nn.Linear(8192, 8192)",
        "return torch.max(F.gelu(F.avg_pool1d(self.l(x).unsqueeze(1), 16).squeeze(1)) * 2, 1).values",
        (1024, 8192),
    ),
    "l_in_residual_mul": (
        "self.l = nn.Linear(8192, 8192)\nself.n = nn.InstanceNorm2d(8192)",
        "y = self.l(x)\nz = self.n(y.unsqueeze(1).unsqueeze(1)).squeeze(1).squeeze(1)\nreturn (z + y) * y",
        (1024, 8192),
    ),
    "l_sub_gap_lse_gelu_res": (
        "self.l = nn.Linear(8192, 8192)\nself.s = nn.Parameter(torch.randn(8192))",
        "y = self.l(x) - self.s\ny = torch.logsumexp(y.mean(1, keepdim=True), 1, keepdim=True)\nreturn F.gelu(y) + x",
        (2048, 8192),
    ),
    "l_dropout_softmax": (
        "self.l = nn.Linear(4096, 8192)\nself.d = nn.Dropout(0.0)",
        "return torch.softmax(self.d(self.l(x)), 1)",
        (1024, 4096),
    ),
    "c2_batch_mean": ("self.c = nn.Conv2d(64, 128, 3)", "return torch.relu(self.c(x).mean(0))", (64, 64, 96, 96)),
    "c1_batch_sum_scale": (
        "self.c = nn.Conv1d(32, 64, 5)",
        "return self.c(x).sum(0, keepdim=True) * 0.5",
        (64, 32, 8000),
    ),
    "t2_batch_rows_mean_tanh": (
        "self.c = nn.ConvTranspose2d(32, 64, 4, 2, 1)",
        "return torch.tanh(self.c(x).mean((0, 2)))",
        (32, 32, 64, 64),
    ),
    "c2_batch_channels_mean_gelu": (
        "self.c = nn.Conv2d(32, 64, 3, padding=1, groups=4)",
        "return F.gelu(self.c(x).mean((0, 1)))",
        (64, 32, 96, 96),
    ),
    "l_mlp": (
        "self.l = nn.Linear(1024, 4096)\nself.m = nn.Linear(4096, 1024)",
        "return x + self.m(F.gelu(self.l(F.layer_norm(x, (1024,)))))",
        (16, 512, 1024),
    ),
    "m_kn_relu": ("self.w = nn.Parameter(torch.randn(4096, 4096) / 64)", "return F.relu(x @ self.w)", (4096, 4096)),
    "m_pool_sum_scale": (
        "self.l = nn.Linear(8192, 8192)",
        "return F.max_pool1d(self.l(x).unsqueeze(1), 2).squeeze(1).sum(1) * 0.5",
        (1024, 8192),
    ),
    "l_bmm_in_sum_res": (
        "self.l = nn.Linear(1024, 1024)",
        "a = torch.softmax(torch.bmm(x, x.transpose(1, 2)) / 32, -1)\nreturn self.l(torch.bmm(a, x)) + x",
        (16, 512, 1024),
    ),
}


def main() -> int:
    names = sys.argv[2:] or list(CHAINS)
    return run({name: model_text(*CHAINS[name]) for name in names}, Path(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
