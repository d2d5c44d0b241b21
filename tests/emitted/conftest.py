"""Fixtures of the tests that run generated modules on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from fusegen.compiler import Compiled
from tests.emitted import bias_relu


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return bias_relu()


@pytest.fixture(autouse=True)
def _no_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUSEGEN_STRICT", raising=False)


@pytest.fixture
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
