"""Small products and those of few rows, side by side: ``python benchmarks/small_products.py OUT.json FORM``.

FORM: ``planned``, or a way to compute a product that is pinned (``in plain fp32``, ``in place``, ``prepared``). A few
operations follow each. What ``fusegen/costs/simt.py`` expects of times is fitted to these.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from product_sizes import pinned
from products import Case
from side_by_side import model_text, run

from fusegen.machines import DEFAULT_TARGET
from fusegen.tuning import Pins

LINEAR = """1x400x120 1x784x300 1x4096x1000 1x512x10 1x2048x512 1x4096x4096 1x9216x4096 2x1024x1000 4x65x33 4x4096x1000
8x512x1000 8x768x3072 8x4096x4096 16x512x512 16x1024x4096 16x4096x1000 32x512x512 32x1024x1000 64x256x1000 64x512x512
64x1024x128 128x128x512 128x512x512 128x1024x40 256x64x64 512x128x128 1024x32x64"""
"""Rows, inputs and features; the weight is stored as [features, inputs]."""
WEIGHTS = """1x512x10 1x4096x1000 4x1024x1024 8x2048x2048 16x1024x1024 64x512x512 128x128x512 256x64x64"""
"""The same, stored as [inputs, features]."""
BATCHES = """1x64x128x64 1x128x256x128 1x256x1024x64 2x16x16x32 2x64x64x200 2x256x256x256 3x8x7x5 4x32x64x48
4x256x64x256 8x64x64x64 8x128x64x128 12x128x64x128 16x64x32x64 16x64x128x64 16x128x32x64 16x128x64x128 32x1x64x512
64x16x64x16 64x32x32x32 64x64x64x64"""
"""Matrices, and the sizes of each."""
RESULT = "torch.sqrt({}.abs() + 0.5) * 3.0"


def models() -> dict[str, str]:
    """Model files by name."""
    found: dict[str, str] = {}
    for sizes in LINEAR.split():
        rows, inputs, features = map(int, sizes.split("x"))
        init, body = f"self.m = nn.Linear({inputs}, {features})", f"return {RESULT.format('self.m(x)')}"
        found[f"l{sizes}"] = model_text(init, body, (rows, inputs), "torch.rand")
    for sizes in WEIGHTS.split():
        rows, inputs, features = map(int, sizes.split("x"))
        init, body = (
            f"self.m = nn.Parameter(torch.randn({inputs}, {features}))",
            f"return {RESULT.format('(x @ self.m)')}",
        )
        found[f"m{sizes}"] = model_text(init, body, (rows, inputs), "torch.rand")
    for sizes in BATCHES.split():
        matrices, rows, inputs, features = map(int, sizes.split("x"))
        case = Case((matrices, rows, inputs), (matrices, inputs, features), RESULT.format("torch.bmm(a, b)"))
        found[f"b{sizes}"] = case.text
    return found


def tuned(text: str, form: str) -> str:
    """The tuning file that has the product of a model file computed in ``form``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.py"
        path.write_text(text)
        _, pins = pinned(path, {"by": "kernel", "rows": form})
    return Pins(target=DEFAULT_TARGET, choices=pins).model_dump_json()


if __name__ == "__main__":
    out, form = sys.argv[1:]
    texts = models()
    files = {} if form == "planned" else {name: tuned(text, form) for name, text in texts.items()}
    sys.exit(run(texts, Path(out), files))
