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
from tests.chains import LARGE, SMALL, Chain, Sizes, chain
from tests.emitted import simulated

CHAINS, BATCHES, SAMPLE = 300, 12, 4
FRONT_END = range(340, 400)
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


def programs(seeds: range, sizes: Sizes, folder: Path) -> Path:
    """The kernels of these models in one file, each model's in a namespace."""
    parts = []
    for seed in seeds:
        sources = render_sources(compiled(chain(random.Random(seed), sizes), folder).program, environment())
        if sources is not None:
            text = sources.cuda
            heads = [line for line in text.splitlines() if line.startswith("#include")]
            body = "\n".join(line for line in text.splitlines() if line not in heads).replace('extern "C" ', "")
            parts.append("\n".join([*heads, f"namespace program{seed} {{", body, "}"]))
    source = folder / "kernels.cu"
    source.write_text("\n".join(parts))
    return source


def nvcc(source: Path, target: str, *options: str) -> None:
    """What nvcc says of ``source`` is neither an error nor a warning."""
    command = [str(NVCC), "-std=c++17", f"-gencode=arch=compute_{target},code=sm_{target}", *options, str(source)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[:4000]
    assert "warning" not in run.stderr, run.stderr[:4000]


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
@pytest.mark.parametrize("batch", range(SAMPLE))
def test_kernels_of_a_sample_compile(batch: int, tmp_path: Path) -> None:
    """Ten programs at a time: small models and large ones, which other kernels compute."""
    sizes, target = ((SMALL, "80"), (LARGE, "90a"))[batch % 2]
    source = programs(range(1000 + batch, 1000 + 10 * SAMPLE, SAMPLE), sizes, tmp_path)
    nvcc(source, target, "-O1", "-c", "-o", str(tmp_path / "kernels.o"))


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
@pytest.mark.parametrize("batch", range(BATCHES))
def test_kernels_of_large_models_pass_the_front_end(batch: int, tmp_path: Path) -> None:
    """Names and types in many more programs: which statements meet in a template is a matter of chance."""
    source = programs(range(FRONT_END.start + batch, FRONT_END.stop, BATCHES), LARGE, tmp_path)
    nvcc(source, "90a", "-fdevice-syntax-only", "-c", "-o", str(tmp_path / "kernels.o"))
