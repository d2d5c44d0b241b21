"""Norms, softmaxes, reductions, poolings and what surrounds them: ``python benchmarks/norms.py OUT.json [NAME ...]``.

Chains of the shapes that follow a convolution or a linear layer, side by side (``side_by_side.py``), with the share of
the time that reading the input once and writing the result once takes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from side_by_side import model_text, run

NONE = "nn.Identity()"
CHAINS: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "group_norm_hardswish": ("nn.GroupNorm(16, 64)", "F.hardswish(self.n(x))", (128, 64, 128, 128)),
    "group_norm_relu": ("nn.GroupNorm(8, 64)", "F.relu(self.n(x))", (32, 64, 128, 128)),
    "group_norm_sigmoid_mean": ("nn.GroupNorm(8, 64)", "self.n(x.relu()).sigmoid().mean((2, 3))", (32, 64, 128, 128)),
    "group_norm_3d": ("nn.GroupNorm(8, 24)", "F.hardswish(self.n(x))", (32, 24, 24, 32, 32)),
    "group_norm_features": ("nn.GroupNorm(256, 8192)", "F.silu(self.n(x))", (1024, 8192)),
    "instance_norm": ("nn.InstanceNorm2d(64)", "self.n(x) / 2", (64, 64, 128, 128)),
    "instance_norm_126": ("nn.InstanceNorm2d(64)", "F.relu(self.n(x))", (64, 64, 126, 126)),
    "instance_norm_127": ("nn.InstanceNorm2d(64)", "self.n(x) / 2", (64, 64, 127, 127)),
    "instance_norm_63": ("nn.InstanceNorm2d(64)", "self.n(x) / 2", (256, 64, 63, 63)),
    "instance_norm_14": ("nn.InstanceNorm2d(512)", "self.n(x) / 2", (256, 512, 14, 14)),
    "instance_norm_512": ("nn.InstanceNorm2d(32)", "self.n(x) / 2", (8, 32, 512, 512)),
    "instance_norm_3d": ("nn.InstanceNorm3d(32)", "F.leaky_relu(self.n(x)) + 1", (16, 32, 30, 62, 62)),
    "batch_norm_relu": ("nn.BatchNorm2d(128)", "F.relu(self.n(x))", (128, 128, 66, 66)),
    "batch_norm_tanh": ("nn.BatchNorm2d(64)", "self.n(x).tanh()", (32, 64, 128, 128)),
    "batch_norm_127": ("nn.BatchNorm2d(64)", "self.n(x).relu()", (32, 64, 127, 127)),
    "batch_norm_relu_mean": ("nn.BatchNorm2d(64)", "self.n(x).relu().mean((2, 3))", (64, 64, 128, 128)),
    "batch_norm_features": ("nn.BatchNorm1d(8192)", "F.gelu(self.n(x)).relu()", (1024, 8192)),
    "batch_norm_features_tall": ("nn.BatchNorm1d(4096)", "F.gelu(self.n(x)).relu()", (16384, 4096)),
    "layer_norm_image": ("nn.LayerNorm([64, 128, 128])", "F.gelu(self.n(x))", (32, 64, 128, 128)),
    "layer_norm_features": ("nn.LayerNorm(8192)", "F.silu(self.n(x))", (1024, 8192)),
    "layer_norm_64": ("nn.LayerNorm(64)", "self.n(x + 0.5)", (16, 32, 32, 64, 64)),
    "layer_norm_64_pool": ("nn.LayerNorm(64)", "F.gelu(F.avg_pool3d(self.n(x + 0.5), 2))", (16, 32, 32, 64, 64)),
    "rms_channels": (
        NONE,
        "x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-5)",
        (64, 64, 128, 128),
    ),
    "softmax_space": (NONE, "x.flatten(2).softmax(-1).view_as(x)", (64, 64, 128, 128)),
    "softmax_channels": (NONE, "F.sigmoid(x.softmax(1) * 2)", (64, 64, 126, 126)),
    "softmax_many_channels": (NONE, "x.softmax(1)", (16, 4096, 32, 32)),
    "softmax_features": (NONE, "F.gelu(x).softmax(-1)", (4096, 8192)),
    "gelu_mean": (NONE, "F.gelu(x).mean((2, 3))", (128, 128, 64, 64)),
    "relu_sum_rows": (NONE, "F.relu(x).sum(2)", (64, 64, 128, 128)),
    "max_channels_mean": (NONE, "x.amax(1).mean((1, 2))", (64, 64, 128, 128)),
    "sum_of_squares": (NONE, "x.square().sum()", (64, 64, 128, 128)),
    "max_pool": (NONE, "F.max_pool2d(F.relu(x), 2)", (64, 64, 128, 128)),
    "max_pool_overlapping": (NONE, "F.max_pool2d(x, 3, 2, 1).tanh()", (64, 64, 128, 128)),
    "mean_pool": (NONE, "F.avg_pool2d(F.gelu(x), 2)", (64, 64, 126, 126)),
    "adaptive_mean_pool": (NONE, "F.adaptive_avg_pool2d(F.relu(x), 8)", (64, 64, 128, 128)),
    "max_pool_3d_sum": (NONE, "F.max_pool3d(x, 2).sum(1, keepdim=True)", (16, 32, 30, 62, 62)),
    "softmax_10_channels": (NONE, "(x * 2).softmax(1)", (128, 10, 112, 112)),
    "softmax_128_channels_odd": (NONE, "x.softmax(1) + 0.5", (64, 128, 45, 45)),
    "softmax_512_channels": (NONE, "x.softmax(1)", (32, 512, 32, 32)),
    "softmax_32": (NONE, "x.softmax(-1)", (16, 64, 16, 32, 32)),
    "softmax_64": (NONE, "x.softmax(-1)", (32, 64, 128, 64)),
    "softmax_128": (NONE, "x.softmax(-1)", (131072, 128)),
    "log_softmax_1000": (NONE, "x.log_softmax(1)", (16384, 1000)),
    "softmax_4100": (NONE, "F.gelu(x).softmax(-1)", (4096, 4100)),
    "logsumexp_channels": (NONE, "x.logsumexp(1, keepdim=True).relu()", (64, 64, 64, 64)),
    "logsumexp_16": (NONE, "x.logsumexp(-1)", (64, 64, 128, 16)),
    "max_32": (NONE, "(0.5 - x * 2).amax(-1).tanh()", (16, 64, 16, 32, 32)),
    "max_126": (NONE, "x.amax(-1).tanh()", (16, 64, 126, 126)),
    "sum_62": (NONE, "x.relu().sum(-1)", (64, 64, 62, 62)),
    "min_16_channels": (NONE, "x.amin(1, keepdim=True).tanh().tanh()", (128, 16, 64, 128)),
    "max_3_channels": (NONE, "x.amax(1)", (112, 3, 224, 224)),
    "var_channels": (NONE, "x.var(1)", (64, 64, 64, 64)),
    "normalize_channels": (NONE, "F.normalize(x, dim=1)", (64, 64, 64, 64)),
    "layer_norm_small_images": ("nn.LayerNorm([16, 32, 32])", "self.n(x).relu()", (1024, 16, 32, 32)),
    "layer_norm_768": ("nn.LayerNorm(768)", "F.gelu(self.n(x))", (32, 512, 768)),
    "layer_norm_1023": ("nn.LayerNorm(1023)", "F.gelu(self.n(x))", (16384, 1023)),
    "layer_norm_5000": ("nn.LayerNorm(5000)", "F.silu(self.n(x))", (4096, 5000)),
    "instance_norm_8": ("nn.InstanceNorm2d(256)", "self.n(x) / 2", (1024, 256, 8, 8)),
    "instance_norm_32": ("nn.InstanceNorm2d(128)", "self.n(x) / 2", (128, 128, 32, 32)),
    "instance_norm_64": ("nn.InstanceNorm2d(64)", "self.n(x) / 2", (64, 64, 64, 64)),
    "instance_norm_256": ("nn.InstanceNorm2d(32)", "self.n(x) / 2", (8, 32, 256, 256)),
    "group_norm_16": ("nn.GroupNorm(32, 256)", "F.silu(self.n(x))", (256, 256, 16, 16)),
    "group_norm_32": ("nn.GroupNorm(8, 64)", "F.silu(self.n(x))", (256, 64, 32, 32)),
    "batch_norm_16": ("nn.BatchNorm2d(256)", "self.n(x).relu()", (256, 256, 16, 16)),
    "batch_norm_32": ("nn.BatchNorm2d(128)", "self.n(x).relu()", (128, 128, 32, 32)),
    "batch_norm_512": ("nn.BatchNorm1d(512)", "self.n(x).relu()", (32768, 512)),
    "max_pool_odd": (NONE, "F.max_pool2d(x, 2)", (16, 64, 127, 127)),
    "max_pool_4": (NONE, "F.max_pool2d(x.relu(), 4)", (16, 64, 128, 128)),
    "mean_pool_overlapping": (NONE, "F.avg_pool2d(x, 3, 2, 1).sigmoid()", (16, 64, 128, 128)),
    "mean_pool_4": (NONE, "F.avg_pool2d(x, 4).sigmoid()", (16, 64, 128, 128)),
    "max_pool_3d": (NONE, "F.max_pool3d(x, 2)", (16, 32, 32, 32, 32)),
    "max_pool_3d_3": (NONE, "F.max_pool3d(x, 3)", (16, 32, 30, 33, 33)),
    "adaptive_mean_pool_7": (NONE, "F.adaptive_avg_pool2d(x, 7)", (64, 64, 56, 56)),
    "mean_all": (NONE, "x.mean((2, 3), keepdim=True).sigmoid()", (64, 256, 32, 32)),
    "logsumexp_space": (NONE, "x.logsumexp((2, 3))", (64, 64, 64, 64)),
    "sum_samples": (NONE, "x.relu().sum((1, 2, 3))", (128, 128, 32, 32)),
    "softmax_samples": (NONE, "x.flatten(1).softmax(1)", (256, 65536)),
}


def main() -> int:
    texts = {}
    for name in sys.argv[2:] or CHAINS:
        norm, result, shape = CHAINS[name]
        texts[name] = model_text(f"self.n = {norm}", f"return {result}", shape)
    return run(texts, Path(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
