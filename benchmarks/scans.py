"""Cumulative sums and products, alone and among elementwise work: ``python benchmarks/scans.py OUT.json [NAME ...]``.

Side by side (``side_by_side.py``), with the share of the time that reading the inputs once and writing the results once
takes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from side_by_side import HEADER, run

SCANS: dict[str, tuple[str, tuple[int, ...]]] = {
    "rows": ("x.cumsum(1)", (4096, 8192)),
    "rows_of_4096": ("x.cumsum(1)", (32768, 4096)),
    "short_rows": ("x.cumsum(1)", (1_000_000, 33)),
    "few_long_rows": ("x.cumsum(1)", (8, 1_000_003)),
    "one_row": ("x.cumsum(0)", (20_000_000,)),
    "columns": ("x.cumsum(0)", (4096, 8192)),
    "columns_of_32768": ("x.cumsum(0)", (32768, 4096)),
    "few_columns": ("x.cumsum(0)", (100_000, 16)),
    "channels": ("x.cumsum(1)", (64, 96, 64, 64)),
    "masked": ("(x * mask).cumsum(1)", (4096, 8192)),
    "other_end": ("x.flip(1).cumsum(1).flip(1)", (4096, 8192)),
    "of_what_is_before": ("torch.cat((torch.zeros_like(x[:, :1]), x), 1).cumsum(1)[:, :-1]", (4096, 8192)),
    "masked_other_end": ("(x * mask).flip(1).cumsum(1).flip(1) * 0.5", (4096, 8192)),
    "both_ends": ("x.cumsum(1) + x.flip(1).cumsum(1).flip(1) - x", (4096, 8192)),
    "both_ends_of_long_rows": ("x.cumsum(1) + x.flip(1).cumsum(1).flip(1) - x", (1024, 65536)),
    "product": ("(1 + 1e-3 * x).cumprod(1)", (4096, 8192)),
    "silu_of_mean_so_far": ("F.silu(x.cumsum(1) / torch.ones_like(x[:1]).cumsum(1))", (4096, 8192)),
}


def model(result: str, shape: tuple[int, ...]) -> str:
    masked = "mask" in result
    inputs = f"torch.randn({shape})" + (f", torch.rand({shape}) > 0.5" if masked else "")
    forward = f"    def forward(self, x{', mask' if masked else ''}):\n        return {result}\n"
    given = f"def get_inputs():\n    return [{inputs}]\n\n\ndef get_init_inputs():\n    return []\n"
    return f"{HEADER}\n\nclass Model(nn.Module):\n{forward}\n\n{given}"


def main() -> int:
    return run({name: model(*SCANS[name]) for name in sys.argv[2:] or SCANS}, Path(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
