"""The bandwidth probe compiles, without spills."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fusegen.doctor import find_nvcc
from fusegen.verdict.probes import SOURCE


@pytest.mark.skipif(find_nvcc() is None or shutil.which("c++") is None, reason="needs nvcc and a host compiler")
def test_the_probe_compiles_without_spills(tmp_path: Path) -> None:
    nvcc = find_nvcc()
    assert nvcc is not None
    for arch in ("80", "90"):
        target = f"arch=compute_{arch},code=sm_{arch}"
        command = [nvcc, "-O3", "-std=c++17", "-Xptxas", "-v", "-gencode", target, "-c", str(SOURCE)]
        done = subprocess.run([*command, "-o", str(tmp_path / "p.o")], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "0 bytes spill stores, 0 bytes spill loads" in done.stderr
        assert "warning" not in done.stderr
