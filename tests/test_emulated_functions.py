"""Functions whose CUDA text is fusegen's own, run on the CPU for floats of all magnitudes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fusegen import interpret
from fusegen.compiler import compile_file
from tests import functions
from tests.emitted import bodies
from tests.emulated import Kernel
from tests.models import write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")]


def test_functions_of_all_magnitudes(tmp_path: Path) -> None:
    path = write(tmp_path, functions.BODY, inputs=functions.INPUTS, arguments=functions.ARGUMENTS)
    compiled = compile_file(path)
    for plan, body in zip(compiled.program.kernels, bodies(compiled.program), strict=True):
        kernel = Kernel(compiled, plan, tmp_path)
        for seed in range(4):
            given = functions.operands(seed)
            exact = interpret.run(body, [value.double() for value in given], {})
            functions.agree(list(kernel(given)), list(exact))
