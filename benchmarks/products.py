"""Products of two inputs beside eager and torch.compile: ``python benchmarks/products.py OUT.json [NAME ...]``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from side_by_side import HEADER, run


@dataclass(frozen=True)
class Case:
    a: tuple[int, ...]
    b: tuple[int, ...]
    result: str = "torch.matmul(a, b)"
    dtype: str = "float32"

    @property
    def text(self) -> str:
        """The model file."""
        a, b = (f"torch.rand({shape}, dtype=torch.{self.dtype})" for shape in (self.a, self.b))
        return (
            f"{HEADER}\n\nclass Model(nn.Module):\n    def forward(self, a, b):\n        return {self.result}\n\n\n"
            f"def get_inputs():\n    return [{a}, {b}]\n\n\ndef get_init_inputs():\n    return []\n"
        )


CASES = {
    "square": Case((4096, 4096), (4096, 4096)),
    "oblong": Case((2048, 8192), (8192, 4096)),
    "left_transposed": Case((8192, 2048), (8192, 4096), "torch.matmul(a.T, b)"),
    "right_transposed": Case((2048, 8192), (4096, 8192), "torch.matmul(a, b.T)"),
    "both_transposed": Case((8192, 2048), (4096, 8192), "torch.matmul(a.T, b.T)"),
    "deep": Case((1024, 131072), (131072, 1024)),
    "shallow": Case((32768, 64), (64, 32768)),
    "wide": Case((8192, 256), (256, 8192)),
    "irregular": Case((4001, 2999), (2999, 3583)),
    "tall": Case((32768, 1024), (1024, 128)),
    "batch": Case((128, 512, 1024), (128, 1024, 2048), "torch.bmm(a, b)"),
    "shared": Case((16, 1024, 2048), (2048, 768)),
    "einsum": Case((4, 64, 128, 256), (256, 768), "torch.einsum('bijl,lk->bijk', a, b)"),
    "batch_softmax": Case((64, 1024, 1024), (64, 1024, 1024), "torch.softmax(torch.bmm(a, b) * 0.03, -1)"),
    "heads": Case((12, 8, 512, 64), (12, 8, 512, 64), "torch.matmul(a, b.transpose(-2, -1)) * 0.125"),
    "heads_softmax": Case((64, 16, 2048, 64), (64, 16, 128, 64), "torch.softmax(a @ b.mT * 0.125, -1)"),
    "gelu": Case((4096, 4096), (4096, 4096), "F.gelu(a @ b) * 2"),
}


def main() -> int:
    names = sys.argv[2:] or CASES
    return run({name: CASES[name].text for name in names}, Path(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
