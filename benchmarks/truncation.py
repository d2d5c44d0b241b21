"""What truncation takes from products on the tensor cores: ``python benchmarks/truncation.py OUT.json``.

Errors against float64, projected on the results: sum((y - r) r) / sum(r r), in units of 2^-23. It is what a mean over
many results of one sign keeps. Products in full fp32, of factors of one sign and of either, by how many are added up
before a sum leaves the tensor cores.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

from side_by_side import HEADER, ROOT

sys.path.insert(0, str(ROOT))

import torch
from variants import of_its_own

from fusegen.compiler import compile_file
from fusegen.doctor import use_environment_tools
from fusegen.verdict.subject import model_subject

PREPARED, IN_PLACE = r"STEPS = (?:WIDTH > 192 \? 2 : 4|1);", r"PROMOTED = PRECISE \? \d+"
X, W = (64, 8, 130, 130), (128, 8, 5, 5)
FORWARDS = {
    "product": ("x @ self.w", (1024, 1024), (1024, 4096)),
    "product of long rows": ("x @ self.w", (1024, 8192), (8192, 2048)),
    "product of few rows": ("x @ self.w", (64, 1024), (1024, 1024)),
    "small convolution": ("F.conv2d(x, self.w)", (16, 8, 66, 66), (64, 8, 3, 3)),
    "convolution": ("F.conv2d(x, self.w)", X, W),
    "convolution, averaged": ("(z := F.conv2d(x, self.w)), (3 - z).square().mean((2, 3))", X, W),
    "data by data, averaged": ("(z := x @ self.w.exp() @ x.mT), z.square().mean(1)", (1024, 512), (512, 512)),
}
STEPS = {"product": PREPARED, "product of long rows": PREPARED, "product of few rows": IN_PLACE}


def model(draw: str, forward: str, x: tuple[int, ...], w: tuple[int, ...]) -> str:
    init = f"    def __init__(self):\n        super().__init__()\n        self.w = nn.Parameter(torch.{draw}({w}))\n"
    body = f"class Model(nn.Module):\n{init}\n    def forward(self, x):\n        return {forward}\n"
    inputs = f"def get_inputs():\n    return [torch.{draw}({x})]\n"
    return f"{HEADER}\n\n{body}\n\n{inputs}\n\ndef get_init_inputs():\n    return []\n"


def first(result: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return result[0] if isinstance(result, tuple) else result


def bias(y: torch.Tensor, r: torch.Tensor) -> float:
    return round(float(((y - r) * r).sum() / r.square().sum()) * 2**23, 3)


def texts(source: str, name: str) -> dict[str, str]:
    """The kernel as it is and, of a product, with sums that leave the tensor cores after 1, 2 and 4 steps of 16."""
    found = {"as compiled": source}
    for steps in (1, 2, 4) if name in STEPS else ():
        value = f"PROMOTED = PRECISE ? {steps}" if STEPS[name] == IN_PLACE else f"STEPS = {steps};"
        text, count = re.subn(STEPS[name], value, source)
        if not count:
            raise SystemExit(f"{name} is another kernel's")
        found[str(steps)] = of_its_own(text, str(steps))
    return found


@torch.no_grad()
def measure(name: str, path: Path) -> dict[str, float]:
    biases: dict[str, float] = {}
    for label, text in texts(compile_file(path).source, name).items():
        generated = path.with_name(f"generated_{label[:2].strip()}_{path.name}")
        generated.write_text(text)
        subject = model_subject(path, generated)
        inputs = tuple(x.cuda() for x in subject.inputs())
        reference = subject.build(subject.reference, "cuda")
        eager = first(reference(*inputs)).double()
        exact = first(reference.double()(*(x.double() for x in inputs)))
        biases["eager"] = bias(eager, exact)
        biases[label] = bias(first(subject.build(subject.generated, "cuda")(*inputs)).double(), exact)
    return biases


def main() -> None:
    use_environment_tools()
    torch.backends.cudnn.allow_tf32 = False
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, sizes in FORWARDS.items():
            for draw in ("rand", "randn"):
                path = Path(folder) / f"{re.sub(r'[ ,]+', '_', name)}_{draw}.py"
                path.write_text(model(draw, *sizes))
                found[f"{name}, {draw}"] = measure(name, path)
                print(name, draw, found[f"{name}, {draw}"], flush=True)
    device = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    Path(sys.argv[1]).write_text(json.dumps({**device, "bias in units of 2^-23": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
