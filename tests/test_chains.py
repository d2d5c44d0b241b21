"""Random models: every one traces, compiles and proves; a sample of the kernels compiles."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusegen.compiler import Compiled, compile_file
from fusegen.emit.kernels import render_sources
from fusegen.emit.render import environment
from fusegen.trace import load_model_file
from tests.chains import LARGE, SMALL, Chain, chain
from tests.emitted import simulated

CHAINS, BATCHES, SAMPLE = 300, 12, 4
NVCC = shutil.which("nvcc")


def compiled(model: Chain, folder: Path) -> Compiled:
    """``model``, compiled; a failure shows its file."""
    path = model.write(folder)
    try:
        return compile_file(path)
    except Exception as error:
        error.add_note(model.text())
        raise


@pytest.mark.parametrize("batch", range(BATCHES))
def test_seeds_compile_and_compute_the_same(batch: int, tmp_path: Path) -> None:
    """All of the generated module but its kernels: those are played by the interpreter."""
    for seed in range(batch, CHAINS, BATCHES):
        model = chain(random.Random(seed))
        module = simulated(compiled(model, tmp_path), f"generated_{seed}")
        loaded = load_model_file(tmp_path / "model.py")
        torch.manual_seed(seed)
        reference, inputs = loaded.model_class(), loaded.get_inputs()
        torch.manual_seed(seed)
        generated = module.ModelNew()
        results = [instance(*map(torch.clone, inputs)) for instance in (generated, reference)]
        torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3, msg=lambda text, m=model: f"{text}\n{m.text()}")


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
@given(rng=st.randoms(use_true_random=False))
def test_found_chains_compile_and_prove(rng: random.Random, tmp_path_factory: pytest.TempPathFactory) -> None:
    compiled(chain(rng), tmp_path_factory.mktemp("chain"))


def test_models_are_what_they_say() -> None:
    """The generator's own account of shapes is torch's, and values stay finite."""
    for seed in range(CHAINS):
        model = chain(random.Random(seed))
        assert model.text() == chain(random.Random(seed)).text()
        scope: dict[str, object] = {}
        exec(model.text(), scope)
        torch.manual_seed(0)
        with torch.no_grad():
            y = scope["Model"]()(*scope["get_inputs"]())  # type: ignore[operator]
        assert tuple(y.shape) == model.shape, model.text()
        assert y.isfinite().all(), model.text()


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
@pytest.mark.parametrize("batch", range(SAMPLE))
def test_kernels_of_a_sample_compile(batch: int, tmp_path: Path) -> None:
    """Ten programs in one file, each in a namespace: small models and large ones, which other kernels compute."""
    parts = []
    sizes, target = ((SMALL, "80"), (LARGE, "90a"))[batch % 2]
    for seed in range(1000 + batch, 1000 + 10 * SAMPLE, SAMPLE):
        sources = render_sources(compiled(chain(random.Random(seed), sizes), tmp_path).program, environment())
        if sources is not None:
            name, text = f"program{seed}", sources.cuda
            heads = [line for line in text.splitlines() if line.startswith("#include")]
            body = "\n".join(line for line in text.splitlines() if line not in heads)
            body = body.replace('extern "C" ', "")
            parts.append("\n".join([*heads, f"namespace {name} {{", body, "}"]))
    source = tmp_path / "kernels.cu"
    source.write_text("\n".join(parts))
    code = f"-gencode=arch=compute_{target},code=sm_{target}"
    command = [str(NVCC), "-std=c++17", "-O1", code, "-c", str(source), "-o", str(tmp_path / "kernels.o")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[:4000]
    assert "warning" not in run.stderr, run.stderr[:4000]
