"""The reference models themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusegen.trace import load_model_file
from tests.variants import ROOT, SPECS, small, variant


@pytest.mark.parametrize("spec", SPECS)
def test_runs_and_is_described(spec: str, tmp_path: Path) -> None:
    path = small(spec, tmp_path)
    loaded = load_model_file(path)
    result = loaded.model_class(*loaded.get_init_inputs())(*loaded.get_inputs())
    results = result if isinstance(result, tuple) else (result,)
    assert all(torch.isfinite(output).all() for output in results)
    assert results[0].shape[0] == 2 or "batch_size" not in path.read_text(encoding="utf-8")
    assert f"`{spec}`" in (ROOT / "specs" / "README.md").read_text()


def test_readme_names_no_spec_that_is_gone() -> None:
    rows = [line for line in (ROOT / "specs" / "README.md").read_text().splitlines() if line.startswith("| `")]
    assert sorted(row.split("`")[1] for row in rows) == SPECS


def test_variant_refuses_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        variant(SPECS[0], tmp_path, no_such_size=3)


def test_variant_overrides_before_use(tmp_path: Path) -> None:
    path = variant("conv_transpose_mean_logsumexp", tmp_path, batch_size=2, height=5, width=7, out_channels=6)
    loaded = load_model_file(path)
    assert loaded.get_inputs()[0].shape == (2, 64, 5, 7)
    assert loaded.get_init_inputs() == [64, 6, 3, (6, 1, 1)]
